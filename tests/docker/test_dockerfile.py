"""The Dockerfile: what it names exists, what it promises stands in it, and both flavours fit."""

from __future__ import annotations

import re
import subprocess

import pytest

from puffertank import ROOT, launcher, sources

FOLDER = ROOT / "docker"
# Hosts of registries and indices. The machine's own configuration decides where packages come
# from, so none is spelled out; an image's name, such as the base's, has no host.
HOSTS = re.compile(
    r"pypi\.(org|python)|pythonhosted|debian\.org|download\.pytorch|docker\.io/|ghcr\.io|quay\.io|"
    r"nvcr\.io|npmjs|github\.com|githubusercontent|conda"
)
LABELS = ("title", "description", "version", "licenses", "revision")


@pytest.fixture(scope="module")
def dockerfile() -> str:
    """The Dockerfile with its continued lines joined and its comments removed."""
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    return text.replace("\\\n", " ")


def instructions(dockerfile: str, name: str) -> list[str]:
    return re.findall(rf"^{name}\s+(.*)$", dockerfile, re.MULTILINE)


def test_every_file_that_it_names_exists(dockerfile):
    named = set(re.findall(r"\bdocker/[\w./-]*\w", dockerfile))
    for instruction in instructions(dockerfile, "COPY"):
        *files, _ = [word for word in instruction.split() if not word.startswith("--")]
        if "--from=" not in instruction:
            named |= {file for file in files if "*" not in file and "[" not in file}
    # Folders that the launcher fills need not be there.
    optional = ("docker/certs", "docker/wheels")
    named = {name.rstrip("/") for name in named if not name.startswith(optional)}
    assert named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


BASE = f"${{BASE_IMAGE:-{launcher.BASE_IMAGE}}}"


def test_it_is_told_its_base_and_flavour(dockerfile):
    arguments = [argument.split("=", 1) for argument in instructions(dockerfile, "ARG")]
    # The dev container hands on an empty name where the editor was told of no base.
    assert ["BASE_IMAGE"] in arguments and f"{BASE} AS base" in instructions(dockerfile, "FROM")
    assert any(
        name == "FLAVOR" and value[0] in launcher.FLAVORS for name, *value in arguments if value
    )


def test_every_stage_comes_from_the_base_or_from_another_stage(dockerfile):
    stages = {BASE}
    for instruction in instructions(dockerfile, "FROM"):
        base, *name = re.split(r"\s+[Aa][Ss]\s+", instruction.strip())
        assert base in stages, f"{base} is neither the base nor an earlier stage"
        stages |= set(name)


def test_it_says_what_it_is(dockerfile):
    labels = " ".join(instructions(dockerfile, "LABEL"))
    for name in LABELS:
        assert f"org.opencontainers.image.{name}=" in labels


def test_it_tells_the_nvidia_runtime_what_it_needs(dockerfile):
    settings = " ".join(instructions(dockerfile, "ENV"))
    assert "NVIDIA_VISIBLE_DEVICES=" in settings and "NVIDIA_DRIVER_CAPABILITIES=" in settings


def test_it_says_inside_which_tank_it_is(dockerfile):
    settings = " ".join(instructions(dockerfile, "ENV"))
    assert re.search(r"PUFFERTANK=\$\{?FLAVOR\}?", settings)
    assert "VENV=/opt/tank" in settings and "PUFFER_VENVS=/opt/venvs" in settings


def test_its_health_is_that_of_the_quick_doctor(dockerfile):
    check = instructions(dockerfile, "HEALTHCHECK")
    assert len(check) == 1 and "doctor" in check[0] and "--quick" in check[0]


def test_its_build_fails_where_the_doctor_fails(dockerfile):
    checks = [run for run in instructions(dockerfile, "RUN") if "doctor" in run]
    assert checks and not any("||" in run.partition("doctor")[2] for run in checks)


@pytest.mark.parametrize("folder", ["docker", ".devcontainer", "puffertank"])
def test_no_host_of_a_registry_is_named(folder):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.endswith((".png", ".whl")):
            assert not HOSTS.search((ROOT / name).read_text()), name


@pytest.mark.parametrize("lock", sorted(FOLDER.glob("locks/*.txt")), ids=lambda path: path.name)
def test_every_pin_has_one_version_and_hashes(lock):
    text = lock.read_text()
    names = [sources.normalize(name) for name, _ in sources.PIN.findall(text)]
    assert names and len(names) == len(set(names))
    if lock.name != "torch-cpu.txt":  # Its one file differs from machine to machine.
        for requirement in re.split(r"\n(?=[A-Za-z])", text.strip()):
            assert re.match(r"#", requirement) or "--hash=sha256:" in requirement, requirement


def test_the_cuda_flavour_is_torch_2_4_with_cuda_12_1():
    pins = dict(sources.PIN.findall((FOLDER / "locks/torch-tank-cuda.txt").read_text()))
    assert pins["torch"] == "2.4.1"
    assert pins["nvidia-cuda-runtime-cu12"].startswith("12.1.")


def test_what_a_machine_adds_stays_out_of_git():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"docker/certs/", "docker/wheels/"} <= set(ignored)
