"""MiniHack: small tasks in NetHack's world (package minihack), rooms and corridors."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from pufferlib.adapters import parameters_of, refuse_unknown
from pufferlib.envs.nethack import OBSERVATION_KEYS, RENDER_MODES, NetHack
from pufferlib.exceptions import EnvironmentSetupError

# Tasks whose levels come from elsewhere, and why they are not to be had.
OUTSIDE = {
    "MiniHack-Boxoban": "levels that minihack does not bring",
    "MiniHack-LavaCrossing": "levels from a minigrid older than any that works with it",
    "MiniHack-MultiRoom": "levels from a minigrid older than any that works with it",
    "MiniHack-SimpleCrossing": "levels from a minigrid older than any that works with it",
}

# Keyboard → action of the tasks that only walk, for `puffer play`.
KEYS = {"up": 0, "right": 1, "down": 2, "left": 3}
KEYS |= {letter: action for action, letter in enumerate("kljhunby")}


def make(
    task: str = "MiniHack-Room-Random-15x15-v0",
    *,
    observation_keys: Sequence[str] = OBSERVATION_KEYS,
    level_seeds: Sequence[int] | None = None,
    explore_bonus: float = 0.0,
    render_mode: str | None = None,
    **parameters: Any,
) -> MiniHack:
    """One game of a task of minihack; `parameters` are those of the task's own class.

    `level_seeds` limits the games to these seeds, from which each episode draws one.
    `explore_bonus` and `render_mode` are those of the environment nethack.
    Raises: ModuleNotFoundError without minihack; EnvironmentSetupError for a task whose levels
    minihack lacks; APIUsageError for an unknown task, parameter or key.
    """
    # minihack imports pkg_resources, and setuptools warns of that.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from minihack.base import MINIHACK_SPACE_FUNCS
        from nle.nethack import OBSERVATION_DESC

    tasks = [name for name in gymnasium.registry if name.startswith("MiniHack-")]
    refuse_unknown("task", [task], tasks)
    _refuse_outside(task)
    refuse_unknown("observation key", observation_keys, [*OBSERVATION_DESC, *MINIHACK_SPACE_FUNCS])
    refuse_unknown("render mode", [render_mode], RENDER_MODES)
    spec = gymnasium.spec(task)
    create = gymnasium.envs.registration.load_env_creator(spec.entry_point)
    refuse_unknown(f"parameter of {task}", parameters, parameters_of(create) - {"seeds"})
    with warnings.catch_warnings():
        # minihack leaves the file of its tiles to be closed by the collector.
        warnings.simplefilter("ignore", ResourceWarning)
        game = create(
            **{"fix_moon_phase": True, **spec.kwargs, **parameters},
            observation_keys=tuple(observation_keys),
            render_mode=RENDER_MODES[render_mode],
        )
    return MiniHack(game, observation_keys, render_mode, explore_bonus, level_seeds)


class MiniHack(NetHack):
    """A game of minihack with the rules of `NetHack`, and crops of any shape.

    The info of an episode's last step also has `solved`, 1 where the task was done.
    """

    def __init__(
        self,
        game: Any,
        observation_keys: Sequence[str],
        render_mode: str | None,
        explore_bonus: float,
        level_seeds: Sequence[int] | None,
    ):
        super().__init__(game, observation_keys, render_mode, explore_bonus)
        self._level_seeds = None if level_seeds is None else tuple(level_seeds)
        reach = game.obs_crop_h // 2, game.obs_crop_w // 2

        def crop(screen: np.ndarray, centre: Sequence[int]) -> np.ndarray:
            return crop_around(screen, centre, reach, game.obs_crop_pad)

        # minihack's own pads rows with the width and columns with the height.
        game._crop_observation = crop

    def step(self, action):
        """One key → (observation, reward, terminated, truncated, info)."""
        observation, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            info["solved"] = int(info["end_status"] == "task_successful")
        return observation, reward, terminated, truncated, info

    def _draw_seeds(self) -> list[int]:
        if self._level_seeds is None:
            return super()._draw_seeds()
        return [int(self._seeds.choice(self._level_seeds))] * 2


def crop_around(
    screen: np.ndarray, centre: Sequence[int], reach: tuple[int, int], fill: int
) -> np.ndarray:
    """The part of `screen` [rows, columns, …] within `reach` (up and down, left and right) of
    `centre` (column, row); what lies outside is `fill`."""
    height, width = 2 * reach[0] + 1, 2 * reach[1] + 1
    crop = np.full((height, width, *screen.shape[2:]), fill, screen.dtype)
    top, left = int(centre[1]) - reach[0], int(centre[0]) - reach[1]
    rows = slice(max(top, 0), max(top + height, 0))
    columns = slice(max(left, 0), max(left + width, 0))
    seen = screen[rows, columns]
    down, right = rows.start - top, columns.start - left
    crop[down : down + seen.shape[0], right : right + seen.shape[1]] = seen
    return crop


def _refuse_outside(task: str) -> None:
    for prefix, lacking in OUTSIDE.items():
        if task.startswith(prefix):
            raise EnvironmentSetupError(f"{task} needs {lacking}; choose another task")


def __getattr__(name: str) -> Any:
    # The policy needs torch, which a process that only steps the game never imports.
    if name == "MiniHackPolicy":
        return importlib.import_module(".policy", __name__).MiniHackPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
