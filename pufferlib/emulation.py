"""Gymnasium, old Gym and PettingZoo environments as a `PufferEnv`.

Episodes restart in the same step: Gymnasium's own term is `AutoresetMode.SAME_STEP`.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, NoReturn

import gymnasium
from gymnasium import spaces

from pufferlib.buffers import Buffers
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError, InvalidAgentError, NonFiniteError
from pufferlib.native.packing import Slots
from pufferlib.spaces import ActionLayout, Packer, pack_space


class _Emulated(PufferEnv):
    """The rows of an environment that is not ours, and the order of calls."""

    emulated = True
    env: Any
    _name: str

    def _lay_out(
        self,
        agents: tuple,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        buf: Buffers | None,
        seed: int | None,
    ) -> ActionLayout:
        """Make or take the rows for `agents` that have these spaces → how actions are packed."""
        self.env_single_observation_space = observation_space
        self.env_single_action_space = action_space
        self.single_observation_space = pack_space(observation_space, who=self._name)
        action_layout = ActionLayout(action_space, who=self._name)
        self.single_action_space = action_layout.space
        self.num_agents = len(agents)
        self.render_mode = getattr(self.env, "render_mode", None)
        self._packer = Packer(observation_space, who=self._name)
        self._slots = Slots(agents, action_layout.reader, self._refuse_reward)
        super().__init__(buf)
        self._seed = seed
        self._unchecked_steps = 1
        self._unchecked_resets = 1
        self._running = False
        self._closed = False
        # CPython reads objects of over 30 attributes a tenth slower; with those below there are 29.
        return action_layout

    @property
    def unwrapped(self):
        """The environment inside all its wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def rebind(self, buf: Buffers) -> None:
        """Read and write other rows from now on."""
        super().rebind(buf)
        self._slots.bind(buf, self._packer.writer)

    def reset(self, seed: int | None = None):
        """Begin an episode → (observations [A, *O], infos); no seed: randomness goes on."""
        if self._closed:
            raise APIUsageError(f"{self._name}: reset after close; create a new environment")
        seed = self._seed if seed is None else seed
        self._seed = None
        # The bytes between packed fields are never written again.
        self.final_observations[...] = 0
        self._slots.clear()
        infos = self._begin(seed)
        self._running = True
        return self.observations, infos

    def render(self):
        """One frame of the environment."""
        return self.env.render()

    def close(self):
        """Close the environment; may be called more than once."""
        if not self._closed:
            self._closed = True
            self._running = False
            self.env.close()

    def _begin(self, seed: int | None) -> list[dict]:
        """Reset the environment and write the first observations → infos."""
        raise NotImplementedError

    def _refuse_step(self) -> NoReturn:
        when = "after close; create a new environment"
        if not self._closed:
            when = "before reset; call reset first"
        raise APIUsageError(f"{self._name}: step {when}")

    def _refuse_reward(self, agent: int, reward: Any, step: int) -> NoReturn:
        """Refuse a reward that is not finite, at a step of the agent's episode."""
        raise NotImplementedError


