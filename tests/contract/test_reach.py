"""`call`, `get_attr` and `set_attr`: the users' own environments, wherever they live."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from pufferlib import vector
from pufferlib.exceptions import APIUsageError, WorkerError
from pufferlib.vector import GymnasiumVectorEnv


class Room(gymnasium.Env):
    """Has attributes of every kind, and methods that do not return."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self):
        self.level, self.time = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {"level": self.level}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), float(self.level), False, False, {"time": 1}

    def add(self, number, *, times=1):
        self.level += number * times
        return self.level

    def render(self):
        return np.full((2, 2, 3), self.level, np.uint8)

    def fail(self):
        raise ValueError("no such door")

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def secret(self):
        return lambda: None


def wrapped():
    return gymnasium.wrappers.TimeLimit(Room(), 50)


@pytest.fixture(params=["Serial", "Multiprocessing", "blocks", "adopted"])
def vecenv(request):
    if request.param == "adopted":
        made = vector.adopt(SyncVectorEnv([wrapped] * 4))
    else:
        sizes = {"batch_size": 2, "sync_traj": True} if request.param == "blocks" else {}
        backend = "Multiprocessing" if sizes else request.param
        made = vector.make(wrapped, num_envs=4, backend=backend, num_workers=2, seed=3, **sizes)
    with made:
        yield made


def test_calls_reach_every_environment_through_its_wrappers(vecenv):
    assert vecenv.call("level") == [0, 0, 0, 0]
    assert vecenv.call("add", 2, times=3) == [6, 6, 6, 6]
    vecenv.set_attr("level", [1, 2, 3, 4])
    assert vecenv.call("level", envs=[3, 1]) == [4, 2]
    assert vecenv.call("level", envs=2) == [3]
    vecenv.set_attr("level", 8)
    assert vecenv.call("level") == [8] * 4


def test_a_call_between_send_and_recv_leaves_the_order_and_the_infos_as_they_are(vecenv):
    vecenv.reset()
    vecenv.send(np.zeros(vecenv.agents_per_batch, np.int64))
    assert set(vecenv.call("time")) <= {0, 1}
    assert vecenv.call("add", 5) == [5] * 4
    batches = [vecenv.recv()]
    if vecenv.batch_size < 4:
        vecenv.send(np.zeros(2, np.int64))
        batches.append(vecenv.recv())
        assert [info["env"] for info in batches[1][4]] == [0, 1]
        assert batches[1][0].tolist() == [[1], [1]]
    else:
        assert batches[0][0].tolist() == [[1]] * 4


def test_an_attribute_that_is_missing_is_said_and_nothing_ends(vecenv):
    with pytest.raises(AttributeError, match="height"):
        vecenv.call("height")
    assert vecenv.call("level") == [0] * 4


def test_an_environment_that_is_not_there_is_refused(vecenv):
    with pytest.raises(APIUsageError, match="no environment 4; expected 0 to 3"):
        vecenv.call("level", envs=[0, 4])
    with pytest.raises(APIUsageError, match="2 values were given for 4 environments"):
        vecenv.set_attr("level", [1, 2])


@pytest.fixture
def workers():
    with vector.make(Room, num_envs=4, backend="Multiprocessing", num_workers=2) as made:
        yield made


def test_what_a_method_raises_in_a_worker_is_told_and_nothing_ends(workers):
    with pytest.raises(WorkerError, match="environment 3 .* raised ValueError in call: no such"):
        workers.call("fail", envs=3)
    assert workers.call("level") == [0] * 4


def test_a_worker_that_dies_in_a_call_is_told(workers):
    with pytest.raises(WorkerError, match="worker 1 with environments 2 to 3 was killed by SIGKI"):
        workers.call("die", envs=[2])
    with pytest.raises(APIUsageError, match="it is closed"):
        workers.call("level")


def test_a_worker_that_hangs_in_a_call_is_told():
    made = vector.make(Room, num_envs=2, backend="Multiprocessing", num_workers=1, timeout=0.3)
    with made, pytest.raises(WorkerError, match=r"has not finished a call in 0\.3 s"):
        made.set_attr("level", [Stuck(), 0])


class Stuck:
    """Reading it takes for ever."""

    def __reduce__(self):
        return wait_for_ever, ()


def wait_for_ever():
    signal.pause()


def test_what_cannot_travel_is_refused_and_nothing_ends(workers):
    with pytest.raises(APIUsageError, match="cannot be sent to a worker process"):
        workers.set_attr("level", threading.Lock())
    with pytest.raises(WorkerError, match="TypeError in call: the result cannot leave its process"):
        workers.call("secret")
    assert workers.call("add", 1) == [1] * 4


def test_arguments_larger_than_a_socket_holds_arrive(workers):
    workers.set_attr("level", np.ones(1 << 20))
    assert [part.sum() for part in workers.call("level")] == [1 << 20] * 4


def test_the_gymnasium_view_calls_sets_and_draws(workers):
    view = GymnasiumVectorEnv(workers)
    view.set_attr("level", [1, 2, 3, 4])
    assert view.get_attr("level") == (1, 2, 3, 4)
    assert view.call("add", 1) == (2, 3, 4, 5)
    assert [picture[0, 0, 0] for picture in view.render()] == [2, 3, 4, 5]


def test_native_environments_name_what_they_have_instead():
    with (
        vector.make("squared", num_envs=2) as vecenv,
        pytest.raises(APIUsageError, match="native environments have parameters, which `params`"),
    ):
        vecenv.call("size")


def test_agents_of_one_environment_share_its_attributes():
    view = GymnasiumVectorEnv(vector.make(vector.conformance.Probe, num_envs=2, backend="Serial"))
    view.set_attr("length", [5, 6])
    assert view.get_attr("length") == (5, 5, 6, 6)
    view.close()


def test_calls_reach_environments_behind_ray():
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    make = partial(vector.make, num_envs=2, backend="Ray", num_workers=1)
    with make(Room) as vecenv:
        vecenv.set_attr("level", [3, 4])
        assert vecenv.call("add", 1) == [4, 5]
        with pytest.raises(AttributeError, match="height"):
            vecenv.call("height")
        with pytest.raises(WorkerError, match="environment 1 .* ValueError in call: no such door"):
            vecenv.call("fail", envs=1)
        assert vecenv.call("level") == [4, 5]
    ray.shutdown()
