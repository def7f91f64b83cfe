"""Vectors as Gymnasium and Stable-Baselines3 know them, and theirs as ours."""

from __future__ import annotations

import runpy
import sys
from copy import deepcopy
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVector

from pufferlib import models, ppo, vector
from pufferlib.config import Config
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError, NonFiniteError
from pufferlib.seeding import env_seed, env_seeds
from pufferlib.vector import stable_baselines
from pufferlib.vector.conformance import Probe, _Check
from pufferlib.vector.gymnasium import BatchedActions, columns

DICT = spaces.Dict(
    {
        "picture": spaces.Box(0, 255, (2, 3), np.uint8),
        "parts": spaces.Tuple((spaces.Discrete(9, start=-4), spaces.MultiBinary(3))),
        "speed": spaces.Box(-1, 1, (2,), np.float32),
    }
)
ACTIONS = [
    spaces.Discrete(4, start=3),
    spaces.MultiDiscrete([3, 5]),
    spaces.MultiBinary(4),
    spaces.Box(-1, 1, (2, 2), np.float32),
    spaces.Dict({"move": spaces.Discrete(3, start=-1), "aim": spaces.MultiDiscrete([2, 4])}),
    spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Box(0, 9, (1,), np.int16))),
]


class Random(gymnasium.Env):
    """Observes anything, checks its actions, and tells infos of every kind now and then."""

    def __init__(self, observation_space=DICT, action_space=ACTIONS[0]):
        self.observation_space = deepcopy(observation_space)  # It is what draws the samples.
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        self.time, self.length = 0, int(self.np_random.integers(2, 6))
        return self.observation_space.sample(), {"length": self.length}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        over = self.time == self.length
        info = {"time": self.time, "map": np.full(2, self.time), "deep": {"time": self.time / 2}}
        if self.time % 2:
            info |= {"name": "odd", "nothing": None}
        reward = float(np.float32(self.np_random.random()))
        observation = self.observation_space.sample()
        return (
            observation,
            reward,
            over and self.length % 2 == 0,
            over and self.length % 2 == 1,
            info,
        )


