"""autotune: what it tries, what it prefers, what it says."""

from __future__ import annotations

import itertools

import gymnasium
import pytest

from pufferlib import vector
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError
from pufferlib.vector import Serial, tuning


def make_cartpole():
    return gymnasium.make("CartPole-v1")


@pytest.fixture
def tried(monkeypatch):
    """Settings that were made, none of them really; the speed of each is `tried.speed(setting)`."""

    class Tried(list):
        speed = staticmethod(lambda setting: 1.0)

    class Vector:
        def __init__(self, setting):
            self.setting = setting

        def close(self):
            self.setting["closed"] = True

    tried = Tried()

    def make(creator, args, kwargs, **setting):
        tried.append(setting)
        return Vector(setting)

    monkeypatch.setattr(vector, "make", make)
    monkeypatch.setattr(tuning, "measure", lambda vecenv, *_: tried.speed(vecenv.setting))
    return tried


def sizes(tried):
    names = ("backend", "num_envs", "num_workers", "batch_size", "zero_copy")
    return [tuple(setting.get(name) for name in names) for setting in tried]


def test_serial_and_every_fitting_cut_into_workers_are_tried(tried):
    vector.autotune(make_cartpole, 8, max_envs=16, max_workers=4, report=lambda _: None)
    processes = "Multiprocessing"
    assert sizes(tried) == [
        ("Serial", 8, None, 8, None),
        (processes, 8, 1, 8, True),
        (processes, 8, 2, 8, True),
        (processes, 8, 4, 8, True),
        (processes, 16, 2, 8, True),
        (processes, 16, 4, 8, True),
        (processes, 16, 4, 8, False),
    ]
    assert all(setting["closed"] for setting in tried)


def test_a_native_environment_is_tried_on_threads(tried):
    vector.autotune("squared", 8, max_envs=16, max_workers=2, report=lambda _: None)
    assert {setting[0] for setting in sizes(tried)} == {"Native"}
    assert [setting[1:3] for setting in sizes(tried)] == [(8, 1), (8, 2), (16, 1), (16, 2)]


def test_workers_are_as_many_as_the_cores_by_default(tried, monkeypatch):
    monkeypatch.setattr(tuning, "usable_cores", lambda: 3)
    vector.autotune(make_cartpole, 6, max_envs=6, report=lambda _: None)
    assert [setting[2] for setting in sizes(tried)] == [None, 1, 2, 3]


@pytest.mark.parametrize(("gain", "backend"), [(1.02, "Serial"), (1.05, "Multiprocessing")])
def test_the_simpler_setting_wins_unless_another_is_clearly_faster(tried, gain, backend):
    tried.speed = lambda setting: 1000.0 * (gain if setting.get("num_workers") == 2 else 1)
    lines = []
    best = vector.autotune(make_cartpole, 4, max_envs=4, max_workers=2, report=lines.append)
    assert best["backend"] == backend
    assert lines[0] == "3 settings of 5 s each"
    assert lines[2].split() == ["Serial", "4", "4", "1,000"]
    words = ", ".join(f"{name}={value!r}" for name, value in best.items() if name != "closed")
    assert lines[-1].startswith(f"fastest: vector.make(env_creator, {words}")


def test_a_batch_beyond_the_most_environments_is_cut_and_said(tried):
    lines = []
    vector.autotune(make_cartpole, 40, max_envs=4, max_workers=1, report=lines.append)
    assert lines[0] == "batch_size 40 is more than max_envs 4; trying batches of 4 environments"
    assert {setting["num_envs"] for setting in tried} == {4}


def test_a_setting_that_cannot_be_made_is_told_and_left_out(monkeypatch):
    def make(*_, **setting):
        raise EnvironmentSetupError("no memory for the rows")

    monkeypatch.setattr(vector, "make", make)
    lines = []
    with pytest.raises(EnvironmentSetupError, match="no setting could be made; see the lines"):
        vector.autotune(make_cartpole, 2, max_envs=2, max_workers=1, report=lines.append)
    assert lines[2] == "backend='Serial', num_envs=2, batch_size=2: no memory for the rows"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected a whole number of at least 1"),
        ({"batch_size": 2, "max_envs": 2.5}, "max_envs is 2.5; expected a whole number"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(APIUsageError, match=message):
        vector.autotune(make_cartpole, **arguments)


def test_speed_is_agent_steps_of_a_clock_and_the_policy_takes_its_time(monkeypatch):
    slept = []
    monkeypatch.setattr(tuning, "perf_counter", itertools.count(0, 0.5).__next__)
    monkeypatch.setattr(tuning.time, "sleep", slept.append)
    with vector.make(make_cartpole, num_envs=4, backend=Serial) as vecenv:
        # The clock is read once at the beginning, before each batch but two, and at the end.
        assert tuning.measure(vecenv, 2.0, model_forward_s=0.25) == 4 * len(slept) / 2.5
    assert slept == [0.25] * 5


def test_what_is_returned_makes_a_vector(capsys):
    best = vector.autotune(make_cartpole, 2, max_envs=2, max_workers=1, time_per_test=0)
    assert "steps/s" in capsys.readouterr().out
    with vector.make(make_cartpole, **best) as vecenv:
        assert vecenv.reset()[0].shape == (2, 4)
