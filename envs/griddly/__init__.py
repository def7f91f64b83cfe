"""Griddly: games on a grid, described in files (package griddly), such as zelda."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import parameters_of, refuse_unknown, silenced
from pufferlib.emulation import convert_space
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError
from pufferlib.seeding import fresh_seed

OBSERVERS = {"vector": "VECTOR", "sprite": "SPRITE_2D", "block": "BLOCK_2D"}
RENDER_MODES = (None, "rgb_array")
PAINT = (
    "from griddly import GymWrapper, gd; kind = gd.ObserverType.{};"
    "GymWrapper(yaml_file='Single-Player/GVGAI/spider-nest.yaml', player_observer_type=kind,"
    " global_observer_type=kind).reset()"
)

# Keyboard → action of the games with one kind of action, for `puffer play`.
KEYS = {"left": 1, "up": 2, "right": 3, "down": 4}


def make(
    game: str = "zelda",
    *,
    level: int = 0,
    observer: str = "vector",
    max_episode_steps: int = 500,
    render_mode: str | None = None,
    **parameters: Any,
) -> Griddly:
    """One level of a game of griddly for one player.

    `observer` is "vector", a plane for each kind of object [width, height, kinds]; "sprite" or
    "block" are pictures, for which a Vulkan driver is needed.
    `render_mode` is None or "rgb_array".
    Raises: ModuleNotFoundError without griddly; EnvironmentSetupError for pictures without Vulkan;
    APIUsageError for an unknown game, level, observer or mode.
    """
    griddly = import_griddly()
    games = {path.stem: path for path in _folder(griddly).rglob("*.yaml")}
    refuse_unknown("parameter", parameters, parameters_of(make))
    refuse_unknown("game", [game], games)
    refuse_unknown("observer", [observer], OBSERVERS)
    refuse_unknown("render mode", [render_mode], RENDER_MODES)
    if observer != "vector" and not can_paint(observer):
        raise EnvironmentSetupError(
            f"the observer {observer!r} needs a Vulkan driver, and there is none that works; "
            "install one (on Debian or Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers) or "
            "use the observer 'vector'"
        )
    kind = getattr(griddly.gd.ObserverType, OBSERVERS[observer])
    with silenced():
        world = griddly.GymWrapper(
            yaml_file=str(games[game]), player_observer_type=kind, global_observer_type=kind
        )
        if not 0 <= level < world.level_count:
            raise APIUsageError(
                f"{game} has no level {level}; expected 0 to {world.level_count - 1}"
            )
        world.reset(level_id=level)
    return Griddly(world, observer, max_episode_steps, render_mode)


class Griddly(gymnasium.Env):
    """A level of a game that keeps Gymnasium's rules.

    What follows an episode without a seed follows from the last seed. The end that the game's own
    rules set terminates, `max_episode_steps` truncates. The info of an episode's last step has
    `won`, 1 or 0.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, world: Any, observer: str, max_episode_steps: int, render_mode: str | None):
        self.render_mode = render_mode
        self._world = world
        self._limit = max_episode_steps
        # Kinds first in memory; a picture has its channels last.
        channels, width, height = world.observation_space.shape
        high = 1 if observer == "vector" else 255
        self.observation_space = spaces.Box(0, high, (height, width, channels), np.uint8)
        self.action_space = convert_space(world.action_space)
        self._world.game.seed(fresh_seed())

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observation, {})."""
        super().reset(seed=seed)
        if seed is not None:
            self._world.game.seed(int(seed))
        self._steps = 0
        return _turn(self._world.reset()), {}

    def step(self, action):
        """One action → (observation, reward, terminated, truncated, info)."""
        observation, reward, terminated, told = self._world.step(action)
        self._steps += 1
        truncated = self._steps >= self._limit and not terminated
        info = {}
        if terminated or truncated:
            info["won"] = int(told.get("PlayerResults", {}).get("1") == "Win")
        return _turn(observation), float(reward), bool(terminated), truncated, info

    def render(self):
        """A picture of the whole level [height, width, 3] uint8, or None if none was asked for."""
        if self.render_mode is None:
            return None
        picture = self._world.render(mode="rgb_array", observer="global")
        return picture[..., :3].astype(np.uint8)

    def close(self):
        """Free the game; may be called more than once."""
        self._world = None


def import_griddly():
    """The module griddly, without what the old gym says and the paths that it adds."""
    path = sys.path[:]
    try:
        with silenced(), warnings.catch_warnings():
            return importlib.import_module("griddly")
    finally:
        sys.path[:] = path


@cache
def can_paint(observer: str) -> bool:
    """Whether pictures can be made: tried in a process of its own, which may crash."""
    command = [sys.executable, "-c", PAINT.format(OBSERVERS[observer])]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def _folder(griddly: Any) -> Path:
    return Path(griddly.__file__).parent / "resources" / "games" / "Single-Player"


def _turn(observation: np.ndarray) -> np.ndarray:
    """[channels, width, height] → a copy [height, width, channels]."""
    # The game draws the next picture into the same memory.
    return observation.transpose(2, 1, 0).copy()
