"""A person at the keyboard of an environment, in a window or in the terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from pufferlib.exceptions import APIUsageError
from pufferlib.native_env import picture_to_text
from pufferlib.registry import Entry
from pufferlib.vector.creation import list_factories
from pufferlib.window import Window

HOLD_S = 0.25
POLLS_PER_SECOND = 30
QUIT = {"escape", "q"}
ESCAPES = {"[A": "up", "[B": "down", "[C": "right", "[D": "left"}
NAMES = {" ": "space", "\r": "return", "\n": "return", "\t": "tab", "\x7f": "backspace"}


class Screen(Protocol):
    """Where frames appear and keys come from."""

    def show(self, frame: Any) -> None:
        """Show pixels [height, width, 3] uint8, or text."""

    def pressed(self) -> set[str]:
        """Names of the keys that are held down, such as "left", "space" or "a"."""

    def close(self) -> None:
        """Give the screen back."""


class Terminal:
    """The terminal as a `Screen`; as it reports no release, a key counts as held for a while."""

    def __init__(self) -> None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise APIUsageError("playing with --ansi needs a terminal; leave it out for a window")
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        self._held: dict[str, float] = {}
        tty.setcbreak(self._input)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")

    def show(self, frame: Any) -> None:
        text = frame if isinstance(frame, str) else picture_to_text(frame)
        sys.stdout.write("\x1b[H" + text.replace("\n", "\x1b[K\n") + "\x1b[J")
        sys.stdout.flush()

    def pressed(self) -> set[str]:
        now = time.monotonic()
        while select.select([self._input], [], [], 0)[0]:
            text = os.read(self._input, 64).decode(errors="ignore")
            if not text:
                return {"escape"}
            self._held.update(dict.fromkeys(key_names(text), now + HOLD_S))
        return {name for name, until in self._held.items() if until > now}

    def close(self) -> None:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)


def key_names(text: str) -> list[str]:
    """The names of the keys that made a terminal send `text`."""
    names = []
    while text:
        if text[0] == "\x1b":
            arrow = ESCAPES.get(text[1:3])
            names.append(arrow or "escape")
            text = text[3:] if arrow else text[1:]
        else:
            names.append(NAMES.get(text[0], text[0].lower()))
            text = text[1:]
    return names


@contextmanager
def open_screen(entry: Entry, *, ansi: bool) -> Iterator[Screen]:
    """A window, or the terminal, that is given back at the end."""
    screen: Screen = Terminal() if ansi else Window(entry.name)
    try:
        yield screen
    finally:
        screen.close()


def play(
    entry: Entry,
    parameters: Mapping[str, Any],
    *,
    screen: Screen,
    ansi: bool = False,
    seed: int | None = None,
) -> list[float]:
    """Play until a key of `QUIT`; the return of each episode that ended.

    The person moves the first agent; others move at random. Native environments run in real time,
    others wait for a key.
    Raises: APIUsageError where a keyboard cannot say what to do.
    """
    mode = {"render_mode": "ansi" if ansi else "rgb_array"}
    (create,) = list_factories(entry, None, {**mode, **parameters}, 1)
    env: Any = create()
    returns, total = [], 0.0
    try:
        space = env.single_action_space
        if not isinstance(space, spaces.Discrete):
            raise APIUsageError(
                f"{entry.name} takes actions of {space}; a keyboard plays Discrete ones only"
            )
        keys = find_keys(entry, env)
        rate = env.params.frames_per_second if entry.is_native else POLLS_PER_SECOND
        env.action_space.seed(seed)
        env.reset(seed=seed)
        before: set[str] = set()
        while not (held := screen.pressed()) & QUIT:
            began = time.monotonic()
            screen.show(env.render())
            fresh = held if entry.is_native else held - before
            before = held
            chosen = [keys[name] for name in keys if name in fresh]
            if chosen or entry.is_native:
                actions = np.asarray(env.action_space.sample())
                actions[0] = chosen[0] if chosen else space.start
                _, rewards, terminals, truncations, _ = env.step(actions)
                total += float(rewards[0])
                if terminals[0] or truncations[0]:
                    returns.append(total)
                    total = 0.0
            time.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))
    finally:
        env.close()
    return returns


def find_keys(entry: Entry, env: Any) -> Mapping[str, int]:
    """Key → action: the environment's own, `KEYS` of its module, or else the digits."""
    if entry.is_native:
        return env.params.keys
    digits = {str(digit): digit for digit in range(min(10, env.single_action_space.n))}
    return getattr(entry.module(), "KEYS", digits)
