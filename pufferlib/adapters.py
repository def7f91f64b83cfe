"""What the adapters of other people's environments share."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from difflib import get_close_matches
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from pufferlib.exceptions import APIUsageError


@contextmanager
def silenced() -> Iterator[None]:
    """Hold back what anyone, C code included, writes to stdout and stderr.

    If the block raises, all of it is shown on stderr. For the short while of an import or a
    construction only: other threads are held back as well.
    """
    with tempfile.TemporaryFile("w+", buffering=1, errors="replace") as held:
        try:
            with ExitStack() as stack:
                for descriptor in (1, 2):
                    stack.callback(_restore, descriptor, os.dup(descriptor))
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                    stack.callback(stream.flush)  # What it buffered goes where it belongs.
                for descriptor in (1, 2):
                    os.dup2(held.fileno(), descriptor)
                stack.enter_context(redirect_stdout(held))
                stack.enter_context(redirect_stderr(held))
                yield
        except BaseException:
            held.seek(0)
            sys.stderr.write(held.read())
            raise


def refuse_unknown(what: str, given: Iterable[object], known: Iterable[object]) -> None:
    """Raise `APIUsageError` with the nearest known name if one of those `given` is not known.

    `what` says what they name: "task", "parameter of CartPole-v1".
    """
    names = {name: str(name) for name in known}
    for name in given:
        if name not in names:
            near = get_close_matches(str(name), names.values(), 1)
            expected = ", ".join(sorted(names.values()))
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {expected}"
            raise APIUsageError(f"there is no {what} {name!r}; {hint}")


def parameters_of(create: Callable) -> set[str]:
    """The names of the parameters that a function, or a class and those it inherits from, takes."""
    makers: list[Callable] = [create]
    if isinstance(create, type):
        makers = [vars(c)["__init__"] for c in inspect.getmro(create) if "__init__" in vars(c)]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name
        for make in makers
        for name, parameter in inspect.signature(make).parameters.items()
        if name != "self" and parameter.kind not in variable
    }


def to_gray(picture: np.ndarray) -> np.ndarray:
    """A picture [height, width, 3] uint8 as [height, width, 1], a copy."""
    red, green, blue = (picture[..., k].astype(np.uint16) for k in range(3))
    return (77 * red + 150 * green + 29 * blue >> 8).astype(np.uint8)[..., None]


def shrink(picture: np.ndarray, factor: int) -> np.ndarray:
    """A picture [height, width, C] uint8 whose pixels are means of `factor` x `factor`, a copy.

    `factor` is at most 16. Rows and columns that fill no such square are left out.
    """
    if factor == 1:
        return picture.copy()
    height, width = (length // factor * factor for length in picture.shape[:2])
    total = np.zeros((height // factor, width // factor, picture.shape[2]), np.uint16)
    for k in range(factor * factor):
        total += picture[k // factor : height : factor, k % factor : width : factor]
    return (total // (factor * factor)).astype(np.uint8)


def make_registered(
    task: str, tasks: Collection[str], *, render_mode: str | None = None, **parameters: Any
) -> gymnasium.Env:
    """The environment `task` of Gymnasium's registry, if it is one of `tasks`.

    `parameters` are those of its class, and `max_episode_steps`. `render_mode` is one of the
    class, but not "human". Infos are those of `FinalInfos`.
    Raises: APIUsageError for an unknown task, parameter or render mode.
    """
    refuse_unknown("task", [task], tasks)
    spec = gymnasium.spec(task)
    assert spec.entry_point is not None
    create: Any = spec.entry_point
    if isinstance(create, str):
        create = load_env_creator(create)
    known = (parameters_of(create) | {"max_episode_steps"}) - {"render_mode"}
    refuse_unknown(f"parameter of {task}", parameters, known)
    modes = [None, *(m for m in create.metadata["render_modes"] if m != "human")]
    refuse_unknown("render mode", [render_mode], modes)
    with warnings.catch_warnings(action="ignore"):  # Of newer versions, and the like.
        env = gymnasium.make(task, disable_env_checker=True, render_mode=render_mode, **parameters)
    return FinalInfos(env)


class FinalInfos(gymnasium.Wrapper):
    """Tells infos where an episode ends only, and in them only numbers and words."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode; its info is empty."""
        return self.env.reset(seed=seed, options=options)[0], {}

    def step(self, action: Any):
        """Advance one step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        ended = terminated or truncated
        return observation, reward, terminated, truncated, plain(info) if ended else {}


class AgentsWrapper:
    """A PettingZoo environment of the parallel API around another; passes everything on."""

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)

    @property
    def unwrapped(self) -> Any:
        """The environment inside all its wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def agents(self) -> list:
        """The agents that are alive."""
        return self.env.agents

    def observation_space(self, agent: Any) -> spaces.Space:
        """The space of one agent's observations."""
        return self.env.observation_space(agent)

    def action_space(self, agent: Any) -> spaces.Space:
        """The space of one agent's actions."""
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode → (observations, infos), dicts by agent."""
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Mapping[Any, Any]):
        """Advance → (observations, rewards, terminations, truncations, infos), dicts by agent."""
        return self.env.step(actions)

    def render(self) -> Any:
        """One frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class AlikeAgents(AgentsWrapper):
    """Gives all agents of an environment the same spaces, where they are Boxes or Discretes.

    The rule: an observation is as long as the longest along each axis, zeros behind its own
    values; of an action that is a Box an agent uses the first numbers; one of a Discrete counts
    modulo the number of the agent's own. Where all are equal, nothing changes.
    """

    def __init__(self, env: Any):
        super().__init__(env)
        self._own = {agent: env.action_space(agent) for agent in self.possible_agents}
        self._space = _embrace([env.observation_space(agent) for agent in self.possible_agents])
        self._actions = _embrace([*self._own.values()])
        first = self.possible_agents[0]
        self._pads = any(env.observation_space(a) != self._space for a in self.possible_agents)
        self._cuts = any(space != self._own[first] for space in self._own.values())

    def observation_space(self, agent: Any) -> spaces.Space:
        """The space of every agent's observations."""
        return self._space

    def action_space(self, agent: Any) -> spaces.Space:
        """The space of every agent's actions."""
        return self._actions

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode → (observations, infos), dicts by agent."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._pad(observations), infos

    def step(self, actions: Mapping[Any, Any]):
        """Advance → (observations, rewards, terminations, truncations, infos), dicts by agent."""
        if self._cuts:
            actions = {agent: _cut(action, self._own[agent]) for agent, action in actions.items()}
        observations, *rest = self.env.step(actions)
        return self._pad(observations), *rest

    def _pad(self, observations: Mapping[Any, Any]) -> Mapping[Any, Any]:
        if not self._pads:
            return observations
        padded = {}
        for agent, observation in observations.items():
            padded[agent] = np.zeros(self._space.shape or (), self._space.dtype)
            padded[agent][tuple(map(slice, np.shape(observation)))] = observation
        return padded


