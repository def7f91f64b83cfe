"""Neural MMO 2: 128 agents live, forage and fight in one world (package nmmo)."""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.adapters import refuse_unknown, silenced
from pufferlib.exceptions import APIUsageError
from pufferlib.native.build import cache_folder
from pufferlib.seeding import fresh_seed

SIZES = ("small", "medium", "large")
SYSTEMS = ("terrain", "resource", "combat", "npc", "progression", "item", "equipment", "profession")
OBSERVATION_KEYS = ("AgentId", "Tile", "Entity", "Inventory", "ActionTargets")
RENDER_MODES = (None, "rgb_array")

# Colours of a picture: materials by their name; agents; the world's own creatures.
COLOURS = {
    "void": 0x000000, "water": 0x3A6EA5, "grass": 0x5B8C3A, "scrub": 0x8A8A4A,
    "foilage": 0x2E6B2E, "stone": 0x707070, "slag": 0x4A4440, "ore": 0xB87333,
    "stump": 0x6B4F2A, "tree": 0x1F4D1F, "fragment": 0x9A86A4, "crystal": 0xC07CE0,
    "weeds": 0x6F8F3F, "herb": 0xA3D977, "fish": 0x7FB2E5, "ocean": 0x1F3F6F,
}  # fmt: skip
AGENT, CREATURE = 0xFF3030, 0xFFE050
PIXELS = 4  # A side of a tile in a picture.


def make(
    size: str = "medium",
    *,
    systems: Sequence[str] = SYSTEMS,
    observation_keys: Sequence[str] = OBSERVATION_KEYS,
    render_mode: str | None = None,
    **parameters: Any,
) -> NeuralMMO:
    """One world; `parameters` are attributes of nmmo's config in small letters, such as horizon.

    `size` is small (64 agents), medium (128) or large (1024). `systems` are the parts of the game
    that are played; exchange and communication are left out by default, with the actions and the
    wide observations that belong to them.
    Raises: ModuleNotFoundError without nmmo; APIUsageError for an unknown size, system, key or
    parameter, or for systems that lack another.
    """
    with silenced():
        nmmo = importlib.import_module("nmmo")
    refuse_unknown("size", [size], SIZES)
    refuse_unknown("system", systems, [name.lower() for name in nmmo.config.GAME_SYSTEMS])
    refuse_unknown("render mode", [render_mode], RENDER_MODES)
    config = _configure(nmmo.config, size, systems, parameters)
    _provide_maps(config)
    return NeuralMMO(nmmo.Env(config, seed=fresh_seed()), observation_keys, render_mode)


