"""Atari 2600: the 104 games of the Arcade Learning Environment (package ale-py, games included).

Frames are skipped, scaled, stacked and turned grey inside ale-py's C++. `make_vector` steps many
games on its threads, which is what `vector.make` takes; `make` is one such game.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from pufferlib.adapters import parameters_of, refuse_unknown, silenced

# Those of ale-py that `make_vector` sees to, and one that tells nothing which training reads.
MANAGED = {"autoreset_mode", "batch_size", "game", "life_loss_info", "num_envs", "num_threads",
           "render_mode", "thread_affinity_offset"}  # fmt: skip
FOR_TWO = {"combat", "joust", "maze_craze", "warlords"}  # Nothing happens with one player.
AROUND_NAME = re.compile(r"^ALE/|(NoFrameskip|Deterministic)?-v\d$")


def make(game: str = "pong", *, render_mode: str | None = None, **parameters: Any) -> Atari:
    """One game, by its name ("ms_pacman") or one of Gymnasium's ("ALE/MsPacman-v5").

    `parameters` are those of ale-py's own vector, but rewards are not clipped unless asked for.
    Raises: APIUsageError for an unknown game or parameter; ModuleNotFoundError without ale-py.
    """
    return Atari(make_vector(1, 1, game, render_mode=render_mode, **parameters))


def make_vector(
    num_envs: int,
    num_threads: int,
    /,
    game: str = "pong",
    *,
    render_mode: str | None = None,
    reward_clipping: bool = False,
    **parameters: Any,
) -> VectorEnv:
    """`num_envs` games side by side, stepped by `num_threads` threads of ale-py."""
    with silenced():
        roms: Any = importlib.import_module("ale_py.roms")
        games: Any = importlib.import_module(".games", __name__).Games
    names = {name.replace("_", ""): name for name in set(roms.get_all_rom_ids()) - FOR_TWO}
    plain = AROUND_NAME.sub("", game).replace("_", "").lower()
    refuse_unknown("game", [] if plain in names else [game], names.values())
    refuse_unknown("parameter of atari", parameters, parameters_of(games) - MANAGED)
    refuse_unknown("render mode", [render_mode], [None, "rgb_array"])
    parameters["reward_clipping"] = reward_clipping
    with silenced():
        return games(names[plain], num_envs, num_threads, render_mode, **parameters)


class Atari(gymnasium.Env):
    """One game: a vector of one behind Gymnasium's rules."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, games: Any):
        self.games = games
        self.observation_space = games.single_observation_space
        self.action_space = games.single_action_space
        self.render_mode = games.render_mode
        self._begun: np.ndarray | None = None  # What the vector began when an episode ended.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode → (observation [stack, height, width] uint8, {})."""
        super().reset(seed=seed)
        observation, self._begun = self._begun, None
        if observation is None or seed is not None:
            (observation,), _ = self.games.reset(seed=None if seed is None else [seed])
        return observation, {}

    def step(self, action: Any):
        """Advance by one action, `frameskip` frames long."""
        (observation,), (reward,), (terminated,), (truncated,), info = self.games.step(
            np.asarray(action)[None]
        )
        if terminated or truncated:
            self._begun, (observation,) = observation, info["final_obs"]
        return observation, float(reward), bool(terminated), bool(truncated), {}

    def render(self):
        """The colour screen [210, 160, 3] uint8; None without a render mode."""
        return next(iter(self.games.render()), None)

    def close(self):
        """Stop the thread."""
        self.games.close()


def __getattr__(name: str) -> Any:
    # The policy needs torch, which a process that only plays never imports.
    if name == "AtariPolicy":
        return importlib.import_module(".policy", __name__).AtariPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
