"""Breakout: each rule worked out by hand, and the flight of the ball against a plain slow one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.exceptions import APIUsageError

STAY, LEFT, RIGHT = range(3)
WIDTH, PADDLE_TOP, BALL = 576, 368, 5
TICK = 1 / 60
PADDLE_X, PADDLE_SHARE, BALL_X, BALL_Y, VX, VY, OFFSET, BALLS, WALLS, BRICKS, FIRST = range(11)
STATE = np.dtype(
    [
        ("rng", "u8", 2),
        ("at", "f4", 2),
        ("velocity", "f4", 2),
        ("speed", "f4"),
        ("paddle", "f4"),
        ("reach", "f4"),
        ("lives", "i4"),
        ("wall", "i4"),
        ("left", "i4"),
        ("score", "i4"),
        ("tick", "i4"),
        ("bricks", "u4", 4),
    ]
)
FULL = tuple((1 << min(32, 108 - first)) - 1 for first in range(0, 128, 32))


def make(seed=0, **parameters):
    """One world at the beginning of an episode."""
    env = registry.find("breakout")(**parameters)
    env.reset(seed=seed)
    return env


def peek(env):
    """A copy of the world's state as a record."""
    return np.frombuffer(env.get_state(), STATE, count=1)[0].copy()


def place(env, bricks=None, **fields):
    """Set fields of the world's state; `bricks` is the set of those that stand."""
    if bricks is not None:
        mask = sum(1 << brick for brick in bricks)
        fields["bricks"] = [mask >> shift & 0xFFFFFFFF for shift in range(0, 128, 32)]
        fields["left"] = len(bricks)
    state = bytearray(env.get_state())
    record = np.frombuffer(state, STATE, count=1)
    for name, value in fields.items():
        record[name] = value
    env.set_state(bytes(state))
    env.worlds.recv()


def act(env, action=STAY):
    """One step → (observation, reward, terminal, truncation)."""
    observations, rewards, terminals, truncations, _ = env.step(np.array([action], np.int32))
    return observations[0].copy(), float(rewards[0]), bool(terminals[0]), bool(truncations[0])


