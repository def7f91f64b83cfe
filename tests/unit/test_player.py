"""Playing by keyboard: keys become actions, and the terminal is given back."""

import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.exceptions import APIUsageError
from pufferlib.player import key_names, open_screen, play


class Script:
    """A screen on which a list of sets of keys is pressed, one set a frame, and then escape."""

    def __init__(self, *held):
        self.held = list(held)
        self.frames = []

    def show(self, frame):
        self.frames.append(frame)

    def pressed(self):
        return self.held.pop(0) if self.held else {"escape"}

    def close(self):
        pass


def write_env(folder, space="Discrete(3)", keys=""):
    folder.mkdir()
    (folder / "__init__.py").write_text(f"""
import gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete
{keys}

class Env(gymnasium.Env):
    observation_space = Box(0, 1, (1,), np.float32)
    action_space = {space}

    def __init__(self, render_mode):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), True, False, {{}}

    def render(self):
        return "picture"

def make(render_mode=None):
    return Env(render_mode)
""")
    return registry.find(folder)


def test_keys_of_a_native_environment_are_its_own_and_it_runs_in_real_time():
    squared = registry.find("squared")
    screen = Script(*[{"left"}] * 6, *[set()] * 3)
    returns = play(squared, {"size": 11}, screen=screen, seed=0)
    # From the middle of a board of 11 cells a walker leaves it, or meets the target, in 5 or 6.
    assert len(returns) == 1 and returns[0] in (-1.0, 1.0)
    assert len(screen.frames) == 9
    assert all(f.dtype == np.uint8 and f.ndim == 3 for f in screen.frames)


def test_a_turn_based_environment_waits_for_a_key_and_takes_it_once(tmp_path):
    entry = write_env(tmp_path / "turns")
    screen = Script(set(), {"2"}, {"2"}, set(), {"2"}, {"1"}, {"x"})
    assert play(entry, {}, screen=screen) == [2.0, 2.0, 1.0]
    assert screen.frames == ["picture"] * 7


def test_a_module_may_name_its_keys(tmp_path):
    entry = write_env(tmp_path / "named", keys="KEYS = {'up': 2}")
    assert play(entry, {}, screen=Script({"up"}, set(), {"1"})) == [2.0]


def test_actions_that_no_key_can_say_are_refused(tmp_path):
    entry = write_env(tmp_path / "joystick", space="Box(-1, 1, (2,), np.float32)")
    with pytest.raises(APIUsageError, match=r"joystick takes actions of Box.*plays Discrete ones"):
        play(entry, {}, screen=Script())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("\x1b[A\x1b[D", ["up", "left"]),
        ("a B\r", ["a", "space", "b", "return"]),
        ("\x1b", ["escape"]),
        ("<", ["<"]),
    ],
)
def test_what_a_terminal_sends_is_read_as_keys(text, names):
    assert key_names(text) == names


def test_the_terminal_needs_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 Closed by the process.
    with (
        pytest.raises(APIUsageError, match="--ansi needs a terminal; leave it out for a window"),
        open_screen(registry.find("squared"), ansi=True),
    ):
        pass
    sys.stdin.close()


def test_a_terminal_is_given_back_as_it_was():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pufferlib", "play", "squared", "--ansi", "--seed", "1"]
    before = subprocess.check_output(["stty", "-a"], stdin=theirs)
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    text = b""
    while b"\x1b[H" not in text:
        text += os.read(ours, 65536)
    os.write(ours, b"q")
    while b"\x1b[?1049l" not in text:
        text += os.read(ours, 65536)
    assert process.wait() == 0
    assert subprocess.check_output(["stty", "-a"], stdin=theirs) == before
    assert text.index(b"\x1b[?1049h") < text.index(b"\x1b[?1049l")
    os.close(ours)
    os.close(theirs)
