"""Importing a module of the library changes nothing in the process."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import pufferlib

PROBE = """
import importlib, json, os, signal, sys, threading, warnings

def state():
    torch = sys.modules.get("torch")
    return {
        "signal handlers": [repr(signal.getsignal(s)) for s in signal.valid_signals()],
        "warning filters": repr(warnings.filters),
        "environment variables": dict(os.environ),
        "files": sorted(os.listdir(".")),
        "threads of ours": [t.name for t in threading.enumerate()],
        "torch threads": torch and torch.get_num_threads(),
        "seeds of torch": torch and torch.initial_seed(),
        "random": __import__("random").getstate()[1][:4],
        "file mask": os.umask(os.umask(0)),
    }

# Packages that we use are loaded first: what they do to the process is theirs.
for package in sys.argv[2].split():
    importlib.import_module(package)
before = state()
importlib.import_module(sys.argv[1])
after = state()
print(json.dumps({
    "changed": [key for key in before if before[key] != after[key]],
    "torch": "torch" in sys.modules,
}))
"""


def module_names() -> list[str]:
    found = [m.name for m in pkgutil.walk_packages(pufferlib.__path__, "pufferlib.")]
    skipped = ("pufferlib.envs.", "pufferlib.__main__")
    return ["pufferlib", *(name for name in found if not name.startswith(skipped))]


def probe(name: str, packages: str, folder: Path) -> dict:
    command = [sys.executable, "-B", "-c", PROBE, name, packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_importing_everything_changes_nothing_in_the_process(tmp_path):
    (tmp_path / "every.py").write_text("".join(f"import {name}\n" for name in module_names()))
    assert probe("every", "numpy gymnasium torch rich.console", tmp_path)["changed"] == []


@pytest.mark.parametrize(
    "name",
    [
        "pufferlib",
        "pufferlib.vector",
        "pufferlib.registry",
        "pufferlib.config",
        "pufferlib.emulation",
    ],
)
def test_the_floors_below_the_policies_do_not_load_torch(name, tmp_path):
    assert probe(name, "numpy gymnasium", tmp_path) == {"changed": [], "torch": False}


def test_a_planted_change_is_seen(tmp_path):
    (tmp_path / "guilty.py").write_text(
        "import os, signal, warnings\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "warnings.simplefilter('ignore')\n"
        "open('left_behind', 'w').close()\n"
    )
    changed = probe("guilty", "numpy", tmp_path)["changed"]
    assert changed == ["signal handlers", "warning filters", "files"]
