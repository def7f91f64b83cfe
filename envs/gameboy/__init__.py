"""Game Boy: any game from the user's own ROM, or the small one that comes with it (PyBoy)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import refuse_unknown, shrink, to_gray
from pufferlib.envs.gameboy import rom as homemade
from pufferlib.envs.gameboy.console import (
    BUTTONS,
    FRAMES_PER_SECOND,
    HEIGHT,
    WIDTH,
    Console,
    Memory,
    read_file,
    read_rom,
)
from pufferlib.exceptions import APIUsageError

ACTIONS = ("none", *BUTTONS)
RENDER_MODES = (None, "rgb_array")
COLOR_FLAG = 0x143

# Keyboard → action, for `puffer play`.
KEYS = {"x": 1, "z": 2, "return": 3, "backspace": 4, "right": 5, "left": 6, "up": 7, "down": 8}

# What is told of the game that comes with it, unless something else is asked for.
CATCH_SCORE = f"ram[{homemade.CATCHES:#x}]"
CATCH_RAM = (0xD361, 0xD362, homemade.TARGET_Y, homemade.TARGET_X)

Judge = str | Callable[[Memory], float]


def make(
    rom: str = "",
    *,
    state: str = "",
    score: Judge = "",
    over: Judge = "",
    ram: Sequence[int] | None = None,
    **parameters: Any,
) -> GameBoy:
    """A game from the file `rom`; without one, the game of `rom.py`.

    `state` is a file that PyBoy saved, from which episodes begin. The reward is the change of
    `score`, and an episode ends when `over` is true: both are a function of the `Memory` or an
    expression such as "bcd(0xD347, 3) + 100 * bits(0xD356, 0xD357)". `ram` are addresses whose
    bytes are observed beside the screen. For the rest see `GameBoy`.
    Raises: APIUsageError for files that cannot be used, and for unknown names.
    """
    if not rom:
        score, ram = score or CATCH_SCORE, CATCH_RAM if ram is None else ram
    content, start = load(rom, state)
    return GameBoy(content, start, score=score, over=over, ram=ram or (), **parameters)


def check(rom: str = "", state: str = "", **_: Any) -> None:
    """Raise what `make` would raise for its files, before any worker is started."""
    content, start = load(rom, state)
    if start is not None:
        Console(content, start, name=f"state {state}").close()


def load(rom: str, state: str) -> tuple[bytes, bytes | None]:
    """A ROM and a state as bytes, from the paths of their files."""
    content = read_rom(rom) if rom else homemade.build()
    return content, read_file("state", state) if state else None


class GameBoy(gymnasium.Env):
    """A game on a `Console`, a button per step.

    A step presses the button `buttons[action]` ("none" presses nothing) for `hold` frames and lets
    `frame_skip` frames pass in all; the observation is the last of them. Up to `noops` frames, as
    the seed says, pass before an episode begins. Episodes are truncated after `max_episode_steps`.

    The screen [144, 160] is reduced by averaging `shrink` x `shrink` pixels and grey unless
    `color`. The observation is the screen [H, W, C] uint8 or, with `ram`, {"screen", "ram"}.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        rom: bytes,
        state: bytes | None = None,
        *,
        buttons: Sequence[str] = ACTIONS,
        frame_skip: int = 24,
        hold: int = 8,
        color: bool = False,
        shrink: int = 2,
        ram: Sequence[int] = (),
        score: Judge = "",
        over: Judge = "",
        max_episode_steps: int = 500,
        noops: int = 60,
        render_mode: str | None = None,
    ):
        refuse_unknown("button", buttons, ACTIONS)
        refuse_unknown("render mode", [render_mode], RENDER_MODES)
        if not 1 <= hold <= frame_skip:
            raise APIUsageError(f"hold is {hold}; expected 1 to frame_skip = {frame_skip} frames")
        if shrink < 1 or HEIGHT % shrink or WIDTH % shrink:
            raise APIUsageError(f"shrink is {shrink}; expected 1, 2, 4, 8 or 16")
        if max_episode_steps < 1 or noops < 0:
            raise APIUsageError(
                f"max_episode_steps is {max_episode_steps} and noops {noops}; expected at least 1 "
                "step and 0 frames"
            )
        self._buttons = [None if name == "none" else name for name in buttons]
        self._frames, self._hold = frame_skip, hold
        self._color, self._shrink = color, shrink
        self._is_color_game = bool(rom[COLOR_FLAG] & 0x80)
        self._ram = [int(address) for address in ram]
        self._score, self._over = _compile("score", score), _compile("over", over)
        self._limit, self._noops = max_episode_steps, noops
        self.render_mode = render_mode
        self.metadata = self.metadata | {"render_fps": max(1, 4 * FRAMES_PER_SECOND // frame_skip)}

        self.console = Console(rom, state)
        self._start = self.console.save()
        size = (HEIGHT // shrink, WIDTH // shrink, 3 if color else 1)
        self.observation_space = self._space(spaces.Box(0, 255, size, np.uint8))
        self.action_space = spaces.Discrete(len(buttons))

    @property
    def memory(self) -> Memory:
        """The machine's memory."""
        return self.console.memory

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode from the state → (observation, {})."""
        super().reset(seed=seed)
        self.console.load(self._start)
        if self._noops:
            self.console.run(int(self.np_random.integers(self._noops + 1)))
        self._steps = 0
        self._begin()
        return self._observe(self._screen()), {}

    def step(self, action):
        """One button → (observation, reward, terminated, truncated, info)."""
        self.console.press(self._buttons[action], self._frames, self._hold)
        self._steps += 1
        reward, terminated = self._judge()
        truncated = self._steps >= self._limit and not terminated
        info = self._summary() if terminated or truncated else {}
        return self._observe(self._screen()), reward, terminated, truncated, info

    def render(self):
        """The screen [144, 160, 3] uint8, in colour and full size."""
        return self.console.picture() if self.render_mode else None

    def close(self):
        """Switch the machine off; may be called more than once."""
        self.console.close()

    # ------------------------------------------------------------ what a game of its own replaces

    def _space(self, screen: spaces.Box) -> spaces.Space:
        """The space of `_observe`, given that of the screen."""
        if not self._ram:
            return screen
        ram = spaces.Box(0, 255, (len(self._ram),), np.uint8)
        return spaces.Dict({"screen": screen, "ram": ram})

    def _observe(self, screen: np.ndarray) -> Any:
        """The observation, given the screen."""
        return {"screen": screen, "ram": self.memory.read(self._ram)} if self._ram else screen

    def _begin(self) -> None:
        """An episode has begun."""
        self._began = self._last = float(self._score(self.memory))

    def _judge(self) -> tuple[float, bool]:
        """After a step: (reward, whether the episode is over)."""
        before, self._last = self._last, float(self._score(self.memory))
        return self._last - before, bool(self._over(self.memory))

    def _summary(self) -> dict[str, float]:
        """The info of an episode's last step."""
        return {"score": self._last - self._began}

    def _screen(self) -> np.ndarray:
        pixels = self.console.view[:, :, :3]
        if not self._color:
            pixels = to_gray(pixels) if self._is_color_game else pixels[:, :, :1]
        return shrink(pixels, self._shrink)


def _compile(what: str, given: Judge) -> Callable[[Memory], float]:
    """A function of the memory from an expression; from an empty one, always 0."""
    if callable(given):
        return given
    if not given:
        return lambda memory: 0.0
    try:
        code: CodeType = compile(given.strip(), what, "eval")
    except SyntaxError as error:
        raise APIUsageError(f"{what} is {given!r}, which is no expression: {error.msg}") from error
    plain = {"min": min, "max": max, "abs": abs, "sum": sum}
    refuse_unknown(f"name in {what}", code.co_names, {"ram", "word", "bcd", "bits", *plain})

    def judge(memory: Memory) -> float:
        names = {"ram": memory, "word": memory.word, "bcd": memory.bcd, "bits": memory.bits}
        return eval(code, {"__builtins__": {}, **plain, **names})

    return judge
