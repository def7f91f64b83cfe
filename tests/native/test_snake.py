"""Snake: each rule worked out by hand, on maps that are drawn as text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.exceptions import APIUsageError

FORWARD, UP, DOWN, LEFT, RIGHT = range(5)
EMPTY, FOOD, WALL, OWN, RIVAL, RIVAL_HEAD = range(6)
VIEW, LANES, MOST = 5, 16, 31
HEAD, SEGMENT = 4, 8
BODY_FIELDS = ["head", "tail", "length", "growth", "heading", "eaten", "age"]
BODY = np.dtype([(name, "i4") for name in BODY_FIELDS])
STEPS = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}


class World:
    """One world of 10 x 8 cells that can be drawn and read as text.

    A map has `.` for an empty cell, `*` for food; the snakes are lists of cells (row, column) from
    the tail to the head.
    """

    width, height = 10, 8

    def __init__(self, snakes=1, seed=0, **parameters):
        parameters = {"food": 1, "start_length": 1, **parameters}
        size = {"width": self.width, "height": self.height, "snakes": snakes}
        self.snakes = snakes
        self.env = registry.find("snake")(**size, **parameters)
        self.env.reset(seed=seed)
        stride = self.width + VIEW
        cells = (self.height + 2 * VIEW) * stride + LANES
        self.stride = stride
        self.dtype = np.dtype(
            [
                ("rng", "u8", 2),
                ("food", "i4"),
                ("bodies", BODY, MOST),
                ("map", "u1", cells),
            ]
        )

    def cell(self, row, column):
        return (row + VIEW) * self.stride + VIEW + column

    def record(self):
        """A copy of the world's state as a record."""
        return np.frombuffer(self.env.get_state(), self.dtype, count=1)[0].copy()

    def map(self):
        """The codes of the map's cells [height, width]."""
        cells = self.record()["map"][: (self.height + 2 * VIEW) * self.stride]
        return cells.reshape(-1, self.stride)[VIEW : VIEW + self.height, VIEW:]

    def place(self, *snakes, food=(), growth=None):
        """Put snakes (lists of cells from tail to head) and food on an empty map."""
        state = bytearray(self.env.get_state())
        record = np.frombuffer(state, self.dtype, count=1)[0]
        for row in range(self.height):
            start = self.cell(row, 0)
            record["map"][start : start + self.width] = EMPTY
        for row, column in food:
            record["map"][self.cell(row, column)] = FOOD
        record["food"] = len(food)
        directions = {step: action - 1 for action, step in STEPS.items()}
        for agent, body in enumerate(snakes):
            code, heading = SEGMENT * (agent + 1), 0
            for (row, column), (r, c) in pairwise(body):
                heading = directions[r - row, c - column]
                record["map"][self.cell(row, column)] = code + heading
            record["map"][self.cell(*body[-1])] = code + HEAD
            ends = self.cell(*body[-1]), self.cell(*body[0])
            record["bodies"][agent] = (
                *ends,
                len(body),
                (growth or {}).get(agent, 0),
                heading,
                0,
                0,
            )
        self.env.set_state(bytes(state))
        self.env.worlds.recv()

    def body(self, agent=0):
        """The cells of a snake from its tail to its head, along its links."""
        record, cells = self.record(), []
        place = int(record["bodies"][agent]["tail"])
        while True:
            row, column = divmod(place - VIEW, self.stride)
            cells.append((row - VIEW, column))
            code = int(record["map"][place])
            assert code // SEGMENT == agent + 1
            if code & HEAD:
                assert place == record["bodies"][agent]["head"]
                assert len(cells) == record["bodies"][agent]["length"]
                return cells
            row, column = STEPS[(code & 3) + 1]
            place += row * self.stride + column

    def food(self):
        """The cells that hold food, as a set; the state's own count is checked against it."""
        cells = {tuple(map(int, cell)) for cell in np.argwhere(self.map() == FOOD)}
        assert len(cells) == self.record()["food"]
        return cells

    def act(self, *actions):
        """One step of all snakes → (rewards, terminals, truncations) as lists."""
        _, rewards, terminals, truncations, _ = self.env.step(np.array(actions, np.int32))
        return rewards.tolist(), terminals.tolist(), truncations.tolist()


def row_of(row, first, last):
    """The cells of a row from column `first` to `last`, in this order."""
    step = 1 if last >= first else -1
    return [(row, column) for column in range(first, last + step, step)]


@pytest.mark.parametrize("action", [UP, DOWN, LEFT, RIGHT])
def test_a_snake_turns_and_moves_by_one_cell(action):
    world = World(food=1)
    ahead = {UP: DOWN, DOWN: UP, LEFT: RIGHT, RIGHT: LEFT}[action]
    tail = (4 + STEPS[ahead][0], 5 + STEPS[ahead][1])
    world.place([tail, (4, 5)], food=[(0, 0)])
    assert world.act(action) == ([0.0], [False], [False])
    assert world.body() == [(4, 5), (4 + STEPS[action][0], 5 + STEPS[action][1])]


