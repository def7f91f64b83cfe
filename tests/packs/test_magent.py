"""MAgent: seeds, the first step, teams with different spaces, deaths, the time limit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("magent2")

from pufferlib import registry
from pufferlib.emulation import PettingZooPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

TASKS = ("adversarial_pursuit", "battle", "battlefield", "combined_arms", "gather", "tiger_deer")


@pytest.fixture
def entry():
    return registry.find("magent")


@pytest.mark.parametrize("task", TASKS)
def test_each_task_keeps_the_contract(entry, task, capfd):
    def create():
        return PettingZooPufferEnv(env=entry(task=task, max_cycles=40))

    report = check_env(create, steps=60)
    assert report.truncations > 0
    assert capfd.readouterr() == ("", "")


def test_in_the_first_step_each_team_does_what_it_is_told(entry):
    env = entry(map_size=16)
    env.reset(seed=0)
    game = env.unwrapped

    def positions():
        return [game.env.get_pos(handle).astype(int) for handle in game.handles]

    red, blue = positions()
    still, up = 6, 0
    env.step({agent: up if agent.startswith("blue") else still for agent in env.agents})
    moved_red, moved_blue = positions()
    assert (moved_red == red).all() and (moved_blue[:, 1] < blue[:, 1]).any()
    env.close()


def test_teams_with_different_spaces_are_padded(entry):
    env = entry(task="adversarial_pursuit")
    observations, infos = env.reset(seed=0)
    predator = next(a for a in env.agents if a.startswith("predator"))
    prey = next(a for a in env.agents if a.startswith("prey"))
    assert env.observation_space(predator) == env.observation_space(prey)
    assert env.observation_space(prey).shape == (10, 10, 5)
    assert env.action_space(predator).n == env.action_space(prey).n == 13
    assert observations[prey].shape == (10, 10, 5) and not observations[prey][9:].any()
    assert infos == {agent: {} for agent in env.agents}
    env.step(dict.fromkeys(env.agents, 12))
    env.close()


def test_a_game_that_goes_on_too_long_is_truncated(entry):
    env = entry(map_size=16, max_cycles=5)
    env.reset(seed=0)
    for _ in range(5):
        _, _, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, 6))
    assert all(truncations.values()) and not any(terminations.values()) and not env.agents
    env.close()


def test_it_is_drawn(entry):
    env = entry(map_size=16, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.shape[2] == 3 and picture.std() > 1
    env.close()


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "batle"}, "there is no task of magent 'batle'; did you mean 'battle'?"),
        ({"map_sise": 16}, "there is no parameter of battle 'map_sise'; did you mean 'map_size'?"),
        ({"render_mode": "human"}, "there is no render mode of magent 'human'; expected one of"),
    ],
)
def test_what_it_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)


def test_rewards_of_the_task_can_be_set(entry):
    env = entry(map_size=16, step_reward=-1.0)
    env.reset(seed=0)
    rewards = env.step(dict.fromkeys(env.agents, 6))[1]
    assert set(rewards.values()) == {-1.0}
    env.close()