class GymnasiumPufferEnv(_Emulated):
    """A Gymnasium environment that writes its packed observations into the row it was given.

    Pass the environment as `env`, or `env_creator` with its arguments; an old Gym environment is
    recognised and wrapped. `buf` is the row to write into. `seed` is used by the first `reset`
    that gets none.

    `single_observation_space` and `single_action_space` are the packed spaces,
    `env_single_observation_space` and `env_single_action_space` the originals. The first reset and
    the first step check the observation against its space in full; later steps check its keys,
    dtypes and shapes. Infos are an empty list or one dict; when an episode ends that dict also has
    `episode_return` and `episode_length` (unless the environment provides them), and a non-empty
    info of the new episode's reset follows as a second dict.
    """

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence = (),
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Buffers | None = None,
        seed: int | None = None,
    ):
        self.env = adopt(_given(env, env_creator, env_args, env_kwargs))
        self._name = type(self.unwrapped).__name__
        given = self.env.observation_space, self.env.action_space
        self._unpack_action = self._lay_out((None,), *given, buf, seed).unpack_action
        self._env_step = self.env.step
        self._write_step = self._slots.step_alone

    def step(self, actions: Any):
        """Advance one step; `actions` [1, *D] → (observations, rewards, terminals, truncations,
        infos).

        Raises NonFiniteError for a reward that is NaN or infinite.
        """
        if not self._running:
            self._refuse_step()
        result = self._env_step(self._unpack_action(actions))
        try:
            observation, reward, terminated, truncated, info = result
        except (TypeError, ValueError):
            self._refuse_result(result)
        if self._unchecked_steps:
            self._packer.check(observation)
            self._unchecked_steps = 0
        if self._write_step(observation, reward, terminated, truncated):
            infos = self._restart(info)
        else:
            infos = [dict(info)] if info else []
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def _begin(self, seed: int | None) -> list[dict]:
        result = self.env.reset(seed=None if seed is None else int(seed))
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise APIUsageError(
                f"{self._name}: reset returned a {type(result).__name__}, expected (observation, "
                "info dict); wrap an environment of the old Gym API with "
                "pufferlib.emulation.GymToGymnasium"
            )
        observation, info = result
        if self._unchecked_resets:
            self._packer.check(observation)
            self._unchecked_resets = 0
        self._slots.enter(0, observation)
        return [dict(info)] if info else []

    def _restart(self, info: Mapping) -> list[dict]:
        """Begin the next episode → the last info of this one, with its figures, and the first of
        the next."""
        return [{**self._slots.figures(0), **info}, *self._begin(None)]

    def _refuse_result(self, result: Any) -> NoReturn:
        count = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise APIUsageError(
            f"{self._name}: step returned a {type(result).__name__}{count}, expected "
            "(observation, reward, terminated, truncated, info); wrap an environment of the "
            "old Gym API with pufferlib.emulation.GymToGymnasium"
        )

    def _refuse_reward(self, agent: int, reward: Any, step: int) -> NoReturn:
        _refuse_reward(f"{self._name}: reward", reward, f"{step} of the episode")