class SeededAgents(AgentsWrapper):
    """An environment whose chance comes from seeds alone, and that tells what can be logged.

    Every episode gets a seed of its own: the one that `reset` is given, or the next in the
    sequence that the last one given began. It is never 0, which some take for the time of day.
    """

    MAX_SEED = 2**31 - 1

    def __init__(self, env: Any):
        super().__init__(env)
        self._seeds: np.random.Generator | None = None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin an episode → (observations, infos), dicts by agent."""
        if seed is not None or self._seeds is None:
            self._seeds = np.random.default_rng(seed)
        if seed is None:
            seed = int(self._seeds.integers(self.MAX_SEED))
        observations, _ = self.env.reset(seed=1 + seed % self.MAX_SEED, options=options)
        return observations, {agent: {} for agent in observations}

    def step(self, actions: Mapping[Any, Any]):
        """Advance → (observations, rewards, terminations, truncations, infos), dicts by agent."""
        *result, infos = self.env.step(actions)
        return *result, {agent: plain(info) for agent, info in infos.items()}


def _embrace(members: Sequence[Any]) -> Any:
    """The space that holds all of these, padded by the rule of `AlikeAgents`."""
    first = members[0]
    if all(space == first for space in members):
        return first
    if all(isinstance(space, spaces.Discrete) and space.start == 0 for space in members):
        return spaces.Discrete(max(int(space.n) for space in members))
    alike = {(type(space), space.dtype, len(space.shape)) for space in members}
    if not isinstance(first, spaces.Box) or len(alike) > 1:
        raise APIUsageError(f"no space holds all of {', '.join(sorted(set(map(str, members))))}")
    shape = np.max([space.shape for space in members], axis=0)
    low, high = (np.zeros(shape, first.dtype) for _ in range(2))
    for space in members:
        part = tuple(map(slice, space.shape))
        low[part] = np.minimum(low[part], space.low)
        high[part] = np.maximum(high[part], space.high)
    return spaces.Box(low, high, dtype=low.dtype.type)


def _cut(action: Any, own: spaces.Space) -> Any:
    """An action of the space of all, as one of an agent's own."""
    if isinstance(own, spaces.Discrete):
        return int(action) % int(own.n)
    return action[tuple(map(slice, own.shape or ()))]


def plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """What of an info can be logged: its numbers and words."""
    kinds = (bool, int, float, str, np.number, np.bool_)
    return {key: value for key, value in info.items() if isinstance(value, kinds)}


def _restore(descriptor: int, saved: int) -> None:
    os.dup2(saved, descriptor)
    os.close(saved)
