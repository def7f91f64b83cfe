"""Where the time goes: the measurement, the trace and the verdict."""

from __future__ import annotations

import json
import shlex
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pufferlib import cli, models, ppo, profile, vector
from pufferlib.config import Config
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError
from pufferlib.profile import ACTIVITIES, Setup, judge
from pufferlib.vector.ledger import KEPT, Ledger

SETUP = {
    "env_name": "toy",
    "backend": "Serial",
    "is_native": False,
    "num_envs": 8,
    "num_agents": 8,
    "batch_size": 8,
    "num_workers": 1,
    "cores": 4,
    "trial_threads": 1,
    "trial_speedup": 1.1,
    "device": "cpu",
    "has_gpu": False,
    "update_epochs": 4,
    "minibatch_size": 8192,
    "hidden_size": 128,
}


class Sleepy(PufferEnv):
    """Takes 2 ms or more for a step."""

    def __init__(self, buf=None):
        self.single_observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.num_agents = 1
        super().__init__(buf)

    def reset(self, seed=None):
        self.observations[...] = 0
        return self.observations, []

    def step(self, actions):
        time.sleep(0.002)
        return self.observations, self.rewards, self.terminals, self.truncations, []


def measured(backend, creator=Sleepy, updates=2, **options):
    """A profile of some updates of 8 steps of 4 environments."""
    flags = ["--train.horizon", "8", "--train.minibatch-size", "32", "--policy.hidden-size", "8"]
    config = Config(env_name="toy").override([*flags, "--train.threads", "1"])
    with vector.make(creator, num_envs=4, backend=backend, sync_traj=True, **options) as vecenv:
        policy = models.Default(
            vecenv.single_observation_space, vecenv.single_action_space, hidden_size=8
        )
        return profile.measure(ppo.create(config, vecenv, policy), updates=updates, warmup=1)


def test_all_of_the_time_is_accounted_for():
    result = measured("Serial")
    assert result.steps == 2 * 8 * 4 and len(result.updates) == 2
    assert sum(result.main.seconds().values()) == pytest.approx(result.seconds, rel=1e-6)
    assert sum(result.shares.values()) == pytest.approx(1)
    assert result.shares["waiting"] == 0 and result.workers == [] and result.busy == []


def test_the_time_of_slow_environments_is_found_in_them():
    """64 steps sleep for 2 ms each, whatever else the machine does."""
    assert measured("Serial").main.seconds()["environment"] >= 64 * 0.002


@pytest.mark.parametrize("batch_size", [4, 2])
def test_workers_step_while_the_main_process_waits(batch_size):
    options = {"num_workers": 2, "overwork": True, "batch_size": batch_size}
    result = measured("Multiprocessing", **options)
    assert result.shares["environment"] == 0 < result.shares["waiting"]
    assert [track.name for track in result.workers] == ["worker 0", "worker 1"]
    for track, busy in zip(result.workers, result.busy, strict=True):
        # Each worker steps 2 of the 4 environments, 16 times.
        assert len(track.spans) == 16
        assert 16 * 2 * 0.002 <= track.seconds()["environment"] <= result.seconds
        assert 0 < busy <= 1
        ends = [0.0, *(end for _, _, end in track.spans)]
        assert all(begin >= end for (_, begin, _), end in zip(track.spans, ends, strict=False))


def test_other_thread_counts_are_tried_and_taken_back(monkeypatch):
    monkeypatch.setattr(profile, "usable_cores", lambda: 3)
    monkeypatch.setattr(profile, "LEAST_SHARE", 0.0)
    setup = measured("Serial", updates=1).setup
    assert setup.trial_threads == 3 and setup.trial_speedup > 0
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(profile, "LEAST_SHARE", 1.1)
    setup = measured("Serial", updates=1).setup
    assert (setup.trial_threads, setup.trial_speedup) == (1, 1.0)


def test_no_updates_are_refused():
    with pytest.raises(APIUsageError, match="updates is 0 and warmup 1; expected at least 1 and"):
        measured("Serial", updates=0)


def test_the_ledger_is_silent_until_it_is_read_and_then_keeps_what_is_new():
    ledger = Ledger(bytearray(Ledger.size(2)), 0, 2)
    assert ledger.begin() == 0
    ledger.end(1, 0)
    assert [len(spans) for spans in ledger.read()] == [0, 0]
    for _ in range(3):
        ledger.end(1, ledger.begin())
    first, second = ledger.read()
    assert len(first) == 0 and second.shape == (3, 2)
    assert (np.diff(second.ravel()) >= 0).all() and second[0, 0] > 0
    assert [len(spans) for spans in ledger.read()] == [0, 0]
    for begun in range(1, KEPT + 3):
        ledger.end(0, begun)
    assert ledger.read()[0][:, 0].tolist() == list(range(3, KEPT + 3))


