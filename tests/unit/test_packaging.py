"""The wheel and the source archive hold what the library needs, seen from another folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import pufferlib
from pufferlib import registry

HOOK = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "runs", "*.so", "__pycache__", "*.egg-info"
)

PROBE = """
import json, pufferlib.vector, pufferlib.registry as registry
with pufferlib.vector.make("squared", num_envs=2, seed=1) as vecenv:
    observations, _ = vecenv.reset()
print(json.dumps({
    "file": pufferlib.__file__,
    "version": pufferlib.__version__,
    "envs": registry.names(),
    "shape": observations.shape,
}))
"""


def run(*command, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(root, tmp_path_factory) -> dict[str, Path]:
    """The source archive of this tree, and the wheel built from that archive alone."""
    folder = tmp_path_factory.mktemp("packaging")
    shutil.copytree(root, folder / "tree", ignore=LEFT_OUT)
    name = run(sys.executable, "-c", HOOK, "build_sdist", str(folder), cwd=folder / "tree")
    archive = folder / name.split()[-1]
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    name = run(sys.executable, "-c", HOOK, "build_wheel", str(folder), cwd=source)
    return {"archive": archive, "wheel": folder / name.split()[-1]}


def test_the_version_is_the_one_in_pyproject(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert pufferlib.__version__ == project["version"]


PACKAGED = {  # nmmo's own pins contradict ours; an environment with a venv is not beside us.
    entry.name: package["requires"]
    for entry in map(registry.find, registry.names())
    if entry.config_path.is_file()
    and (package := tomllib.loads(entry.config_path.read_text()).get("package"))
    and "venv" not in package
    and entry.name != "nmmo"
}


@pytest.mark.parametrize("name", PACKAGED)
def test_what_an_environment_needs_is_an_extra_of_its_name(root, name):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"][name] == PACKAGED[name]


def test_every_extra_names_a_range_and_no_exact_version(root):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            assert "==" not in requirement, f"{extra}: {requirement}"


@pytest.mark.slow
def test_the_wheel_works_from_another_folder(built, tmp_path):
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    site = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
        ).strip()
    )
    # The running interpreter's dependencies; a path file does not pull in its editable install.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", str(built["wheel"]), cwd=tmp_path)
    found = json.loads(run(python, "-c", PROBE, cwd=tmp_path))
    assert Path(found["file"]).is_relative_to(site)
    assert found["envs"] == registry.names()
    assert found["version"] == pufferlib.__version__
    assert found["shape"][0] == 2
    assert "squared" in run(tmp_path / "venv/bin/puffer", "envs", cwd=tmp_path)


@pytest.mark.slow
def test_the_wheel_claims_no_name_but_its_own(built):
    names = {name.split("/")[0] for name in zipfile.ZipFile(built["wheel"]).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"pufferlib"}


@pytest.mark.slow
def test_the_wheel_carries_every_module(root, built):
    names = set(zipfile.ZipFile(built["wheel"]).namelist())
    modules = {str(p.relative_to(root)) for p in (root / "pufferlib").rglob("*.py")}
    modules |= {f"pufferlib/{p.relative_to(root)}" for p in (root / "envs").rglob("*.py")}
    assert modules - names == set()


@pytest.mark.slow
def test_the_wheel_carries_the_sources_that_are_compiled_on_demand(built):
    names = set(zipfile.ZipFile(built["wheel"]).namelist())
    assert {f"pufferlib/native/{name}" for name in ("library.c", "library.h", "puffer.h")} <= names
    for name in registry.names():
        if registry.find(name).is_native:
            assert f"pufferlib/envs/{name}/{name}.h" in names
    assert not [name for name in names if name.endswith(("core.c", "exchange.c", "packing.c"))]
