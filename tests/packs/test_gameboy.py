"""Game Boy: the ROM of our own, states, files, rewards from memory, workers without a display."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.envs.gameboy import rom as homemade
from pufferlib.exceptions import APIUsageError

pytest.importorskip("pyboy", reason="pyboy is not installed: pip install 'pyboy>=2.8,<2.9'")

RIGHT, LEFT, UP, DOWN = 5, 6, 7, 8


@pytest.fixture
def entry():
    return registry.find("gameboy")


@pytest.fixture
def env(entry):
    env = entry(noops=0)
    yield env
    env.close()


@pytest.fixture
def rom_path(tmp_path):
    path = tmp_path / "catch.gb"
    path.write_bytes(homemade.build())
    return path


def fingerprint(console):
    """The hash of all of RAM and of the screen."""
    seen = hashlib.sha256(bytes(console.memory[0x8000:0x10000]))
    seen.update(console.view.tobytes())
    return seen.hexdigest()


def walk_to_target(env):
    """Steps straight to the target → (reward of all steps, info of the last)."""
    total, info = 0.0, {}
    for _ in range(40):
        y, x, target_y, target_x = env.memory.read([0xD361, 0xD362, 0xC004, 0xC005]).tolist()
        if target_y == 0xFF or (y, x) == (target_y, target_x):
            action = UP
        elif x != target_x:
            action = RIGHT if x < target_x else LEFT
        else:
            action = DOWN if y < target_y else UP
        _, reward, _, _, info = env.step(action)
        total += reward
        if reward:
            break
    return total, info


def test_the_same_frames_follow_from_a_saved_state_also_in_another_machine(env, entry):
    env.reset(seed=0)
    for action in (RIGHT, DOWN, 1, 3, UP):
        env.step(action)
    state = env.console.save()
    before = env.console.picture()

    def replay(console):
        console.load(state)
        np.testing.assert_array_equal(console.picture(), before)
        prints = []
        for button in ("left", None, "up", "a", "right") * 2:
            console.press(button, 10, 4)
            prints.append(fingerprint(console))
        return prints

    first = replay(env.console)
    other = entry()
    try:
        assert replay(other.console) == replay(env.console) == first
    finally:
        other.close()
    assert len(set(first)) == 10


def test_the_observation_is_the_screen_after_the_last_frame(env):
    env.reset(seed=0)
    for action in (RIGHT, DOWN, LEFT, UP):
        observation, *_ = env.step(action)
        picture = env.console.picture()
        means = picture[:, :, :1].reshape(72, 2, 80, 2, 1).mean((1, 3)).astype(np.uint8)
        np.testing.assert_array_equal(observation["screen"], means)
        y, x = env.memory[0xD361], env.memory[0xD362]
        assert (picture[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] == 0).all(), "the player stands here"


def test_observations_are_not_overwritten_by_later_steps(env):
    first, _ = env.reset(seed=0)
    kept = {key: value.copy() for key, value in first.items()}
    for _ in range(3):
        env.step(RIGHT)
    for key, value in first.items():
        np.testing.assert_array_equal(value, kept[key])


@pytest.mark.parametrize("skip", [4, 24])
def test_frame_skip_is_the_number_of_frames_of_a_step(entry, skip):
    env = entry(frame_skip=skip, hold=2, noops=0)
    try:
        env.reset(seed=0)
        before = env.memory[homemade.FRAMES]
        for _ in range(5):
            env.step(0)
        assert (env.memory[homemade.FRAMES] - before) % 256 == 5 * skip
    finally:
        env.close()


def test_a_button_held_for_the_whole_step_is_pressed_once(entry):
    env = entry(frame_skip=8, hold=8, noops=0)
    try:
        env.reset(seed=0)
        env.step(RIGHT)
        env.step(0)
        env.step(RIGHT)
        assert env.memory[0xD362] == 10
    finally:
        env.close()


def test_the_game_pays_for_catches_and_tells_the_score(env):
    env.reset(seed=0)
    caught = [walk_to_target(env)[0] for _ in range(4)]
    assert caught == [1.0] * 4
    memory = env.memory
    assert memory[0xD18C] == 9 and memory.bits(0xD747, 0xD887) == 4
    assert memory.bits(0xD356, 0xD357) == 1 and memory.bcd(0xD347, 3) == 20


def test_running_out_of_steps_truncates_with_the_score(entry):
    env = entry(max_episode_steps=3)
    try:
        env.reset(seed=0)
        steps = [env.step(UP) for _ in range(3)]
        assert [(s[2], s[3]) for s in steps] == [(False, False)] * 2 + [(False, True)]
        assert steps[2][4] == {"score": 0.0} and steps[0][4] == {}
    finally:
        env.close()


def test_score_and_end_are_expressions_or_functions_of_the_memory(entry):
    text = entry(score="10 * ram[0xD362] + word(0xD16C)", over="ram[0xD362] == 10", noops=0)
    code = entry(score=lambda m: 10 * m[0xD362] + m.word(0xD16C), noops=0)
    try:
        for env in (text, code):
            env.reset(seed=0)
            assert env.step(RIGHT)[1] == 10
        _, reward, terminated, truncated, info = text.step(RIGHT)
        assert (reward, terminated, truncated) == (10, True, False)
        assert info == {"score": 20}
    finally:
        text.close()
        code.close()


def test_seeds_decide_when_the_game_begins(entry):
    env = entry()

    def begin(seed):
        env.reset(seed=seed)
        return [fingerprint(env.console), env.reset() and fingerprint(env.console)]

    try:
        assert begin(4) == begin(4) != begin(5)
    finally:
        env.close()


def test_colour_size_and_buttons_can_be_chosen(entry):
    env = entry(color=True, shrink=1, ram=[], buttons=["a", "up"], render_mode="rgb_array")
    try:
        observation, _ = env.reset(seed=0)
        assert observation.shape == (144, 160, 3) and env.action_space.n == 2
        np.testing.assert_array_equal(observation, env.render())
    finally:
        env.close()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"buttons": ["a", "rihgt"]}, "no button 'rihgt'; did you mean 'right'"),
        ({"hold": 30}, "hold is 30; expected 1 to frame_skip = 24 frames"),
        ({"shrink": 3}, "shrink is 3; expected 1, 2, 4, 8 or 16"),
        ({"score": "ram[0xC000] +"}, "score is .*, which is no expression"),
        ({"score": "rom[0xC000]"}, "no name in score 'rom'; did you mean 'ram'"),
        ({"render_mode": "human"}, "no render mode 'human'"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError, match=message):
        entry(**parameters)


def test_files_are_checked_before_any_worker_starts(tmp_path, rom_path, monkeypatch):
    def no_worker(*_):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("pufferlib.vector.multiprocessing.Child", no_worker)
    text, archive, old, foreign = (tmp_path / n for n in ("x.txt", "x.zip", "old", "foreign"))
    text.write_bytes(b"no rom" * 100)
    archive.write_bytes(b"PK\x03\x04" + bytes(1000))
    old.write_bytes(b"\x09" + bytes(150_000))
    foreign.write_bytes(b"")
    for parameters, message in [
        ({"rom": str(tmp_path / "none.gb")}, r"the ROM /.*none.gb cannot be read: no such file"),
        ({"rom": str(tmp_path)}, "the ROM .* cannot be read: is a directory; --env.rom names"),
        ({"rom": str(text)}, "x.txt is no Game Boy ROM: its header does not add up"),
        ({"rom": str(archive)}, "x.zip is an archive; unpack it"),
        ({"state": str(tmp_path / "none")}, "the state .*none cannot be read.*--env.state"),
        ({"rom": str(rom_path), "state": str(old)}, "has version 9, the installed PyBoy .*Z"),
        ({"state": str(foreign)}, "it is empty, the installed PyBoy reads and writes version"),
    ]:
        with pytest.raises(APIUsageError, match=message):
            vector.make("gameboy", env_kwargs=parameters, backend="Multiprocessing", num_envs=2)


def test_a_state_of_another_cartridge_is_refused(tmp_path, env, entry):
    content = bytearray(homemade.build())
    content[0x149] = 0x02  # A quarter of the RAM.
    content[0x14D] = homemade.header_checksum(content)
    (tmp_path / "small.gb").write_bytes(content)
    (tmp_path / "state").write_bytes(env.console.save())
    with pytest.raises(APIUsageError, match="has .* bytes, one of this ROM's cartridge has"):
        entry(rom=str(tmp_path / "small.gb"), state=str(tmp_path / "state"))


def test_episodes_begin_from_a_state_that_pyboy_itself_saved(tmp_path, rom_path, entry):
    script = (
        "import sys, warnings; warnings.simplefilter('ignore'); from pyboy import PyBoy\n"
        "machine = PyBoy(sys.argv[1], window='null'); machine.set_emulation_speed(0)\n"
        "machine.tick(100); machine.button('right', 4); machine.tick(10)\n"
        "machine.save_state(open(sys.argv[2], 'wb'))"
    )
    state = tmp_path / "begin.state"
    subprocess.run([sys.executable, "-c", script, rom_path, state], check=True, timeout=120)
    env = entry(rom=str(rom_path), state=str(state), ram=[0xD362])
    try:
        for _ in range(2):
            assert env.reset()[0]["ram"].tolist() == [9]
            env.step(RIGHT)
    finally:
        env.close()


def test_nothing_is_printed_and_no_file_is_written_or_read_beside_the_rom(tmp_path, rom_path):
    (tmp_path / "catch.gb.ram").write_bytes(b"\x55" * 32768)
    script = (
        "import os, sys; before = dict(os.environ)\n"
        "from pufferlib import registry\n"
        "env = registry.find('gameboy')(rom=sys.argv[1])\n"
        "env.reset(seed=0); [env.step(a) for a in range(9)]\n"
        "env.console._machine.memory[0x0000] = 0x0A\n"
        "assert env.memory[0xA000] == 0, 'a saved game was loaded'\n"
        "env.close(); env.close()\n"
        "assert dict(os.environ) == before, 'the environment was changed'"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, rom_path],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["catch.gb", "catch.gb.ram"]
    assert (tmp_path / "catch.gb.ram").read_bytes() == b"\x55" * 32768


def test_four_games_run_in_two_workers_without_a_display(monkeypatch, tmp_path):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    options = {"num_envs": 4, "seed": 3}
    apart = vector.make("gameboy", backend="Multiprocessing", num_workers=2, **options)
    together = vector.make("gameboy", backend="Serial", **options)
    try:
        together.action_space.seed(0)
        for a, b in zip(apart.reset(), together.reset(), strict=True):
            np.testing.assert_array_equal(a, b)
        for _ in range(20):
            actions = together.action_space.sample()
            ours, theirs = apart.step(actions), together.step(actions)
            for a, b in zip(ours[:4], theirs[:4], strict=True):
                np.testing.assert_array_equal(a, b)
    finally:
        apart.close()
        together.close()
    assert os.listdir(tmp_path) == []


def test_it_conforms(entry):
    report = check_env(
        lambda: GymnasiumPufferEnv(env=entry(max_episode_steps=60, over="ram[0xD16D] < 18")),
        steps=300,
    )
    assert report.terminations and report.truncations
