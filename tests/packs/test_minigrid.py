"""MiniGrid and BabyAI: missions as numbers, silence, seeds, the network that reads them."""

from __future__ import annotations

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

minigrid = pytest.importorskip(
    "minigrid", reason="minigrid is not installed: pip install 'minigrid>=3.0'"
)

ENTRY = registry.find("minigrid")
MODULE = ENTRY.module()
TASKS = ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0", "BabyAI-GoToLocal-v0"]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_keeps_the_contract(task):
    check_env(lambda: GymnasiumPufferEnv(env=ENTRY(task=task, max_steps=40)), steps=200)


def test_a_mission_is_written_as_the_numbers_of_its_words():
    numbers = MODULE.number_words("Go to the red ball, then pick up a zebra")
    words = ["go", "to", "the", "red", "ball", "then", "pick", "up", "a"]
    assert numbers[:10].tolist() == [MODULE.NUMBERS[word] for word in words] + [MODULE.OTHER]
    assert numbers.dtype == np.uint8 and not numbers[10:].any()
    assert len(MODULE.NUMBERS) == len(MODULE.WORDS) == len(set(MODULE.WORDS))


def test_every_word_of_babyais_longest_missions_is_known():
    env = ENTRY(task="BabyAI-BossLevel-v0")
    for seed in range(40):
        mission = env.reset(seed=seed)[0]["mission"]
        assert mission.any() and MODULE.OTHER not in mission
        assert mission[-1] == 0


def test_the_observation_is_the_packages_own_but_for_the_words():
    env = ENTRY(task="BabyAI-GoToLocal-v0")
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    plain = env.unwrapped.gen_obs()
    np.testing.assert_array_equal(observation["image"], plain["image"])
    np.testing.assert_array_equal(observation["mission"], MODULE.number_words(plain["mission"]))


def test_without_a_mission_the_observation_has_no_words():
    env = ENTRY(mission=False)
    assert set(env.observation_space) == set(env.reset(seed=0)[0]) == {"image", "direction"}


def test_missions_that_babyai_throws_away_are_not_printed(capfd):
    env = ENTRY(task="BabyAI-PutNextS7N4-v0")
    for seed in range(60):
        env.reset(seed=seed)
    assert capfd.readouterr() == ("", "")


def test_the_time_limit_truncates():
    env = ENTRY(max_steps=3)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]


def test_tasks_whose_files_the_package_leaves_out_are_not_known():
    with pytest.raises(APIUsageError, match="there is no task 'MiniGrid-WFC-MazeSimple-v0'"):
        ENTRY(task="MiniGrid-WFC-MazeSimple-v0")


def test_each_field_reaches_the_network():
    import torch

    with vector.make("minigrid", num_envs=2, backend="Serial", seed=1) as vecenv:
        space = vecenv.single_observation_space
        policy = MODULE.MiniGridPolicy(space, vecenv.single_action_space, hidden_size=16)
        rows = vecenv.reset()[0].copy()
        before = policy(torch.from_numpy(rows))[0]
        for name in ("image", "direction", "mission"):
            changed = rows.copy()
            field = space.unpack(changed)[name]
            field[...] = (field + 1) % 3
            assert not torch.equal(policy(torch.from_numpy(changed))[0], before), name


def test_the_network_refuses_what_is_no_grid_world():
    from pufferlib.spaces import pack_space

    other = pack_space(registry.find("classic_control")().observation_space)
    with pytest.raises(APIUsageError, match="MiniGridPolicy needs an observation of minigrid"):
        MODULE.MiniGridPolicy(other, ENTRY().action_space)