class Counting(gymnasium.Env):
    """Observes 1, 2, 3 and is truncated there; a new episode begins at 100."""

    observation_space = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.full(1, 100, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, False, self.time == 3, {"last": self.time}


@pytest.fixture
def one_thread():
    """Torch on one thread: these networks are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_sync(creator, count, mode=AutoresetMode.SAME_STEP):
    return SyncVectorEnv([creator] * count, autoreset_mode=mode)


def front(creator, count, backend="Serial", **options):
    vecenv = vector.make(creator, num_envs=count, backend=backend, **options)
    return vector.GymnasiumVectorEnv(vecenv)


def same(ours, theirs, path="") -> None:
    """Equal values, dtypes included, in dicts, tuples and arrays of objects."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), path
        for key in theirs:
            same(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs), path
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            same(*pair, f"{path}.{i}")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert ours.dtype == object, path
        for i in range(len(theirs)):
            same(ours[i], theirs[i], f"{path}[{i}]")
    else:
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype, path
        assert np.array_equal(ours, theirs), (path, ours, theirs)


def without_figures(infos: dict) -> dict:
    """Infos without what we count in addition."""
    added = ("episode", "episode_return", "episode_length")
    kept = {k: v for k, v in infos.items() if k.removeprefix("_") not in added}
    return {k: without_figures(v) if isinstance(v, dict) else v for k, v in kept.items()}


# ---------------------------------------------------------------- the view


@pytest.mark.parametrize("action_space", ACTIONS, ids=lambda space: type(space).__name__)
def test_the_view_equals_gymnasiums_own_vector_in_same_step_mode(action_space):
    equals_gymnasiums_own(partial(Random, action_space=action_space), "Serial")


def test_the_view_of_workers_equals_gymnasiums_own_vector():
    creator = partial(Random, action_space=ACTIONS[4])
    equals_gymnasiums_own(creator, "Multiprocessing", num_workers=2, overwork=True)


def equals_gymnasiums_own(creator, backend, **options):
    ours, theirs = front(creator, 4, backend, **options), make_sync(creator, 4)
    try:
        for name in ("observation_space", "action_space"):
            assert getattr(ours, name) == getattr(theirs, name)
            assert getattr(ours, f"single_{name}") == getattr(theirs, f"single_{name}")
        seeds = [7, 8, 9, 10]
        mine, its = ours.reset(seed=seeds), theirs.reset(seed=seeds)
        same(mine[0], its[0])
        same(mine[1], its[1])
        ends = 0
        for _ in range(20):
            actions = theirs.action_space.sample()
            mine, its = ours.step(actions), theirs.step(actions)
            same(mine[:4], its[:4])
            same(without_figures(mine[4]), its[4])
            ends += int(mine[2].sum() + mine[3].sum())
        assert ends > 8
    finally:
        ours.close()
        theirs.close()


def test_the_view_states_its_mode_and_refuses_options():
    envs = front(Counting, 2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.unwrapped is envs and envs.num_envs == 2
    with pytest.raises(APIUsageError, match="reset takes no options here, got {'reset_mask': 1}"):
        envs.reset(options={"reset_mask": 1})
    envs.close()
    assert envs.closed and envs.vecenv.expected == "nothing (it is closed)"


def test_final_observation_and_infos_are_those_of_the_last_step():
    envs = front(Counting, 2)
    envs.reset(seed=0)
    seen = [envs.step(np.zeros(2, int)) for _ in range(8)]
    assert [step[0][0, 0] for step in seen] == [1, 2, 100, 1, 2, 100, 1, 2]
    infos = seen[2][4]
    assert infos["_final_obs"].all() and infos["final_obs"][1] == [3]
    assert infos["final_info"]["last"].tolist() == [3, 3]
    assert "last" not in infos
    envs.close()


def test_what_a_step_returned_is_the_users_to_keep():
    envs = front(Counting, 1)
    first, _ = envs.reset()
    second = envs.step([0])
    envs.step([0])
    assert first == [[100]] and second[0] == [[1]] and second[1] == [1.0]
    envs.close()
    vecenv = vector.make(Counting, backend="Serial")
    views = vector.GymnasiumVectorEnv(vecenv, copy=False)
    first, _ = views.reset()
    views.step([0])
    assert first == [[1]]
    views.close()


def test_a_seed_gives_each_environment_its_own_and_the_same_again():
    with vector.make("squared", num_envs=3) as vecenv:
        envs = vector.GymnasiumVectorEnv(vecenv)
        first = envs.reset(seed=5)[0]
        envs.step(envs.action_space.sample())
        assert (envs.reset(seed=5)[0] == first).all()
        assert (envs.reset(seed=[env_seed(5, k) for k in range(3)])[0] == first).all()


def test_episodes_are_counted_as_by_gymnasiums_wrapper():
    ours = front(Random, 4)
    theirs = make_sync(lambda: RecordEpisodeStatistics(Random()), 4)
    seeds = [3, 4, 5, 6]
    ours.reset(seed=seeds)
    theirs.reset(seed=seeds)
    counted = 0
    for _ in range(40):
        actions = theirs.action_space.sample()
        mine, its = ours.step(actions)[4], theirs.step(actions)[4]
        assert ("episode" in mine) == ("final_info" in its)
        if "episode" not in mine:
            continue
        assert (mine["_episode"] == its["_final_info"]).all()
        counted += mine["_episode"].sum()
        for episode in (mine["episode"], mine["final_info"]["episode"]):
            same(episode["l"], its["final_info"]["episode"]["l"])
            assert episode["r"] == pytest.approx(its["final_info"]["episode"]["r"], rel=1e-6)
            assert (episode["t"] >= 0).all()
    assert counted > 15
    ours.close()
    theirs.close()


def test_episodes_of_native_environments_are_counted_as_by_themselves():
    with vector.make("cartpole", num_envs=8, backend="Native", seed=3) as vecenv:
        envs = vector.GymnasiumVectorEnv(vecenv)
        envs.reset()
        envs.action_space.seed(0)
        lengths = []
        for _ in range(80):
            infos = envs.step(envs.action_space.sample())[4]
            if infos:
                lengths += infos["episode"]["l"][infos["_episode"]].tolist()
        assert sum(r.get("episodes", 1) for r in vecenv.episodes()) == len(lengths) > 10
        assert min(lengths) > 5


def test_episodes_are_left_to_a_wrapper_if_asked():
    vecenv = vector.make(Counting, num_envs=2, backend="Serial")
    envs = RecordVector(vector.GymnasiumVectorEnv(vecenv, record_episodes=False))
    envs.reset()
    told = [envs.step([0, 0])[4] for _ in range(3)]
    assert told[2]["_episode"].all() and "episode" not in told[2]["final_info"]
    envs.close()


class HalfReward(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2


def test_an_environment_that_counts_its_own_episodes_is_believed():
    envs = front(lambda: HalfReward(RecordEpisodeStatistics(Counting())), 2)
    envs.reset()
    for _ in range(3):
        infos = envs.step([0, 1])[4]
    assert infos["episode"]["r"].tolist() == [3.0, 3.0]
    assert infos["final_info"]["episode"]["l"].tolist() == [3, 3]
    envs.close()


def test_infos_that_differ_in_kind_become_objects():
    told = {0: {"a": 1, "b": np.zeros(2)}, 2: {"a": 2.5, "b": np.zeros(3), "c": {"d": None}}}
    table = columns(told, 3)
    assert table["a"].tolist() == [1.0, 0.0, 2.5] and table["_a"].tolist() == [True, False, True]
    assert table["b"].dtype == object and table["b"][1] is None and table["b"][2].shape == (3,)
    assert table["c"]["d"].tolist() == [None] * 3 and table["c"]["_d"].tolist() == [
        False,
        False,
        True,
    ]
    assert columns({0: {"e": {"r": 1}}, 1: {"e": None}}, 2)["e"].tolist() == [{"r": 1}, None]


class Pair(PufferEnv):
    """Two agents that are always there; the world and the second agent tell something."""

    def __init__(self, buf=None):
        self.single_observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 2
        super().__init__(buf)

    def reset(self, seed=None):
        self.observations[...] = 0
        return self.observations, [{"map": "round"}]

    def step(self, actions):
        self.rewards[...] = actions
        infos = [{"agent": 1, "hits": 5}]
        return self.observations, self.rewards, self.terminals, self.truncations, infos


def test_each_agent_of_a_world_is_an_environment():
    envs = front(Pair, 2)
    observations, infos = envs.reset()
    assert envs.num_envs == len(observations) == 4
    assert infos["map"].tolist() == ["round"] * 4
    _, rewards, _, _, infos = envs.step([0, 1, 1, 0])
    assert rewards.tolist() == [0, 1, 1, 0]
    assert infos["hits"].tolist() == [0, 5, 0, 5]
    assert infos["_hits"].tolist() == [False, True, False, True]
    envs.close()


def test_absent_agents_are_refused_by_row():
    envs = front(Probe, 1)
    envs.reset(seed=1)
    while not envs.vecenv.buf.terminals[1]:
        envs.step(np.zeros((2, 2), int))
    with pytest.raises(APIUsageError, match="agent row 1 is absent, which Gymnasium's vectors"):
        envs.step(np.zeros((2, 2), int))
    envs.close()


def test_a_vector_of_several_batches_is_refused():
    with (
        vector.make(Counting, num_envs=4, batch_size=2, backend="Serial") as vecenv,
        pytest.raises(APIUsageError, match="returns 2 of 4 environments in a batch"),
    ):
        vector.GymnasiumVectorEnv(vecenv)


def test_actions_of_the_wrong_shape_are_refused_by_field():
    actions = BatchedActions(ACTIONS[4], 3)
    with pytest.raises(APIUsageError, match=r"'aim' have the shape \[3, 1\]; expected \[3, 2\]"):
        actions.to_rows({"move": np.zeros(3, int), "aim": np.zeros((3, 1), int)})


@pytest.mark.parametrize("space", ACTIONS, ids=lambda space: type(space).__name__)
def test_actions_survive_the_way_to_rows_and_back(space):
    actions = BatchedActions(space, 5)
    joint = gymnasium.vector.utils.batch_space(space, 5)
    joint.seed(2)
    for _ in range(5):
        sample = joint.sample()
        same(actions.from_rows(actions.to_rows(sample)), sample)


def test_pictures_come_from_environments_in_this_process():
    envs = front(partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array"), 2)
    envs.reset()
    pytest.importorskip("pygame")
    assert envs.render_mode == "rgb_array"
    assert [frame.shape for frame in envs.render()] == [(400, 600, 3)] * 2
    envs.close()


# ---------------------------------------------------------------- adoption


def adopted(creator, *, num_envs, batch_size="auto", seed=None, kind=SyncVectorEnv):
    """Somebody's vector of Gymnasium environments as a backend."""
    vecenv = vector.adopt(kind([creator] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP))
    vecenv.default_seed = seed
    return vecenv


def test_an_adopted_vector_keeps_the_contract():
    check = _Check(adopted, HasOneFloat, 40)
    vecenv = check.make("auto", seed=7)
    check.call_order(vecenv)
    check.results(vecenv)
    check.actions(vecenv)
    check.seeds(vecenv, 7)
    check.closed(vecenv)
    check.chance("auto")


class HasOneFloat(Random):
    def __init__(self):
        super().__init__(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(3))


@pytest.mark.parametrize(
    "space, kind",
    [
        (DICT, SyncVectorEnv),
        (spaces.Box(-1, 1, (2,), np.float32), SyncVectorEnv),
        (spaces.Discrete(5), SyncVectorEnv),
        (DICT, AsyncVectorEnv),
    ],
)
def test_adopted_same_step_vectors_equal_serial(space, kind):
    creator = partial(Random, space, ACTIONS[4])
    ours = vector.make(creator, num_envs=4, backend="Serial")
    theirs = adopted(creator, num_envs=4, kind=kind)
    run_both(ours, theirs)
    theirs.close()


def test_a_view_that_is_adopted_again_equals_the_vector_itself():
    ours, inner = (vector.make(Random, num_envs=4, backend="Serial") for _ in range(2))
    run_both(ours, vector.adopt(vector.GymnasiumVectorEnv(inner)))


def run_both(ours, theirs, steps=30):
    assert theirs.single_action_space == ours.single_action_space
    ours.async_reset(5)
    theirs.async_reset(5)
    ended = 0
    for _ in range(steps):
        mine, its = ours.recv(), theirs.recv()
        for a, b in zip((*mine[:4], *mine[5:]), (*its[:4], *its[5:]), strict=True):
            assert a.dtype == b.dtype and (a == b).all()
        over = mine[2] | mine[3]
        ended += over.sum()
        assert (ours.final_observations[over] == theirs.final_observations[over]).all()
        actions = ours.action_space.sample()
        ours.send(actions)
        theirs.send(actions)
    assert ended > 8
    mine, its = ours.episodes(), theirs.episodes()
    keys = ("env", "episode_return", "episode_length", "time")
    assert [[e[k] for k in keys] for e in mine] == [[e[k] for k in keys] for e in its]


def real_transitions(mode):
    """(observation, action taken on it, reward, truncated) of Counting's rows that were there."""
    vecenv = vector.adopt(make_sync(Counting, 1, mode))
    vecenv.async_reset(0)
    before, present, rows, finals = [], [False], [], []
    for _ in range(9):
        observations, rewards, _, truncations, _, _, masks = vecenv.recv()
        if present[0]:
            rows.append((before[0, 0], rewards[0], truncations[0]))
        if truncations[0]:
            finals.append(vecenv.final_observations[0, 0])
        before, present = observations.copy(), masks.copy()
        vecenv.send(np.zeros(1, int))
    records = vecenv.episodes()
    vecenv.close()
    return rows, finals, records


def test_of_eight_steps_in_next_step_mode_six_are_real():
    """O-07: filler is neither trained on nor counted."""
    once = [(100, 1.0, False), (1, 1.0, False), (2, 1.0, True)]
    rows, finals, records = real_transitions(AutoresetMode.NEXT_STEP)
    assert rows == once * 2 and finals == [3, 3]
    same_rows, same_finals, same_records = real_transitions(AutoresetMode.SAME_STEP)
    assert same_rows == once * 2 + once[:2] and same_finals == [3, 3]
    episode = {"env": 0, "episode_return": 3.0, "episode_length": 3, "last": 3}
    assert records == [episode] * 2 and same_records == [episode] * 3


def test_a_vector_without_restarts_is_refused():
    with pytest.raises(APIUsageError, match=r"does not restart its episodes \(AutoresetMode.DIS"):
        vector.adopt(make_sync(Counting, 1, AutoresetMode.DISABLED))


class Silent(VectorEnv):
    """Says nothing about its mode, takes one seed for all, steps in NumPy."""

    num_envs = 3
    single_observation_space = spaces.Box(-9, 9, (2,), np.float32)
    single_action_space = spaces.Discrete(2)
    reward = 1.0
    infos: dict = {}

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions):
        flags = np.array([True, False, False])
        return np.ones((3, 2)), np.full(3, self.reward), flags, ~flags & flags, self.infos


def test_a_vector_that_does_not_state_its_mode_must_be_told_it():
    with pytest.raises(APIUsageError, match="Silent does not say in metadata"):
        vector.adopt(Silent())
    vecenv = vector.adopt(Silent(), autoreset_mode="NextStep")
    vecenv.reset(7)
    assert vecenv.vector_env.seed == env_seed(7, 0)
    with pytest.raises(APIUsageError, match="Silent takes one seed for all of its environments"):
        vecenv.reset([1, 2, 3])
    vecenv.close()


def test_a_same_step_vector_without_final_observations_is_refused():
    vecenv = vector.adopt(Silent(), autoreset_mode=AutoresetMode.SAME_STEP)
    vecenv.reset()
    with pytest.raises(APIUsageError, match="says SAME_STEP, but its infos lack 'final_obs'"):
        vecenv.step(np.zeros(3, int))


def test_final_observations_may_come_in_one_batch():
    theirs = Silent()
    theirs.infos = {"final_obs": np.arange(6, dtype=np.float32).reshape(3, 2)}
    vecenv = vector.adopt(theirs, autoreset_mode=AutoresetMode.SAME_STEP)
    vecenv.reset()
    vecenv.step(np.zeros(3, int))
    assert vecenv.final_observations.tolist() == [[0, 1], [0, 0], [0, 0]]


def test_a_reward_that_is_not_finite_is_refused():
    theirs = Silent()
    theirs.reward = np.nan
    vecenv = vector.adopt(theirs, autoreset_mode="NextStep")
    vecenv.reset()
    with pytest.raises(NonFiniteError, match="Silent: reward of environment 0 is nan at step 1"):
        vecenv.step(np.zeros(3, int))


def test_gymnasiums_own_batched_cartpole_is_adopted():
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=64, vectorization_mode="vector_entry_point")
    with vector.adopt(theirs) as vecenv:
        vecenv.reset(1)
        vecenv.action_space.seed(1)
        present = 0
        for _ in range(100):
            vecenv.send(vecenv.action_space.sample())
            _, rewards, terminals, _, infos, _, masks = vecenv.recv()
            assert len(infos) == terminals.sum() == (~masks).sum()
            assert (vecenv.final_observations[terminals] != 0).all()
            present += int(rewards.sum())
        stats = vecenv.episode_stats()
        assert 15 < stats["episode_return"] == stats["episode_length"] < 35
        assert 100 * 64 - present - stats["episodes"] <= 64  # One filler step an episode.


def test_our_trainer_neither_trains_on_filler_nor_counts_it(one_thread):
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=16, vectorization_mode="vector_entry_point")
    flags = ["--train.horizon", "64", "--train.minibatch-size", "256", "--train.threads", "1"]
    with vector.adopt(theirs) as vecenv:
        policy = models.Default(vecenv.single_observation_space, vecenv.single_action_space)
        trainer = ppo.create(Config().override(flags), vecenv, policy)
        metrics = trainer.advance()
        storage = trainer.storage
        ended = storage.terminals | storage.truncations
        filler = np.zeros_like(ended)
        filler[1:] = ended[:-1]
        assert filler.sum() > 16 and (storage.masks == ~filler).all()
        assert trainer.step == metrics["steps"] == storage.masks.sum()
        assert (storage.rewards == storage.masks).all()
        assert metrics["episodes"]["episodes"] == ended.sum()


def test_eight_boards_of_ale_are_adopted():
    ale = pytest.importorskip("ale_py.vector_env", reason="ale-py is not installed")
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        theirs = ale.AtariVectorEnv(
            "pong", num_envs=8, autoreset_mode=mode, max_num_frames_per_episode=60
        )
        with vector.adopt(theirs) as vecenv:
            vecenv.reset(1)
            flags = [vecenv.step(vecenv.action_space.sample())[3].copy() for _ in range(40)]
            assert np.sum(flags) == 16
            assert vecenv.episode_stats()["episode_length"] == 15


# ---------------------------------------------------------------- the examples


def test_cleanrls_ppo_learns_on_our_vector(root, one_thread):
    example = runpy.run_path(str(root / "examples/cleanrl_ppo.py"))
    returns = example["train"](total_timesteps=4096, num_envs=16, num_steps=64, seed=1)
    assert len(returns) > 50
    # Random play balances for about 20 steps; this seed more than doubles it.
    assert np.mean(returns[-20:]) > 1.5 * np.mean(returns[:20])


def test_stable_baselines_learns_on_our_vector(root, one_thread):
    pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed")
    example = runpy.run_path(str(root / "examples/sb3_ppo.py"))
    before, after = example["train"](total_timesteps=4096, seed=1)
    assert after > 2 * before


def test_the_view_of_stable_baselines_keeps_its_rules():
    pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed")
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

    creator = partial(Random, DICT.spaces["speed"], spaces.Discrete(3))
    ours = vector.to_stable_baselines(vector.make(creator, num_envs=3, backend="Serial"))
    theirs = DummyVecEnv([creator] * 3)
    assert isinstance(ours, VecEnv)
    ours.seed(4)
    for env, seed in zip(theirs.envs, env_seeds(4, 3), strict=True):
        env.reset(seed=int(seed))
    theirs._seeds = [int(seed) for seed in env_seeds(4, 3)]
    same(ours.reset(), theirs.reset())
    ends = 0
    for _ in range(20):
        actions = np.array([ours.action_space.sample() for _ in range(3)])
        mine, its = ours.step(actions), theirs.step(actions)
        same(mine[:3], its[:3])
        for info, reference in zip(mine[3], its[3], strict=True):
            ended = "terminal_observation" in reference
            assert ended == ("terminal_observation" in info) == ("episode" in info)
            assert info.get("TimeLimit.truncated", False) == reference["TimeLimit.truncated"]
            if ended:
                ends += 1
                same(info["terminal_observation"], reference["terminal_observation"])
    assert ends > 8
    assert ours.env_is_wrapped(Monitor) == [True] * 3
    assert ours.get_attr("render_mode") == [None] * 3
    ours.set_attr("length", 9, indices=[1])
    assert ours.get_attr("length", indices=1) == [9]
    assert len(ours.env_method("has_wrapper_attr", "length", indices=[0, 2])) == 2
    assert ours.has_attr("length") and not ours.has_attr("height")
    ours.close()


def test_without_stable_baselines_its_view_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.monitor", None)
    stable_baselines._class.cache_clear()
    with (
        vector.make(Counting) as vecenv,
        pytest.raises(APIUsageError, match="install it with: pip install stable-baselines3"),
    ):
        vector.to_stable_baselines(vecenv)
