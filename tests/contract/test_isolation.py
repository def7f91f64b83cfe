"""Environments that live under an interpreter of their own, and other lines of NumPy there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.cli import main
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

PACK = '''
"""Cart and pole that says which interpreter it lives under."""
import sys
import gymnasium

def make(length=20, render_mode=None):
    import hermit
    assert hermit.ALONE
    env = gymnasium.make("CartPole-v1", max_episode_steps=length, render_mode=render_mode)
    return Telling(env)

class Telling(gymnasium.Wrapper):
    def step(self, action):
        return *super().step(action)[:4], {"prefix": sys.prefix}

    def render(self):
        return f"a picture by {sys.prefix}"
'''


@pytest.fixture(scope="module")
def venvs(tmp_path_factory):
    """A folder of venvs, in which "hermitage" has this one's packages and one more."""
    folder = tmp_path_factory.mktemp("venvs")
    venv = folder / "hermitage"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(str(Path(np.__file__).parents[1]))
    (site / "hermit.py").write_text("ALONE = True\n")
    return folder


@pytest.fixture
def pack(tmp_path, venvs, monkeypatch):
    """The folder of a pack whose package is in that venv only."""
    monkeypatch.setenv("PUFFER_VENVS", str(venvs))
    folder = tmp_path / "hermit_pack"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACK)
    (folder / "config.toml").write_text(
        '[package]\nrequires = ["hermit==1", "gymnasium>=1"]\nvenv = "hermitage"\n'
        "[vec]\nnum_envs = 4\n[train]\ntotal_timesteps = 512\nhorizon = 64\nminibatch_size = 64\n"
    )
    return folder


def test_the_environments_live_there_whatever_the_sizes_are(pack, venvs):
    for num_envs in (1, 4):
        with vector.make(pack, num_envs=num_envs) as vecenv:
            python = venvs / "hermitage" / "bin" / "python"
            assert isinstance(vecenv, vector.Multiprocessing)
            assert vecenv.choice == f"Multiprocessing: the environments need {python}"
            vecenv.reset(3)
            infos = vecenv.step(vecenv.action_space.sample())[4]
            assert {info["prefix"] for info in infos} == {str(venvs / "hermitage")}
            assert len(infos) == num_envs


def test_serial_equals_the_workers(pack):
    with (
        vector.make(pack, num_envs=2, backend="Serial") as serial,
        vector.make(pack, num_envs=2) as workers,
    ):
        np.testing.assert_array_equal(serial.reset(5)[0], workers.reset(5)[0])
        for action in np.random.default_rng(0).integers(2, size=(60, 2)):
            one, other = serial.step(action), workers.step(action)
            for mine, theirs in zip(one[:4], other[:4], strict=True):
                np.testing.assert_array_equal(mine, theirs)
            assert one[4] == other[4]
            ended = one[2] | one[3]
            finals = serial.final_observations[ended], workers.final_observations[ended]
            np.testing.assert_array_equal(*finals)
        episodes = serial.episodes()
        assert episodes == workers.episodes() and len(episodes) > 5


def test_its_picture_is_drawn_there(pack, venvs):
    with vector.make(pack, env_kwargs={"render_mode": "rgb_array"}) as vecenv:
        vecenv.driver_env.reset(0)
        assert vecenv.driver_env.render_mode == "rgb_array"
        assert vecenv.driver_env.render() == f"a picture by {venvs / 'hermitage'}"


def test_training_and_evaluation_need_nothing_more(pack, away, capsys):
    quiet = ["--run.dashboard", "off", "--run.tensorboard", "false", "--run.dir", "run"]
    assert main(["train", str(pack), *quiet]) == 0
    assert main(["eval", str(pack), "--checkpoint", "run", "--episodes", "4"]) == 0
    out = capsys.readouterr().out
    assert "512 steps" in out and "episode_return" in out


