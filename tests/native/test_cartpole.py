"""Cartpole: the equations by hand, the ends, and step for step Gymnasium's CartPole-v1."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
import pytest

from pufferlib import registry, vector

LEFT, RIGHT = range(2)
X, SPEED, ANGLE, ANGULAR_SPEED = range(4)
STATE = np.dtype([("rng", "u8", 2), ("motion", "f8", 4), ("tick", "i4"), ("push", "i4")])


def make(seed=0, **parameters):
    """One world at the beginning of an episode → (environment, observation [4])."""
    env = registry.find("cartpole")(**parameters)
    observations, _ = env.reset(seed=seed)
    return env, observations[0].copy()


def act(env, action):
    """One step → (observation, reward, terminal, truncation)."""
    observations, rewards, terminals, truncations, _ = env.step(np.array([action], np.int32))
    return observations[0].copy(), float(rewards[0]), bool(terminals[0]), bool(truncations[0])


def motion(env):
    """Position, speed, angle and angular speed in double precision [4]."""
    return np.frombuffer(env.get_state(), STATE, count=1)[0]["motion"].copy()


def place(env, *values):
    """Set position, speed, angle and angular speed."""
    state = bytearray(env.get_state())
    np.frombuffer(state, STATE, count=1)["motion"][0] = values
    env.set_state(bytes(state))
    env.worlds.recv()


def balance(observation):
    """The action of a hand-made controller that keeps the pole up for ever."""
    x, speed, angle, angular_speed = observation
    return int(0.05 * x + 0.1 * speed + angle + 0.2 * angular_speed > 0)


def test_an_episode_starts_within_a_twentieth_of_rest():
    with vector.make("cartpole", num_envs=4096, seed=2) as vecenv:
        observations, _ = vecenv.reset()
    assert np.abs(observations).max() < 0.05
    # Of 4,096 uniform draws the extremes miss the ends by more than 1 % once in 10^17 times.
    assert (observations.min(axis=0) < -0.0495).all()
    assert (observations.max(axis=0) > 0.0495).all()


@pytest.mark.parametrize("action, sign", [(LEFT, -1), (RIGHT, 1)])
def test_a_push_from_rest_moves_cart_and_pole_as_worked_out_by_hand(action, sign):
    env, _ = make()
    place(env, 0, 0, 0, 0)
    observation, *_ = act(env, action)
    # 10 N on 1.1 kg; the pole turns back with drive / (0.5 m * (4/3 - 0.1/1.1)) = 600/41 rad/s^2.
    drive = 10 / 1.1
    turn = -600 / 41
    push = drive - 0.05 * turn / 1.1
    expected = [0, 0.02 * push * sign, 0, 0.02 * turn * sign]
    assert observation == pytest.approx(expected, rel=1e-6)


def test_a_pole_that_leans_falls_further_to_its_side():
    env, _ = make()
    place(env, 0, 0, 0.1, 0)
    act(env, RIGHT)
    right = motion(env)[ANGULAR_SPEED]
    place(env, 0, 0, 0.1, 0)
    act(env, LEFT)
    left = motion(env)[ANGULAR_SPEED]
    # The two pushes differ in sign only; what is common to both is gravity's share.
    gravity = 9.8 * math.sin(0.1) / (0.5 * (4 / 3 - 0.1 * math.cos(0.1) ** 2 / 1.1))
    assert (right + left) / 2 == pytest.approx(0.02 * gravity, rel=1e-12)


def test_position_and_angle_follow_the_speeds_before_the_push():
    env, _ = make()
    place(env, 0.5, 1.0, 0.02, -0.25)
    act(env, RIGHT)
    assert motion(env)[[X, ANGLE]] == pytest.approx([0.5 + 0.02, 0.02 - 0.005], rel=1e-15)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(
    "field, limit", [(X, 2.4), (ANGLE, 12 * 2 * math.pi / 360)], ids=["track", "lean"]
)
def test_an_episode_terminates_beyond_the_limit_and_not_at_it(field, limit, side):
    env, _ = make()
    state = np.zeros(4)
    state[field] = side * limit
    place(env, *state)
    observation, reward, terminal, truncation = act(env, RIGHT)
    assert (reward, terminal, truncation) == (1.0, False, False)
    assert observation[field] == np.float32(side * limit)

    state[field] = math.nextafter(side * limit, side * math.inf)
    place(env, *state)
    observation, reward, terminal, truncation = act(env, RIGHT)
    assert (reward, terminal, truncation) == (1.0, True, False)
    assert env.final_observations[0, field] == np.float32(state[field])
    assert np.abs(observation).max() < 0.05


def test_the_time_limit_truncates_and_is_the_score():
    env, observation = make(max_steps=5)
    for step in range(1, 6):
        last = observation
        observation, reward, terminal, truncation = act(env, balance(observation))
        assert (reward, terminal, truncation) == (1.0, False, step == 5)
    assert np.abs(env.final_observations[0] - last).max() > 0
    assert np.abs(observation).max() < 0.05
    (episode,) = env.episodes()
    assert (episode["episode_return"], episode["episode_length"]) == (5.0, 5.0)
    assert episode["score"] == 1.0


def test_a_fall_at_the_time_limit_is_a_termination():
    env, _ = make(max_steps=1)
    place(env, 2.4, 1.0, 0, 0)
    assert act(env, RIGHT)[1:] == (1.0, True, False)
    assert env.episodes()[0]["score"] == 0.0


def test_random_episodes_equal_those_of_gymnasium():
    env, observation = make(seed=11)
    reference = gymnasium.make("CartPole-v1")
    chooser = np.random.default_rng(0)
    lengths = []
    for episode in range(200):
        reference.reset(seed=episode)
        reference.unwrapped.state = motion(env)
        for step in range(1, 501):
            action = int(chooser.integers(2))
            expected, reward, terminated, truncated, _ = reference.step(action)
            observation, *ours = act(env, action)
            if terminated or truncated:
                observation = env.final_observations[0]
            assert ours == [reward, terminated, truncated], f"episode {episode}, step {step}"
            # Sine and cosine of two libraries may differ in the last bit of a double, which an
            # unstable pole makes 3,000 times as large within 100 steps.
            assert observation == pytest.approx(expected, rel=1e-6, abs=1e-7)
            if terminated or truncated:
                lengths.append(step)
                break
    assert max(lengths) > 60
    assert len(lengths) == 200


def test_balanced_episodes_equal_those_of_gymnasium_up_to_their_truncation():
    env, observation = make(seed=12)
    reference = gymnasium.make("CartPole-v1")
    for episode in range(5):
        reference.reset(seed=episode)
        for step in range(1, 501):
            # From our state each time: over 500 steps a last bit would grow to the whole angle.
            reference.unwrapped.state = motion(env)
            action = balance(observation)
            expected, reward, terminated, truncated, _ = reference.step(action)
            observation, *ours = act(env, action)
            final = env.final_observations[0] if truncated else observation
            assert ours == [reward, terminated, truncated], f"episode {episode}, step {step}"
            assert final == pytest.approx(expected, rel=1e-6, abs=1e-9)
            assert truncated == (step == 500)


def test_the_same_seed_gives_the_same_episodes():
    def play(seed):
        with vector.make("cartpole", num_envs=16, seed=seed) as vecenv:
            vecenv.reset()
            chooser = np.random.default_rng(1)
            pushes = chooser.integers(0, 2, (200, 16)).astype(np.int32)
            return np.stack([vecenv.step(push)[0].copy() for push in pushes])

    assert (play(5) == play(5)).all()
    assert (play(5) != play(6)).any()