def test_the_trace_is_in_the_trace_event_format(tmp_path):
    result = measured("Multiprocessing", num_workers=2, overwork=True)
    result.write_trace(tmp_path / "out.json")
    trace = json.loads((tmp_path / "out.json").read_text())
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "main", 1: "worker 0", 2: "worker 1"}
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X"}
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] == 1 for e in spans)
    activities = [e for e in spans if e["tid"] == 0 and not e["name"].startswith("update")]
    assert {e["name"] for e in activities} <= set(ACTIVITIES)
    assert sum(e["dur"] for e in activities) == pytest.approx(1e6 * result.seconds, rel=1e-6)
    updates = [e for e in spans if e["name"].startswith("update")]
    assert [e["name"] for e in updates] == ["update 1", "update 2"]
    assert sum(e["dur"] for e in updates) == pytest.approx(1e6 * result.seconds, rel=1e-6)


def test_a_trace_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(APIUsageError, match="cannot write .*: Is a directory"):
        measured("Serial", updates=1).write_trace(tmp_path)


def shares(**given: float) -> dict[str, float]:
    return dict.fromkeys(ACTIVITIES, 0.0) | given


WORKERS = {"backend": "Multiprocessing", "num_workers": 4}


@pytest.mark.parametrize(
    "setup, time_, busy, bottleneck, words",
    [
        ({}, {"environment": 0.7}, [], "environment", "4 workers (--vec.num-workers 4)"),
        ({"cores": 1}, {"environment": 0.7}, [], "environment", "make its step cheaper"),
        ({"is_native": True}, {"environment": 0.7}, [], "environment", "--vec.backend auto"),
        (WORKERS, {"waiting": 0.8}, [0.1] * 4, "environment", "step for only 10 % of the time"),
        (WORKERS, {"waiting": 0.8}, [0.2, 0.8, 0.2, 0.2], "environment", "worker 1 takes 2.3"),
        (WORKERS | {"num_workers": 2}, {"waiting": 0.8}, [0.8] * 2, "environment", "-workers 4"),
        (WORKERS, {"waiting": 0.8}, [0.8] * 4, "environment", "--vec.batch-size 4"),
        (WORKERS | {"batch_size": 4}, {"waiting": 0.8}, [0.8] * 4, "environment", "more cores"),
        ({"has_gpu": True}, {"learning": 0.6}, [], "policy", "--train.device cuda"),
        ({"trial_speedup": 5}, {"learning": 0.6}, [], "policy", "give torch 1 thread (--train"),
        ({}, {"inference": 0.6}, [], "policy", "more rows than 8 at once"),
        ({"minibatch_size": 64}, {"learning": 0.6}, [], "policy", "minibatches than 64 rows"),
        ({}, {"learning": 0.6}, [], "policy", "fewer epochs than 4"),
        ({"update_epochs": 1}, {"learning": 0.6}, [], "policy", "narrower than 128"),
        ({}, {"copies": 0.6}, [], "copies", "Copying is the bottleneck, 60 % of the time"),
        ({}, {"other": 0.6}, [], "other", "--run.log-interval-s"),
    ],
)  # fmt: skip
def test_the_verdict_names_bottleneck_and_change_in_one_sentence(
    setup, time_, busy, bottleneck, words
):
    found, sentence = judge(Setup(**SETUP | setup), shares(**time_), busy)
    assert found == bottleneck
    assert words in sentence
    assert sentence.endswith(".") and "\n" not in sentence and ". " not in sentence


def test_environment_and_policy_are_told_apart_by_their_sums():
    time_ = shares(environment=0.4, inference=0.25, learning=0.3, copies=0.05)
    assert judge(Setup(**SETUP), time_, [])[0] == "policy"


COMMAND = shlex.split(
    "profile squared --updates 2 --warmup 0 --vec.num-envs 8 --train.horizon 8 "
    "--train.minibatch-size 64 --train.threads 1"
)


def test_the_command_prints_a_table_and_the_verdict(capsys):
    assert cli.main(COMMAND) == 0
    first, _, head, main, _, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("squared: 2 updates, 128 steps in ") and "Native" in first
    assert head.split() == [*ACTIVITIES, "idle"]
    percents = [int(word) for word in main.split() if word.isdigit()]
    assert len(percents) == 7 and 96 <= sum(percents) <= 104
    assert "is the bottleneck" in verdict


def test_the_command_prints_json_and_writes_a_trace(capsys, tmp_path):
    assert cli.main([*COMMAND, "--json", "--trace", str(tmp_path / "trace.json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == 128 and told["setup"]["backend"] == "Native"
    assert sum(told["main"].values()) == pytest.approx(told["seconds"])
    assert told["bottleneck"] in told["shares"] | {"policy": 0}
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
