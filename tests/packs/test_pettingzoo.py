"""PettingZoo: all families keep the contract; turns, forbidden moves, padding, pictures, seeds."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("pettingzoo")
pytest.importorskip("multi_agent_ale_py")

from pufferlib import registry
from pufferlib.adapters import AgentsWrapper, AlikeAgents
from pufferlib.emulation import PettingZooPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

ONE_OF_EACH = (
    "atari/maze_craze",  # Its maze comes from the seed, of which 0 would be the time of day.
    "butterfly/knights_archers_zombies",
    "classic/connect_four",
    "classic/leduc_holdem",
    "mpe/simple_world_comm",  # Three kinds of agents.
    "sisl/multiwalker",
)


@pytest.fixture
def entry():
    return registry.find("pettingzoo")


def all_tasks():
    return registry.find("pettingzoo").module().list_tasks()


def check(entry, task):
    def create():
        return PettingZooPufferEnv(env=entry(task=task))

    # Agents of one game may well see the same, and a game may well return to its start.
    return check_env(create, steps=60, rows_differ=False, restarts_flagged=False)


@pytest.mark.parametrize("task", ONE_OF_EACH)
def test_one_of_each_kind_keeps_the_contract(entry, task):
    check(entry, task)


@pytest.mark.slow
@pytest.mark.parametrize("task", [t for t in all_tasks() if t != "sisl/waterworld"])
def test_every_task_keeps_the_contract(entry, task):
    check(entry, task)


def test_all_families_are_found(entry):
    families = {task.partition("/")[0] for task in all_tasks()}
    assert families == {"atari", "butterfly", "classic", "mpe", "sisl"}
    assert sum(task.startswith("atari/") for task in all_tasks()) == 24


@pytest.mark.parametrize("task", ["mpe/simple_spread", "classic/rps", "butterfly/cooperative_pong",
                                  "classic/hanabi", "sisl/multiwalker"])  # fmt: skip
def test_nothing_is_said_and_nothing_is_left(task, tmp_path):
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "from pufferlib import vector\n"
        "before = list(warnings.filters)\n"
        f"with vector.make('pettingzoo', num_envs=1, env_kwargs={{'task': {task!r}}}) as made:\n"
        "    made.reset(0)\n"
        "    for _ in range(30): made.step(made.action_space.sample())\n"
        "assert warnings.filters == before\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_episodes_without_a_seed_follow_from_the_last_one_given(entry):
    env = entry()

    def begins(seed):
        rows = [env.reset(seed=seed)[0]["agent_0"]]
        return [*rows, *(env.reset()[0]["agent_0"] for _ in range(3))]

    first, again, other = begins(5), begins(5), begins(6)
    np.testing.assert_array_equal(first, again)
    assert len({row.tobytes() for row in (*first, *other)}) == 8
    env.close()


def test_a_forbidden_move_is_replaced_by_an_allowed_one(entry):
    env = PettingZooPufferEnv(env=entry(task="classic/tictactoe"))
    env.reset(seed=0)
    moves = 0
    while not env.terminals.any():
        env.step(np.zeros(2, np.int32))  # All but the first say a cell that is taken.
        moves += 1
    assert 5 <= moves <= 9
    assert sorted(env.rewards.tolist()) in ([-1, 1], [0, 0])
    env.close()


def test_a_step_of_a_game_of_turns_is_one_move(entry):
    env = entry(task="classic/connect_four")
    observations, _ = env.reset(seed=0)
    assert observations["player_0"]["action_mask"].all()
    observations = env.step({"player_0": 3, "player_1": 5})[0]
    assert observations["player_1"]["observation"].sum() == 1
    env.close()


class Odd(AgentsWrapper):
    """Two agents whose spaces differ."""

    possible_agents = agents = ["long", "short"]
    render_mode = metadata = None

    def __init__(self, boxes=False):
        self.boxes, self.given = boxes, None

    def observation_space(self, agent):
        return spaces.Box(1, 5 if agent == "long" else 9, (4 if agent == "long" else 2, 2))

    def action_space(self, agent):
        n = 5 if agent == "long" else 3
        return spaces.Box(-1, 1, (n,)) if self.boxes else spaces.Discrete(n)

    def reset(self, seed=None, options=None):
        return {a: self.observation_space(a).low * 2 for a in self.agents}, {}

    def step(self, actions):
        self.given = actions
        return self.reset()[0], {}, {}, {}, {}


@pytest.mark.parametrize("boxes", [False, True])
def test_agents_with_different_spaces_get_the_larger_one(boxes):
    inner = Odd(boxes)
    env = AlikeAgents(inner)
    space = env.observation_space("short")
    assert space == env.observation_space("long") and space.shape == (4, 2)
    assert (space.low[:2] <= 0).all() and space.high[:2].max() == 9 and space.high[2:].max() == 5
    observations, _ = env.reset()
    assert observations["short"][:2].tolist() == [[2, 2], [2, 2]]
    assert not observations["short"][2:].any()
    assert all(space.contains(observation) for observation in observations.values())
    if boxes:
        action = np.arange(5, dtype=np.float32) / 5
        env.step({"long": action, "short": action})
        assert [len(inner.given[agent]) for agent in inner.agents] == [5, 3]
    else:
        env.step({"long": 4, "short": 4})
        assert inner.given == {"long": 4, "short": 1}


def test_pictures_are_gray_and_small_unless_asked_otherwise(entry):
    shapes = {}
    for factor in (None, 2, 1):
        env = entry(task="atari/pong", shrink_by=factor)
        space = env.observation_space("first_0")
        observations, _ = env.reset(seed=0)
        assert space.contains(observations["first_0"])
        shapes[factor] = space.shape
        env.close()
    assert shapes == {None: (52, 40, 1), 2: (105, 80, 1), 1: (210, 160, 3)}


def test_atari_repeats_actions_and_adds_rewards_up(entry):
    single, four = entry(task="atari/boxing", frame_skip=1), entry(task="atari/boxing")
    single.reset(seed=0)
    four.reset(seed=0)
    for k in range(60):
        actions = {"first_0": k % 18, "second_0": 1}
        several = [single.step(actions) for _ in range(4)]
        one = four.step(actions)
        np.testing.assert_array_equal(several[-1][0]["first_0"], one[0]["first_0"])
        assert one[1]["first_0"] == sum(step[1]["first_0"] for step in several)
    single.close()
    four.close()


def test_it_is_drawn(entry):
    env = entry(task="butterfly/pistonball", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (560, 880, 3)
    env.close()


def test_waterworld_says_which_pymunk_it_needs(entry):
    pymunk = pytest.importorskip("pymunk")
    if int(pymunk.version.partition(".")[0]) < 7:
        entry(task="sisl/waterworld").close()
        return
    with pytest.raises(EnvironmentSetupError, match=r"older pymunk; .*pip install 'pymunk<7'"):
        entry(task="sisl/waterworld")


def test_what_a_family_lacks_is_named_with_the_command_that_installs_it(entry, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(EnvironmentSetupError) as caught:
        entry(task="atari/pong")
    assert str(caught.value) == (
        "atari/pong needs the package 'ale_py', which is not installed; install what its family "
        "needs with: pip install 'multi-agent-ale-py>=0.1.11' 'ale-py>=0.11' 'pygame>=2.3'"
    )


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "atari/pongg"}, "there is no task of pettingzoo 'atari/pongg'; did you mean"),
        ({"n": 2}, "there is no parameter of mpe/simple_spread 'n'; "),
        ({"task": "sisl/pursuit", "foe": 1}, "sisl/pursuit does not take {'foe': 1}: "),
        ({"frame_skip": 0}, "frame_skip is 0; expected 1 to 16"),
        ({"shrink_by": 99}, "shrink_by is 99; expected 1 to 16"),
    ],
)
def test_what_it_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)
