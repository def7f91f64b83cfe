"""Pokémon Red on our own ROM of the same title and cartridge: hash, memory, rewards, picture."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.cli import main
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.envs.gameboy import rom as homemade
from pufferlib.envs.gameboy.console import Memory
from pufferlib.envs.pokemon_red import TITLE, memory
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

pytest.importorskip("pyboy", reason="pyboy is not installed: pip install 'pyboy>=2.8,<2.9'")

NONE, A, RIGHT, LEFT, UP, DOWN = 0, 1, 4, 5, 6, 7
OURS = {"rom": "homemade", "allow_unknown_rom": True}


@pytest.fixture
def entry(monkeypatch):
    monkeypatch.delenv("POKEMON_RED_ROM", raising=False)
    return registry.find("pokemon_red")


@pytest.fixture
def env(entry):
    env = entry(**OURS, noops=0)
    yield env
    env.close()


def catch(env, rewards):
    """Walk to the target and catch it, keeping all rewards."""
    before = env.memory[homemade.CATCHES]
    while env.memory[homemade.CATCHES] == before:
        y, x = env.memory[memory.Y], env.memory[memory.X]
        to_y, to_x = env.memory[homemade.TARGET_Y], env.memory[homemade.TARGET_X]
        if to_y == 0xFF or (y, x) == (to_y, to_x):
            action = UP
        elif x != to_x:
            action = RIGHT if x < to_x else LEFT
        else:
            action = DOWN if y < to_y else UP
        rewards.append(env.step(action)[1])


# ---------------------------------------------------------------- the file


def test_without_a_rom_the_message_says_what_is_needed(entry):
    with pytest.raises(EnvironmentSetupError, match=r"your own ROM.*--env.rom.*POKEMON_RED_ROM"):
        entry()


def test_another_rom_is_refused_before_any_worker_starts(entry, tmp_path, monkeypatch):
    def no_worker(*_):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("pufferlib.vector.multiprocessing.Child", no_worker)
    path = tmp_path / "red.gb"
    path.write_bytes(homemade.build(TITLE))
    found = hashlib.sha1(homemade.build(TITLE)).hexdigest()
    message = rf"{path} \(from --env.rom\) is not .*: its sha1 is {found}, expected {memory.SHA1}"
    with pytest.raises(APIUsageError, match=message):
        vector.make(entry, env_kwargs={"rom": str(path)}, backend="Multiprocessing", num_envs=2)
    monkeypatch.setenv("POKEMON_RED_ROM", str(path))
    with pytest.raises(APIUsageError, match=r"red.gb \(from \$POKEMON_RED_ROM\) is not Pok"):
        vector.make(entry, backend="Multiprocessing", num_envs=2)
    monkeypatch.setenv("POKEMON_RED_ROM", str(tmp_path / "none.gb"))
    with pytest.raises(APIUsageError, match=r"the ROM /.*none.gb cannot be read: no such file"):
        vector.make(entry, backend="Multiprocessing", num_envs=2)


def test_our_own_rom_needs_permission_too(entry):
    with pytest.raises(APIUsageError, match=r"--env.allow-unknown-rom true takes it"):
        entry(rom="homemade")


def test_a_state_that_does_not_fit_is_refused_before_any_worker_starts(entry, tmp_path):
    (tmp_path / "old.state").write_bytes(b"\x05" + bytes(100))
    with pytest.raises(APIUsageError, match=r"old.state cannot be loaded: it has version 5"):
        vector.make(entry, env_kwargs={**OURS, "state": str(tmp_path / "old.state")})


def test_no_rom_is_in_the_package(entry):
    for path in entry.folder.parent.rglob("*"):
        assert path.suffix.lower() not in {".gb", ".gbc", ".state", ".ram", ".sav"}


# ---------------------------------------------------------------- memory and reward


def test_progress_is_read_from_the_addresses_of_the_game():
    ram = bytearray(0x10000)
    ram[memory.PARTY_COUNT] = 2
    ram[0xD16C:0xD16E], ram[0xD18D:0xD18F], ram[0xD18C] = b"\x00\x0a", b"\x00\x14", 7
    ram[0xD198:0xD19A], ram[0xD1B9:0xD1BB], ram[0xD1B8] = b"\x01\x2c", b"\x01\x2c", 60
    ram[0xD347:0xD34A] = b"\x01\x23\x45"
    ram[0xD356], ram[0xD35E], ram[0xD361], ram[0xD362] = 0b101, 40, 6, 5
    ram[0xD747], ram[0xD886], ram[0xD887], ram[0xD746] = 0b11, 0x80, 0xFF, 0xFF
    ram[0xD057] = 2
    assert memory.read_progress(Memory(ram)) == memory.Progress(
        cell=(40, 6, 5), badges=5, events=3, money=12345, in_battle=2, levels=(7, 60),
        health=(0.5, 1.0),
    )  # fmt: skip
    assert memory.read_progress(Memory(ram)).badge_count == 2


def test_memory_that_means_nothing_yet_is_read_without_an_error():
    progress = memory.read_progress(Memory(bytes([0xFF]) * 0x10000))
    assert len(progress.levels) == len(progress.health) == 6
    assert memory.read_progress(Memory(bytes(0x10000))).levels == ()


def test_observations_tell_where_the_player_is_and_has_been(env):
    env.reset(seed=0)
    for action in (RIGHT, RIGHT, DOWN):
        observation, *_ = env.step(action)
    assert observation["position"].tolist() == [0, 9, 10]
    visited = np.zeros((9, 9), np.uint8)
    visited[3, 2:5], visited[4, 4] = 1, 1
    np.testing.assert_array_equal(observation["visited"], visited)
    assert observation["levels"].tolist() == [5, 0, 0, 0, 0, 0]
    assert observation["health"].tolist() == [1, 0, 0, 0, 0, 0]
    assert observation["badges"].tolist() == [0] * 8
    assert env.observation_space.contains(observation)


def test_a_cell_is_paid_when_it_is_entered_for_the_first_time(entry):
    env = entry(**OURS, noops=0, explore_reward=0.25)
    try:
        for _ in range(2):
            env.reset(seed=0)
            rewards = [env.step(a)[1] for a in (NONE, RIGHT, LEFT, RIGHT, UP, UP, A)]
            assert rewards == [0, 0.25, 0, 0, 0.25, 0.25, 0]
    finally:
        env.close()


def test_another_map_has_other_cells(entry):
    free = {"level_reward": 0, "event_reward": 0}
    env = entry(**OURS, **free, noops=0, explore_reward=1, max_episode_steps=9)
    try:
        env.reset(seed=0)
        steps = [env.step(RIGHT) for _ in range(9)]
        assert [reward for _, reward, *_ in steps] == [1] * 9
        assert steps[-1][0]["position"].tolist() == [1, 8, 1]
        info = steps[-1][4]
        assert (info["cells"], info["maps"], info["badges"]) == (10, 2, 0)
        assert info.keys() == {"badges", "levels", "events", "cells", "maps", "money"}
    finally:
        env.close()


def test_levels_events_and_badges_are_paid(entry):
    env = entry(
        **OURS, noops=0, explore_reward=0, level_reward=1, event_reward=10, badge_reward=100
    )
    try:
        env.reset(seed=0)
        for last in (11, 11, 11, 111):
            rewards = []
            catch(env, rewards)
            assert rewards[-1] == last and not any(rewards[:-1])
        assert env.step(NONE)[0]["badges"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    finally:
        env.close()


def test_what_is_lost_and_won_back_is_not_paid_again(entry):
    env = entry(**OURS, noops=0, explore_reward=0)
    try:
        env.reset(seed=0)
        rewards = []
        catch(env, rewards)
        ram = env.console._machine.memory
        for address in (0xD18C, 0xD747):
            kept, ram[address] = ram[address], 0
            assert env.step(NONE)[1] == 0
            ram[address] = kept
            assert env.step(NONE)[1] == 0
    finally:
        env.close()


def test_health_is_a_share(env):
    env.reset(seed=0)
    for _ in range(10):
        observation, *_ = env.step(UP)
    assert observation["health"][0] == np.float32(18 / 20), "eight steps, two into the wall"
    assert env.step(A)[0]["health"][0] == 1


# ---------------------------------------------------------------- as an environment


def test_the_same_seed_repeats_an_episode(entry):
    def play(seed):
        env = entry(**OURS)
        try:
            trace = [env.reset(seed=seed)[0]]
            trace += [env.step(a)[0] for a in np.random.default_rng(0).integers(8, size=40)]
            return hashlib.sha256(
                b"".join(v.tobytes() for o in trace for v in o.values())
            ).hexdigest()
        finally:
            env.close()

    assert play(1) == play(1) != play(2)


def test_it_conforms(entry):
    check_env(lambda: GymnasiumPufferEnv(env=entry(**OURS, max_episode_steps=90)), steps=200)


def test_four_games_run_in_two_workers_and_report_what_they_reached(entry, tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.chdir(tmp_path)
    options = {"backend": "Multiprocessing", "num_envs": 4, "num_workers": 2, "seed": 0}
    vecenv = vector.make(entry, env_kwargs={**OURS, "max_episode_steps": 20}, **options)
    try:
        vecenv.reset()
        vecenv.action_space.seed(0)
        for _ in range(20):
            vecenv.step(vecenv.action_space.sample())
        stats = vecenv.episode_stats()
    finally:
        vecenv.close()
    assert stats["episodes"] == 4 and stats["levels"] >= 5 and 1 < stats["cells"] <= 21
    assert not list(tmp_path.iterdir())


def test_puffer_eval_writes_a_picture_that_moves(entry, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    gif = tmp_path / "red.gif"
    words = ["eval", "pokemon_red", "--random", "--episodes", "2", "--gif", str(gif)]
    flags = ["--env.rom", "homemade", "--env.allow-unknown-rom", "true", "--vec.backend", "Serial",
             "--env.max-episode-steps", "12"]  # fmt: skip
    assert main([*words, *flags]) == 0
    assert "cells" in capsys.readouterr().out
    with pytest.importorskip("PIL.Image").open(gif) as image:
        assert image.size == (160, 144) and image.n_frames > 3
        assert image.info["duration"] == 100, "ten frames a second, as the environment says"
