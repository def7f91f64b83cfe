"""Procgen: sixteen games whose levels are generated (package procgen-mirror), such as coinrun."""

from __future__ import annotations

import importlib
import warnings
import weakref
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import parameters_of, refuse_unknown, silenced
from pufferlib.exceptions import APIUsageError
from pufferlib.seeding import fresh_seed

MODES = ("easy", "hard", "extreme", "memory", "exploration")
RENDER_MODES = (None, "rgb_array")
TIMEOUT = 1000  # Steps after which a game ends an episode by itself …
TIMEOUTS = {"bigfish": 6000, "bossfight": 4000, "leaper": 500, "maze": 500, "plunder": 4000}

# Keyboard → action, for `puffer play`.
KEYS = {"left": 1, "down": 3, "up": 5, "right": 7, "d": 9, "a": 10, "w": 11, "s": 12, "space": 11}
NOTHING = 4
RESTART = -1


def make(
    game: str = "coinrun",
    *,
    distribution_mode: str = "easy",
    num_levels: int = 0,
    start_level: int = 0,
    render_mode: str | None = None,
    **parameters: Any,
) -> Procgen:
    """One game; `parameters` are the others of procgen, such as `use_backgrounds`.

    Episodes are drawn from the `num_levels` levels that begin with `start_level`; 0 means all.
    `distribution_mode` is easy, hard, extreme, memory or exploration.
    `render_mode` is None or "rgb_array" (512 x 512 pixels).
    Raises: ModuleNotFoundError without procgen; APIUsageError for an unknown game, parameter or
    mode, or one that the game lacks.
    """
    procgen = import_procgen()
    refuse_unknown("game", [game], procgen.ENV_NAMES)
    refuse_unknown("distribution mode", [distribution_mode], MODES)
    refuse_unknown("render mode", [render_mode], RENDER_MODES)
    own = {"num", "env_name", "options", "rand_seed", "num_threads", "debug", "resource_root"}
    refuse_unknown("parameter", parameters, parameters_of(procgen.ProcgenGym3Env) - own)
    levels = {"num_levels": int(num_levels), "start_level": int(start_level)}
    if distribution_mode == "exploration":
        refuse_unknown("exploration mode of", [game], procgen.EXPLORATION_LEVEL_SEEDS)
        if any(levels.values()):
            raise APIUsageError("exploration is one fixed level; leave num_levels and start_level")
        levels = {}
    chosen = {"distribution_mode": distribution_mode, **levels, **parameters}
    return Procgen(procgen.ProcgenGym3Env, game, render_mode, chosen)


class Procgen(gymnasium.Env):
    """A game of procgen that keeps Gymnasium's rules.

    Procgen restarts at once and forgets the picture an episode ended with; the observation of the
    last step is therefore the picture before it. An episode that reaches the game's time limit is
    truncated. The info of the last step has the `level` and whether it was `solved`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(15)
    library: Any = None  # Kept, as procgen's cannot be loaded a second time: it never returns.

    def __init__(self, create: Any, game: str, render_mode: str | None, parameters: dict):
        self.render_mode = render_mode
        self._create = create
        self._parameters = {"env_name": game, "render_mode": render_mode, **parameters}
        self._timeout = TIMEOUTS.get(game, TIMEOUT)
        self._action = np.zeros(1, np.int32)
        self._fresh = False  # Whether an episode has begun of which no step was taken.
        # The first one of a process reads the pictures of all games, which takes seconds.
        self._game, self._end = self._begin(fresh_seed())

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observation, {})."""
        super().reset(seed=seed)
        if seed is not None:
            self._end()
            self._game, self._end = self._begin(int(seed) % 2**31)
        elif not self._fresh:
            self._act(RESTART)
        self._fresh = True
        self._steps = 0
        self._seen = self._game.observe()[1]["rgb"][0]
        return self._seen, {}

    def step(self, action):
        """One action of the keyboard → (observation, reward, terminated, truncated, info)."""
        self._act(action)
        reward, observation, first = self._game.observe()
        self._steps += 1
        self._fresh = bool(first[0])
        if not self._fresh:
            self._seen = observation["rgb"][0]
            return self._seen, float(reward[0]), False, False, {}
        told = self._game.get_info()[0]
        solved = bool(told["prev_level_complete"])
        truncated = self._steps >= self._timeout and not solved
        info = {"level": int(told["prev_level_seed"]), "solved": int(solved)}
        return self._seen, float(reward[0]), not truncated, truncated, info

    def render(self):
        """The picture [512, 512, 3] uint8, or None if none was asked for."""
        return self._game.get_info()[0]["rgb"] if self.render_mode else None

    def close(self):
        """Free the game; may be called more than once."""
        self._end()
        self._game = None

    def _begin(self, seed: int):
        """A game, and what ends it: called at the latest when this environment is no more.

        Being known there, a game is out of reach of the collector of reference cycles, which
        crashes the process over the memory that gym3 lends to the game.
        """
        with silenced():
            game = self._create(num=1, num_threads=0, rand_seed=seed, **self._parameters)
        type(self).library = game._c_lib
        return game, weakref.finalize(self, game.close)

    def _act(self, action) -> None:
        self._action[0] = action
        self._game.act(self._action)


def import_procgen():
    """The module procgen.env, without what the old gym says and sets while it is imported."""
    with silenced(), warnings.catch_warnings():
        return importlib.import_module("procgen.env")


def __getattr__(name: str) -> Any:
    # The policy needs torch, which a process that only steps the game never imports.
    if name == "Impala":
        return importlib.import_module(".policy", __name__).Impala
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
