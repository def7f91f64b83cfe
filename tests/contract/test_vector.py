"""The contract of `VecEnv`: backends keep it, and each rule catches a backend that does not."""

from __future__ import annotations

import re
import sys
import time
from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest

from pufferlib import vector
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError
from pufferlib.seeding import env_seeds
from pufferlib.vector import Native, Serial, check_backend
from pufferlib.vector.base import SEND, average_episodes
from pufferlib.vector.conformance import Probe
from pufferlib.vector.creation import list_factories


def make_cartpole():
    return gymnasium.make("CartPole-v1")


def test_the_probe_is_a_good_environment():
    assert check_env(Probe, restarts_flagged=False).absences > 0


def test_serial_keeps_the_contract():
    check_backend(partial(vector.make, backend="Serial"))


def test_serial_keeps_the_contract_with_an_emulated_environment():
    check_backend(partial(vector.make, backend="Serial"), creator=make_cartpole)


def test_serial_keeps_the_contract_with_a_native_environment():
    check_backend(partial(vector.make, backend="Serial"), creator="squared")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_native_keeps_the_contract(num_workers):
    make = partial(vector.make, backend=Native, num_workers=num_workers)
    check_backend(make, creator="squared")


def multiprocessing(num_workers, **options):
    options |= {"num_workers": num_workers, "overwork": True}
    return partial(vector.make, backend="Multiprocessing", **options)


MODES = {
    "one worker": (1, {}, (4,)),
    "all workers": (2, {}, (4,)),
    "first ready": (2, {}, (2,)),
    "in order": (2, {"sync_traj": True}, (2,)),
    "first ready copied": (4, {"zero_copy": False}, (2,)),
}


@pytest.mark.parametrize("mode", MODES)
def test_multiprocessing_keeps_the_contract(mode):
    num_workers, options, batch_sizes = MODES[mode]
    check_backend(multiprocessing(num_workers, **options), batch_sizes=batch_sizes, steps=20)


@pytest.mark.parametrize("creator", ["squared", make_cartpole], ids=["native", "emulated"])
def test_multiprocessing_keeps_the_contract_with(creator):
    check_backend(multiprocessing(2), creator=creator, batch_sizes=(4,), steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"sync_traj": True}, {"zero_copy": False}], ids=str)
def test_multiprocessing_equals_serial_in_every_mode(num_workers, options):
    sizes = [size for size in (4, 2, 1) if size >= 4 // num_workers]
    check_backend(multiprocessing(num_workers, **options), batch_sizes=tuple(sizes))


class Slow(Probe):
    """Environment `index` waits for a file before each step, if it is the slow one."""

    def __init__(self, index, gate, buf=None):
        super().__init__(buf)
        self.gate = gate if index == 0 else None

    def step(self, actions):
        while self.gate and not self.gate.exists():
            time.sleep(0.001)
        return super().step(actions)


@pytest.fixture
def slow(tmp_path):
    """Makes three environments on three workers; the first steps only once a file exists."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    gate = tmp_path / "open"

    def make(**options):
        args = [(index, gate) for index in range(3)]
        return vector.make(
            Slow, env_args=args, num_envs=3, num_workers=3, batch_size=1, overwork=True, seed=1,
            backend="Multiprocessing", **options,
        )  # fmt: skip

    yield make, gate
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def receive(vecenv, count):
    """The environments of the next batches, each stepped again."""
    envs = []
    for _ in range(count):
        envs.append(int(vecenv.recv()[5][0]) // 2)
        vecenv.send(np.zeros((2, 2), np.int32))
    return envs


def test_first_ready_does_not_wait_for_the_slow_one(slow):
    make, gate = slow
    with make() as vecenv:
        vecenv.async_reset()
        vecenv.wait()
        assert receive(vecenv, 3) == [0, 1, 2]
        seen = receive(vecenv, 20)
        while set(seen) != {1, 2}:
            assert 0 not in seen
            seen += receive(vecenv, 1)
        gate.touch()
        while 0 not in receive(vecenv, 1):
            pass


def test_sync_traj_takes_turns_whoever_is_ready(slow):
    make, gate = slow
    gate.touch()
    with make(sync_traj=True) as vecenv:
        vecenv.async_reset()
        assert receive(vecenv, 12) == [0, 1, 2] * 4


def test_notify_reaches_every_environment(tmp_path):
    def creator(folder, buf=None):
        env = Probe(buf)
        env.notify = lambda: (folder / str(id(env))).touch()
        return env

    for backend in ("Serial", "Multiprocessing"):
        folder = tmp_path / backend
        folder.mkdir()
        with vector.make(creator, (folder,), num_envs=2, num_workers=1, backend=backend) as vecenv:
            vecenv.reset(1)
            vecenv.notify()
            vecenv.step(np.zeros((4, 2), np.int32))
            vecenv.step(np.zeros((4, 2), np.int32))
            assert len(list(folder.iterdir())) == 2


def test_a_driver_of_multiprocessing_is_made_when_asked_for():
    with vector.make(make_cartpole, num_envs=1, backend="Multiprocessing") as vecenv:
        assert vecenv.driver_env is vecenv.driver_env
        assert vecenv.driver_env.single_action_space == vecenv.single_action_space
        assert vecenv.emulated


# ---------------------------------------------------------------- the choice of a backend


class Costly(gymnasium.Env):
    """A step takes what the clock of the test says."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    "step_us, cores, options, choice",
    [
        (9, 2, {}, "Serial: a step takes 9 µs, those of 4 environments 36 µs in this process"),
        (500, 2, {}, "Multiprocessing: a step takes 500 µs, .* about 1,020 µs on 2 workers"),
        (500, 1, {}, "Serial: there is one core"),
        (500, 2, {"num_envs": 1}, "Serial: there is one environment"),
        (500, 2, {"num_envs": 5}, "Serial: batches of 5 of 5 do not suit 2 cores"),
        (500, 2, {"num_workers": 1}, "Serial: one worker would only add the way to it"),
        (1, 2, {"num_workers": 2}, "Multiprocessing: num_workers = 2 was asked for"),
        (1, 2, {"backend": "Serial"}, "Serial: it was asked for"),
    ],
)
def test_auto_takes_the_faster_backend_and_says_why(step_us, cores, options, choice, monkeypatch):
    monkeypatch.setattr(vector, "usable_cores", lambda: cores)
    monkeypatch.setattr(vector, "_time_step", lambda factory: step_us)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with vector.make(Costly, **{"num_envs": 4} | options) as vecenv:
        assert re.match(choice, vecenv.choice)
        assert vecenv.choice.startswith(type(vecenv).__name__)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_the_time_of_a_step_is_measured():
    def creator(buf=None):
        env = Probe(buf)
        step = env.step
        env.step = lambda actions: (time.sleep(0.002), step(actions))[1]
        return env

    assert vector._time_step(list_factories(creator, None, None, 1)[0]) > 2000


