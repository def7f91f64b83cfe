"""Games of ale-py side by side, stepped by its own threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

SCREEN = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}


class Games(AtariVectorEnv):
    """ale-py's vector: every game has a seed of its own and starts anew in the step that ends it.

    With a `render_mode` a second vector plays the same games for their pictures alone.
    """

    seeded_each = True

    def __init__(
        self, game: str, num_envs: int, num_threads: int, render_mode: str | None, **parameters: Any
    ):
        self.metadata = {}  # ale-py writes into it, which is the one of all vectors by itself.
        mode = AutoresetMode.SAME_STEP
        threads = {"num_threads": num_threads, "autoreset_mode": mode}
        super().__init__(game, num_envs, **threads, **parameters)
        self.render_mode = render_mode
        self._pictures = None
        if render_mode is not None:
            self._pictures = AtariVectorEnv(game, num_envs, **threads, **{**parameters, **SCREEN})
        self._frames: Any = ()

    def reset(self, *, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None):
        """Begin every game anew, each with its own seed; without them randomness goes on."""
        seeds = None if seed is None else np.asarray(seed, np.int64)
        if self._pictures is not None:
            self._frames = self._pictures.reset(seed=seeds)[0][:, 0]
        return super().reset(seed=seeds, options=options)

    def step(self, actions: np.ndarray):
        """Advance every game by one action."""
        if self._pictures is not None:
            self._frames = self._pictures.step(actions)[0][:, 0]
        return super().step(actions)

    def render(self):
        """The colour screen of each game, [210, 160, 3] uint8."""
        return tuple(self._frames)

    def close_extras(self, **_: Any):
        """Stop the threads."""
        self.ale = self._pictures = None