class PettingZooPufferEnv(_Emulated):
    """A PettingZoo environment, one row for each of its `possible_agents`, in their order.

    Pass the environment as `env`, or `env_creator` with its arguments; one of the AEC API is put
    into `AECToParallel`. `buf` are the rows to write into. `seed` is used by the first `reset`
    that gets none.

    An agent that dies, or is missing from the observations, leaves: its flag is set once (a
    truncation if the environment set none), its last observation goes to `final_observations`
    (zeros if there is none), its mask is False at once and it gets no action. It may come, or
    return, when the environment lists it in `agents` and observes it; a reward it is given in the
    step at which it comes is not counted, because it did not act. The environment is reset when no
    agent is left.

    All agents must have the same spaces. Each info has its `agent`; the one of an agent that
    leaves also has `episode_return` and `episode_length` of that agent, unless the environment
    provides them. The first reset and the first step check observations in full; later steps check
    keys, dtypes and shapes.
    """

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence = (),
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Buffers | None = None,
        seed: int | None = None,
    ):
        self.env = adopt_agents(_given(env, env_creator, env_args, env_kwargs))
        self._name = type(self.unwrapped).__name__
        self.possible_agents = tuple(self.env.possible_agents)
        self._known = frozenset(self.possible_agents)
        shared = self._shared_space("observation"), self._shared_space("action")
        self._lay_out(self.possible_agents, *shared, buf, seed)

    def step(self, actions: Any):
        """Advance one step; `actions` [A, *D], of which those of absent agents are not looked at
        → (observations, rewards, terminals, truncations, infos).

        Raises NonFiniteError for a reward that is NaN or infinite, InvalidAgentError for an agent
        that is not among `possible_agents`.
        """
        if not self._running:
            self._refuse_step()
        result = self.env.step(self._slots.actions(actions))
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[0], Mapping)):
            raise APIUsageError(
                f"{self._name}: step returned a {_kind(result)}, expected the five dicts "
                "(observations, rewards, terminations, truncations, infos) of PettingZoo's "
                "parallel API since 1.22"
            )
        observations, rewards, terminations, truncations, infos = result
        self._check(observations, self._unchecked_steps)
        self._unchecked_steps = 0
        live = self.env.agents
        figures = self._slots.step(observations, rewards, terminations, truncations, live)
        told = _list_infos(infos, figures)
        if self._slots.are_done(live):
            told += self._begin(None)
        return self.observations, self.rewards, self.terminals, self.truncations, told

    def _shared_space(self, noun: str) -> spaces.Space:
        """The space that all agents have; refused, naming both, where two differ."""
        of = getattr(self.env, f"{noun}_space")
        first, *others = self.possible_agents
        space = convert_space(of(first))
        for agent in others:
            other = convert_space(of(agent))
            if other != space:
                raise APIUsageError(
                    f"{self._name}: agent {first!r} has the {noun} space {space} and agent "
                    f"{agent!r} has {other}; rows are equal, so give all agents the larger space "
                    "in a wrapper around the environment (pad observations inside their bounds, "
                    "map surplus actions to valid ones)"
                )
        return space

    def _begin(self, seed: int | None) -> list[dict]:
        result = self.env.reset(seed=None if seed is None else int(seed))
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise APIUsageError(
                f"{self._name}: reset returned a {_kind(result)}, expected (observations, infos) "
                "of PettingZoo's parallel API since 1.22"
            )
        observations, infos = result
        self._check(observations, self._unchecked_resets)
        self._unchecked_resets = 0
        if not self._slots.begin(observations):
            raise APIUsageError(f"{self._name}: no agent has an observation after reset")
        return _list_infos(infos, {})

    def _refuse_reward(self, agent: int, reward: Any, step: int) -> NoReturn:
        what = f"{self._name}: reward of agent {self.possible_agents[agent]!r}"
        _refuse_reward(what, reward, f"{step} of its episode")

    def _check(self, observations: Any, in_full: int) -> None:
        """Refuse agents that there are none of and, `in_full`, observations outside the space."""
        if not observations.keys() <= self._known:
            unknown = observations.keys() - self._known
            raise InvalidAgentError(
                f"{self._name}: {sorted(map(str, unknown))[0]!r} is observed but not among "
                f"possible_agents {', '.join(map(str, self.possible_agents))}; list every agent "
                "that may ever come"
            )
        if in_full:
            for observation in observations.values():
                if observation is not None:
                    self._packer.check(observation)


