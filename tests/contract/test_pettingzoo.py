"""PettingZoo environments as a PufferEnv: agents that die, come late and return."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from pufferlib import vector
from pufferlib.buffers import allocate
from pufferlib.emulation import AECToParallel, GymnasiumPufferEnv, PettingZooPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, InvalidAgentError, NonFiniteError
from pufferlib.vector import check_backend

# Lives of an agent: from the step at which it comes to the step at which it dies.
O09 = {"a": [(0, 4)], "b": [(0, 2)], "c": [(0, 4)]}


class Lives:
    """Agents that live as planned; each observes its number, the time and its episode's luck.

    A reward is 1 plus the action. `last_seen`: the dying are observed once more. `lingers`: the
    dead stay in every dict, with their flags, until all are dead. `truncates`: these agents do
    not die, they are cut off. `silent`: these leave without a flag.
    """

    def __init__(
        self, lives=O09, *, last_seen=True, lingers=False, truncates=(), silent=(), infos=None
    ):
        self.lives, self.last_seen, self.lingers = lives, last_seen, lingers
        self.truncates, self.silent = truncates, silent
        self.infos = infos or {}
        self.possible_agents = list(lives)
        self.seeds, self.acted, self.closed = [], [], 0
        self.random = np.random.default_rng()

    def observation_space(self, agent):
        return spaces.Box(-1, 9, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3, start=1)

    def living(self):
        return [a for a, all_ in self.lives.items() if any(s <= self.time < e for s, e in all_)]

    def observe(self, agent):
        return np.array([self.possible_agents.index(agent), self.time, self.luck], np.float32)

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.time, self.luck = 0, self.random.random()
        self.agents = self.living()
        return {a: self.observe(a) for a in self.agents}, {}

    def step(self, actions):
        living = self.living()
        assert list(actions) == living, "exactly the living act"
        self.acted.append("".join(actions))
        self.time += 1
        dead = [a for a in living if a not in self.living()]
        flagged = [a for a in dead if a not in self.silent]
        if self.lingers:
            flagged = [a for a in self.possible_agents if a not in self.living()]
            dead = flagged
        seen = self.living() + [a for a in flagged if self.last_seen]
        self.agents = self.living()
        if self.lingers and self.agents:
            self.agents = self.possible_agents
        told = self.infos.get(self.time, {})
        return (
            {a: self.observe(a) for a in seen},
            {a: float(actions.get(a, 0)) for a in {*living, *seen}},
            {a: a in flagged and a not in self.truncates for a in {*seen, *dead}},
            {a: a in flagged and a in self.truncates for a in {*seen, *dead}},
            told,
        )

    def render(self):
        return "picture"

    def close(self):
        self.closed += 1


def emulate(env=None, **arguments):
    return PettingZooPufferEnv(env=Lives() if env is None else env, **arguments)


def begin(env):
    env.reset()
    env.step(np.zeros(env.num_agents, np.int32))


def record(env, steps):
    """Masks, terminals, truncations and rewards of each step as rows of text, and the infos."""
    table, told = [], []
    for _ in range(steps):
        _, rewards, terminals, truncations, infos = env.step(np.zeros(env.num_agents, np.int32))
        flags = (env.masks, terminals, truncations, rewards)
        table.append(" ".join("".join(str(int(x)) for x in row) for row in flags))
        told += infos
    return table, told


# ---------------------------------------------------------------- life and death (O-09)


@pytest.mark.parametrize("lingers", [False, True])
def test_an_agent_that_dies_counts_once_and_then_is_absent(lingers):
    env = emulate(Lives(lingers=lingers))
    env.reset(seed=1)
    assert env.masks.all()
    table, _ = record(env, 8)
    #                 masks terminals truncations rewards
    assert (
        table
        == [
            "111 000 000 111",
            "101 010 000 111",
            "101 000 000 101",
            "111 101 000 101",
        ]
        * 2
    )


def test_a_dead_agent_observes_zeros_and_gets_no_action():
    env = emulate()
    env.reset(seed=1)
    luck = env.observations[0, 2].copy()
    record(env, 2)
    assert np.array_equal(env.observations, [[0, 2, luck], [0, 0, 0], [2, 2, luck]])
    assert env.final_observations[1].tolist() == [1, 2, luck]
    env.step(np.array([0, 99, 0]))
    record(env, 1)
    assert env.env.acted == ["abc", "abc", "ac", "ac"]


def test_the_environment_restarts_in_the_step_in_which_the_last_agent_dies():
    env = emulate()
    env.reset(seed=1)
    luck = env.observations[0, 2].copy()
    record(env, 3)
    assert env.env.seeds == [1]
    record(env, 1)
    assert env.env.seeds == [1, None]
    assert env.final_observations[[0, 2]].tolist() == [[0, 4, luck], [2, 4, luck]]
    assert env.observations[:, :2].tolist() == [[0, 0], [1, 0], [2, 0]]
    assert (env.observations[:, 2] != luck).all()


def test_a_missing_final_observation_is_zeros():
    env = emulate(Lives(last_seen=False))
    env.reset()
    env.final_observations[...] = 7
    table, _ = record(env, 4)
    assert table[1] == "101 010 000 111"
    assert table[3] == "111 101 000 101"
    assert not env.final_observations.any()


def test_truncation_and_termination_are_kept_apart():
    env = emulate(Lives(truncates="ab"))
    env.reset()
    table, _ = record(env, 4)
    assert table[1] == "101 000 010 111"
    assert table[3] == "111 001 100 101"


def test_a_termination_at_the_time_limit_is_no_truncation():
    class Both(Lives):
        def step(self, actions):
            observations, rewards, terminations, _, infos = super().step(actions)
            return observations, rewards, terminations, terminations, infos

    env = emulate(Both())
    env.reset()
    assert record(env, 2)[0][1] == "101 010 000 111"


def test_agents_come_late_and_return():
    env = emulate(Lives({"a": [(0, 1), (3, 5)], "b": [(2, 4)], "c": [(0, 5)]}))
    env.reset()
    assert env.masks.tolist() == [True, False, True]
    assert not env.observations[1].any()
    table, told = record(env, 5)
    assert table == [
        "001 100 000 101",
        "011 000 000 001",
        "111 000 000 011",
        "101 010 000 111",
        "101 101 000 101",
    ]
    lengths = [(info["agent"], info["episode_length"]) for info in told]
    assert lengths == [("a", 1), ("b", 2), ("a", 2), ("c", 5)]


def test_an_agent_that_leaves_without_a_flag_is_truncated():
    env = emulate(Lives({"a": [(0, 4)], "b": [(0, 1), (2, 4)]}, silent="b"))
    env.reset()
    table, _ = record(env, 3)
    assert table == ["10 00 01 11", "11 00 00 10", "11 00 00 11"]


def test_agents_left_over_when_the_environment_is_done_are_truncated():
    class Abrupt(Lives):
        def step(self, actions):
            result = super().step(actions)
            self.agents = self.agents if self.time < 2 else []
            return result

    env = emulate(Abrupt({"a": [(0, 9)], "b": [(0, 9)]}))
    env.reset(seed=3)
    table, _ = record(env, 2)
    assert table == ["11 00 00 11", "11 00 11 11"]
    assert env.final_observations[:, 1].tolist() == [2, 2]
    assert env.env.seeds == [3, None]


def test_an_episode_goes_on_while_an_agent_is_still_to_come():
    class Gap(Lives):
        """Lists the agent that is to come before it observes anything."""

        def step(self, actions):
            result = super().step(actions)
            self.agents = self.possible_agents if self.time < 4 else []
            return result

    env = emulate(Gap({"a": [(0, 1)], "b": [(2, 4)]}))
    env.reset(seed=3)
    table, _ = record(env, 4)
    assert table == ["00 10 00 10", "01 00 00 00", "01 00 00 01", "10 01 00 01"]
    assert env.env.seeds == [3, None]


# ---------------------------------------------------------------- infos


def test_infos_name_their_agent_and_tell_each_agents_episode():
    infos = {
        1: {"a": {"score": 1}, "b": {}, "c": {"map": [0, 1], "note": None}},
        2: {"b": {"score": 5}},
        4: {"c": {"episode_length": 99}},
    }
    env = emulate(Lives(infos=infos))
    assert env.reset()[1] == []
    assert record(env, 4)[1] == [
        {"score": 1, "agent": "a"},
        {"map": [0, 1], "note": None, "agent": "c"},
        {"episode_return": 2.0, "episode_length": 2, "score": 5, "agent": "b"},
        {"episode_return": 4.0, "episode_length": 4, "agent": "a"},
        {"episode_return": 4.0, "episode_length": 99, "agent": "c"},
    ]


def test_the_infos_of_the_next_reset_follow_the_last_infos():
    class Told(Lives):
        def reset(self, **arguments):
            return super().reset(**arguments)[0], {"a": {"fresh": True}}

    env = emulate(Told({"a": [(0, 1)]}))
    assert env.reset()[1] == [{"fresh": True, "agent": "a"}]
    _, told = record(env, 1)
    assert told[1:] == [{"fresh": True, "agent": "a"}]


# ---------------------------------------------------------------- the contract


def test_the_environment_passes_check_env():
    report = check_env(lambda: emulate(Lives(truncates="a")), steps=60, rows_differ=False)
    assert report.terminations and report.truncations and report.absences


class Structured(Lives):
    """Observations and actions with fields; the bytes between the fields stay zero."""

    def observation_space(self, agent):
        return spaces.Dict(
            z=spaces.Box(0, 255, (3,), np.uint8), t=spaces.Box(-9, 9, (), np.float32)
        )

    def action_space(self, agent):
        return spaces.Dict(go=spaces.Discrete(2), turn=spaces.MultiBinary(2))

    def observe(self, agent):
        number, time, luck = super().observe(agent)
        return {"t": np.float32(luck), "z": np.array([number, time, 255], np.uint8)}

    def step(self, actions):
        assert all(self.action_space(a).contains(action) for a, action in actions.items())
        return super().step({a: action["go"] for a, action in actions.items()})


def test_structured_spaces_are_packed():
    check_env(lambda: emulate(Structured()), steps=40, rows_differ=False)
    env = emulate(Structured())
    env.reset(seed=1)
    fields = env.single_observation_space.unpack(env.observations)
    assert fields["z"].tolist() == [[0, 0, 255], [1, 0, 255], [2, 0, 255]]
    assert env.single_action_space == spaces.MultiDiscrete([2, 2, 2])
    assert env.env_single_action_space == env.env.action_space("a")
    env.step(np.ones((3, 3), np.int32))
    assert env.rewards.tolist() == [1, 1, 1]


def test_rows_of_others_are_left_alone():
    env = emulate()
    rows = allocate(5, env.single_observation_space, env.single_action_space)
    before = rows.observations[[0, 4]].copy()
    env = PettingZooPufferEnv(
        env_creator=Lives, env_kwargs={"last_seen": False}, buf=rows.rows(1, 4)
    )
    env.reset()
    record(env, 2)
    assert rows.masks.tolist() == [True, True, False, True, True]
    assert np.array_equal(rows.observations[[0, 4]], before)


def test_the_constructor_seed_is_used_once():
    env = emulate(seed=9)
    env.reset()
    env.reset()
    env.reset(seed=np.uint64(4))
    assert env.env.seeds == [9, None, 4]
    assert type(env.env.seeds[-1]) is int


def test_pictures_and_closing():
    env = emulate()
    assert env.render() == "picture"
    with pytest.raises(APIUsageError, match="Lives: step before reset; call reset first"):
        env.step(np.zeros(3, np.int32))
    env.reset()
    env.close()
    env.close()
    assert env.env.closed == 1
    with pytest.raises(APIUsageError, match="Lives: step after close; create a new environment"):
        env.step(np.zeros(3, np.int32))
    with pytest.raises(APIUsageError, match="Lives: reset after close; create a new environment"):
        env.reset()


@pytest.mark.parametrize("backend", ["Serial", "Multiprocessing"])
def test_a_vector_wraps_it_and_keeps_the_contract(backend):
    check_backend(
        partial(vector.make, backend=backend, num_workers=1), creator=Lives, batch_sizes=(4,)
    )


def test_episodes_are_told_by_environment_and_agent():
    with vector.make(Lives, num_envs=2, backend="Serial", seed=1) as vecenv:
        vecenv.reset()
        for _ in range(2):
            infos = vecenv.step(np.zeros(6, np.int32))[4]
        assert [(info["env"], info["agent"]) for info in infos] == [(0, "b"), (1, "b")]
        assert vecenv.episodes() == [
            {"episode_return": 2.0, "episode_length": 2, "agent": "b", "env": k} for k in (0, 1)
        ]


def test_rows_of_absent_agents_are_outside_of_training(monkeypatch):
    import torch  # Not above: workers import this module.

    from pufferlib import config, models, ppo

    rows, whole = [], ppo.loss

    def loss(policy, observations, *rest, config):
        rows.append(observations.clone())
        return whole(policy, observations, *rest, config=config)

    monkeypatch.setattr(ppo, "loss", loss)
    sizes = {"train.horizon": 8, "train.minibatch_size": 16, "train.threads": 1}
    with vector.make(Lives, num_envs=2, backend="Serial") as vecenv:
        policy = models.Default(vecenv.single_observation_space, vecenv.single_action_space)
        settings = config.Config().override(sizes | {"train.device": "cpu"}, source="the test")
        metrics = ppo.create(settings, vecenv, policy).advance()
    assert metrics["steps"] == 40  # Of 48: b is absent in two of four steps.
    seen = torch.cat(rows)
    assert len(seen) == 40 and (seen != 0).any(1).all()
    assert metrics["episodes"]["episodes"] == 12
    assert metrics["episodes"]["episode_length"] == pytest.approx((4 + 2 + 4) / 3)


# ---------------------------------------------------------------- refusals


def with_spaces(**changed):
    """Lives in which agent b has other spaces."""

    class Unequal(Lives):
        def observation_space(self, agent):
            changes = agent == "b" and "observation" in changed
            return changed["observation"] if changes else super().observation_space(agent)

        def action_space(self, agent):
            changes = agent == "b" and "action" in changed
            return changed["action"] if changes else super().action_space(agent)

    return Unequal()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"observation": spaces.Box(0, 1, (5,))}, ["observation space Box(-1.0, 9.0, (3,)", "(5,"]),
        ({"action": spaces.Discrete(4)}, ["action space Discrete(3, start=1)", "Discrete(4)"]),
    ],
)
def test_agents_with_unequal_spaces_are_refused_at_construction(changed, words):
    with pytest.raises(APIUsageError, match="^Unequal: agent 'a' has .* agent 'b' has") as error:
        emulate(with_spaces(**changed))  # O-03
    assert all(word in str(error.value) for word in words)
    assert "a wrapper around the environment" in str(error.value)


def test_a_space_without_fixed_size_is_refused_at_construction():
    class Endless(Lives):
        def observation_space(self, agent):
            return spaces.Dict(tail=spaces.Sequence(spaces.Box(0, 1, (2,))))

    with pytest.raises(APIUsageError, match=r"^Endless: .* has no fixed size \(tail: Sequence\)"):
        emulate(Endless())


class Spoiled(Lives):
    """Lives whose results are changed by a function."""

    def __init__(self, spoil, when="step"):
        super().__init__()
        self.spoil, self.when = spoil, when

    def reset(self, **arguments):
        result = super().reset(**arguments)
        return self.spoil(self, result) if self.when == "reset" else result

    def step(self, actions):
        return self.spoil(self, super().step(actions))


def strange_agent(env, result):
    return ({**result[0], "z": env.observe("a")}, *result[1:])


def reward(value):
    def spoil(env, result):
        return (result[0], {**result[1], "b": value}, *result[2:])

    return spoil


def no_reward(env, result):
    return (result[0], {"a": 1.0, "c": 1.0}, *result[2:])


def too_large(env, result):
    return ({**result[0], "b": np.full(3, 77, np.float32)}, *result[1:])


def wrong_dtype(env, result):
    return ({**result[0], "b": np.zeros(3, np.int64)}, *result[1:])


@pytest.mark.parametrize(
    ("spoil", "when", "kind", "message"),
    [
        (strange_agent, "reset", InvalidAgentError, "Spoiled: 'z' is observed but not among"),
        (strange_agent, "step", InvalidAgentError, "Spoiled: 'z' is observed but not among"),
        (reward(np.nan), "step", NonFiniteError, "Spoiled: reward of agent 'b' is nan at step 1"),
        (reward("1"), "step", APIUsageError, "Spoiled: reward of agent 'b' is '1'; expected one"),
        (no_reward, "step", APIUsageError, "Spoiled: reward of agent 'b' is None; expected one"),
        (too_large, "reset", APIUsageError, "Spoiled: observation is 77.0 at [0], outside the"),
        (too_large, "step", APIUsageError, "Spoiled: observation is 77.0 at [0], outside the"),
        (wrong_dtype, "step", APIUsageError, "Spoiled: observation is int64 [3], expected floa"),
        (lambda _, r: r[0], "reset", APIUsageError, "Spoiled: reset returned a dict, expected (o"),
        (lambda _, r: r[:2], "step", APIUsageError, "Spoiled: step returned a tuple of 2, expect"),
        (lambda _, r: ({}, {}), "reset", APIUsageError, "Spoiled: no agent has an observation"),
    ],
)
def test_a_bad_result_is_refused(spoil, when, kind, message):
    env = emulate(Spoiled(spoil, when))
    with pytest.raises(kind) as error:
        begin(env)
    assert str(error.value).startswith(message)


class Anonymous(Lives):
    def __init__(self):
        super().__init__()
        del self.possible_agents


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Lives, "env is the class Lives; pass an instance, or env_creator="),
        (Anonymous(), "Anonymous has no possible_agents; expected a PettingZoo environment"),
        (Lives({}), "Lives has no agents in possible_agents; expected a PettingZoo environment"),
        (emulate(), "PettingZooPufferEnv is a PufferEnv already; use it as it is"),
    ],
)
def test_what_cannot_be_emulated_is_refused(env, message):
    with pytest.raises(APIUsageError) as error:
        emulate(env)
    assert str(error.value).startswith(message)


def test_the_gymnasium_class_points_to_this_one():
    with pytest.raises(APIUsageError, match="Lives has several agents.*PettingZooPufferEnv"):
        GymnasiumPufferEnv(env=Lives())


# ---------------------------------------------------------------- agents that take turns


class Turns(Lives):
    """The same lives with the AEC API: moves take effect when the last agent of a round moved.

    Rewards are those of the last move, as PettingZoo has it.
    """

    metadata = {"is_parallelizable": True}

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.moves = {}
        self._begin_round()

    def _begin_round(self):
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.infos = {a: {} for a in self.agents}
        self.agent_selection = self.agents[0] if self.agents else None

    def agent_iter(self):
        raise AssertionError("the adapter makes its own loop")

    @property
    def unwrapped(self):
        return self

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            assert action is None, "the dead move nothing"
            self.agents.remove(agent)
            for table in (self.terminations, self.truncations, self.rewards, self.infos):
                del table[agent]
            dead = [a for a in self.agents if self.terminations[a]]
            self.agent_selection = (dead or self.agents or [None])[0]
            return
        self.moves[agent] = action
        self.rewards = dict.fromkeys(self.agents, 0.0)
        waiting = [a for a in self.agents if a not in self.moves]
        if waiting:
            self.agent_selection = waiting[0]
            return
        self.acted.append("".join(self.moves))
        self.time += 1
        moves, self.moves = self.moves, {}
        self._begin_round()
        self.rewards = {a: float(move) for a, move in moves.items()}
        dead = [a for a in self.agents if a not in self.living()]
        self.terminations.update(dict.fromkeys(dead, True))
        self.agent_selection = (dead or self.agents)[0]


def test_a_round_of_turns_equals_a_parallel_step():
    parallel, turns = emulate(Lives()), emulate(Turns())
    assert isinstance(turns.env, AECToParallel)
    assert np.array_equal(parallel.reset(seed=5)[0], turns.reset(seed=5)[0])
    for step in range(12):
        actions = np.random.default_rng(step).integers(0, 3, 3).astype(np.int32)
        *one, infos = parallel.step(actions)
        *other, told = turns.step(actions)
        for mine, yours in zip(one, other, strict=True):
            assert np.array_equal(mine, yours)
        assert infos == told
        assert np.array_equal(parallel.masks, turns.masks)
    assert turns.env.env.acted == parallel.env.acted
    check_env(lambda: emulate(Turns()), steps=30, rows_differ=False)


class Race:
    """Agents move in turn, each by its action; whoever reaches 3 wins and all is over."""

    possible_agents = ["x", "o"]
    metadata: dict = {}

    def observation_space(self, agent):
        return spaces.Box(0, 9, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def agent_iter(self):
        raise AssertionError("the adapter makes its own loop")

    @property
    def unwrapped(self):
        return self

    def reset(self, seed=None, options=None):
        self.agents = ["x", "o"]
        self.agent_selection = "x"
        self.places = {"x": 0, "o": 0}
        self.rewards = {"x": 0, "o": 0}
        self.terminations = {"x": False, "o": False}
        self.truncations = {"x": False, "o": False}
        self.infos = {"x": {}, "o": {}}

    def observe(self, agent):
        turn = agent == self.agent_selection
        return np.array([*self.places.values(), turn], np.float32)

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            assert action is None
            self.agents.remove(agent)
            self.agent_selection = self.agents[0] if self.agents else None
            return
        self.places[agent] += int(action)
        other = "o" if agent == "x" else "x"
        if self.places[agent] == 3:
            self.rewards = {agent: 1, other: -1}
            self.terminations = {"x": True, "o": True}
        self.agent_selection = other

    def close(self):
        pass


def test_without_simultaneous_moves_a_step_is_one_move():
    env = emulate(Race())
    env.reset()
    turns = []
    for _ in range(4):
        turns.append(env.observations[:, 2].tolist())
        env.step(np.array([1, 0]))
    assert turns == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert env.observations[0].tolist() == [2, 0, 1]
    _, rewards, terminals, _, infos = env.step(np.array([1, 1]))
    assert rewards.tolist() == [1, -1]
    assert terminals.tolist() == [True, True]
    assert env.masks.all() and env.observations[0].tolist() == [0, 0, 1]
    assert [(i["agent"], i["episode_return"], i["episode_length"]) for i in infos] == [
        ("x", 1.0, 5),
        ("o", -1.0, 5),
    ]


def test_a_step_is_a_round_where_the_caller_says_so():
    env = emulate(AECToParallel(Race(), simultaneous=True))
    env.reset()
    env.step(np.array([1, 1]))
    assert env.observations[0].tolist() == [1, 1, 1]


# ---------------------------------------------------------------- PettingZoo's own


@pytest.fixture
def spread():
    pytest.importorskip("pettingzoo")
    with pytest.warns(DeprecationWarning, match="mpe"):
        from pettingzoo.mpe import simple_spread_v3
    return simple_spread_v3


@pytest.fixture
def tictactoe():
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3


def test_pettingzoos_spread_is_the_same_with_both_apis(spread):
    parallel, turns = emulate(spread.parallel_env(max_cycles=5)), emulate(spread.env(max_cycles=5))
    assert np.array_equal(parallel.reset(seed=5)[0], turns.reset(seed=5)[0])
    for step in range(12):
        actions = np.random.default_rng(step).integers(0, 5, 3).astype(np.int32)
        one, other = parallel.step(actions), turns.step(actions)
        for mine, yours in zip(one[:4], other[:4], strict=True):
            assert np.array_equal(mine, yours)
        assert one[3].all() == ((step + 1) % 5 == 0)
    check_env(lambda: emulate(spread.parallel_env(max_cycles=9)), steps=40)


def test_pettingzoos_tictactoe_is_played_move_by_move(tictactoe):
    report = check_env(lambda: emulate(tictactoe.env()), steps=60, restarts_flagged=False)
    assert report.terminations > 0
    env = emulate(tictactoe.env())
    env.reset(seed=1)
    for move in (0, 3, 1, 4):
        env.step(np.full(2, move, np.int32))
    _, rewards, terminals, _, _ = env.step(np.full(2, 2, np.int32))
    assert rewards.tolist() == [1, -1]
    assert terminals.all()
