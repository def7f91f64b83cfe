"""MAgent: battles and hunts of hundreds of agents on a grid (package magent2)."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import Any

from pufferlib.adapters import AgentsWrapper, AlikeAgents, SeededAgents, refuse_unknown, silenced

TASKS = {
    "adversarial_pursuit": "adversarial_pursuit_v4",
    "battle": "battle_v4",
    "battlefield": "battlefield_v5",
    "combined_arms": "combined_arms_v6",
    "gather": "gather_v5",
    "tiger_deer": "tiger_deer_v4",
}


def make(
    task: str = "battle", *, render_mode: str | None = None, **parameters: Any
) -> SeededAgents:
    """One game; `parameters` are those of its `parallel_env`, such as `map_size`.

    Raises: APIUsageError for an unknown task or parameter; ModuleNotFoundError without magent2.
    """
    refuse_unknown("task of magent", [task], TASKS)
    refuse_unknown("render mode of magent", [render_mode], [None, "rgb_array"])
    with silenced(), warnings.catch_warnings(action="ignore"):
        module = importlib.import_module(f"magent2.environments.{TASKS[task]}")
        create = module.parallel_env
        known = set(inspect.signature(create).parameters) - {"render_mode", "seed"}
        known -= {"reward_args", "env_args"}
        game = vars(importlib.import_module(create.__module__))
        for name in ("default_reward_args", "default_env_args"):  # What those two stand for.
            known |= set(game.get(name, ()))
        refuse_unknown(f"parameter of {task}", parameters, known)
        env = create(render_mode=render_mode, **parameters)
    return SeededAgents(AlikeAgents(Mended(env)))


class Mended(AgentsWrapper):
    """magent2's game with a reset that is whole, and silent when it draws.

    Its own reset returns observations only, as in the API of old, and counts the teams before they
    are on the map, so that in the first step every team would do what the first is told to.
    """

    def reset(self, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observations, infos), dicts by agent."""
        observations = self.env.reset(seed=seed, options=options)
        game = self.unwrapped
        game.team_sizes = [game.env.get_num(handle) for handle in game.handles]
        return observations, {}

    def render(self) -> Any:
        """One frame; what pygame says about its host's fonts is held back."""
        with warnings.catch_warnings(action="ignore"):
            return self.env.render()
