"""Craftax: seeds, one call for all worlds, truncation, what was achieved, workers, silence."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("craftax")

from pufferlib import registry, vector
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError


@pytest.fixture(scope="module")
def env():
    """One world for the whole module: each that is made is compiled."""
    made = registry.find("craftax")(max_episode_steps=30, render_mode="rgb_array")
    yield made
    made.close()


def play(env, seed, steps=70):
    seen, infos = [env.reset(seed=seed)[0]], []
    for action in np.random.default_rng(0).integers(17, size=steps):
        observation, reward, terminated, truncated, info = env.step(action)
        seen += [observation, np.float32(reward)]
        if terminated or truncated:
            infos.append((terminated, truncated, info))
            seen.append(env.reset()[0])
    return seen, infos


def equal(one, other):
    return all(map(np.array_equal, one, other))


def test_a_seed_repeats_a_run_and_others_give_others(env):
    one, again, other = play(env, 3)[0], play(env, 3)[0], play(env, 4)[0]
    assert equal(one, again) and not equal(one, other)
    assert not np.array_equal(env.reset()[0], env.reset()[0])


def test_the_time_limit_truncates_and_what_was_achieved_is_told(env):
    (first, *_) = play(env, 3)[1]
    terminated, truncated, info = first
    assert (terminated, truncated) == (False, True)
    each = [value for name, value in info.items() if name.startswith("achievement_")]
    assert len(each) == 22 and sum(each) == info["achievements"] and set(each) <= {0.0, 1.0}
    assert (info["score"] > 0) == (info["achievements"] > 0)


def test_it_is_drawn(env):
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (144, 144, 3) and picture.dtype == np.uint8 and picture.std() > 10


def test_observations_are_new_each_step(env):
    first, _ = env.reset(seed=0)
    kept = first.copy()
    env.step(1)
    np.testing.assert_array_equal(first, kept)
    assert first.shape == (1345,) and env.observation_space.contains(first)


def test_it_keeps_the_contract():
    def create():
        return GymnasiumPufferEnv(env=registry.find("craftax")(max_episode_steps=30))

    assert check_env(create, steps=70).truncations == 2


def test_worlds_in_one_call_equal_each_alone():
    kwargs = {"max_episode_steps": 25}
    with (
        vector.make("craftax", num_envs=3, env_kwargs=kwargs) as together,
        vector.make("craftax", num_envs=3, env_kwargs=kwargs, backend="Serial") as alone,
    ):
        assert together.choice == "CraftaxVector: the environment's own vector"
        np.testing.assert_array_equal(together.reset(5)[0], alone.reset(5)[0])
        together.action_space.seed(0)
        for _ in range(60):
            actions = together.action_space.sample()
            one, other = together.step(actions), alone.step(actions)
            assert equal(one[:4], other[:4]) and one[4] == other[4]
            ended = one[2] | one[3]
            finals = together.final_observations[ended], alone.final_observations[ended]
            np.testing.assert_array_equal(*finals)
        records = together.episodes()
        assert records == alone.episodes() and len(records) == 6


@pytest.mark.slow
def test_workers_do_not_hang_after_this_process_has_run_it(env):
    """A fork of a process that has run JAX would."""
    env.reset(seed=0)
    options = {"backend": "Multiprocessing", "num_workers": 2, "timeout": 120}
    with vector.make("craftax", num_envs=2, **options) as vecenv:
        vecenv.reset(0)
        for _ in range(5):
            vecenv.step(vecenv.action_space.sample())


@pytest.mark.slow
def test_nothing_is_said_and_nothing_is_left(tmp_path):
    code = (
        "from pufferlib import registry\n"
        "env = registry.find('craftax')(render_mode='rgb_array')\n"
        "env.reset(seed=0); env.step(0); env.render(); env.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, shape, actions",
    [
        ("Craftax-Classic-Pixels-v1", (63, 63, 3), 17),
        ("Craftax-Symbolic-v1", (8268,), 43),
        ("Craftax-Pixels-v1", (130, 110, 3), 43),
    ],
)
def test_the_other_tasks(task, shape, actions):
    env = registry.find("craftax")(task=task)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.shape == shape and env.action_space.n == actions
    assert env.observation_space.contains(observation) and observation.any()
    env.step(0)
    env.close()


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "Craftax-Symbolic"}, "there is no task of craftax 'Craftax-Symbolic'; did you"),
        ({"day_lenght": 9}, "'day_lenght'; did you mean 'day_length'?"),
        ({"render_mode": "human"}, "there is no render mode of craftax 'human'; expected one of"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0; expected at least 1"),
    ],
)
def test_what_it_does_not_know_is_refused(parameters, message):
    with pytest.raises(APIUsageError) as caught:
        registry.find("craftax")(**parameters)
    assert message in str(caught.value)
