"""microRTS in its own interpreter: seeds, truncation, silence, opponents, pictures."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError, WorkerError
from pufferlib.vector.creation import list_factories


def find_python():
    try:
        return registry.find("microrts").python
    except EnvironmentSetupError as error:
        pytest.skip(str(error), allow_module_level=True)


PYTHON = find_python()


def make(num_envs=2, **parameters):
    return vector.make("microrts", env_kwargs=parameters, num_envs=num_envs, num_workers=1)


def play(vecenv, seed, steps):
    """Everything that is seen in a random game, and its infos."""
    vecenv.action_space.seed(0)
    rows, infos = [vecenv.reset(seed)[0].copy()], []
    for _ in range(steps):
        observations, _, terminals, truncations, told = vecenv.step(vecenv.action_space.sample())
        rows += [observations.copy(), terminals.copy(), truncations.copy()]
        infos += told
    return rows, infos


def equal(one, other):
    return all(map(np.array_equal, one, other))


def test_it_lives_under_its_own_interpreter_and_nobody_notices(capfd, away):
    with make(num_envs=1) as vecenv:
        assert vecenv.choice.startswith("Multiprocessing")
        vecenv.reset(1)
        vecenv.step(vecenv.action_space.sample())
        assert vecenv.single_observation_space.shape == (8, 8, 27)
        assert vecenv.single_action_space.nvec.tolist() == [64, 6, 4, 4, 4, 4, 7, 49]
    assert capfd.readouterr() == ("", "")
    assert os.listdir(away) == []


@pytest.mark.parametrize("opponent", ["random_biased", "coac"])
def test_a_seed_repeats_a_game_whatever_plays_beside_it(opponent):
    with make(opponent=opponent, max_episode_steps=60) as pair:
        rows, infos = play(pair, 3, 150)
        again, _ = play(pair, 3, 150)
        other, _ = play(pair, 4, 150)
        alone, _ = play_alone(opponent)
    assert equal(rows, again)
    assert equal(rows, other) == (opponent == "coac")  # coac leaves nothing to chance.
    assert equal([row[1:] for row in rows], alone)
    assert len(infos) >= 4


def play_alone(opponent):
    """The second game of a pair, with the same actions and nobody beside it."""
    from pufferlib.seeding import env_seed

    with (
        make(num_envs=1, opponent=opponent, max_episode_steps=60) as vecenv,
        make(num_envs=2, opponent=opponent) as pair,
    ):
        actions = pair.action_space
        actions.seed(0)
        rows = [vecenv.reset([env_seed(3, 1)])[0].copy()]
        for _ in range(150):
            seen = vecenv.step(actions.sample()[1:])
            rows += [seen[0].copy(), seen[2].copy(), seen[3].copy()]
    return rows, []


def test_the_time_limit_truncates_and_what_happened_is_told():
    with make(num_envs=1, opponent="passive", max_episode_steps=7) as vecenv:
        rows, infos = play(vecenv, 0, 14)
        truncations = [bool(rows[k][0]) for k in range(3, len(rows), 3)]
        assert [k for k, truncated in enumerate(truncations, 1) if truncated] == [7, 14]
        assert not any(rows[k][0] for k in range(2, len(rows), 3))
        assert [info["won"] for info in infos] == [0, 0]
        assert infos[0]["episode_length"] == 7 and infos[0]["reward_attack"] == 0


def test_a_lost_game_terminates_and_costs_its_weight():
    with make(num_envs=1, opponent="worker_rush", reward_weights={"win": 5}) as vecenv:
        vecenv.reset(0)
        nothing = np.zeros((1, 8), np.int32)
        for _ in range(1000):
            _, rewards, terminals, truncations, infos = vecenv.step(nothing)
            if terminals[0] or truncations[0]:
                break
        assert (terminals[0], truncations[0], rewards[0], infos[0]["won"]) == (True, False, -5, -1)


def test_a_base_that_is_told_to_makes_a_worker():
    with make(num_envs=1, opponent="passive") as vecenv:
        first = vecenv.reset(0)[0][0]
        (cell,) = np.flatnonzero((first[..., 11] > 0) & (first[..., 15] > 0))
        told = [[[cell, 4, 0, 0, 0, direction, 3, 0]] for direction in range(4)]
        rewards = [float(vecenv.step(np.array(told[k % 4], np.int32))[1][0]) for k in range(8)]
        assert sum(rewards) == 1
        for _ in range(60):
            last = vecenv.step(np.zeros((1, 8), np.int32))[0][0]
        assert ((last[..., 11] > 0) & (last[..., 17] > 0)).sum() == 2


def test_a_hidden_cell_is_marked():
    with make(num_envs=1, partial_observability=True) as vecenv:
        observation = vecenv.reset(0)[0][0]
        assert observation.shape == (8, 8, 29)
        assert (observation.sum(2) == 6).all() and 0 < observation[..., 28].sum() < 64


def test_the_map_is_drawn_without_a_window():
    (create,) = list_factories("microrts", None, {"render_mode": "rgb_array"}, 1)
    env = create()
    try:
        env.reset(seed=0)
        picture = env.render()
        assert picture.shape == (192, 192, 3) and picture.dtype == np.uint8
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 4
    finally:
        env.close()


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "8x8/basesWorker8x8"}, "there is no map of microrts '8x8/basesWorker8x8'; did"),
        ({"opponent": "coak"}, "there is no opponent of microrts 'coak'; did you mean 'coac'?"),
        ({"reward_weights": {"winn": 1}}, "no reward of microrts 'winn'; did you mean 'win'?"),
        ({"render_mode": "human"}, "there is no render mode of microrts 'human'; expected one of"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0; expected at least 1"),
    ],
)
def test_what_it_does_not_know_is_refused(parameters, message):
    with pytest.raises((WorkerError, APIUsageError)) as caught:
        make(num_envs=1, **parameters)
    assert message in str(caught.value)
