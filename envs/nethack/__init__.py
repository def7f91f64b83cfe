"""NetHack: the tasks of the NetHack Learning Environment (package nle), such as NetHackScore-v0."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from pufferlib.adapters import parameters_of, refuse_unknown

OBSERVATION_KEYS = ("glyphs", "blstats", "message")
RENDER_MODES = {None: None, "ansi": "ansi", "rgb_array": "pixel"}  # Ours → NLE's.
SCREEN_KEYS = ("tty_chars", "tty_colors", "tty_cursor")

# Keyboard → action of the score task, for `puffer play`. Letters move as in the game itself.
KEYS = {"return": 0, "up": 1, "right": 2, "down": 3, "left": 4}
KEYS |= {letter: action for action, letter in enumerate("kljhunby", 1)}
KEYS |= {"<": 17, ">": 18, ".": 19, "x": 20, "e": 21, "s": 22}


def make(
    task: str = "NetHackScore-v0",
    *,
    observation_keys: Sequence[str] = OBSERVATION_KEYS,
    max_episode_steps: int = 5000,
    explore_bonus: float = 0.0,
    render_mode: str | None = None,
    **parameters: Any,
) -> NetHack:
    """One game of a task of nle; `parameters` are those of the task's own class.

    `explore_bonus` is added to the reward for each cell of a level that is seen for the first time,
    as a help in training; `episode_return` in the infos is the task's own return all the same.
    `render_mode` is None, "ansi" (the coloured terminal) or "rgb_array" (tiles).
    Raises: ModuleNotFoundError without nle; APIUsageError for an unknown task, parameter or key.
    """
    from nle.env import base
    from nle.nethack import OBSERVATION_DESC

    tasks = [name for name in gymnasium.registry if name.startswith("NetHack")]
    refuse_unknown("task", [task], tasks)
    refuse_unknown("observation key", observation_keys, OBSERVATION_DESC)
    refuse_unknown("render mode", [render_mode], RENDER_MODES)
    spec = gymnasium.spec(task)
    create = gymnasium.envs.registration.load_env_creator(spec.entry_point)
    refuse_unknown(f"parameter of {task}", parameters, parameters_of(create))
    screen = [key for key in SCREEN_KEYS if render_mode == "ansi" and key not in observation_keys]
    game: base.NLE = create(
        **{"savedir": None, "fix_moon_phase": True, **spec.kwargs, **parameters},
        observation_keys=(*observation_keys, *screen),
        max_episode_steps=max_episode_steps,
        render_mode=RENDER_MODES[render_mode],
    )
    return NetHack(game, observation_keys, render_mode, explore_bonus)


class NetHack(gymnasium.Wrapper):
    """A game of nle that keeps Gymnasium's rules: seeds, truncation, numbers in the infos.

    `reset(seed=n)` seeds the game, and games begun without a seed afterwards follow from it
    (NetHackChallenge-v0 forbids seeds: its games are always random). Running into the time limit
    is truncation, and the observation then is the last one of the game. Observations are nle's own
    arrays, which the next call overwrites. The info of an episode's last step has `end_status` in
    words and, as they stood before the end: `depth`, `experience_level`, `gold`, `turns`.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}

    def __init__(
        self,
        game: Any,
        observation_keys: Sequence[str],
        render_mode: str | None,
        explore_bonus: float,
    ):
        super().__init__(game)
        from nle.env.tasks import NetHackChallenge
        from nle.nethack import (
            GLYPH_CMAP_OFF,
            NLE_BL_DEPTH,
            NLE_BL_DLEVEL,
            NLE_BL_DNUM,
            NLE_BL_GOLD,
            NLE_BL_TIME,
            NLE_BL_XP,
            tty_render,
        )  # fmt: skip

        self._figures = {
            "depth": NLE_BL_DEPTH,
            "experience_level": NLE_BL_XP,
            "gold": NLE_BL_GOLD,
            "turns": NLE_BL_TIME,
        }
        self._level, self._unseen = (NLE_BL_DNUM, NLE_BL_DLEVEL), GLYPH_CMAP_OFF
        self._draw_screen = tty_render
        self._render_mode = render_mode
        self._keys = tuple(observation_keys)
        self._screen = render_mode == "ansi"
        self._bonus = float(explore_bonus)
        self._seedable = not isinstance(game, NetHackChallenge)
        self._seeds: np.random.Generator | None = None
        self.observation_space = gymnasium.spaces.Dict(
            {key: game.observation_space[key] for key in self._keys}
        )
        # nle plays "quit" after the time limit, which would replace the last observation by an
        # empty one. The next reset ends the game just as well.
        game._quit_game = _leave_game

    @property
    def render_mode(self) -> str | None:
        """As given to `make`."""
        return self._render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin a game → (observation, {})."""
        if seed is not None or self._seeds is None:
            self._seeds = np.random.default_rng(seed)
        if self._seedable:
            self.env.seed(*self._draw_seeds(), reseed=False)
        observation, _ = self.env.reset(seed=seed, options=options)
        self._stats = self._look("blstats").copy()
        self._return = 0.0
        self._seen: dict[tuple[int, int], int] = {}
        self._count_new_cells()
        return self._select(observation), {}

    def step(self, action):
        """One key → (observation, reward, terminated, truncated, info)."""
        observation, reward, _, _, info = self.env.step(action)
        self._return += reward
        status = info["end_status"]
        # After a death the screen is empty.
        if status <= 0:
            self._stats[...] = self._look("blstats")
            if self._bonus:
                reward += self._bonus * self._count_new_cells()
        if status == 0:
            return self._select(observation), reward, False, False, {}
        info = {name: int(self._stats[index]) for name, index in self._figures.items()}
        info["end_status"] = status.name.lower()
        info["episode_return"] = self._return
        return self._select(observation), reward, status > 0, status < 0, info

    def render(self):
        """The terminal with colour codes, or tiles [336, 1264, 3] uint8."""
        if self._screen:
            return self._draw_screen(*map(self._look, SCREEN_KEYS)).lstrip("\n")
        return self.env.render() if self._render_mode else None

    def close(self):
        """End the game and remove its temporary folder; may be called more than once."""
        self.env.close()

    def _draw_seeds(self) -> list[int]:
        """The two seeds of the next game."""
        return self._seeds.integers(2**63, size=2).tolist()

    def _count_new_cells(self) -> int:
        """How many more cells of this level are seen than ever before."""
        level = (int(self._stats[self._level[0]]), int(self._stats[self._level[1]]))
        seen = int(np.count_nonzero(self._look("glyphs") != self._unseen))
        before = self._seen.get(level, 0)
        self._seen[level] = max(seen, before)
        return self._seen[level] - before

    def _select(self, observation: dict) -> dict:
        return {key: observation[key] for key in self._keys} if self._screen else observation

    def _look(self, key: str) -> np.ndarray:
        return self.env.last_observation[self.env._observation_keys.index(key)]


def _leave_game(observation: Any, done: bool) -> None:
    """In place of nle's way to end a game."""


def __getattr__(name: str) -> Any:
    # The policy needs torch, which a process that only steps the game never imports.
    if name == "NetHackPolicy":
        return importlib.import_module(".policy", __name__).NetHackPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
