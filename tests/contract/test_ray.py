"""`Ray` on a cluster of two nodes of this machine: equal to `Serial`, and honest about failures."""

import os
import signal

import gymnasium
import numpy as np
import pytest

from pufferlib import vector
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError, WorkerError

NUM_ENVS = 4


@pytest.fixture(scope="module")
def cluster():
    """Ray's own test cluster: two nodes with one processor each."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=False)
    yield ray
    ray.shutdown()
    nodes.shutdown()


def cartpole():
    return gymnasium.make("CartPole-v1")


class Fragile(gymnasium.Env):
    """Does what its parameter says at its third step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault):
        if fault == "constructor":
            raise ValueError("cannot be made")
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3 and self.fault == "raise":
            raise ValueError("boom at 3")
        if self.steps == 3 and self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("batch_size, sync_traj", [(4, False), (2, True)])
def test_rows_equal_those_of_serial(cluster, batch_size, sync_traj):
    options = {"num_envs": NUM_ENVS, "batch_size": batch_size, "seed": 5}
    serial = vector.make(cartpole, backend="Serial", **options)
    with vector.make(cartpole, backend="Ray", num_workers=2, sync_traj=sync_traj, **options) as ray:
        serial.async_reset()
        ray.async_reset()
        serial.action_space.seed(0)
        for _ in range(150):
            for mine, theirs in zip(serial.recv(), ray.recv(), strict=True):
                np.testing.assert_array_equal(mine, theirs)
            ended = serial.batches()[0][2] | serial.batches()[0][3]
            if batch_size == NUM_ENVS and ended.any():
                np.testing.assert_array_equal(
                    serial.final_observations[ended], ray.final_observations[ended]
                )
            actions = serial.action_space.sample()
            serial.send(actions)
            ray.send(actions)
        serial.wait()
        ray.wait()
        stats = ray.episode_stats()
        assert stats["episodes"] > 0 and stats == serial.episode_stats()
    serial.close()


def test_the_first_block_that_is_ready_is_received_and_keeps_its_rows(cluster):
    with vector.make(cartpole, backend="Ray", num_workers=2, num_envs=4, batch_size=2) as ray:
        ray.async_reset(1)
        seen = set()
        for _ in range(40):
            ids = ray.recv()[5]
            assert ids.tolist() in ([0, 1], [2, 3])
            seen.add(int(ids[0]))
            ray.send(np.zeros(2, np.int32))
        assert seen == {0, 2}


def test_workers_are_on_both_nodes(cluster):
    class Located(Fragile):
        def reset(self, *, seed=None, options=None):
            import ray

            return super().reset()[0], {"node": ray.get_runtime_context().get_node_id()}

    creators = [lambda: Located(None)] * 2
    with vector.make(creators, backend="Ray", num_workers=2, num_envs=2) as made:
        _, infos = made.reset(0)
        assert len({info["node"] for info in infos}) == 2
        assert [info["env"] for info in infos] == [0, 1]


@pytest.mark.parametrize(
    "fault, words",
    [
        ("raise", r"environment 1 .worker 1. raised ValueError in step: boom at 3[\s\S]*Traceback"),
        ("constructor", r"raised ValueError in its constructor: cannot be made"),
        ("die", r"worker 1 with environments 1 to 1 died"),
    ],
)
def test_a_failure_names_its_environment(cluster, fault, words):
    creators = [lambda: Fragile(None), lambda: Fragile(fault)]
    with pytest.raises(WorkerError, match=words) as caught:  # noqa: PT012
        made = vector.make(creators, num_envs=2, backend="Ray", num_workers=2)
        made.reset(0)
        for _ in range(5):
            made.step(np.zeros(2, np.int32))
    assert caught.value.env_index == 1


def test_more_workers_than_processors_need_overwork(cluster):
    with pytest.raises(APIUsageError, match=r"num_workers = 4 .*more than the 2 core.*overwork"):
        vector.make(cartpole, num_envs=4, num_workers=4, backend="Ray")


def test_without_ray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(EnvironmentSetupError, match=r"pip install 'pufferlib\[ray\]'"):
        vector.make(cartpole, num_envs=2, backend="Ray")
