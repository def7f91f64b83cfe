"""Box2D: the same seed gives the same episode whatever came before; limits; pixels."""

from __future__ import annotations

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

pytest.importorskip("Box2D", reason="Box2D is not installed: pip install 'box2d>=2.3.10'")

ENTRY = registry.find("box2d")
TASKS = ENTRY.module().TASKS
FAST = [task for task in TASKS if not task.startswith("CarRacing")]


def play(env, seed, steps=400):
    """Observations of a run with random actions, several episodes long."""
    seen = [env.reset(seed=seed)[0]]
    env.action_space.seed(7)
    for _ in range(steps):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(observation)
        if terminated or truncated:
            seen.append(env.reset()[0])
    return np.stack(seen)


@pytest.mark.parametrize("task", FAST)
def test_the_same_seed_repeats_episodes_in_an_environment_that_was_used_before(task):
    env, other = ENTRY(task=task), ENTRY(task=task)
    first = play(env, 3)
    np.testing.assert_array_equal(play(env, 3), first)
    np.testing.assert_array_equal(play(other, 3), first)
    assert not np.array_equal(play(env, 4)[:50], first[:50])


@pytest.mark.parametrize("task", FAST)
def test_every_task_keeps_the_contract(task):
    check_env(lambda: GymnasiumPufferEnv(env=ENTRY(task=task)), steps=300)


def test_the_racing_car_is_seen_in_pixels_without_a_display(monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.delenv("DISPLAY", raising=False)
    env = ENTRY(task="CarRacing-v3", continuous=False, max_episode_steps=3)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (96, 96, 3) and observation.std() > 0
    assert [env.step(3)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    env.close()


def test_wind_follows_from_the_seed():
    first, second = (play(ENTRY(enable_wind=True), 5, 100) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_picture_of_the_lander():
    pytest.importorskip("pygame")
    env = ENTRY(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (400, 600, 3)
    env.close()


def test_an_unknown_parameter_is_answered_with_the_nearest():
    with pytest.raises(APIUsageError, match="LunarLander-v3 'wind'; did you mean|expected one of"):
        ENTRY(wind=True)
