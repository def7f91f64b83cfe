"""DeepMind Control Suite: seeds, the time limit, divergence, pictures, no traces."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("dm_control")

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError


@pytest.fixture
def entry():
    return registry.find("dm_control")


def play(env, seed, steps):
    env.action_space.seed(0)
    seen = [env.reset(seed=seed)[0]]
    for _ in range(steps):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(observation)
        if terminated or truncated:
            seen.append(env.reset()[0])
    return np.stack([np.concatenate([*observation.values()]) for observation in seen])


def test_a_seed_repeats_a_run_and_its_later_episodes(entry):
    first, second = (entry(task="walker/walk", max_episode_steps=20) for _ in range(2))
    one, again, other = play(first, 3, 50), play(second, 3, 50), play(second, 4, 50)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one[0], one[21])
    first.close()
    second.close()


def test_the_suites_own_limit_is_truncation(entry):
    env = entry(task="pendulum/swingup", frame_skip=100)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1))[2:4] for _ in range(10)]
    assert ends == [(False, False)] * 9 + [(False, True)]
    env.close()


def test_a_limit_of_ones_own_replaces_it(entry):
    env = entry(task="pendulum/swingup", max_episode_steps=1100)
    env.reset(seed=0)
    ends = [env.step(np.zeros(1))[2:4] for _ in range(1100)]
    assert ends[-1] == (False, True) and not any(map(any, ends[:-1]))
    env.close()


def test_a_simulation_that_diverges_ends_the_episode(entry, capfd):
    env = entry(task="lqr/lqr_6_2")
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(2000):
        observation, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            break
    assert terminated and info == {"diverged": 1}
    assert all(np.isfinite(part).all() for part in observation.values())
    env.reset()
    assert env.step(env.action_space.sample())[2:] == (False, False, {})
    env.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("task", ["cartpole/swingup", "reacher/easy", "quadruped/walk"])
def test_it_keeps_the_contract(entry, task):
    def create():
        return GymnasiumPufferEnv(env=entry(task=task, max_episode_steps=40))

    assert check_env(create, steps=100).truncations == 2


def test_observations_keep_their_type_and_are_new_each_step(entry):
    env = entry()
    first, _ = env.reset(seed=0)
    kept = {name: value.copy() for name, value in first.items()}
    second = env.step(env.action_space.sample())[0]
    assert {str(value.dtype) for value in second.values()} == {"float64"}
    assert all(np.array_equal(first[name], kept[name]) for name in first)
    env.close()


def test_pictures_need_no_display_and_nothing_is_left_behind(tmp_path):
    """In a process of its own, as what draws is chosen once a process."""
    code = (
        "import os\n"
        "from pufferlib import registry\n"
        "env = registry.find('dm_control')(render_mode='rgb_array', height=60, width=80)\n"
        "env.reset(seed=0)\n"
        "picture = env.render()\n"
        "assert picture.shape == (60, 80, 3) and picture.std() > 5\n"
        "env.close(); env.close()\n"
        "assert 'MUJOCO_GL' not in os.environ\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "walker/wlak"}, "there is no task of dm_control 'walker/wlak'; did you mean"),
        ({"render_mode": "human"}, "there is no render mode of dm_control 'human'; expected"),
        ({"frame_skip": 0}, "frame_skip is 0; expected at least 1"),
        ({"speed": 3}, "cartpole/swingup does not take {'speed': 3}: "),
    ],
)
def test_what_it_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)


def test_without_egl_bodies_move_and_pictures_are_refused():
    """In a process of its own, as what draws is chosen once a process."""
    script = (
        "import os, sys\n"
        "from pufferlib import registry\n"
        "env = registry.find('dm_control')()\n"
        "env.reset(seed=1); env.step(env.action_space.sample()); env.close()\n"
        "assert {'MUJOCO_GL', 'PYOPENGL_PLATFORM'}.isdisjoint(os.environ)\n"
        "registry.find('dm_control')(render_mode='rgb_array')\n"
    )
    nothing = {n: v for n, v in os.environ.items() if n not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300,
        env=nothing | {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nowhere"},
    )  # fmt: skip
    assert "EnvironmentSetupError: dm_control cannot draw: EGL does not start here" in done.stderr
