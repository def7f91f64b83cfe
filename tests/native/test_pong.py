"""Pong: each rule worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.exceptions import APIUsageError

STAY, UP, DOWN = range(3)
WIDTH, HEIGHT, BALL, BAT, LEFT_FACE, RIGHT_FACE = 600, 400, 6, 32, 24, 576
AGENT_Y, OPPONENT_Y, BALL_X, BALL_Y, VX, VY, WON, LOST = range(8)
STATE = np.dtype(
    [
        ("rng", "u8", 2),
        ("x", "f4"),
        ("y", "f4"),
        ("vx", "f4"),
        ("vy", "f4"),
        ("speed", "f4"),
        ("agent", "f4"),
        ("opponent", "f4"),
        ("won", "i2"),
        ("lost", "i2"),
        ("touches", "i4"),
        ("tick", "i4"),
    ]
)


def make(seed=0, **parameters):
    """One world at the beginning of a match."""
    env = registry.find("pong")(**parameters)
    env.reset(seed=seed)
    return env


def peek(env):
    """A copy of the world's state as a record."""
    return np.frombuffer(env.get_state(), STATE, count=1)[0].copy()


def place(env, **fields):
    """Set fields of the world's state."""
    state = bytearray(env.get_state())
    record = np.frombuffer(state, STATE, count=1)
    for name, value in fields.items():
        record[name] = value
    env.set_state(bytes(state))
    env.worlds.recv()


def pixels(observed, size=HEIGHT):
    """The pixels of an observed coordinate along a side of the court of that size."""
    return (observed + 1) * size / 2


def act(env, action=STAY):
    """One step → (observation, reward, terminal, truncation)."""
    observations, rewards, terminals, truncations, _ = env.step(np.array([action], np.int32))
    return observations[0].copy(), float(rewards[0]), bool(terminals[0]), bool(truncations[0])


def test_spaces():
    env = make()
    assert env.single_observation_space.shape == (8,)
    assert env.single_observation_space.dtype == np.float32
    assert (env.single_observation_space.low == -1).all()
    assert (env.single_observation_space.high == 1).all()
    assert env.single_action_space.n == 3


def test_a_match_begins_in_the_middle_with_a_serve_to_either_side():
    serves = []
    for seed in range(50):
        row = make(seed).observations[0]
        assert row[[AGENT_Y, OPPONENT_Y, BALL_X, BALL_Y]].tolist() == [0] * 4
        assert row[[WON, LOST]].tolist() == [0, 0]
        assert math.hypot(row[VX], row[VY]) == pytest.approx(400 / 800)
        assert abs(row[VY]) <= 0.5 * 400 / 800
        serves.append(tuple(row[[VX, VY]]))
    assert len(set(serves)) == 50
    assert 10 < sum(vx > 0 for vx, _ in serves) < 40


@pytest.mark.parametrize("action, moved", [(STAY, 0), (UP, -400 / 15), (DOWN, 400 / 15)])
def test_the_agents_bat_moves_400_pixels_per_second(action, moved):
    row, *_ = act(make(), action)
    assert pixels(row[AGENT_Y]) == pytest.approx(200 + moved)


@pytest.mark.parametrize("action, end", [(UP, BAT), (DOWN, HEIGHT - BAT)])
def test_the_agents_bat_stops_at_the_edges(action, end):
    env = make()
    for _ in range(12):
        row, *_ = act(env, action)
    assert pixels(row[AGENT_Y]) == pytest.approx(end)


@pytest.mark.parametrize(
    "height, moved_to", [(250, 200 + 160 / 15), (195, 195), (20, 200 - 160 / 15)]
)
def test_the_machine_follows_the_ball_at_its_own_speed(height, moved_to):
    env = make()
    place(env, y=height)
    row, *_ = act(env)
    assert pixels(row[OPPONENT_Y]) == pytest.approx(moved_to)


def test_a_ball_in_flight_keeps_its_velocity():
    env = make()
    place(env, x=300, y=200, vx=300, vy=-150)
    row, reward, terminal, truncation = act(env)
    assert (reward, terminal, truncation) == (0, False, False)
    assert pixels(row[BALL_X], WIDTH) == pytest.approx(320)
    assert pixels(row[BALL_Y]) == pytest.approx(190)
    assert row[[VX, VY]] * 800 == pytest.approx([300, -150])


@pytest.mark.parametrize("y, vy, back", [(10, -150, 12), (HEIGHT - 10, 150, HEIGHT - 12)])
def test_the_edges_turn_the_ball_back(y, vy, back):
    env = make()
    place(env, x=300, y=y, vx=300, vy=vy)  # 4 of the step's 10 pixels lead to the edge, 6 back
    act(env)
    state = peek(env)
    assert [state["x"], state["y"]] == pytest.approx([320, back])
    assert [state["vx"], state["vy"]] == [300, -vy]


@pytest.mark.parametrize("offset", [-37, -10, 0, 10, 37])
@pytest.mark.parametrize("side", [-1, 1])
def test_the_angle_depends_on_where_the_ball_meets_the_bat(side, offset):
    env = make(opponent_speed=0)
    face = RIGHT_FACE - BALL if side > 0 else LEFT_FACE + BALL
    # The ball is at the bat, which stays, after half of the step.
    place(env, x=face - side * 10, y=200 + offset, vx=side * 300, vy=0, agent=200, opponent=200)
    _, reward, *_ = act(env)
    state, speed, sine = peek(env), 440, 0.8 * offset / 38
    vx, vy = -side * speed * math.sqrt(1 - sine**2), speed * sine
    assert reward == 0 and state["speed"] == speed
    assert [state["vx"], state["vy"]] == pytest.approx([vx, vy])
    assert [state["x"], state["y"]] == pytest.approx([face + vx / 30, 200 + offset + vy / 30])
    assert state["touches"] == (side > 0)


