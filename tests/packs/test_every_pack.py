"""Every environment on somebody else's package: quiet, tidy, repeatable, strict.

Each runs in a process of its own, since not all of them bear one another's company.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest

from pufferlib import registry
from pufferlib.exceptions import EnvironmentSetupError

FOUND = [registry.find(name) for name in registry.names()]
ENTRIES = [entry for entry in FOUND if not entry.is_native and entry.config_path.is_file()]

WITHOUT_CHANCE = {"magent"}  # Its armies stand in the same places every time.

PLAY = """
import hashlib, json, pathlib, sys
from pufferlib import vector

name, case, seed, report = sys.argv[1:]
digest = hashlib.sha256()
with vector.make(name, env_kwargs=json.loads(case), backend="Serial") as vecenv:
    digest.update(vecenv.reset(seed=int(seed))[0].tobytes())
    vecenv.action_space.seed(1)
    for _ in range(30):
        observations, rewards, *_ = vecenv.step(vecenv.action_space.sample())
        digest.update(observations.tobytes() + rewards.tobytes())
pathlib.Path(report).write_text(digest.hexdigest())
"""


def play(entry, tmp_path, seed, **more):
    """The process that played, and a digest of what it saw."""
    settings = tomllib.loads(entry.config_path.read_text())
    if "venv" in settings.get("package", {}):
        pytest.skip("it lives in an interpreter of its own")
    case = settings.get("doctor", {}).get("cases", [{}])[0] | more
    report, folder = tmp_path / "report", tmp_path / "work"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", PLAY, entry.name, json.dumps(case), str(seed), str(report)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if EnvironmentSetupError.__name__ in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return done, report.read_text() if report.is_file() else ""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_it_is_repeatable_quiet_and_leaves_nothing_in_the_working_folder(entry, tmp_path):
    done, seen = play(entry, tmp_path, 7)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / "work").iterdir()) == []
    assert play(entry, tmp_path, 7)[1] == seen
    if entry.name not in WITHOUT_CHANCE:
        assert play(entry, tmp_path, 8)[1] != seen


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_unknown_parameter_is_refused_by_name(entry, tmp_path):
    done, _ = play(entry, tmp_path, 7, no_such_parameter=1)
    assert done.returncode != 0 and "no_such_parameter" in done.stderr.splitlines()[-1]