class NeuralMMO:
    """A world of nmmo with PettingZoo's parallel API, and nothing left behind.

    Observations are nmmo's own arrays, which the next step overwrites. The info of an agent that
    dies or is there at the end has `time_alive`, `level`, `kills` and `exploration` (the way from
    the rim, in tiles).
    """

    metadata = {"name": "nmmo", "render_modes": ["rgb_array"], "render_fps": 6}

    def __init__(self, world: Any, observation_keys: Sequence[str], render_mode: str | None):
        self.render_mode = render_mode
        self.possible_agents = list(world.possible_agents)
        whole = world.observation_space(self.possible_agents[0])
        refuse_unknown("observation key", observation_keys, whole.spaces)
        self._world = world
        self._keys = tuple(observation_keys)
        self._observation_space = spaces.Dict({key: whole[key] for key in self._keys})
        self._action_space = world.action_space(self.possible_agents[0])
        # The caches of these methods keep every environment that called them.
        for method in (type(world).observation_space, type(world).action_space):
            method.cache_clear()

    @property
    def unwrapped(self) -> Any:
        """nmmo's own environment."""
        return self._world

    @property
    def agents(self) -> list[int]:
        """The agents that are alive."""
        return self._world.agents

    def observation_space(self, agent: int) -> spaces.Dict:
        """The space of any agent's observations."""
        return self._observation_space

    def action_space(self, agent: int) -> spaces.Dict:
        """The space of any agent's actions."""
        return self._action_space

    def reset(self, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observations, infos), dicts by agent."""
        observations, _ = self._world.reset(seed=None if seed is None else int(seed))
        return self._select(observations), {}

    def step(self, actions: dict):
        """One tick → (observations, rewards, terminations, truncations, infos), dicts by agent."""
        world = self._world
        players = dict(world.realm.players.items())
        observations, rewards, terminations, truncations, _ = world.step(actions)
        infos = {
            agent: _tell(players[agent])
            for agent in observations
            if terminations[agent] or truncations[agent]
        }
        return self._select(observations), dict(rewards), terminations, truncations, infos

    def render(self):
        """The map with all that live on it [4 * height, 4 * width, 3] uint8, or None."""
        if self.render_mode is None:
            return None
        realm = self._world.realm
        palette = {m.index: COLOURS.get(m.tex, 0xFF00FF) for m in _materials()}
        tiles = realm.map.tiles
        picture = np.array([[palette[tile.material.index] for tile in row] for row in tiles])
        for colour, crowd in ((CREATURE, realm.npcs), (AGENT, realm.players)):
            for entity in crowd.values():
                picture[entity.pos] = colour
        picture = picture.repeat(PIXELS, 0).repeat(PIXELS, 1)
        return (picture[..., None] >> np.array([16, 8, 0]) & 255).astype(np.uint8)

    def close(self):
        """Let the memory of the world go; may be called more than once."""
        if self._world is None:
            return
        # Tiles hold the realm and the realm holds them, in an array where the collector of
        # reference cycles does not look: 40 MB that would stay for ever.
        self._world.realm.map.tiles.fill(None)
        self._world = None

    def _select(self, observations: dict) -> dict:
        keys = self._keys
        return {agent: {key: seen[key] for key in keys} for agent, seen in observations.items()}


def _tell(player: Any) -> dict[str, int]:
    history = player.history
    return {
        "time_alive": int(player.time_alive.val),
        "level": int(player.level),
        "kills": int(history.player_kills),
        "exploration": int(history.exploration),
    }


def _configure(config: Any, size: str, systems: Sequence[str], parameters: dict) -> Any:
    parts = {name.lower(): name for name in dir(config)}
    bases = (getattr(config, size.capitalize()), *(getattr(config, parts[s]) for s in systems))
    try:
        chosen = type("Config", bases, {})()
    except AssertionError as error:
        raise APIUsageError(f"systems {', '.join(systems)}: {error}") from None
    refuse_unknown("parameter", parameters, [name.lower() for name in chosen])
    for name, value in parameters.items():
        chosen.set(name.upper(), value)
    return chosen


def _provide_maps(config: Any) -> None:
    """Point `config` at its maps in the cache; draw them if nobody has yet.

    They are drawn beside their place and renamed, so that workers that start at once see all or
    none of them.
    """
    drawn_from = ("MAP_", "TERRAIN_", "PROGRESSION_SPAWN")
    settings = [f"{n}={v}" for n, v in sorted(config.items()) if n.startswith(drawn_from)]
    mark = hashlib.sha256("\n".join(settings).encode()).hexdigest()[:16]
    place = cache_folder() / "nmmo" / mark
    config.set("MAP_FORCE_GENERATION", False)
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            config.set("PATH_MAPS", str(Path(scratch, "maps")))
            config.MAP_GENERATOR(config).generate_all_maps(seed=0)
            try:
                os.rename(Path(scratch, "maps"), place)
            except OSError:
                if not place.is_dir():  # Otherwise another worker was faster.
                    raise
    config.set("PATH_MAPS", str(place))


def _materials():
    return importlib.import_module("nmmo").material.All.materials


def __getattr__(name: str) -> Any:
    # The policy needs torch, which a process that only steps the game never imports.
    if name == "NeuralMMOPolicy":
        return importlib.import_module(".policy", __name__).NeuralMMOPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
