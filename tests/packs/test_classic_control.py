"""Classic control and toy text: every task by the contract, limits, pictures without noise."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

ENTRY = registry.find("classic_control")
MODULE = ENTRY.module()
TASKS = MODULE.CLASSIC + MODULE.TOY_TEXT

DRAW = """
import sys
from pufferlib import registry
env = registry.find("classic_control")(task=sys.argv[1], render_mode="rgb_array")
env.reset(seed=1)
assert env.render().ndim == 3
env.close()
"""


@pytest.mark.parametrize("task", TASKS)
def test_every_task_keeps_the_contract(task):
    check_env(lambda: GymnasiumPufferEnv(env=ENTRY(task=task)), steps=250)


@pytest.mark.parametrize("task", MODULE.CLASSIC)
def test_a_time_limit_that_is_given_truncates(task):
    env = ENTRY(task=task, max_episode_steps=5)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(5)]
    assert ends[-1] == (False, True)
    assert not any(map(any, ends[:-1]))


def test_infos_of_toy_text_hold_no_masks_and_no_probabilities():
    env = ENTRY(task="Taxi-v3", max_episode_steps=3)
    assert env.reset(seed=0)[1] == {}
    infos = [env.step(0)[4] for _ in range(3)]
    assert infos[:2] == [{}, {}]
    assert all(np.isscalar(value) for value in infos[2].values())


@pytest.mark.parametrize("task", ["CartPole-v1", "Taxi-v3", "FrozenLake-v1"])
def test_pictures_are_drawn_without_a_word(task):
    pytest.importorskip("pygame")
    done = subprocess.run([sys.executable, "-c", DRAW, task], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ALSA" not in done.stderr and "XDG" not in done.stderr


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "CartPole-v2"}, "there is no task 'CartPole-v2'; did you mean 'CartPole-v1'?"),
        ({"gravty": 3}, "there is no parameter of CartPole-v1 'gravty'; expected one of"),
        ({"render_mode": "human"}, "there is no render mode 'human'; expected one of"),
    ],
)
def test_what_a_task_does_not_know_is_refused(parameters, message):
    with pytest.raises(APIUsageError) as caught:
        ENTRY(**parameters)
    assert message in str(caught.value)