@pytest.mark.slow
def test_puffer_check_needs_nothing_more(pack, capsys):
    assert main(["check", str(pack)]) == 0
    out = capsys.readouterr().out
    assert "hermit_pack: one environment keeps the contract" in out
    assert "hermit_pack: Multiprocessing keeps the contract" in out


def test_without_the_interpreter_the_command_that_makes_it_is_named(pack, tmp_path, monkeypatch):
    monkeypatch.setenv("PUFFER_VENVS", str(tmp_path))
    with pytest.raises(EnvironmentSetupError) as caught:
        vector.make(pack)
    python = tmp_path / "hermitage" / "bin" / "python"
    assert str(caught.value) == (
        "environment 'hermit_pack' lives under an interpreter of its own, and there is no "
        f"{python}; make it with: {sys.executable} -m venv {python.parents[1]} && {python} -m pip "
        "install --no-deps 'hermit==1' 'gymnasium>=1' (or set PUFFER_VENVS to the folder that "
        "holds hermitage)"
    )


def test_making_it_here_says_where_it_can_be_made(pack):
    with pytest.raises(APIUsageError, match=r"lives under .*hermitage/bin/python; make it with "):
        registry.find(pack)()


LINES = """
import gymnasium, numpy as np, sys
from gymnasium import spaces
from pufferlib import vector

class Telling(gymnasium.Env):
    observation_space = spaces.Dict(
        a=spaces.Box(0, 1, (3,), np.float32), b=spaces.Discrete(4), c=spaces.MultiBinary(3)
    )
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 4])])

    def __init__(self, bias):
        self.bias = bias

    def look(self):
        return {"a": self.np_random.random(3, np.float32), "b": 1, "c": np.ones(3, np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def step(self, action):
        versions = np.__version__, gymnasium.__version__
        info = {"versions": versions, "bias": self.bias, "number": np.float32(2)}
        return self.look(), np.float64(action[1][1]), False, False, info

kwargs = {"bias": np.arange(6.0).reshape(2, 3)}
with vector.make(Telling, env_kwargs=kwargs, num_envs=4, seed=1, python=sys.argv[1]) as vecenv:
    vecenv.action_space.seed(0)
    vecenv.reset()
    for _ in range(10):
        rows, rewards, _, _, infos = vecenv.step(vecenv.action_space.sample())
assert len(np.unique(rows, axis=0)) == 4
assert all((info["bias"] == kwargs["bias"]).all() and info["number"] == 2 for info in infos)
print(np.__version__, *infos[0]["versions"], rows.tobytes().hex(), rewards.tolist(), sep="|")
"""


def install(folder, *packages):
    """Put packages, without what they depend on, into a folder."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--target", folder, *packages], check=True)
    return str(folder)


def run_lines(python, path=None):
    """Run LINES with a worker under `python`; `path` comes first, in the main process only."""
    first = f"import sys; sys.path.insert(0, {path!r})\n" if path else ""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", first + LINES, python],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


@pytest.mark.slow
def test_a_worker_may_have_the_other_line_of_numpy_and_an_older_gymnasium(tmp_path):
    assert np.__version__.startswith("2.")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    needs = ["cloudpickle", "typing-extensions", "farama-notifications"]
    site = next(venv.glob("lib/python*/site-packages"))
    install(site, "numpy==1.26.4", "gymnasium==0.29.1", *needs)
    *versions, rows, rewards = run_lines(venv / "bin" / "python")
    assert versions == [np.__version__, "1.26.4", "0.29.1"]
    assert [rows, rewards] == run_lines(sys.executable)[3:]


@pytest.mark.slow
def test_a_worker_may_have_the_newer_line_of_numpy(tmp_path):
    *versions, rows, rewards = run_lines(sys.executable, install(tmp_path, "numpy==1.26.4"))
    assert versions == ["1.26.4", np.__version__, gymnasium.__version__]
    assert [rows, rewards] == run_lines(sys.executable)[3:]
