"""The doctor, on environments that are well and on some that are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from puffertank import ROOT, doctor, launcher
from puffertank.processes import Processes
from puffertank.report import Table, Verdict, show_failures
from tests.processes import await_end

PACK = """
import gymnasium, numpy as np
{head}

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        {step}
        return np.zeros(2, np.float32), 0.0, False, False, {{}}

def make(size=1):
    return Env()
"""
HANG = """import subprocess, sys, time; \
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]); \
print("child", child.pid, flush=True); time.sleep(1000)"""
PACKS = {
    "well": {},
    "sized": {"config": "[doctor]\nsteps = 7\ncases = [{}, {size = 3}]\n"},
    "unimportable": {"head": "import no_such_package"},
    "needy": {
        "head": "import no_such_package",
        "config": '[package]\nrequires = ["no-such-package>=1"]\n',
    },
    "crashing": {"step": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"},
    "leaving": {"step": "import os, sys; print('farewell', flush=True); os._exit(7)"},
    "raising": {"step": "print('a last word'); raise ValueError('the cat is out')"},
    "littering": {"step": "open('litter.txt', 'w').close()"},
    "hanging": {"step": HANG},
    "pinned": {"config": '[package]\nrequires = ["numpy>=1"]\n'},
}


@pytest.fixture(scope="module")
def packs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    for name, parts in PACKS.items():
        (folder / name).mkdir()
        text = PACK.format(head=parts.get("head", ""), step=parts.get("step", "pass"))
        (folder / name / "__init__.py").write_text(text)
        (folder / name / "config.toml").write_text(parts.get("config", ""))
    return folder


@pytest.fixture
def here(monkeypatch):
    """Outside the tank, with the interpreter of these tests."""
    monkeypatch.delenv("PUFFERTANK", raising=False)


def command(*words) -> list[str]:
    return ["doctor", "--local", "--python", sys.executable, *map(str, words)]


@pytest.fixture(scope="module")
def examined(packs) -> tuple[int, dict]:
    """Exit code and report of one run over everything but what hangs."""
    names = [packs / name for name in PACKS if name not in ("hanging", "pinned")]
    words = [sys.executable, "-m", "puffertank", *command("--json", "squared", *names)]
    environment = {k: v for k, v in os.environ.items() if k != "PUFFERTANK"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def rows(examined) -> dict[str, dict]:
    """The last case of each environment."""
    return {row["name"]: row for row in examined[1]["environments"]}


def test_what_is_well_is_stepped_in_every_case_of_its_config(examined):
    rows = [row for row in examined[1]["environments"] if row["name"] in "squared well sized"]
    assert [(row["name"], row["case"], row["steps"]) for row in rows] == [
        ("squared", {}, 200),
        ("well", {}, 200),
        ("sized", {}, 7),
        ("sized", {"size": 3}, 7),
    ]
    assert all(row["verdict"] == "ok" and row["steps_per_s"] > 0 for row in rows)


def test_what_fails_is_named_and_decides_the_exit_code(examined):
    code, report = examined
    assert code == 1
    assert report["failed"] == ["unimportable", "needy", "crashing", "leaving", "raising"]


def test_what_fails_tells_how_it_ended_and_what_it_said(rows):
    assert "No module named 'no_such_package'" in rows["unimportable"]["message"]
    assert rows["crashing"]["verdict"] == "crashed with SIGSEGV"
    assert any("Segmentation fault" in line for line in rows["crashing"]["output"])
    assert rows["leaving"]["verdict"] == "ended with exit code 7"
    assert rows["leaving"]["output"] == ["farewell"]
    assert rows["raising"]["verdict"] == "failed"
    assert rows["raising"]["message"].startswith("ValueError: the cat is out")
    assert "a last word" in rows["raising"]["output"]


def test_files_left_in_the_working_folder_are_told(rows):
    assert rows["littering"]["left_behind"] == ["litter.txt"]
    assert rows["well"]["left_behind"] == []


def test_the_machine_and_torch_are_told(examined):
    machine, torch = examined[1]["machine"], examined[1]["torch"]
    assert machine["cores"] >= 1 and machine["memory_bytes"] > 0
    assert torch["ok"]["version"] and isinstance(torch["ok"]["available"], bool)


def test_what_hangs_is_killed_with_all_that_it_started(packs):
    # Under load it may be killed before it has begun, so it says when it has.
    timeout = 5
    while True:
        answer = Processes(sys.executable).ask(
            "case", str(packs / "hanging"), "{}", "1", timeout=timeout
        )
        assert answer["end"] == f"timed out after {timeout} s" and "ok" not in answer
        if answer["output"]:
            break
        timeout *= 2
    child = int(answer["output"][-1].removeprefix("child "))
    await_end([child])


def test_the_table_tells_each_verdict_and_the_failures_what_was_said(capsys):
    well = Verdict("well", "well", {"size": 3}, steps_per_s=12345.6, start_s=0.25)
    bad = Verdict("bad", "bad", {}, verdict="crashed with SIGSEGV", failed=True)
    bad.message, bad.output = "it crashed with SIGSEGV", ["a last word"]
    table = Table([well, bad])
    table.add(well)
    table.add(bad)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["well", "size=3", "0.2", "s", "12,346", "ok"]
    assert lines[2] == ["bad", "crashed", "with", "SIGSEGV"]
    assert show_failures([well, bad], {"torch": "is gone"}).splitlines() == [
        "",
        "torch: is gone",
        "bad: it crashed with SIGSEGV",
        "    a last word",
    ]


def test_an_unknown_name_is_answered_with_near_ones(capsys, here):
    assert launcher.main(command("squarred")) == 1
    assert "did you mean squared" in capsys.readouterr().err


# ---- versions and pins ----


class Answers:
    """Probes that need no process: they answer what they are told to."""

    python = "python"

    def __init__(self, version: str | None, case: dict):
        self._answers = {"versions": {"ok": {"nle": version}}, "case": case}

    def ask(self, verb, *words, **options) -> dict:
        return {"output": [], "left_behind": []} | self._answers[verb]


WELL = {"ok": {"agents": 1, "start_s": 0.1, "steps_per_s": 10.0}}
LACKING = {"error": "install it with: pip install nle", "missing": True}


@pytest.fixture
def judge(monkeypatch, tmp_path):
    """The verdict on an environment that needs nle, where the lock pins nle 1.3.0."""
    (tmp_path / "tank.txt").write_text("nle==1.3.0 \\\n    --hash=sha256:00\n")
    monkeypatch.setattr(doctor, "LOCKS", tmp_path)
    entry = {"name": "x", "source": "x", "venv": None, "cases": [{}], "steps": 1}

    def judge(version, case, *, tank, names=()):
        if tank:
            monkeypatch.setenv("PUFFERTANK", tank)
        else:
            monkeypatch.delenv("PUFFERTANK", raising=False)
        args = launcher.make_parser().parse_args(command(*names))
        answers = Answers(version, case)
        made = list(doctor.make_cases([entry | {"requires": ["nle>=1.3"]}], args, answers))
        verdict = doctor.step(made[0], args, answers)
        return verdict.verdict, verdict.failed, verdict.message

    return judge


def test_the_pinned_version_is_well(judge):
    assert judge("1.3.0", WELL, tank="cpu") == ("ok", False, "")


@pytest.mark.parametrize("tank", ["cpu", None])
def test_another_version_than_the_pin_fails_in_the_tank_and_is_only_said_elsewhere(judge, tank):
    message = "nle 1.2.0, the pin is 1.3.0"
    assert judge("1.2.0", WELL, tank=tank) == ("other version", tank is not None, message)


@pytest.mark.parametrize("tank, names, failed", [
    ("cpu", [], True), (None, ["x"], True), (None, [], False),
])  # fmt: skip
def test_what_is_missing_fails_in_the_tank_or_when_it_was_asked_for(judge, tank, names, failed):
    expected = ("not installed", failed, "install it with: pip install nle")
    assert judge(None, LACKING, tank=tank, names=names) == expected


def test_what_lacks_its_interpreter_is_not_installed(judge):
    error = {"error": "there is no /opt/venvs/x/bin/python"}
    assert judge(None, error, tank=None) == ("not installed", False, error["error"])
    assert judge("1.3.0", error, tank=None) == ("failed", True, error["error"])


@pytest.mark.parametrize("installed, pin, same", [
    ("2.1.1+puffer", "2.1.1", True), ("2.13.0", "2.13.0+cpu", True), ("1.0", "1.0.0", False),
    ("2.4.1+cpu", "2.4.1+cu121", False), (None, "1.0", False),
])  # fmt: skip
def test_versions_are_compared_without_one_sided_local_suffixes(installed, pin, same):
    assert doctor._same(installed, pin) is same


# ---- torch ----


def facts(*, tank: str, gpus=(), **torch) -> dict:
    answer = {"version": "2.4.1", "cuda": "12.1", "available": False, "nvrtc": {"ok": "12.1"}}
    return {"tank": tank, "machine": {"gpus": list(gpus)}, "torch": {"ok": answer | torch}}


def test_the_cuda_flavour_needs_torch_for_its_cuda_but_no_gpu():
    assert doctor.judge_torch(facts(tank="cuda")) == {}
    wrong = doctor.judge_torch(facts(tank="cuda", cuda=None, version="2.4.1+cpu"))
    assert wrong["torch"] == "torch 2.4.1+cpu is built for the CPU alone, not CUDA 12.1"
    wrong = doctor.judge_torch(facts(tank="cuda", cuda="13.0"))
    assert wrong["torch"] == "torch 2.4.1 is built for CUDA 13.0, not CUDA 12.1"
    assert doctor.judge_torch(facts(tank="cpu", cuda=None)) == {}


def test_a_gpu_that_torch_cannot_use_is_a_fault():
    faults = doctor.judge_torch(facts(tank="cuda", gpus=["NVIDIA H200"]))
    assert faults == {"gpu": "the driver shows NVIDIA H200, but torch cannot use it"}
    broken = {"own_kernel": {"error": "RuntimeError: cuLaunchKernel answered 999"}}
    faults = doctor.judge_torch(facts(tank="cuda", gpus=["x"], available=True, **broken))
    assert faults == {"own kernel": "RuntimeError: cuLaunchKernel answered 999"}


def test_a_compiler_that_does_not_compile_is_a_fault_of_the_cuda_flavour():
    assert doctor.judge_torch(facts(tank="cuda", nvrtc={"error": "gone"})) == {"nvrtc": "gone"}


def test_torch_that_cannot_be_imported_is_a_fault():
    answer = {"error": "ImportError: libcudart", "output": ["line"], "left_behind": []}
    faults = doctor.judge_torch({"tank": "cpu", "machine": {}, "torch": answer})
    assert faults == {"torch": "ImportError: libcudart\nline"}


# ---- the configs of what is registered ----


@pytest.fixture(scope="module")
def listed() -> list[dict]:
    return Processes(sys.executable).ask("list", timeout=doctor.TIMEOUT_S)["ok"]


def test_every_config_tells_the_doctor_what_it_understands(listed):
    assert listed
    for entry in listed:
        assert entry["cases"] and all(isinstance(case, dict) for case in entry["cases"])
        assert isinstance(entry["steps"], int) and entry["steps"] > 0


def test_every_package_of_an_environment_is_pinned(listed):
    names = {
        (entry["venv"], doctor.normalize(doctor._distribution(requirement)))
        for entry in listed
        for requirement in entry["requires"]
    }
    assert [(venv, name) for venv, name in names if name not in doctor.read_pins(venv)] == []


def test_the_standard_library_is_enough(tmp_path):
    bare = [sys.executable, "-S", "-m", "puffertank", "doctor", "--help"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(bare, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
