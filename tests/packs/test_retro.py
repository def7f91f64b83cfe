"""Retro: the free game, seeds, one emulator per process, frame skip, end and time limit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.cli import main
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError, WorkerError

pytest.importorskip(
    "stable_retro", reason="stable-retro is not installed: pip install 'stable-retro>=1.0'"
)


@pytest.fixture
def entry():
    return registry.find("retro")


def play(entry, seed, steps=40, **parameters):
    """The screens of a run with random actions, from an emulator of its own."""
    env = entry(**parameters)
    try:
        trace = [env.reset(seed=seed)[0].tobytes()]
        for action in np.random.default_rng(0).integers(env.action_space.n, size=steps):
            observation, reward, terminated, truncated, _ = env.step(action)
            trace.append((observation.tobytes(), reward))
            if terminated or truncated:
                trace.append(env.reset()[0].tobytes())
        return trace
    finally:
        env.close()


def test_a_seed_repeats_a_game_and_another_does_not(entry):
    options = {"max_episode_steps": 15}
    assert play(entry, 1, **options) == play(entry, 1, **options) != play(entry, 2, **options)


def test_without_noops_the_game_leaves_nothing_to_chance(entry):
    assert play(entry, 1, noops=0) == play(entry, 2, noops=0)


def test_a_second_game_in_a_process_is_refused_with_the_remedy(entry):
    env = entry()
    try:
        with pytest.raises(APIUsageError, match="one game per process.*num_workers=num_envs"):
            entry()
        with pytest.raises(APIUsageError, match="one game per process"):
            vector.make("retro", num_envs=2, backend="Serial")
    finally:
        env.close()
    entry().close()


def test_two_games_in_one_worker_are_refused_with_the_remedy():
    with pytest.raises((APIUsageError, WorkerError), match="one game per process"):
        vector.make("retro", num_envs=4, num_workers=2, backend="Multiprocessing")


def test_its_own_settings_give_each_game_a_worker(entry, monkeypatch, tmp_path):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.chdir(tmp_path)
    apart = vector.make(entry, num_envs=2, num_workers=2, backend="Multiprocessing", seed=1)
    try:
        apart.reset()
        apart.action_space.seed(0)
        for _ in range(5):
            observations, *_ = apart.step(apart.action_space.sample())
        assert observations.shape == (2, 56, 80, 1)
    finally:
        apart.close()
    assert os.listdir(tmp_path) == []


def test_frame_skip_holds_the_buttons_and_adds_up_the_reward(entry):
    def rewards(skip, steps):
        env = entry(frame_skip=skip, noops=0)
        try:
            env.reset(seed=0)
            fire = env.unwrapped.get_action_meaning
            action = next(i for i in range(126) if fire(i) == ["B"])
            last = None
            paid = []
            for k in range(steps):
                last, reward, *_ = env.step(action if k * skip // 12 % 2 else 0)
                paid.append(reward)
            return last, sum(paid)
        finally:
            env.close()

    single, four = rewards(1, 600), rewards(4, 150)
    np.testing.assert_array_equal(single[0], four[0])
    assert single[1] == four[1] > 0


def test_losing_all_lives_terminates_and_the_limit_truncates(entry):
    env = entry(max_episode_steps=3)
    try:
        env.reset(seed=0)
        flags = [env.step(0)[2:] for _ in range(3)]
        assert flags[:2] == [(False, False, {})] * 2
        assert flags[2][:2] == (False, True) and flags[2][2]["lives"] == 3
    finally:
        env.close()
    env = entry(frame_skip=16)
    try:
        env.reset(seed=0)
        for _ in range(2000):
            _, _, terminated, truncated, info = env.step(0)
            if terminated or truncated:
                break
        assert (terminated, truncated, info["lives"]) == (True, False, 0)
    finally:
        env.close()


def test_observations_are_not_overwritten_by_later_steps(entry):
    env = entry(shrink=1, color=True, render_mode="rgb_array")
    try:
        first, _ = env.reset(seed=0)
        kept = first.copy()
        np.testing.assert_array_equal(first, env.render())
        for _ in range(5):
            env.step(3)
        np.testing.assert_array_equal(first, kept)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("actions", "space"), [("multi_discrete", "MultiDiscrete"), ("buttons", "MultiBinary")]
)
def test_the_kind_of_actions_can_be_chosen(entry, actions, space):
    env = entry(actions=actions)
    try:
        assert type(env.action_space).__name__ == space
        env.reset(seed=0)
        env.step(env.action_space.sample())
    finally:
        env.close()


def test_unknown_names_and_missing_roms_are_refused(entry):
    with pytest.raises(APIUsageError, match="no game 'Airstriker'; did you mean 'Airstriker-Gen"):
        entry(game="Airstriker")
    with pytest.raises(APIUsageError, match="no state of Airstriker-Genesis-v0 'Level9'"):
        entry(state="Level9")
    with pytest.raises(APIUsageError, match="no render mode of .* 'human'"):
        entry(render_mode="human")
    with pytest.raises(APIUsageError, match="frame_skip is 0"):
        entry(frame_skip=0)
    with pytest.raises(EnvironmentSetupError, match="import yours with: python -m stable_retro"):
        entry(game="SonicTheHedgehog-Genesis-v0")


def test_nothing_is_printed_and_no_file_is_left(tmp_path):
    script = (
        "from pufferlib import registry; env = registry.find('retro')()\n"
        "env.reset(seed=0); [env.step(a) for a in range(20)]; env.close(); env.close()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_it_conforms(entry):
    check_env(lambda: GymnasiumPufferEnv(env=entry(max_episode_steps=60)), steps=150)


def test_puffer_check_leaves_out_what_needs_several_in_a_process(capsys):
    assert main(["check", "retro"]) == 0
    assert "not tried: backends" in capsys.readouterr().out