def test_the_bat_is_where_it_has_moved_to_when_the_ball_arrives():
    for action, reward in ((STAY, -1), (DOWN, 0), (UP, -1)):
        env = make()
        # Half a step away, 45 pixels below the bat's middle: 7 too low, unless it moves by 13.
        place(env, x=RIGHT_FACE - BALL - 10, y=245, vx=300, vy=0, agent=200)
        assert act(env, action)[1] == reward


def test_speed_rises_with_each_touch_up_to_its_limit():
    env = make(ball_speed=600, ball_speed_max=640, ball_speed_gain=30)
    speeds = []
    for _ in range(3):
        place(env, x=RIGHT_FACE - BALL - 5, y=200, vx=300, vy=0, agent=200)
        act(env)
        speeds.append(float(peek(env)["speed"]))
    assert speeds == [630, 640, 640]


@pytest.mark.parametrize("side", [-1, 1])
def test_a_ball_past_a_bat_is_a_point_and_is_served_to_the_side_that_lost_it(side):
    env = make()
    x = RIGHT_FACE - 10 if side > 0 else LEFT_FACE + 10
    place(env, x=x, y=20, vx=side * 300, vy=1, agent=300, opponent=300, speed=600)
    row, reward, terminal, truncation = act(env)
    assert (reward, terminal, truncation) == (-side, False, False)
    assert row[[WON, LOST]] * 21 == pytest.approx([float(side < 0), float(side > 0)])
    assert row[[BALL_X, BALL_Y]].tolist() == [0, 0]
    assert np.sign(row[VX]) == side
    assert math.hypot(row[VX], row[VY]) == pytest.approx(400 / 800)


@pytest.mark.parametrize("side, won, lost", [(-1, 2, 1), (1, 1, 2)])
def test_the_match_terminates_at_the_points(side, won, lost):
    env = make(points=3)
    x = RIGHT_FACE - 10 if side > 0 else LEFT_FACE + 10
    place(
        env, x=x, y=20, vx=side * 300, vy=1, agent=300, opponent=300, won=won, lost=lost, touches=5
    )
    row, reward, terminal, truncation = act(env)
    assert (reward, terminal, truncation) == (-side, True, False)
    assert env.final_observations[0, [WON, LOST]] * 21 == pytest.approx(
        [won + (side < 0), lost + (side > 0)]
    )
    assert row[[WON, LOST]].tolist() == [0, 0]
    (episode,) = env.episodes()
    assert episode["score"] == (won - lost) - side
    assert episode["won"] == (side < 0)
    assert episode["touches"] == 5


def test_the_time_limit_truncates_and_does_not_terminate():
    env = make(max_steps=7)
    flags = [act(env)[2:] for _ in range(14)]
    assert flags == ([(False, False)] * 6 + [(False, True)]) * 2
    assert [e["episode_length"] for e in env.episodes()] == [7]


def test_a_match_that_ends_at_the_time_limit_terminates_only():
    env = make(points=1, max_steps=1)
    place(env, x=RIGHT_FACE - 10, y=20, vx=300, vy=1, agent=300)
    assert act(env)[2:] == (True, False)


def test_score_is_the_return_of_the_match():
    env = make(seed=2, points=3)
    rng, total, terminal = np.random.default_rng(0), 0.0, False
    while not terminal:
        _, reward, terminal, _ = act(env, int(rng.integers(3)))
        total += reward
    (episode,) = env.episodes()
    assert episode["score"] == episode["episode_return"] == total < 0


@pytest.mark.parametrize("frameskip", [1, 8])
def test_ball_and_bats_stay_in_the_court(frameskip):
    env = vector.make("pong", env_kwargs={"frameskip": frameskip}, num_envs=64)
    rows, _ = env.reset(seed=1)
    points = 0
    for _ in range(1000):
        aim = rows[:, BALL_Y] - rows[:, AGENT_Y]
        rows, rewards, *_ = env.step(np.where(aim < 0, UP, DOWN).astype(np.int32))
        x, y = pixels(rows[:, BALL_X], WIDTH), pixels(rows[:, BALL_Y])
        bats = pixels(rows[:, [AGENT_Y, OPPONENT_Y]])
        # Rounding of positions around 500 pixels in float32.
        slack = 1e-3
        assert (x >= LEFT_FACE + BALL - slack).all() and (x <= RIGHT_FACE - BALL + slack).all()
        assert (y >= BALL - slack).all() and (y <= HEIGHT - BALL + slack).all()
        assert (bats >= BAT - slack).all() and (bats <= HEIGHT - BAT + slack).all()
        points += (rewards > 0).sum()
    assert points > 0


def test_equal_seeds_play_alike_and_others_do_not():
    first, same, other = make(7), make(7), make(8)
    actions = np.random.default_rng(0).integers(3, size=300)
    a, b, c = ([act(env, int(action)) for action in actions] for env in (first, same, other))
    assert all((x[0] == y[0]).all() and x[1:] == y[1:] for x, y in zip(a, b, strict=True))
    assert any((x[0] != y[0]).any() for x, y in zip(a, c, strict=True))


def test_a_serve_above_the_highest_speed_is_refused():
    with pytest.raises(APIUsageError, match="ball_speed must not exceed ball_speed_max"):
        registry.find("pong")(ball_speed=400, ball_speed_max=300)


def test_the_picture_shows_the_ball():
    env = make()
    place(env, x=100, y=300)
    picture = env.render()
    assert picture.shape == (400, 600, 3)
    assert (picture[300, 100] > 200).all()