def test_auto_takes_native_for_a_compiled_environment():
    with vector.make("squared", num_envs=2) as vecenv:
        assert vecenv.choice == "Native: squared is compiled"


class Sloppy(Serial):
    """A backend that a test spoils in one way."""

    def __init__(self, creator, *, num_envs, batch_size, seed):
        super().__init__(list_factories(creator, None, None, num_envs), batch_size=batch_size)
        self.default_seed = seed


class TakesAnyOrder(Sloppy):
    def _advance(self, call, following):
        self.expected = following


class ForgetsThatItIsClosed(Sloppy):
    def close(self):
        expected = self.expected
        super().close()
        self.expected = expected


class TakesAnySize(Sloppy):
    def __init__(self, creator, *, num_envs, batch_size, seed):
        batch_size = batch_size if batch_size and num_envs % batch_size == 0 else 1
        super().__init__(creator, num_envs=num_envs, batch_size=batch_size, seed=seed)


class NarrowRewards(Sloppy):
    def recv(self):
        batch = super().recv()
        return (batch[0], batch[1].astype(np.float16), *batch[2:])


class SwappedRows(Sloppy):
    def recv(self):
        batch = super().recv()
        return (batch[0][::-1], *batch[1:])


class SwappedIds(Sloppy):
    def recv(self):
        batch = super().recv()
        return (*batch[:5], batch[5][::-1], batch[6])


class NextStepReset(Sloppy):
    def recv(self):
        batch = super().recv()
        ended = batch[2] | batch[3]
        batch[0][ended] = self.final_observations[ended]
        return batch


class NoFinalObservations(Sloppy):
    @property
    def final_observations(self):
        return np.zeros_like(super().final_observations)


class TruncationIsTermination(Sloppy):
    def recv(self):
        batch = super().recv()
        batch[2][:] |= batch[3]
        batch[3][:] = False
        return batch


class StaleFlags(Sloppy):
    def send(self, actions):
        before = self.buf.terminals.copy()
        super().send(actions)
        self.buf.terminals[:] |= before


class NoMasks(Sloppy):
    def recv(self):
        return (*super().recv()[:6], np.ones(self.agents_per_batch, np.bool_))


class MovingViews(Sloppy):
    def wait(self):
        self.buf.rewards[:] += 1


class NamelessInfos(Sloppy):
    def recv(self):
        batch = super().recv()
        for info in batch[4]:
            info.pop("env", None)
        return batch


class LostInfos(Sloppy):
    def recv(self):
        batch = super().recv()
        return (*batch[:4], batch[4][:1], *batch[5:])