class AECToParallel:
    """A PettingZoo environment in which agents take turns, with the parallel API.

    With `simultaneous` a step is one round: every agent acts in its turn, on what it observed
    before the round. Without, a step is one move: only the agent whose turn it is acts, and the
    actions of the others are not looked at. By default the environment decides by
    `metadata["is_parallelizable"]`. Rewards of all moves of a step are added up, and dead agents
    are taken out in the step in which they die.
    """

    def __init__(self, env: Any, *, simultaneous: bool | None = None):
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)
        if simultaneous is None:
            simultaneous = bool(self.metadata.get("is_parallelizable", False))
        self.simultaneous = simultaneous

    @property
    def unwrapped(self):
        """The environment inside all its wrappers."""
        return self.env.unwrapped

    @property
    def agents(self) -> list:
        """The agents that are alive."""
        env = self.env
        return [a for a in env.agents if not (env.terminations[a] or env.truncations[a])]

    def observation_space(self, agent: Any):
        """The space of one agent's observations."""
        return self.env.observation_space(agent)

    def action_space(self, agent: Any):
        """The space of one agent's actions."""
        return self.env.action_space(agent)

    def reset(self, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observations, infos), dicts by agent."""
        self.env.reset(seed=seed, options=options)
        observations = {agent: self.env.observe(agent) for agent in self.agents}
        return observations, dict(self.env.infos)

    def step(self, actions: Mapping):
        """One round or one move → (observations, rewards, terminations, truncations, infos)."""
        env, waiting = self.env, dict(actions)
        rewards: defaultdict = defaultdict(float)
        seen: dict[Any, tuple] = {}
        while env.agents:
            agent = env.agent_selection
            if env.terminations[agent] or env.truncations[agent]:
                seen[agent] = self._look(agent)
                env.step(None)
            elif agent in waiting:
                env.step(waiting.pop(agent))
                for other, reward in env.rewards.items():
                    rewards[other] += reward
                if not self.simultaneous:
                    waiting.clear()
            else:
                break
        seen |= {agent: self._look(agent) for agent in env.agents}
        observations, terminations, truncations, infos = (
            {agent: parts[k] for agent, parts in seen.items()} for k in range(4)
        )
        return observations, dict(rewards), terminations, truncations, infos

    def render(self):
        """One frame."""
        return self.env.render()

    def close(self):
        """Close the environment."""
        self.env.close()

    def _look(self, agent: Any) -> tuple:
        env = self.env
        flags = env.terminations[agent], env.truncations[agent]
        return env.observe(agent), *flags, env.infos.get(agent, {})


class EpisodeStats(gymnasium.Wrapper):
    """Adds `episode_return` and `episode_length` to the info of an episode's last step.

    For use outside `GymnasiumPufferEnv`, which does this on its own.
    """

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode and its sums."""
        self._return = 0.0
        self._length = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        """Advance one step and add to the sums."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        self._length += 1
        if terminated or truncated:
            figures = {"episode_return": self._return, "episode_length": self._length}
            info = {**figures, **info}
        return observation, reward, terminated, truncated, info


class GymToGymnasium(gymnasium.Env):
    """An environment of the old Gym API, or one that only looks like it, as a `gymnasium.Env`.

    Takes a reset with or without a seed and an info, and steps of four or five values; `done`
    counts as truncation where `info["TimeLimit.truncated"]` says so. Spaces are converted by the
    name of their class, so that the package gym need not be installed.
    """

    def __init__(self, env: Any):
        self.env = env
        self.observation_space = convert_space(env.observation_space)
        self.action_space = convert_space(env.action_space)
        self.metadata = getattr(env, "metadata", None) or {}
        self.render_mode = getattr(env, "render_mode", None)
        self._reset_takes_seed = _takes(env.reset, "seed")

    @property
    def unwrapped(self):
        """The old environment inside all its wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observation, info)."""
        if seed is None:
            result = self.env.reset()
        elif self._reset_takes_seed:
            result = self.env.reset(seed=seed)
        else:
            if hasattr(self.env, "seed"):
                self.env.seed(seed)
            result = self.env.reset()
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action):
        """Advance one step → (observation, reward, terminated, truncated, info)."""
        result = self.env.step(action)
        if len(result) == 5:
            return result
        observation, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not truncated, truncated, info

    def render(self):
        """One frame; an environment that wants a mode is asked for an array."""
        if _takes(self.env.render, "mode"):
            return self.env.render(mode=self.render_mode or "rgb_array")
        return self.env.render()

    def close(self):
        """Close the old environment, if it can be closed."""
        if hasattr(self.env, "close"):
            self.env.close()


def adopt(env: Any) -> gymnasium.Env:
    """`env` itself if it is a Gymnasium environment, wrapped if it has the old Gym API.

    Raises APIUsageError for anything else, saying what it lacks.
    """
    if isinstance(env, gymnasium.Env):
        return env
    name = type(env).__name__
    if isinstance(env, PufferEnv):
        raise APIUsageError(f"{name} is a PufferEnv already; use it as it is")
    if isinstance(env, type):
        raise APIUsageError(f"env is the class {env.__name__}; pass an instance, or env_creator=")
    if has_agents(env):
        raise APIUsageError(
            f"{name} has several agents (PettingZoo); use pufferlib.emulation.PettingZooPufferEnv"
        )
    missing = [
        part
        for part in ("observation_space", "action_space", "reset", "step")
        if not hasattr(env, part)
    ]
    if missing:
        raise APIUsageError(
            f"{name} has no {', '.join(missing)}; expected a gymnasium.Env or an old Gym env"
        )
    return GymToGymnasium(env)


def adopt_agents(env: Any) -> Any:
    """`env` with PettingZoo's parallel API: itself, or an AEC environment in an adapter.

    Raises APIUsageError for anything else, saying what it lacks.
    """
    name = type(env).__name__
    if isinstance(env, type):
        raise APIUsageError(f"env is the class {env.__name__}; pass an instance, or env_creator=")
    if isinstance(env, PufferEnv):
        raise APIUsageError(f"{name} is a PufferEnv already; use it as it is")
    parts = ("possible_agents", "observation_space", "action_space", "reset", "step")
    missing = [part for part in parts if not hasattr(env, part)]
    if missing or not env.possible_agents:
        raise APIUsageError(
            f"{name} has no {', '.join(missing) or 'agents in possible_agents'}; expected a "
            "PettingZoo environment that lists all agents that it may ever have"
        )
    return AECToParallel(env) if hasattr(env, "agent_iter") else env


def has_agents(env: Any) -> bool:
    """Whether `env` is made like a PettingZoo environment, of either API."""
    if isinstance(env, gymnasium.Env | PufferEnv):
        return False
    return hasattr(env, "possible_agents") or callable(getattr(env, "observation_space", None))


def convert_space(space: Any) -> spaces.Space:
    """The Gymnasium space that equals a space of the old Gym, recognised by its class name.

    Raises APIUsageError, naming the type, where there is none.
    """
    if isinstance(space, spaces.Space):
        return space
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    if kind == "Dict":
        return spaces.Dict([(key, convert_space(part)) for key, part in space.spaces.items()])
    if kind == "Tuple":
        return spaces.Tuple([convert_space(part) for part in space.spaces])
    raise APIUsageError(
        f"no Gymnasium space for a {kind} of {type(space).__module__}; expected Box, Discrete, "
        "MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _given(env: Any, creator: Callable | None, args: Sequence, kwargs: Mapping | None) -> Any:
    """The environment that a constructor was given, or the one that its creator makes."""
    if (env is None) == (creator is None):
        raise APIUsageError("expected either env=… or env_creator=…, and not both")
    return env if creator is None else creator(*args, **(kwargs or {}))


def _list_infos(infos: Mapping, figures: Mapping) -> list[dict]:
    """What is told of each agent, by the environment and by us, as a flat list."""
    told = [{**ours, **infos.get(agent, {}), "agent": agent} for agent, ours in figures.items()]
    return told + [
        {**i, "agent": agent} for agent, i in infos.items() if i and agent not in figures
    ]


def _refuse_reward(what: str, reward: Any, step: str) -> NoReturn:
    """Refuse what is no number, or no finite one in the single precision of a row."""
    try:
        isfinite(reward)
    except (TypeError, ValueError):
        raise APIUsageError(f"{what} is {reward!r}; expected one number") from None
    raise NonFiniteError(f"{what} is {reward} at step {step}; expected a finite number")


def _kind(result: Any) -> str:
    """What came in place of a tuple of dicts, in words."""
    count = f" of {len(result)}" if isinstance(result, tuple) else ""
    return f"{type(result).__name__}{count}"


def _takes(function: Callable, parameter: str) -> bool:
    """Whether `function` accepts the keyword `parameter`; False if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return parameter in parameters or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )
