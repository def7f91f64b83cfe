"""The tasks that Gymnasium brings by itself: classic control, such as Acrobot-v1, and toy text."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium

from pufferlib.adapters import make_registered, silenced

CLASSIC = (
    "Acrobot-v1",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
)
TOY_TEXT = (
    "Blackjack-v1",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "Taxi-v3",
)


def make(
    task: str = "CartPole-v1", *, render_mode: str | None = None, **parameters: Any
) -> gymnasium.Env:
    """One environment; `parameters` are those of the task's class, and `max_episode_steps`.

    Raises: APIUsageError for an unknown task or parameter; ModuleNotFoundError for pictures
    without pygame.
    """
    env = make_registered(task, CLASSIC + TOY_TEXT, render_mode=render_mode, **parameters)
    if render_mode != "rgb_array":
        return env
    importlib.import_module("pygame")
    return QuietPictures(env)


class QuietPictures(gymnasium.Wrapper):
    """Draws without a word: pygame complains where there is neither a display nor a sound card."""

    def render(self):
        """One frame [height, width, 3] uint8."""
        with silenced():
            return self.env.render()
