"""Squared: each rule worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.exceptions import APIUsageError

STAY, DOWN, UP, LEFT, RIGHT = range(5)
EMPTY, AGENT, TARGET = range(3)
SIZE, MIDDLE = 11, 5


def make(seed=0, **parameters):
    """One world at the beginning of an episode → (environment, board [11, 11])."""
    env = registry.find("squared")(**parameters)
    observations, _ = env.reset(seed=seed)
    size = int(len(observations[0]) ** 0.5)
    return env, observations[0].reshape(size, size).copy()


def act(env, action):
    """One step → (board, reward, terminal, truncation)."""
    observations, rewards, terminals, truncations, _ = env.step(np.array([action], np.int32))
    size = int(len(observations[0]) ** 0.5)
    board = observations[0].reshape(size, size).copy()
    return board, float(rewards[0]), bool(terminals[0]), bool(truncations[0])


def last_board(env):
    """The last board of the episode that has just ended."""
    return env.final_observations[0].reshape(SIZE, SIZE)


def cells_of(board, kind):
    """(row, column) of each cell of a kind."""
    return [tuple(map(int, cell)) for cell in np.argwhere(board == kind)]


def path_to(target):
    """The actions that lead from the middle to a cell, one axis after the other."""
    rows, columns = target[0] - MIDDLE, target[1] - MIDDLE
    return [DOWN if rows > 0 else UP] * abs(rows) + [RIGHT if columns > 0 else LEFT] * abs(columns)


def away_from(target):
    """An action whose straight line from the middle does not meet `target`."""
    ends = {DOWN: (10, 5), UP: (0, 5), LEFT: (5, 0), RIGHT: (5, 10)}
    return next(action for action, end in ends.items() if end != target)


def test_an_episode_begins_in_the_middle_with_one_target_on_the_rim():
    for seed in range(50):
        _, board = make(seed)
        assert cells_of(board, AGENT) == [(MIDDLE, MIDDLE)]
        (target,) = cells_of(board, TARGET)
        assert set(target) & {0, SIZE - 1}


def test_every_cell_of_the_rim_can_be_the_target():
    with vector.make("squared", num_envs=2048, seed=3) as vecenv:
        boards = vecenv.reset()[0].reshape(-1, SIZE, SIZE)
    rim = np.ones((SIZE, SIZE), bool)
    rim[1:-1, 1:-1] = False
    assert ((boards == TARGET).any(axis=0) == rim).all()


@pytest.mark.parametrize(
    "action, cell",
    [(STAY, (5, 5)), (DOWN, (6, 5)), (UP, (4, 5)), (LEFT, (5, 4)), (RIGHT, (5, 6))],
)
def test_an_action_moves_one_cell_and_earns_nothing(action, cell):
    env, before = make()
    board, reward, terminal, truncation = act(env, action)
    assert cells_of(board, AGENT) == [cell]
    assert cells_of(board, TARGET) == cells_of(before, TARGET)
    assert (reward, terminal, truncation) == (0.0, False, False)


@pytest.mark.parametrize("seed", range(8))
def test_reaching_the_target_earns_one_and_terminates(seed):
    env, board = make(seed)
    (target,) = cells_of(board, TARGET)
    *steps, last = path_to(target)
    for action in steps:
        assert act(env, action)[1:] == (0.0, False, False)
    board, reward, terminal, truncation = act(env, last)
    assert (reward, terminal, truncation) == (1.0, True, False)
    assert cells_of(last_board(env), AGENT) == [target]
    assert cells_of(last_board(env), TARGET) == []
    assert cells_of(board, AGENT) == [(MIDDLE, MIDDLE)]
    (episode,) = env.episodes()
    assert episode["score"] == episode["episode_return"] == 1.0
    assert episode["episode_length"] == len(steps) + 1


@pytest.mark.parametrize("action", [DOWN, UP, LEFT, RIGHT])
def test_leaving_the_board_costs_one_and_terminates(action):
    ends = {DOWN: (10, 5), UP: (0, 5), LEFT: (5, 0), RIGHT: (5, 10)}
    seed = next(s for s in range(9) if cells_of(make(s)[1], TARGET) != [ends[action]])
    env, before = make(seed)
    for _ in range(MIDDLE):
        assert act(env, action)[1:] == (0.0, False, False)
    board, reward, terminal, truncation = act(env, action)
    assert (reward, terminal, truncation) == (-1.0, True, False)
    assert cells_of(last_board(env), AGENT) == []
    assert cells_of(last_board(env), TARGET) == cells_of(before, TARGET)
    assert cells_of(board, AGENT) == [(MIDDLE, MIDDLE)]
    (episode,) = env.episodes()
    assert (episode["score"], episode["episode_return"]) == (0.0, -1.0)


def test_the_time_limit_truncates():
    env, before = make(max_steps=3)
    assert act(env, STAY)[1:] == (0.0, False, False)
    assert act(env, STAY)[1:] == (0.0, False, False)
    assert act(env, STAY)[1:] == (0.0, False, True)
    assert (last_board(env) == before).all()
    assert env.episodes()[0]["score"] == 0.0


def test_the_count_of_steps_starts_again_with_each_episode():
    env, _ = make(max_steps=2)
    flags = [act(env, STAY)[3] for _ in range(6)]
    assert flags == [False, True] * 3


def test_an_end_at_the_time_limit_is_a_termination():
    env, board = make(max_steps=MIDDLE + 1)
    action = away_from(cells_of(board, TARGET)[0])
    for _ in range(MIDDLE):
        act(env, action)
    assert act(env, action)[1:] == (-1.0, True, False)


@pytest.mark.parametrize("size", [3, 63])
def test_the_board_has_the_size_that_was_asked_for(size):
    env, board = make(size=size)
    assert board.shape == (size, size)
    assert cells_of(board, AGENT) == [(size // 2, size // 2)]
    assert env.single_observation_space.high.max() == TARGET


def test_an_even_size_is_refused():
    with pytest.raises(APIUsageError, match="size must be odd, so that the board has a middle"):
        registry.find("squared")(size=10)


def test_the_same_seed_gives_the_same_episodes():
    def play(seed):
        with vector.make("squared", num_envs=16, seed=seed) as vecenv:
            vecenv.reset()
            chooser = np.random.default_rng(1)
            moves = chooser.integers(0, 5, (200, 16)).astype(np.int32)
            return np.stack([vecenv.step(move)[0].copy() for move in moves])

    assert (play(5) == play(5)).all()
    assert (play(5) != play(6)).any()