class ReusedInfos(Sloppy):
    def _take_infos(self, k, infos):
        for info in infos:
            info["env"] = k
        self._infos[k // self.batch_size].extend(infos)


class TakesAnyActions(Sloppy):
    def _check_actions(self, actions):
        return np.resize(np.asarray(actions), self.action_space.shape)


class StuckAfterARefusal(Sloppy):
    def send(self, actions):
        if self.expected == SEND and len(actions) != self.agents_per_batch:
            self.expected = "recv"
            raise APIUsageError("actions have the wrong length")
        super().send(actions)


class NeighbouringSeeds(Sloppy):
    def _seeds(self, seed):
        return np.arange(self.num_envs) + (seed or 0)


class OneSeedForAll(Sloppy):
    def _seeds(self, seed):
        return np.full(self.num_envs, super()._seeds(seed)[0])


class IgnoresDefaultSeed(Sloppy):
    def _seeds(self, seed):
        return env_seeds(0, self.num_envs) if seed is None else super()._seeds(seed)


class MixesListedSeeds(Sloppy):
    def _seeds(self, seed):
        seeds = super()._seeds(seed)
        return seeds + 1 if isinstance(seed, list) and len(seed) == self.num_envs else seeds


class SecretSeed(Sloppy):
    def _seeds(self, seed):
        hidden = seed is None and self.default_seed is None
        return env_seeds(42, self.num_envs) if hidden else super()._seeds(seed)


class TakesShortSeedLists(Sloppy):
    def _seeds(self, seed):
        if isinstance(seed, list) and len(seed) < self.num_envs:
            return np.zeros(self.num_envs)
        return super()._seeds(seed)


class TellsTwice(Sloppy):
    def episodes(self):
        return [{**r} for r in self._records]


class TellsNothing(Sloppy):
    def episodes(self):
        return []


class BadStats(Sloppy):
    def episode_stats(self):
        return {}


class RefusesSecondClose(Sloppy):
    closes = 0

    def close(self):
        self.closes += 1
        if self.closes == 2:
            raise ValueError("closed already")
        super().close()


PLANTED = {
    TakesAnyOrder: "a call went through that must be refused, saying 'recv was called, but",
    ForgetsThatItIsClosed: "does not say 'nothing (it is closed) is expected'",
    TakesAnySize: "must be refused, saying 'num_envs = 4 … batch_size = 3",
    NarrowRewards: "rewards are float16",
    SwappedRows: "observations of environment 0 at step 0 are",
    SwappedIds: "do not name whole environments",
    NextStepReset: "observations of environment",
    NoFinalObservations: "are not the last ones of its episode",
    TruncationIsTermination: "terminals of environment",
    StaleFlags: "terminals of environment",
    NoMasks: "masks of environment",
    MovingViews: "what recv returned changed before the next send",
    NamelessInfos: "does not name an environment of its batch",
    LostInfos: "differ from what it gave",
    ReusedInfos: "infos of one step changed at a later one",
    TakesAnyActions: "a call went through that must be refused, saying 'actions'",
    StuckAfterARefusal: "send was called, but recv is expected",
    NeighbouringSeeds: "observations of environment 0 at step 0",
    OneSeedForAll: "observations of environment 1 at step 0",
    IgnoresDefaultSeed: "the seed given to make must be the seed of a reset without one",
    MixesListedSeeds: "a list of seeds must be used as it is",
    SecretSeed: "two resets without a seed begin alike",
    TakesShortSeedLists: "a call went through that must be refused, saying '2 seeds",
    TellsTwice: "episodes() told an episode twice",
    TellsNothing: "are not those that it ended",
    BadStats: "episode_stats() must be",
    RefusesSecondClose: "the second close raised ValueError('closed already')",
}


@pytest.mark.parametrize("backend", PLANTED, ids=lambda backend: backend.__name__)
def test_each_rule_catches_a_backend_that_breaks_it(backend):
    with pytest.raises(APIUsageError) as caught:
        check_backend(backend)
    assert PLANTED[backend] in str(caught.value)
    assert str(caught.value).startswith(backend.__name__) or backend is TakesAnySize


def test_stats_average_a_field_over_those_that_report_it():
    records = [
        {"env": 0, "episode_return": 1.0, "score": 1},
        {"env": 1, "episode_return": 3.0, "score": 2, "episodes": 3},
        {"env": 2, "episode_return": 5.0},
    ]
    assert average_episodes(records) == {"episodes": 5, "episode_return": 3.0, "score": 1.75}


class Talkative(gymnasium.Env):
    """Ends every episode at once, with the info that it was made for."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, info):
        self.info = info

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, True, False, self.info


def test_infos_may_hold_anything_and_means_count_who_reports():
    infos = [{"score": 1}, {"score": 2, "map": [0, 1, 2]}, {}, {"note": "x", "none": None}]
    with vector.make(Talkative, env_args=[(i,) for i in infos], num_envs=4, backend="Serial") as v:
        v.reset()
        told = v.step(np.zeros(4, np.int32))[4]
        assert [info["env"] for info in told] == [0, 1, 2, 3]
        assert [info.get("score") for info in told] == [1, 2, None, None]
        assert told[1]["map"] == [0, 1, 2]
        assert told[3]["none"] is None
        assert v.episode_stats() == {
            "episodes": 4,
            "episode_return": 1.0,
            "episode_length": 1.0,
            "score": 1.5,
        }