def standing(env):
    """The set of bricks that stand."""
    words = peek(env)["bricks"]
    return {brick for brick in range(108) if words[brick // 32] >> np.uint32(brick % 32) & 1}


def pixels_x(observed):
    """The x in pixels of an observed one."""
    return (observed + 1) * WIDTH / 2


def pixels_y(observed):
    """The y in pixels of an observed one."""
    return (observed + 1) * PADDLE_TOP / 2


def brick_box(brick):
    """(left, top, right, bottom) of a brick in pixels."""
    row, column = divmod(brick, 18)
    return column * 32, (4 + row) * 16, column * 32 + 32, (4 + row) * 16 + 16


BOXES = np.array([brick_box(brick) for brick in range(108)], float)
GROWTH = np.array([-BALL, -BALL, BALL, BALL])
PADDLE = 160  # wide, so that balls live long enough to get behind the wall


def test_spaces():
    env = make()
    assert env.single_observation_space.shape == (118,)
    assert env.single_observation_space.dtype == np.float32
    assert (env.single_observation_space.low == -1).all()
    assert (env.single_observation_space.high == 1).all()
    assert env.single_action_space.n == 3


def test_an_episode_begins_with_a_full_wall_and_a_ball_that_rises_from_the_paddle():
    directions = []
    for seed in range(50):
        env = make(seed)
        row = env.observations[0]
        assert row[FIRST:].tolist() == [1.0] * 108
        assert row[[PADDLE_X, PADDLE_SHARE, BALL_X, OFFSET]].tolist() == [0, 1, 0, 0]
        assert pixels_y(row[BALL_Y]) == pytest.approx(PADDLE_TOP - BALL)
        assert row[[BALLS, WALLS, BRICKS]] == pytest.approx([0.5, 0.1, 1.0])
        assert row[VY] < 0
        assert math.hypot(row[VX], row[VY]) == pytest.approx(260 / 512)
        directions.append(row[VX] / (260 / 512))
    assert len(set(directions)) > 40
    assert min(directions) < -0.3 and max(directions) > 0.3
    assert max(map(abs, directions)) <= 0.6


@pytest.mark.parametrize("action, pixels", [(STAY, 0), (LEFT, -32), (RIGHT, 32)])
def test_the_paddle_moves_480_pixels_per_second(action, pixels):
    env = make()
    row, *_ = act(env, action)
    assert pixels_x(row[PADDLE_X]) == pytest.approx(288 + pixels)


@pytest.mark.parametrize("action, end", [(LEFT, 32), (RIGHT, WIDTH - 32)])
def test_the_paddle_stops_at_the_sides(action, end):
    env = make(lives=10)
    for _ in range(12):
        row, *_ = act(env, action)
    assert pixels_x(row[PADDLE_X]) == pytest.approx(end)


@pytest.mark.parametrize("paddle, offset", [(288, -64), (100, 64), (100, 200), (400, -300)])
def test_the_offset_from_the_paddle_is_observed_up_to_128_pixels(paddle, offset):
    env = make()
    place(env, at=(paddle + offset, 300), velocity=(0.1, -15), paddle=paddle)
    row, *_ = act(env)
    assert row[OFFSET] == pytest.approx(np.clip(offset / 128, -1, 1), abs=1e-3)


@pytest.mark.parametrize("row, points", [(0, 7), (1, 7), (2, 4), (3, 4), (4, 1), (5, 1)])
def test_a_brick_hit_from_below_is_gone_and_turns_the_ball_back(row, points):
    env = make()
    brick = 18 * row + 8  # x from 256 to 288
    _, _, _, bottom = brick_box(brick)
    # The ball's top edge is 4 pixels below the brick and rises 240 / 15 = 16 pixels in the step.
    place(env, {brick, 0}, at=(270, bottom + 9), velocity=(30, -240))
    seen, reward, terminal, truncation = act(env)
    assert standing(env) == {0}
    assert reward == pytest.approx(0.1 * points)
    assert not terminal and not truncation
    assert seen[FIRST + brick] == 0 and seen[FIRST] == 1
    assert seen[BRICKS] == pytest.approx(1 / 108)
    state = peek(env)
    assert state["velocity"].tolist() == [30, 240]
    assert state["at"] == pytest.approx([272, bottom + 5 + 12])
    assert state["score"] == points


def test_a_brick_hit_from_above_turns_the_ball_up():
    env = make()
    place(env, {0, 26}, at=(270, 70), velocity=(30, 240))  # 26 begins at y = 80
    _, reward, *_ = act(env)
    assert standing(env) == {0} and reward == pytest.approx(0.7)
    assert peek(env)["velocity"].tolist() == [30, -240]


@pytest.mark.parametrize("side, vx", [(-1, 150), (1, -150)])
def test_a_brick_hit_from_the_side_turns_the_ball_aside(side, vx):
    env = make()
    left, top, right, _ = brick_box(62)
    edge = left - 9 if side < 0 else right + 9
    place(env, {0, 62}, at=(edge, top + 8), velocity=(vx, -15))
    act(env)
    state = peek(env)
    assert standing(env) == {0}
    assert state["velocity"].tolist() == [-vx, -15]
    # 4 of the 10 pixels of this step lead to the brick, 6 back.
    assert state["at"] == pytest.approx([edge + side * 2, top + 7])


def test_a_ball_between_two_bricks_hits_the_one_under_its_middle():
    env = make()
    place(env, {0, 98, 99}, at=(287, 172), velocity=(15, -240))  # the border is at x = 288
    act(env)
    assert standing(env) == {0, 99}


def test_a_ball_that_touches_only_one_of_two_cells_hits_the_brick_there():
    env = make()
    place(env, {0, 99}, at=(284, 168), velocity=(15, -240))
    act(env)
    assert standing(env) == {0}


@pytest.mark.parametrize("x, vx, back", [(8, -150, 12), (WIDTH - 8, 150, WIDTH - 12)])
def test_the_sides_turn_the_ball_back(x, vx, back):
    env = make()
    place(env, at=(x, 260), velocity=(vx, 30))
    act(env)
    state = peek(env)
    assert state["velocity"].tolist() == [-vx, 30]
    assert state["at"] == pytest.approx([back, 262])


def test_the_ceiling_turns_the_ball_back_and_halves_the_paddle_until_the_next_ball():
    env = make()
    place(env, at=(100, 9), velocity=(30, -240))
    seen, *_ = act(env)
    assert peek(env)["velocity"].tolist() == [30, 240]
    assert peek(env)["at"] == pytest.approx([102, 17])
    assert seen[PADDLE_SHARE] == 0.5 and peek(env)["reach"] == 16
    place(env, at=(20, 355), velocity=(30, 240))
    seen, *_ = act(env)
    assert seen[PADDLE_SHARE] == 1 and peek(env)["reach"] == 32


@pytest.mark.parametrize("offset", [-37, -20, 0.5, 20, 37])
def test_the_angle_depends_on_where_the_ball_meets_the_paddle(offset):
    env = make()
    place(env, at=(288 + offset, 363), velocity=(1e-3, 240), paddle=288)
    seen, _, terminal, _ = act(env)
    assert not terminal and seen[BALLS] == 0.5
    speed, sine = 268, 0.86 * offset / 37
    sine = max(abs(sine), 0.05) * np.sign(sine)  # never straight up
    assert peek(env)["speed"] == speed
    expected = [speed * sine, -speed * math.sqrt(1 - sine**2)]
    assert peek(env)["velocity"] == pytest.approx(expected, rel=1e-5)


def test_a_ball_that_meets_the_middle_of_the_paddle_keeps_its_side():
    env = make()
    for vx in (-100, 100):
        place(env, at=(288, 363), velocity=(vx, 240), paddle=288)
        act(env)
        sine = peek(env)["velocity"][0] / peek(env)["speed"]
        assert sine == pytest.approx(math.copysign(0.05, vx))


def test_the_paddle_is_where_it_has_moved_to_when_the_ball_comes_down():
    env = make()
    # The ball is there after half a step; until then the paddle moves 16 of its 32 pixels.
    for action, hit in ((STAY, False), (RIGHT, True)):
        place(env, at=(288 + 50, 355), velocity=(0.01, 240), paddle=288, lives=5)
        seen, *_ = act(env, action)
        assert (seen[BALLS] == 0.5) == hit
    assert peek(env)["velocity"][0] == pytest.approx(peek(env)["speed"] * 0.86 * 34 / 37, rel=1e-3)


def test_speed_rises_with_each_touch_of_the_paddle_up_to_its_limit():
    env = make(ball_speed=440, ball_speed_max=460, ball_speed_gain=8)
    speeds = []
    for _ in range(4):
        place(env, at=(288, 363), velocity=(30, 240), paddle=288)
        act(env)
        speeds.append(float(peek(env)["speed"]))
    assert speeds == [448, 456, 460, 460]


def test_a_lost_ball_is_followed_by_another_from_where_the_paddle_is():
    env = make()
    place(env, at=(20, 360), velocity=(30, 240), paddle=400, speed=400)
    seen, reward, terminal, truncation = act(env, LEFT)
    assert (reward, terminal, truncation) == (-1, False, False)
    assert seen[BALLS] == pytest.approx(0.4)
    assert seen[BALL_X] == seen[PADDLE_X] and seen[OFFSET] == 0 and seen[VY] < 0
    assert math.hypot(seen[VX], seen[VY]) == pytest.approx(260 / 512)


def test_the_loss_of_the_last_ball_terminates():
    env = make(lives=1)
    place(env, at=(20, 360), velocity=(30, 240), paddle=400)
    _, reward, terminal, truncation = act(env)
    assert terminal and not truncation and reward == -1
    final = env.final_observations[0]
    assert final[BALLS] == 0
    assert pixels_y(final[BALL_Y]) == pytest.approx(PADDLE_TOP - BALL)
    assert env.observations[0, BALLS] == pytest.approx(0.1)


def test_the_last_brick_of_the_last_wall_terminates():
    env = make(walls=1)
    place(env, {98}, at=(270, 169), velocity=(30, -240), score=431)
    _, reward, terminal, truncation = act(env)
    assert reward == pytest.approx(0.1) and terminal and not truncation
    assert env.final_observations[0, BRICKS] == 0
    (episode,) = env.episodes()
    assert episode["score"] == 432 and episode["bricks"] == 108


def test_the_next_wall_stands_once_the_ball_is_back_at_the_paddle():
    env = make(walls=2)
    place(env, {98}, at=(270, 169), velocity=(30, -240))
    seen, _, terminal, _ = act(env)
    assert not terminal and seen[BRICKS] == 0 and seen[WALLS] == pytest.approx(0.1)
    place(env, at=(288, 340), velocity=(30, 240), paddle=288)
    assert act(env)[0][BRICKS] == 0
    seen, *_ = act(env)
    assert seen[BRICKS] == 1 and seen[WALLS] == 0 and seen[VY] < 0
    assert tuple(peek(env)["bricks"]) == FULL


def test_the_next_wall_stands_when_a_ball_is_served_after_it_was_cleared():
    env = make(walls=2)
    place(env, set(), at=(20, 360), velocity=(30, 240), paddle=400)
    seen, *_ = act(env)
    assert seen[BRICKS] == 1 and seen[WALLS] == 0 and seen[BALLS] == pytest.approx(0.4)


def test_the_time_limit_truncates_and_does_not_terminate():
    env = make(max_steps=7)
    flags = [act(env)[2:] for _ in range(14)]
    assert flags == ([(False, False)] * 6 + [(False, True)]) * 2
    assert [e["episode_length"] for e in env.episodes()] == [7]


def test_an_episode_that_ends_at_the_time_limit_terminates_only():
    env = make(lives=1, max_steps=1)
    place(env, at=(20, 360), velocity=(30, 240), paddle=400)
    assert act(env)[2:] == (True, False)


def test_score_and_bricks_are_those_of_the_episode():
    env = make(seed=3, lives=2)
    rng, rewards, terminal = np.random.default_rng(0), [], False
    while not terminal:
        _, reward, terminal, _ = act(env, int(rng.integers(3)))
        rewards.append(reward)
    (episode,) = env.episodes()
    assert episode["episode_return"] == pytest.approx(sum(rewards), abs=1e-5)
    assert episode["score"] == pytest.approx(10 * (sum(rewards) + 2)) and episode["score"] > 0
    assert episode["bricks"] == round(108 * (1 - env.final_observations[0, BRICKS]))


@pytest.mark.parametrize("frameskip, speed", [(1, 260), (4, 460), (16, 512)])
def test_the_ball_is_never_in_a_brick_nor_outside_the_court(frameskip, speed):
    parameters = {"frameskip": frameskip, "ball_speed": speed, "ball_speed_max": 512}
    env = vector.make("breakout", env_kwargs=parameters | {"paddle_width": 256}, num_envs=64)
    rows, _ = env.reset(seed=1)
    rng = np.random.default_rng(1)
    left, top, right, bottom = BOXES.T
    for _ in range(600):
        aim = pixels_x(rows[:, BALL_X]) - pixels_x(rows[:, PADDLE_X]) + rng.uniform(-100, 100, 64)
        actions = np.where(np.abs(aim) < 16, STAY, np.where(aim < 0, LEFT, RIGHT))
        rows, *_ = env.step(actions.astype(np.int32))
        x, y = pixels_x(rows[:, BALL_X]), pixels_y(rows[:, BALL_Y])
        # Rounding of positions around 500 pixels in float32, several times over.
        slack = 0.01
        assert (x >= BALL - slack).all() and (x <= WIDTH - BALL + slack).all()
        assert (y >= BALL - slack).all() and (y <= PADDLE_TOP - BALL + slack).all()
        inside = (
            (x[:, None] + BALL > left + slack)
            & (x[:, None] - BALL < right - slack)
            & (y[:, None] + BALL > top + slack)
            & (y[:, None] - BALL < bottom - slack)
        )
        assert not (inside & (rows[:, FIRST:] == 1)).any()
        assert (np.hypot(rows[:, VX], rows[:, VY]) <= 1 + 1e-6).all()
        assert env.single_observation_space.contains(rows[0])
    assert rows[:, BRICKS].min() < 100 / 108


class Plain:
    """The flight of one ball in double precision, always to the earliest contact with anything."""

    def __init__(self):
        self.bricks, self.lost, self.contacts = set(range(108)), False, 0

    def follow(self, state):
        """Go on from where the world is, so that rounding errors do not add up."""
        self.at, self.velocity = state["at"].astype(float), state["velocity"].astype(float)
        self.speed, self.paddle, self.reach = map(float, state[["speed", "paddle", "reach"]])

    def fly(self, paddle_velocity, time):
        while not self.lost:
            contact, axis, brick = self.next_contact()
            move = min(contact, time)
            self.at += self.velocity * move
            self.paddle += paddle_velocity * move
            self.paddle = np.clip(self.paddle, self.reach, WIDTH - self.reach)
            time -= move
            if contact > move or time <= 0:
                return
            self.contacts += 1
            self.velocity[axis] *= -1
            if brick is not None:
                self.bricks.remove(brick)
            elif axis == 1 and self.velocity[1] > 0:
                self.reach = PADDLE / 4
            elif axis == 1:
                self.meet_paddle()

    def next_contact(self):
        """(time, axis, brick or None) of the earliest contact ahead."""
        side = (WIDTH - BALL if self.velocity[0] > 0 else BALL) - self.at[0]
        level = (PADDLE_TOP - BALL if self.velocity[1] > 0 else BALL) - self.at[1]
        found = [(side / self.velocity[0], 0, None), (level / self.velocity[1], 1, None)]
        bricks = sorted(self.bricks)
        if bricks:
            # A brick grown by the ball's half side is met where the ball's middle enters it.
            times = (BOXES[bricks] + GROWTH - np.tile(self.at, 2)) / np.tile(self.velocity, 2)
            times = times.reshape(-1, 2, 2)
            enter, leave = times.min(1), times.max(1)
            first, axes = enter.max(1), enter.argmax(1)
            met = (first < leave.min(1)) & (first > -1e-5)  # the world's rounding, in seconds
            found += [(first[k], int(axes[k]), bricks[k]) for k in np.flatnonzero(met)]
        first = min(found, key=lambda contact: contact[0])[0]
        # Of two bricks met at once, the one under the ball's middle.
        together = [contact for contact in found if contact[0] < first + 1e-9]
        return min(together, key=lambda contact: self.distance(*contact))

    def distance(self, time, axis, brick):
        if brick is None:
            return 0
        across = 1 - axis
        middle = BOXES[brick, [across, across + 2]].mean()
        return abs(middle - self.at[across] - self.velocity[across] * time)

    def meet_paddle(self):
        offset = self.at[0] - self.paddle
        if abs(offset) > self.reach + BALL:
            self.lost = True
            return
        self.speed = min(self.speed + 8, 460)
        sine = 0.86 * offset / (self.reach + BALL)
        if abs(sine) < 0.05:
            sine = math.copysign(0.05, self.velocity[0])
        self.velocity = self.speed * np.array([sine, -math.sqrt(1 - sine * sine)])


@pytest.mark.parametrize("frameskip, steps", [(1, 3000), (4, 1500), (16, 800)])
def test_the_flight_equals_a_plain_one(frameskip, steps):
    env = make(1, lives=1, frameskip=frameskip, paddle_width=PADDLE)
    plain, rng = Plain(), np.random.default_rng(1)
    for _ in range(steps):
        plain.follow(peek(env))
        aim = plain.at[0] - plain.paddle + rng.uniform(-50, 50)
        action = STAY if abs(aim) < 16 else RIGHT if aim > 0 else LEFT
        _, _, terminal, _ = act(env, action)
        plain.fly({STAY: 0, LEFT: -480, RIGHT: 480}[action], frameskip * TICK)
        assert terminal == plain.lost
        if terminal:
            plain.bricks, plain.lost = set(range(108)), False
            continue
        if not plain.bricks:
            place(env, set(range(108)))
            plain.bricks = set(range(108))
        state = peek(env)
        assert standing(env) == plain.bricks
        # A step's rounding in float32, with the angle off the paddle magnifying it.
        assert state["at"] == pytest.approx(plain.at, abs=2e-3)
        assert state["paddle"] == pytest.approx(plain.paddle, abs=1e-4)
    assert plain.contacts > 80


def test_the_flight_does_not_depend_on_frameskip():
    fast, slow = make(5, frameskip=4), make(5, frameskip=1)
    rng = np.random.default_rng(0)
    for _ in range(60):
        action = int(rng.integers(3))
        row = act(fast, action)[0]
        if row[BALLS] < 0.5:
            break
        for _ in range(4):
            other = act(slow, action)[0]
        # Steps add up their rounding errors in another order.
        assert row == pytest.approx(other, abs=1e-4)


def test_equal_seeds_play_alike_and_others_do_not():
    first, same, other = make(7), make(7), make(8)
    actions = np.random.default_rng(0).integers(3, size=300)
    a, b, c = ([act(env, int(action)) for action in actions] for env in (first, same, other))
    assert all((x[0] == y[0]).all() and x[1:] == y[1:] for x, y in zip(a, b, strict=True))
    assert any((x[0] != y[0]).any() for x, y in zip(a, c, strict=True))


def test_a_start_above_the_highest_speed_is_refused():
    with pytest.raises(APIUsageError, match="ball_speed must not exceed ball_speed_max"):
        registry.find("breakout")(ball_speed=400, ball_speed_max=300)


def test_the_picture_shows_bricks_only_where_they_stand():
    env = make()
    with_all = env.render()
    place(env, {brick for brick in range(108) if brick != 44})
    left, top, *_ = brick_box(44)
    changed = np.argwhere((env.render() != with_all).any(-1))
    assert with_all.shape == (440, 600, 3)
    assert changed.min(0).tolist() == [52 + top + 1, 12 + left + 1]
    assert changed.max(0).tolist() == [52 + top + 14, 12 + left + 30]
