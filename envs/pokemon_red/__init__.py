"""Pokémon Red from the user's own ROM: explore, win badges, raise levels, further the story."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.envs.gameboy import ACTIONS, KEYS, GameBoy, read_file, read_rom
from pufferlib.envs.gameboy import rom as homemade
from pufferlib.envs.gameboy.console import Console
from pufferlib.envs.pokemon_red.memory import PARTY_SIZE, SHA1, Progress, read_progress
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

__all__ = ["KEYS", "PokemonRed", "check", "make"]

VARIABLE = "POKEMON_RED_ROM"
HOMEMADE = "homemade"  # In place of a path: our own ROM, with which tests and checks are made.
TITLE = "POKEMON RED"
VIEW = 4  # Cells that `visited` shows in each direction.


def make(
    rom: str = "",
    *,
    state: str = "",
    allow_unknown_rom: bool = False,
    **parameters: Any,
) -> PokemonRed:
    """The game from the file `rom`, else from the one that $POKEMON_RED_ROM names.

    `state` is a file that PyBoy saved, from which episodes begin; without it they begin where the
    machine is switched on. A ROM of another hash than the US release is refused unless
    `allow_unknown_rom`. For the rest see `PokemonRed` and `GameBoy`.
    Raises: EnvironmentSetupError without a ROM; APIUsageError for files that cannot be used.
    """
    content, start = load(rom, state, allow_unknown_rom)
    return PokemonRed(content, start, **parameters)


def check(rom: str = "", state: str = "", allow_unknown_rom: bool = False, **_: Any) -> None:
    """Raise what `make` would raise for its files, before any worker is started."""
    content, start = load(rom, state, allow_unknown_rom)
    if start is not None:
        Console(content, start, name=f"state {state}").close()


def load(rom: str, state: str, allow_unknown_rom: bool) -> tuple[bytes, bytes | None]:
    """The ROM, checked by its hash, and the state as bytes."""
    path = rom or os.environ.get(VARIABLE, "")
    if not path:
        raise EnvironmentSetupError(
            "pokemon_red needs your own ROM of Pokémon Red (US), which is not part of this "
            f"package: name its file with --env.rom or in ${VARIABLE} (sha1 {SHA1})"
        )
    content = homemade.build(TITLE) if path == HOMEMADE else read_rom(path)
    found = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    if found != SHA1 and not allow_unknown_rom:
        origin = "--env.rom" if rom else f"${VARIABLE}"
        raise APIUsageError(
            f"the ROM {path} (from {origin}) is not Pokémon Red (US): its sha1 is {found}, "
            f"expected {SHA1}. In another ROM the addresses mean something else; "
            "--env.allow-unknown-rom true takes it all the same"
        )
    return content, read_file("state", state) if state else None


class PokemonRed(GameBoy):
    """A `GameBoy` whose reward is progress in Pokémon Red.

    Paid are, once each in an episode: `explore_reward` for a cell (map, y, x) that is entered for
    the first time, `level_reward` for a level that the party as a whole gains, `event_reward` for
    an event of the story and `badge_reward` for a badge. What is lost is not charged, and what is
    won back is not paid again.

    Observations: `screen`, `position` (map, y, x), `visited` (the cells around, 1 where the
    episode has been), `badges`, `levels` and `health` of the party, `in_battle`. The info of an
    episode's last step has `badges`, `levels`, `events`, `cells`, `maps` and `money`.
    """

    def __init__(
        self,
        rom: bytes,
        state: bytes | None = None,
        *,
        explore_reward: float = 0.02,
        level_reward: float = 0.5,
        event_reward: float = 1.0,
        badge_reward: float = 10.0,
        max_episode_steps: int = 4096,
        **parameters: Any,
    ):
        self._prices = np.array([explore_reward, level_reward, event_reward, badge_reward])
        parameters = {"buttons": [name for name in ACTIONS if name != "select"], **parameters}
        super().__init__(rom, state, max_episode_steps=max_episode_steps, **parameters)

    def _space(self, screen: spaces.Box) -> spaces.Dict:
        side = 2 * VIEW + 1
        return spaces.Dict(
            {
                "screen": screen,
                "position": spaces.Box(0, 255, (3,), np.uint8),
                "visited": spaces.Box(0, 1, (side, side), np.uint8),
                "badges": spaces.MultiBinary(8),
                "levels": spaces.Box(0, 255, (PARTY_SIZE,), np.uint8),
                "health": spaces.Box(0.0, 1.0, (PARTY_SIZE,), np.float32),
                "in_battle": spaces.Box(0, 255, (1,), np.uint8),
            }
        )

    def _observe(self, screen: np.ndarray) -> dict[str, np.ndarray]:
        now = self._now
        number, y, x = now.cell
        around = range(-VIEW, VIEW + 1)
        visited = [[(number, y + i, x + j) in self._cells for j in around] for i in around]
        levels, health = np.zeros(PARTY_SIZE, np.uint8), np.zeros(PARTY_SIZE, np.float32)
        levels[: len(now.levels)] = now.levels
        health[: len(now.health)] = np.minimum(now.health, 1)
        return {
            "screen": screen,
            "position": np.array(now.cell, np.uint8),
            "visited": np.array(visited, np.uint8),
            "badges": np.array([now.badges >> i & 1 for i in range(8)], np.int8),
            "levels": levels,
            "health": health,
            "in_battle": np.array([now.in_battle], np.uint8),
        }

    def _begin(self) -> None:
        self._now = read_progress(self.memory)
        self._cells = {self._now.cell}
        self._best = _merits(self._now, 1)

    def _judge(self) -> tuple[float, bool]:
        self._now = read_progress(self.memory)
        self._cells.add(self._now.cell)
        before = self._best
        self._best = np.maximum(before, _merits(self._now, len(self._cells)))
        return float(self._prices @ (self._best - before)), False

    def _summary(self) -> dict[str, float]:
        return {
            "badges": self._now.badge_count,
            "levels": sum(self._now.levels),
            "events": self._now.events,
            "cells": len(self._cells),
            "maps": len({cell[0] for cell in self._cells}),
            "money": self._now.money,
        }


def _merits(now: Progress, cells: int) -> np.ndarray:
    """What is paid for, in the order of the prices."""
    return np.array([cells, sum(now.levels), now.events, now.badge_count])
