"""Gymnasium's tasks on the physics of Box2D: a lunar lander, a biped, a racing car."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium

from pufferlib.adapters import make_registered

TASKS = (
    "BipedalWalker-v3",
    "BipedalWalkerHardcore-v3",
    "CarRacing-v3",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
)


def make(
    task: str = "LunarLander-v3", *, render_mode: str | None = None, **parameters: Any
) -> gymnasium.Env:
    """One environment; `parameters` are those of the task's class, and `max_episode_steps`.

    Raises: APIUsageError for an unknown task or parameter; ModuleNotFoundError without Box2D, or
    without pygame where pixels are wanted.
    """
    importlib.import_module("Box2D")
    if render_mode == "rgb_array" or task.startswith("CarRacing"):
        importlib.import_module("pygame")
    env = make_registered(task, TASKS, render_mode=render_mode, **parameters)
    return FreshWorld(env) if task.startswith("BipedalWalker") else env


class FreshWorld(gymnasium.Wrapper):
    """A walker that begins every episode in a new world.

    By itself it clears the old one, which keeps traces: the same seed then gives another episode.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode."""
        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = type(walker.world)()
        return self.env.reset(seed=seed, options=options)
