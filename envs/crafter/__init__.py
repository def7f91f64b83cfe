"""Crafter: survive, gather and build in a small world seen from above (package crafter)."""

from __future__ import annotations

import importlib
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import parameters_of, refuse_unknown, silenced
from pufferlib.exceptions import APIUsageError
from pufferlib.seeding import fresh_seed

RENDER_MODES = (None, "rgb_array")
PICTURE = 576

# Keyboard → action, for `puffer play`.
KEYS = {"left": 1, "right": 2, "up": 3, "down": 4, "space": 5, "z": 6, "s": 7, "t": 8, "f": 9}
KEYS |= {"p": 10, "1": 11, "2": 12, "3": 13, "4": 14, "5": 15, "6": 16}


def make(
    task: str = "reward",
    *,
    size: int = 64,
    area: Sequence[int] = (64, 64),
    view: Sequence[int] = (9, 9),
    max_episode_steps: int = 10_000,
    render_mode: str | None = None,
    **parameters: Any,
) -> Crafter:
    """One world of `area` tiles, of which `view` are seen in a picture `size` pixels wide.

    `task` is "reward", or "no_reward" for agents that find their own.
    `render_mode` is None or "rgb_array" (576 x 576 pixels).
    Raises: ModuleNotFoundError without crafter; APIUsageError for an unknown task or mode, or a
    picture with less than one pixel a tile.
    """
    # crafter imports the old gym where it is installed, which speaks up and sets filters.
    with silenced(), warnings.catch_warnings():
        crafter = importlib.import_module("crafter")
    refuse_unknown("parameter", parameters, parameters_of(make))
    refuse_unknown("task", [task], ("reward", "no_reward"))
    refuse_unknown("render mode", [render_mode], RENDER_MODES)
    if size < max(view):
        raise APIUsageError(f"size {size} is less than a pixel for each of the {max(view)} tiles")

    world = crafter.Env(
        tuple(area), tuple(view), (size, size), task == "reward", max_episode_steps, fresh_seed()
    )
    return Crafter(world, render_mode)


class Crafter(gymnasium.Env):
    """A world of crafter that keeps Gymnasium's rules.

    Worlds begun without a seed follow from the last one. Death terminates, the time limit
    truncates. The info of an episode's last step has `achievements`, how many of the 22 were
    unlocked, and `achievement_<name>`, 1 or 0, for each of them.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, world: Any, render_mode: str | None):
        self.render_mode = render_mode
        self._env = world
        self.observation_space = spaces.Box(0, 255, world.observation_space.shape, np.uint8)
        self.action_space = spaces.Discrete(world.action_space.n)
        land = world._world
        begin = land.reset

        def begin_in_order(seed=None):
            begin(seed)
            land._chunks = defaultdict(InOrder)

        # Which creature leaves is drawn from the set of those in a chunk, and a set of objects has
        # another order in every process.
        land.reset = begin_in_order

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin a world → (observation [size, size, 3] uint8, {})."""
        super().reset(seed=seed)
        if seed is not None:
            self._env._seed, self._env._episode = int(seed), 0
        return self._env.reset(), {}

    def step(self, action):
        """One action → (observation, reward, terminated, truncated, info)."""
        observation, reward, done, told = self._env.step(int(action))
        if not done:
            return observation, float(reward), False, False, {}
        dead = told["discount"] == 0
        unlocked = {f"achievement_{n}": int(c > 0) for n, c in told["achievements"].items()}
        info = {"achievements": sum(unlocked.values()), **unlocked}
        return observation, float(reward), dead, not dead, info

    def render(self):
        """The picture [576, 576, 3] uint8, or None if none was asked for."""
        if self.render_mode is None:
            return None
        # The darkness of the night is drawn with the numbers that the game goes on with.
        random = self._env._world.random
        state = random.get_state()
        picture = self._env.render((PICTURE, PICTURE))
        random.set_state(state)
        return picture


class InOrder(dict):
    """A set that keeps the order in which its members came."""

    def add(self, member: Any) -> None:
        """Put `member` in."""
        self[member] = None

    def remove(self, member: Any) -> None:
        """Take `member` out."""
        del self[member]
