"""PettingZoo: games of several agents, in the families butterfly, classic, atari, sisl and mpe."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.adapters import (
    AgentsWrapper,
    AlikeAgents,
    SeededAgents,
    refuse_unknown,
    shrink,
    silenced,
    to_gray,
)
from pufferlib.emulation import AECToParallel
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

FAMILIES = {  # What each needs beside pettingzoo.
    "atari": "'multi-agent-ale-py>=0.1.11' 'ale-py>=0.11' 'pygame>=2.3'",
    "butterfly": "'pygame>=2.3' 'pymunk>=6.2'",
    "classic": "'chess>=1.10' 'rlcard>=1.0.5' 'shimmy[openspiel]>=2.0' 'pygame>=2.3'",
    "mpe": "'pettingzoo<1.26' 'pygame>=2.3' (or, with a newer pettingzoo: mpe2)",
    "sisl": "'pygame>=2.3' 'pymunk>=6.2' 'box2d>=2.3.10' 'scipy>=1.10'",
}
SHORT_SIDE = 40  # Pixels that a shrunken picture keeps at least.


def make(
    task: str = "mpe/simple_spread",
    *,
    shrink_by: int | None = None,
    frame_skip: int | None = None,
    render_mode: str | None = None,
    **parameters: Any,
) -> SeededAgents:
    """One game; `task` is family/name without its version, such as "butterfly/pistonball".

    Observations that are pictures become gray and smaller by the factor `shrink_by`, 1 leaving
    them as they are; by default as small as leaves 40 pixels on the shorter side. `frame_skip`
    repeats each action that often, by default 4 times in atari, once elsewhere. `parameters` are
    those of the game.
    Raises: APIUsageError for an unknown task or parameter; EnvironmentSetupError where a package of
    the family is missing; ModuleNotFoundError without pettingzoo.
    """
    tasks = list_tasks()
    family = task.partition("/")[0]
    if family == "mpe" and not any(name.startswith("mpe/") for name in tasks):
        raise EnvironmentSetupError(
            f"mpe has moved; install it with: pip install {FAMILIES['mpe']}"
        )
    refuse_unknown("task of pettingzoo", [task], tasks)
    refuse_unknown("render mode of pettingzoo", [render_mode], [None, "rgb_array", "ansi"])
    for name, value in (("shrink_by", shrink_by), ("frame_skip", frame_skip)):
        if value is not None and not 1 <= value <= 16:
            raise APIUsageError(f"{name} is {value}; expected 1 to 16")
    if task == "butterfly/cooperative_pong":
        render_mode = "rgb_array"  # It observes what it draws, and warns where nobody asked for it.
    with silenced(), warnings.catch_warnings(action="ignore"):
        try:
            module = importlib.import_module(tasks[task])
            if family == "atari":
                # PettingZoo's own way is to download the games; ale-py's wheel has them.
                roms = Path(importlib.import_module("ale_py").__file__ or "").parent / "roms"
                parameters = {"auto_rom_install_path": str(roms), **parameters}
        except ModuleNotFoundError as error:
            raise EnvironmentSetupError(
                f"{task} needs the package {error.name!r}, which is not installed; install what "
                f"its family needs with: pip install {FAMILIES[family]}"
            ) from error
        _refuse_parameters(task, module, parameters)
        create = getattr(module, "parallel_env", None) or module.env
        try:
            env = create(render_mode=render_mode, **parameters)
            env.reset(seed=0)  # What pygame has to say about its host is said now.
        except TypeError as error:
            raise APIUsageError(f"{task} does not take {parameters}: {error}") from error
        except AttributeError as error:
            if "add_collision_handler" not in str(error):
                raise
            raise EnvironmentSetupError(
                f"{task} needs an older pymunk; install it with: pip install 'pymunk<7'"
            ) from error
    if hasattr(env, "agent_iter"):
        env = AECToParallel(LegalMoves(env))
    first = env.observation_space(env.possible_agents[0])
    if isinstance(first, spaces.Box) and first.dtype == np.uint8 and len(first.shape) == 3:
        factor = max(1, min(16, min(first.shape[:2]) // SHORT_SIDE))
        factor = factor if shrink_by is None else shrink_by
        if factor > 1:
            env = Pictures(env, factor)
    repeats = (4 if family == "atari" else 1) if frame_skip is None else frame_skip
    return SeededAgents(AlikeAgents(Repeat(env, repeats) if repeats > 1 else env))


def list_tasks() -> dict[str, str]:
    """Task → the module that has it, read from the folders of what is installed."""
    tasks = {}
    for package, families in (("pettingzoo", FAMILIES), ("mpe2", ("",))):
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            continue
        root = Path(found.submodule_search_locations[0])
        for family in families:
            for path in sorted((root / family).glob("*_v*")):
                if match := re.fullmatch(r"(\w+)_v\d+", path.stem):
                    module = ".".join(filter(None, (package, family, path.stem)))
                    tasks.setdefault(f"{family or 'mpe'}/{match[1]}", module)
    if not tasks:
        raise ModuleNotFoundError("No module named 'pettingzoo'", name="pettingzoo")
    return tasks


class Repeat(AgentsWrapper):
    """Repeats each action `times` times, or until an agent leaves; rewards are added up."""

    def __init__(self, env: Any, times: int):
        super().__init__(env)
        self._times = times

    def step(self, actions: Mapping):
        """Advance → (observations, rewards, terminations, truncations, infos)."""
        observations, rewards, *rest = self.env.step(actions)
        for _ in range(self._times - 1):
            ended = any(rest[0].values()) or any(rest[1].values())
            if ended or not self.env.agents:
                break
            observations, more, *rest = self.env.step(actions)
            rewards = {agent: rewards.get(agent, 0) + more[agent] for agent in more}
        return observations, rewards, *rest


class Pictures(AgentsWrapper):
    """Observations are gray pictures, smaller by a factor."""

    def __init__(self, env: Any, factor: int):
        super().__init__(env)
        self._factor = factor

    def observation_space(self, agent: Any):
        """The space of one agent's pictures [height, width, 1]."""
        height, width, _ = self.env.observation_space(agent).shape
        shape = (height // self._factor, width // self._factor, 1)
        return spaces.Box(0, 255, shape, np.uint8)

    def reset(self, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observations, infos)."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._draw(observations), infos

    def step(self, actions: Mapping):
        """Advance → (observations, rewards, terminations, truncations, infos)."""
        observations, *rest = self.env.step(actions)
        return self._draw(observations), *rest

    def _draw(self, observations: Mapping) -> dict:
        # Agents often share one picture, which is then made smaller once.
        drawn: dict[int, np.ndarray] = {}
        for picture in observations.values():
            if id(picture) not in drawn:
                drawn[id(picture)] = shrink(to_gray(picture), self._factor)
        return {agent: drawn[id(picture)] for agent, picture in observations.items()}


class LegalMoves:
    """A game of turns in which a forbidden move is replaced by an allowed one, chosen by chance.

    PettingZoo itself ends the game at a forbidden move. Which moves are allowed is said by
    `action_mask` in the observation, or in the info.
    """

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Begin a game."""
        self._random = np.random.default_rng(seed)
        self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> None:
        """One move of the agent whose turn it is."""
        if action is not None:
            agent = self.env.agent_selection
            observation = self.env.observe(agent)
            told = observation if isinstance(observation, dict) else self.env.infos[agent]
            mask = told.get("action_mask")
            if mask is not None and mask.any() and not mask[action]:
                action = int(self._random.choice(np.flatnonzero(mask)))
        self.env.step(action)


def _refuse_parameters(task: str, module: Any, parameters: Mapping) -> None:
    """Refuse a parameter that the game does not name, where it names them at all."""
    signature = inspect.signature(module.raw_env).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature):
        return
    known = {p.name for p in signature} - {"self", "render_mode"}
    refuse_unknown(f"parameter of {task}", parameters, known)