@pytest.mark.parametrize("action", [FORWARD, RIGHT, LEFT])
def test_without_a_turn_or_with_one_straight_back_a_snake_goes_on_ahead(action):
    world = World()
    world.place(row_of(4, 2, 4), food=[(0, 0)])
    assert world.act(action) == ([0.0], [False], [False])
    assert world.body() == row_of(4, 3, 5)


def test_food_earns_one_and_a_cell_and_grows_back_elsewhere():
    world = World()
    world.place(row_of(4, 2, 4), food=[(4, 5)])
    assert world.act(FORWARD) == ([1.0], [False], [False])
    assert world.body() == row_of(4, 2, 5)
    (sprouted,) = world.food()
    assert sprouted not in world.body()
    assert world.record()["bodies"][0]["eaten"] == 1


def test_food_beyond_what_is_always_there_is_not_replaced():
    world = World()
    world.place(row_of(4, 2, 4), food=[(4, 5), (0, 0)])
    assert world.act(FORWARD)[0] == [1.0]
    assert world.food() == {(0, 0)}


def test_a_new_snake_uncoils_to_its_first_length():
    world = World(start_length=3)
    world.place([(4, 2)], food=[(0, 0)], growth={0: 2})
    lengths = []
    for _ in range(4):
        world.act(RIGHT)
        lengths.append(len(world.body()))
    assert lengths == [2, 3, 3, 3]
    assert world.body() == row_of(4, 4, 6)


@pytest.mark.parametrize(
    "body, action",
    [
        ([(1, 3), (0, 3)], UP),
        ([(6, 3), (7, 3)], DOWN),
        ([(3, 1), (3, 0)], LEFT),
        ([(3, 8), (3, 9)], RIGHT),
    ],
)
def test_a_wall_kills(body, action):
    world = World()
    world.place(body, food=[(4, 4)])
    assert world.act(action) == ([-1.0], [True], [False])


def test_its_own_body_kills():
    world = World()
    world.place([(4, 2), (4, 3), (4, 4), (3, 4), (3, 3)], food=[(0, 0)])
    assert world.act(DOWN) == ([-1.0], [True], [False])


def test_the_end_of_its_own_body_is_free_because_it_moves_on():
    world = World()
    world.place([(4, 3), (4, 4), (3, 4), (3, 3)], food=[(0, 0)])
    assert world.act(DOWN) == ([0.0], [False], [False])
    assert world.body() == [(4, 4), (3, 4), (3, 3), (4, 3)]


def test_the_end_of_a_body_that_grows_is_not_free():
    world = World()
    world.place([(4, 3), (4, 4), (3, 4), (3, 3)], food=[(0, 0)], growth={0: 1})
    assert world.act(DOWN) == ([-1.0], [True], [False])


def test_a_rival_kills_and_lives():
    world = World(snakes=2)
    world.place([(4, 3), (4, 4)], [(2, 5), (3, 5), (4, 5), (5, 5)], food=[(0, 0)])
    assert world.act(FORWARD, FORWARD) == ([-1.0, 0.0], [True, False], [False, False])
    assert world.body(1) == [(3, 5), (4, 5), (5, 5), (6, 5)]


def test_of_two_heads_that_want_a_cell_the_lower_number_gets_it():
    world = World(snakes=2)
    world.place([(4, 3), (4, 4)], [(4, 7), (4, 6)], food=[(0, 0)])
    assert world.act(FORWARD, FORWARD) == ([0.0, -1.0], [False, True], [False, False])
    assert world.body(0) == [(4, 4), (4, 5)]


def test_who_moves_later_may_enter_the_cell_that_a_rival_has_left():
    world = World(snakes=2)
    world.place([(4, 3), (4, 4)], [(6, 3), (5, 3)], food=[(0, 0)])
    assert world.act(FORWARD, FORWARD) == ([0.0, 0.0], [False, False], [False, False])
    assert world.body(1) == [(5, 3), (4, 3)]


def test_every_fourth_cell_that_a_dead_snake_had_grown_turns_into_food_and_the_rest_vanishes():
    world = World(snakes=2, start_length=2)
    rival = [(7, 0), (6, 0)]
    world.place(row_of(3, 1, 9), rival, food=[(0, 0)])
    _, terminals, _ = world.act(RIGHT, FORWARD)
    assert terminals == [True, False]
    assert world.food() == {(0, 0), (3, 3), (3, 7)}
    assert len(world.body(0)) == 1
    assert world.body(1) == [(6, 0), (5, 0)]


def test_a_new_snake_begins_on_an_empty_cell_with_nothing_eaten():
    world = World(snakes=2, start_length=2)
    for seed in range(30):
        world.env.reset(seed=seed)
        world.place(row_of(3, 1, 9), [(7, 0), (6, 0)], food=[(0, 0)])
        world.act(RIGHT, FORWARD)
        (cell,) = world.body(0)
        assert cell not in {(0, 0), (3, 3), (3, 7), (6, 0), (5, 0)}
        body = world.record()["bodies"][0]
        assert (body["eaten"], body["age"], body["growth"]) == (0, 0, 1)


