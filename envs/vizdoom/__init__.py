"""ViZDoom: the scenarios of the package vizdoom, Doom seen through the eyes of its player."""

from __future__ import annotations

import itertools
import shutil
import struct
import sys
import tempfile
import weakref
from contextlib import chdir
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import refuse_unknown, shrink, silenced, to_gray
from pufferlib.exceptions import APIUsageError

RENDER_MODES = (None, "rgb_array")
SIZES = ("160x120", "200x150", "320x240", "400x300", "640x480", "800x600")
TICS_PER_SECOND = 35
DEFAULT_TICS = 2100  # A minute, for scenarios that set no limit.

# A list of animated textures that is empty. The engine moves those it knows by the wall clock, so
# that the same game would look different each time it is played.
STILL_TEXTURES = (
    b"PWAD" + struct.pack("<2i", 1, 13) + b"\xff" + struct.pack("<2i8s", 12, 1, b"ANIMATED")
)

# Starts the engine so that it ends with the process that uses it, also if that one is killed.
LAUNCHER = """#!{python} -IS
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
os.execv({engine!r}, [{engine!r}, *sys.argv[1:]])
"""


def make(
    task: str = "VizdoomBasic-v0",
    *,
    frame_skip: int = 4,
    size: str = "160x120",
    shrink: int = 2,
    color: bool = False,
    max_buttons_pressed: int = 1,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
) -> Doom:
    """A scenario by its id in Gymnasium's registry.

    The screen is drawn at `size` and reduced by averaging `shrink` x `shrink` pixels, grey unless
    `color`. Up to `max_buttons_pressed` buttons at once make an action of their own. Episodes are
    truncated after `max_episode_steps`, which is the scenario's own time limit unless given.
    Raises: ModuleNotFoundError without vizdoom; APIUsageError for unknown names and odd numbers.
    """
    from vizdoom import gymnasium_wrapper, scenarios_path  # noqa: F401 (registers the tasks)

    tasks = {i: spec for i, spec in gymnasium.registry.items() if i.startswith("Vizdoom")}
    refuse_unknown("task", [task], tasks)
    refuse_unknown("size", [size], SIZES)
    refuse_unknown("render mode", [render_mode], RENDER_MODES)
    numbers = {
        "frame_skip": frame_skip, "shrink": shrink, "max_buttons_pressed": max_buttons_pressed,
        "max_episode_steps": 1 if max_episode_steps is None else max_episode_steps,
    }  # fmt: skip
    for name, value in numbers.items():
        if value < 1:
            raise APIUsageError(f"{name} is {value}; expected at least 1")
    if shrink > 16:
        raise APIUsageError(f"shrink is {shrink}; expected at most 16")
    return Doom(
        Path(scenarios_path, tasks[task].kwargs["scenario_file"]),
        frame_skip=frame_skip,
        size=size,
        shrink=shrink,
        color=color,
        max_buttons_pressed=max_buttons_pressed,
        max_episode_steps=max_episode_steps,
        render_mode=render_mode,
    )


class Doom(gymnasium.Env):
    """A scenario, from the path of its file; parameters as those of `make`.

    Observations are {"screen" [H, W, C] uint8, "gamevariables" [n] float32}, or the screen alone
    where the scenario names no variables. Action 0 presses nothing. Buttons that take a number
    (mouse movements) are left out. After the end of a game, which has no picture, the observation
    is the last one that had. The info of an episode's last step has the variables by name.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": TICS_PER_SECOND}

    def __init__(
        self,
        scenario: Path,
        *,
        frame_skip: int,
        size: str,
        shrink: int,
        color: bool,
        max_buttons_pressed: int,
        max_episode_steps: int | None,
        render_mode: str | None,
    ):
        import vizdoom

        self._frames, self._shrink, self._color = frame_skip, shrink, color
        self.render_mode = render_mode
        self.metadata = self.metadata | {"render_fps": max(1, TICS_PER_SECOND // frame_skip)}
        game = vizdoom.DoomGame()
        game.load_config(str(scenario))
        game.set_window_visible(False)
        game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        game.set_screen_resolution(getattr(vizdoom.ScreenResolution, f"RES_{size.upper()}"))
        buttons = [b for b in game.get_available_buttons() if not vizdoom.is_delta_button(b)]
        game.set_available_buttons(buttons)
        tics = game.get_episode_timeout() or DEFAULT_TICS
        self._limit = max_episode_steps or -(-tics // frame_skip)
        game.set_episode_timeout(0)  # What the engine ends has no last picture.
        self._variables = [v.name.lower() for v in game.get_available_game_variables()]
        self._game, self._scratch = game, Path(tempfile.mkdtemp(prefix="puffer-vizdoom-"))
        self._clean = weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        self._launch(Path(vizdoom.__file__).with_name("vizdoom"))

        indices = range(len(buttons))
        held = (itertools.combinations(indices, n) for n in range(max_buttons_pressed + 1))
        self._actions = [[float(i in down) for i in indices] for downs in held for down in downs]
        self.action_space = spaces.Discrete(len(self._actions))
        width, height = map(int, size.split("x"))
        shape = (height // shrink, width // shrink, 3 if color else 1)
        screen = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space: spaces.Space = screen
        if self._variables:
            variables = spaces.Box(-np.inf, np.inf, (len(self._variables),), np.float32)
            self.observation_space = spaces.Dict({"screen": screen, "gamevariables": variables})

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observation, {})."""
        super().reset(seed=seed)
        self._game.set_seed(int(self.np_random.integers(2**31)))
        self._game.new_episode()
        self._state = self._game.get_state()
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        """Hold buttons for `frame_skip` tics → the five of Gymnasium."""
        reward = self._game.make_action(self._actions[action], self._frames)
        self._steps += 1
        terminated = self._game.is_episode_finished()
        if not terminated:
            self._state = self._game.get_state()
        truncated = self._steps >= self._limit and not terminated
        info = {}
        if terminated or truncated:
            info = dict(zip(self._variables, self._values().tolist(), strict=True))
        return self._observe(), reward, terminated, truncated, info

    def render(self):
        """The screen [height, width, 3] uint8 before it is reduced."""
        return self._state.screen_buffer.copy() if self.render_mode else None

    def close(self):
        """End the game and remove its files; may be called more than once."""
        self._game.close()
        self._clean()

    def _launch(self, engine: Path) -> None:
        """Start the engine, a program of its own that leaves files where it is started."""
        still, launcher = self._scratch / "still.wad", self._scratch / "vizdoom"
        still.write_bytes(STILL_TEXTURES)
        launcher.write_text(LAUNCHER.format(python=sys.executable, engine=str(engine)))
        launcher.chmod(0o700)
        self._game.set_vizdoom_path(str(launcher))
        self._game.add_game_args(f"-file {still}")
        self._game.set_doom_config_path(str(self._scratch / "vizdoom.ini"))
        with silenced(), chdir(self._scratch):
            self._game.init()

    def _observe(self) -> Any:
        pixels = self._state.screen_buffer
        screen = shrink(pixels if self._color else to_gray(pixels), self._shrink)
        return {"screen": screen, "gamevariables": self._values()} if self._variables else screen

    def _values(self) -> np.ndarray:
        if not self._variables:
            return np.zeros(0, np.float32)
        return self._state.game_variables.astype(np.float32)
