"""MuJoCo: every robot by the contract, no log file, pictures without a display."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

pytest.importorskip("mujoco", reason="mujoco is not installed: pip install 'mujoco>=3.1'")
pytest.importorskip("imageio", reason="imageio is not installed: pip install 'gymnasium[mujoco]'")

ENTRY = registry.find("mujoco")

TROUBLE = """
import os
from pufferlib import registry
env = registry.find("mujoco")(task="Humanoid-v5")
env.reset(seed=0)
env.unwrapped.data.qpos[:] = 1e30
env.step(env.action_space.sample())
assert os.listdir(".") == [], os.listdir(".")
assert "MUJOCO_GL" not in os.environ
"""


@pytest.mark.parametrize("task", ENTRY.module().TASKS)
def test_every_robot_keeps_the_contract(task):
    check_env(lambda: GymnasiumPufferEnv(env=ENTRY(task=task)), steps=150)


def test_an_unstable_simulation_prints_nothing_and_leaves_no_log(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", TROUBLE], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_infos_come_at_the_end_of_an_episode_and_hold_numbers():
    env = ENTRY(task="Humanoid-v5", max_episode_steps=4)
    env.reset(seed=0)
    *between, last = [env.step(np.zeros(17, np.float32))[4] for _ in range(4)]
    assert between == [{}] * 3
    assert "x_position" in last and all(np.isscalar(value) for value in last.values())


@pytest.mark.parametrize("way", ["", "egl", "osmesa"])
def test_pictures_need_no_display(way, monkeypatch):
    code = (
        "from pufferlib import registry\n"
        "env = registry.find('mujoco')(render_mode='rgb_array')\n"
        "env.reset(seed=0)\n"
        "frame = env.render()\n"
        "assert frame.shape == (480, 480, 3) and frame.std() > 10\n"
        "env.close()\n"
    )
    variables = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    if way:
        variables["MUJOCO_GL"] = way
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True
    )
    if "EnvironmentSetupError" in done.stderr or (way and "ImportError" in done.stderr):
        pytest.skip("neither EGL nor OSMesa is installed")
    assert done.returncode == 0, done.stderr


def test_an_unknown_robot_is_answered_with_the_nearest():
    with pytest.raises(APIUsageError, match="no task 'HalfCheeta-v5'; did you mean 'HalfCheetah"):
        ENTRY(task="HalfCheeta-v5")