def test_the_others_play_on_when_one_dies():
    world = World(snakes=2)
    world.place([(1, 3), (0, 3)], [(4, 2), (4, 3)], food=[(7, 9)])
    world.act(UP, FORWARD)
    (episode,) = world.env.episodes()
    assert (episode["episodes"], episode["episode_length"]) == (1, 1.0)
    world.act(FORWARD, FORWARD)
    assert world.record()["bodies"][1]["age"] == 2
    assert world.env.masks.all()


def test_the_time_limit_truncates_each_snake_by_its_own_age():
    world = World(snakes=2, max_steps=3)
    world.place([(1, 3), (0, 3)], [(4, 2), (4, 3)], food=[(7, 9)])
    assert world.act(UP, FORWARD) == ([-1.0, 0.0], [True, False], [False, False])
    world.place([(7, 3)], [(4, 3), (4, 4)], food=[(7, 9)])
    ages = bytearray(world.env.get_state())
    np.frombuffer(ages, world.dtype, count=1)[0]["bodies"]["age"][:2] = 0, 2
    world.env.set_state(bytes(ages))
    world.env.worlds.recv()
    assert world.act(UP, FORWARD) == ([0.0, 0.0], [False, False], [False, True])


def test_a_death_at_the_time_limit_is_a_termination():
    world = World(max_steps=1)
    world.place([(1, 3), (0, 3)], food=[(4, 4)])
    assert world.act(UP) == ([-1.0], [True], [False])


def test_the_score_is_what_was_eaten():
    world = World(max_steps=4)
    world.place([(4, 1), (4, 2)], food=[(4, 3), (4, 5), (0, 0)])
    rewards = [world.act(FORWARD)[0][0] for _ in range(4)]
    assert rewards == [1.0, 0.0, 1.0, 0.0]
    (episode,) = world.env.episodes()
    assert episode["score"] == 2.0


def test_a_snake_sees_the_cells_around_its_head():
    world = World(snakes=2)
    world.place([(2, 1), (2, 2), (3, 2)], [(2, 5), (3, 5), (3, 4)], food=[(7, 9), (7, 3)])
    world.act(FORWARD, FORWARD)  # Downwards to (4, 2), and to the left to (3, 3).
    expected = np.full((11, 11), WALL)
    expected[1:9, 3:] = EMPTY  # The rows 0 to 7 and the columns 0 to 7: what reaches the head's 5.
    expected[3 + 1, 2 + 3] = expected[4 + 1, 2 + 3] = expected[2 + 1, 2 + 3] = OWN
    expected[3 + 1, 4 + 3] = expected[3 + 1, 5 + 3] = RIVAL
    expected[3 + 1, 3 + 3] = RIVAL_HEAD
    expected[7 + 1, 3 + 3] = FOOD
    assert (world.env.observations[0] == expected).all()
    assert world.env.observations[1, 5, 5] == OWN


def test_the_last_view_of_an_episode_shows_the_snake_where_it_died():
    world = World(snakes=2)
    world.place([(1, 3), (0, 3)], [(4, 2), (4, 3)], food=[(7, 9)])
    world.act(UP, FORWARD)
    view = world.env.final_observations[0]
    assert (view[:5] == WALL).all()
    assert view[5, 5] == view[6, 5] == OWN


def test_every_cell_stays_accounted_for_in_a_long_random_game():
    world = World(snakes=6, start_length=3, food=6, max_steps=60)
    chooser = np.random.default_rng(4)
    for _ in range(3000):
        world.act(*chooser.integers(0, 5, 6))
        bodies = [cell for agent in range(6) for cell in world.body(agent)]
        assert len(set(bodies)) == len(bodies)
        assert len(world.food()) >= 6
        assert (world.map() >= SEGMENT).sum() == len(bodies)
    records = world.env.episodes()
    assert records[0]["score"] > 0


@pytest.mark.parametrize("snakes", [1, 31])
def test_as_many_snakes_play_as_were_asked_for(snakes):
    with vector.make("snake", env_kwargs={"snakes": snakes}, num_envs=3, seed=1) as vecenv:
        observations, _ = vecenv.reset()
    assert observations.shape == (3 * snakes, 11, 11)
    assert (observations[:, VIEW, VIEW] == OWN).all()


def test_a_map_too_small_for_its_food_and_snakes_is_refused():
    with pytest.raises(APIUsageError, match="would fill more than half of the map"):
        registry.find("snake")(width=8, height=8, snakes=1, food=30, start_length=4)


def test_the_same_seed_gives_the_same_game():
    def play(seed):
        with vector.make("snake", num_envs=4, seed=seed) as vecenv:
            vecenv.reset()
            chooser = np.random.default_rng(1)
            moves = chooser.integers(0, 5, (100, vecenv.num_agents)).astype(np.int32)
            return np.stack([vecenv.step(move)[0].copy() for move in moves])

    assert (play(5) == play(5)).all()
    assert (play(5) != play(6)).any()
