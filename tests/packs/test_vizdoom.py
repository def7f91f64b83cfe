"""ViZDoom: seeds to the pixel, time limits, no files, engines that end with their worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from pufferlib import registry, vector
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, WorkerError

pytest.importorskip("vizdoom", reason="vizdoom is not installed: pip install 'vizdoom>=1.2.4'")

HEALTH = "VizdoomHealthGathering-v0"


@pytest.fixture
def entry(monkeypatch, tmp_path):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return registry.find("vizdoom")


@pytest.fixture
def make(entry):
    made = []

    def make_one(**parameters):
        made.append(entry(**parameters))
        return made[-1]

    yield make_one
    for env in made:
        env.close()


def play(env, seed, steps=50):
    """What is seen and paid in a run with random actions that begins anew at each end."""
    observation, _ = env.reset(seed=seed)
    trace = []
    for action in np.random.default_rng(0).integers(env.action_space.n, size=steps):
        observation, reward, terminated, truncated, _ = env.step(action)
        trace.append(
            (observation["screen"].tobytes(), observation["gamevariables"].tolist(), reward)
        )
        if terminated or truncated:
            env.reset()
    return trace


@pytest.mark.parametrize("task", ["VizdoomBasic-v0", HEALTH])
def test_a_seed_repeats_all_pixels_and_another_does_not(make, task):
    """The floor of the second is a texture that the engine would move by the wall clock."""
    first, second = make(task=task, max_episode_steps=20), make(task=task, max_episode_steps=20)
    one = play(first, 3)
    time.sleep(0.5)  # What depends on the clock would differ now.
    assert one == play(second, 3) == play(first, 3) != play(first, 4)


def test_episodes_without_a_seed_differ(make):
    env = make()
    screens = {env.reset()[0]["screen"].tobytes() for _ in range(5)}
    assert len(screens) > 1


def test_the_time_limit_of_the_scenario_truncates_with_a_picture(make):
    env = make()
    env.reset(seed=0)
    steps = [env.step(0) for _ in range(75)]
    assert [(s[2], s[3]) for s in steps] == [(False, False)] * 74 + [(False, True)]
    assert steps[-1][0]["screen"].any() and steps[-1][4] == {"ammo2": 50.0}


def test_the_end_of_a_game_terminates_with_its_last_picture(make):
    env = make(task=HEALTH)
    env.reset(seed=0)
    terminated = False
    for _ in range(400):
        observation, _, terminated, truncated, info = env.step(0)
        if terminated:
            break
    assert terminated and not truncated
    assert observation["screen"].any() and info["health"] == observation["gamevariables"][0]


def test_observations_are_not_overwritten_by_later_steps(make):
    env = make()
    first, _ = env.reset(seed=0)
    kept = {key: value.copy() for key, value in first.items()}
    for _ in range(3):
        env.step(1)
    for key, value in first.items():
        np.testing.assert_array_equal(value, kept[key])


def test_size_colour_and_buttons_can_be_chosen(make):
    env = make(size="320x240", shrink=1, color=True, max_buttons_pressed=2, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    assert observation["screen"].shape == (240, 320, 3)
    np.testing.assert_array_equal(observation["screen"], env.render())
    assert env.action_space.n == 1 + 3 + 3


def test_a_scenario_without_variables_is_its_screen(make):
    env = make(task="VizdoomPredictPosition-v0")
    assert env.observation_space.shape == env.reset(seed=0)[0].shape == (60, 80, 1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"task": "VizdoomBasik-v0"}, "no task 'VizdoomBasik-v0'; did you mean 'VizdoomBasic-v0'"),
        ({"size": "160x121"}, "no size '160x121'; did you mean '160x120'"),
        ({"frame_skip": 0}, "frame_skip is 0; expected at least 1"),
        ({"render_mode": "human"}, "no render mode 'human'"),
    ],
)
def test_what_makes_no_sense_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError, match=message):
        entry(**parameters)


def test_nothing_is_printed_and_no_file_is_left(tmp_path):
    script = (
        "import os; from pufferlib import registry\n"
        "here = os.getcwd(); env = registry.find('vizdoom')(task='VizdoomDeathmatch-v0')\n"
        "env.reset(seed=0); [env.step(a % 18) for a in range(30)]\n"
        "assert os.getcwd() == here; env.close(); env.close()"
    )
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=work, capture_output=True, text=True,
        timeout=120, env=os.environ | {"TMPDIR": str(scratch)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(work) == os.listdir(scratch) == []


def test_four_games_run_in_two_workers_and_their_engines_end_with_them(
    entry, monkeypatch, tmp_path
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    vecenv = vector.make(entry, backend="Multiprocessing", num_envs=4, num_workers=2, seed=0)
    try:
        vecenv.reset()
        vecenv.action_space.seed(0)
        for _ in range(10):
            vecenv.step(vecenv.action_space.sample())
        children = psutil.Process().children(recursive=True)
        engines = [p for p in children if Path(p.exe()).name == "vizdoom"]
        assert len(engines) == 4
        worker = engines[0].ppid()
        orphans = [p for p in engines if p.ppid() == worker]
        os.kill(worker, signal.SIGKILL)
        assert len(orphans) == 2 and psutil.wait_procs(orphans, timeout=20)[1] == []
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            vecenv.step(vecenv.action_space.sample())
    finally:
        vecenv.close()
    _, alive = psutil.wait_procs(engines, timeout=20)
    assert alive == []
    assert os.listdir(work) == []


def test_it_conforms(entry):
    report = check_env(
        lambda: GymnasiumPufferEnv(env=entry(task="VizdoomCorridor-v0", max_episode_steps=30)),
        steps=200,
    )
    assert report.terminations and report.truncations
