"""Grid worlds of the packages minigrid: MiniGrid, and BabyAI with missions in English."""

from __future__ import annotations

import importlib
import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import make_registered

# What a cell of the picture may hold: kind, colour and state (the agent's direction or a door's).
CELL_SIZES = (11, 6, 4)
MISSION_LENGTH = 80  # Words; the longest of BabyAI's has fewer.
# Words are numbered from 1 in this order; 0 is no word and the number after the last any other.
VOCABULARY = (
    "a after and at avoid ball behind blue box door end fetch find from front get go goal green "
    "grey hallway in key lava left matching must near next object of on open opening pick purple "
    "put reach red right room rooms square the then to traverse unlock up use yellow you your"
)
WORDS = VOCABULARY.split()
NUMBERS = {word: number for number, word in enumerate(WORDS, 1)}
OTHER = len(WORDS) + 1


def make(
    task: str = "MiniGrid-DoorKey-5x5-v0",
    *,
    mission: bool = True,
    render_mode: str | None = None,
    **parameters: Any,
) -> gymnasium.Env:
    """One grid world; `parameters` are those of the task's class, such as `max_steps`.

    Without `mission` the observation has no words.
    Raises: APIUsageError for an unknown task or parameter; ModuleNotFoundError without minigrid.
    """
    importlib.import_module("minigrid")
    tasks = [
        name
        for name in gymnasium.registry
        if name.startswith(("MiniGrid-", "BabyAI-")) and "-WFC-" not in name
    ]
    with redirect_stdout(StringIO()):
        grid = make_registered(task, tasks, render_mode=render_mode, **parameters)
    return MiniGrid(grid, mission)


class MiniGrid(gymnasium.Wrapper):
    """A grid world whose observation is numbers: cells, direction and the words of the mission.

    What BabyAI prints of missions that it threw away is held back.
    """

    def __init__(self, grid: gymnasium.Env, mission: bool):
        super().__init__(grid)
        size: int = grid.get_wrapper_attr("agent_view_size")
        fields: dict[str, spaces.Space] = {
            "image": spaces.Box(0, max(CELL_SIZES) - 1, (size, size, 3), np.uint8),
            "direction": spaces.Discrete(4),
        }
        if mission:
            fields["mission"] = spaces.Box(0, OTHER, (MISSION_LENGTH,), np.uint8)
        self.observation_space = spaces.Dict(fields)
        self._has_mission = mission
        self._sentence: str | None = None
        self._numbers = np.zeros(MISSION_LENGTH, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode."""
        with redirect_stdout(StringIO()):
            observation, info = self.env.reset(seed=seed, options=options)
        return self._translate(observation), info

    def step(self, action: Any):
        """Advance one step."""
        observation, *rest = self.env.step(action)
        return self._translate(observation), *rest

    def _translate(self, observation: Any) -> dict[str, Any]:
        sentence = observation.pop("mission")
        if self._has_mission:
            if sentence != self._sentence:
                self._sentence, self._numbers = sentence, number_words(sentence)
            observation["mission"] = self._numbers
        return observation


def number_words(sentence: str) -> np.ndarray:
    """The numbers of a mission's words [MISSION_LENGTH] uint8, zeros behind the last."""
    numbers = np.zeros(MISSION_LENGTH, np.uint8)
    words = re.findall(r"[a-z]+", sentence.lower())[:MISSION_LENGTH]
    numbers[: len(words)] = [NUMBERS.get(word, OTHER) for word in words]
    return numbers


def __getattr__(name: str) -> Any:
    # The policy needs torch, which a process that only steps the world never imports.
    if name == "MiniGridPolicy":
        return importlib.import_module(".policy", __name__).MiniGridPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
