"""Gymnasium and old Gym environments as a `PufferEnv` of one agent.

Episodes restart in the same step: Gymnasium's own term is `AutoresetMode.SAME_STEP`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import gymnasium
from gymnasium import spaces

from pufferlib.buffers import Buffers
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError, NonFiniteError
from pufferlib.spaces import ActionLayout, Packer, pack_space


class GymnasiumPufferEnv(PufferEnv):
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

    emulated = True

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence = (),
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Buffers | None = None,
        seed: int | None = None,
    ):
        if (env is None) == (env_creator is None):
            raise APIUsageError("expected either env=… or env_creator=…, and not both")
        if env_creator is not None:
            env = env_creator(*env_args, **(env_kwargs or {}))
        self.env = adopt(env)
        self._name = type(self.env.unwrapped).__name__
        self.env_single_observation_space = self.env.observation_space
        self.env_single_action_space = self.env.action_space
        self.single_observation_space = pack_space(self.env.observation_space, who=self._name)
        action_layout = ActionLayout(self.env.action_space, who=self._name)
        self.single_action_space = action_layout.space
        self.num_agents = 1
        self.render_mode = self.env.render_mode
        self._packer = Packer(self.env.observation_space, who=self._name)
        super().__init__(buf)

        self._check = self._packer.check
        self._unpack_action = action_layout.unpack_action
        self._env_step = self.env.step
        self._seed = seed
        self._unchecked_steps = 1
        self._unchecked_resets = 1
        self._running = False
        self._closed = False
        self._flagged = False
        self._return = 0.0
        self._length = 0

    @property
    def unwrapped(self):
        """The environment inside all its wrappers."""
        return self.env.unwrapped

    def rebind(self, buf: Buffers) -> None:
        """Read and write other rows from now on."""
        super().rebind(buf)
        self._write = self._packer.writer(self.observations[0, ...])
        self._write_final = self._packer.writer(self.final_observations[0, ...])

    def reset(self, seed: int | None = None):
        """Begin an episode → (observations [1, *O], infos); no seed: randomness goes on."""
        if self._closed:
            raise APIUsageError(f"{self._name}: reset after close; create a new environment")
        seed = self._seed if seed is None else seed
        self._seed = None
        # The bytes between packed fields are never written again.
        self.observations[...] = 0
        self.final_observations[...] = 0
        self.rewards[0] = 0
        self._clear_flags()
        self.masks[0] = True
        info = self._begin(seed)
        self._running = True
        return self.observations, [dict(info)] if info else []

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
            finite = isfinite(reward)
        except (TypeError, ValueError):
            finite = self._refuse_result(result)
        if not finite:
            raise NonFiniteError(
                f"{self._name}: reward is {reward} at step {self._length + 1} of the episode; "
                "expected a finite number"
            )
        if self._unchecked_steps:
            self._check(observation)
            self._unchecked_steps = 0
        self.rewards[0] = reward
        self._return += float(reward)
        self._length += 1
        if terminated or truncated:
            infos = self._end(observation, terminated, info)
        else:
            self._write(observation)
            if self._flagged:
                self._clear_flags()
            infos = [dict(info)] if info else []
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def render(self):
        """One frame of the environment."""
        return self.env.render()

    def close(self):
        """Close the environment; may be called more than once."""
        if not self._closed:
            self._closed = True
            self._running = False
            self.env.close()

    def _begin(self, seed: int | None) -> Mapping:
        """Reset the environment and write its first observation → its info."""
        result = self.env.reset(seed=None if seed is None else int(seed))
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise APIUsageError(
                f"{self._name}: reset returned a {type(result).__name__}, expected (observation, "
                "info dict); wrap an environment of the old Gym API with "
                "pufferlib.emulation.GymToGymnasium"
            )
        observation, info = result
        if self._unchecked_resets:
            self._check(observation)
            self._unchecked_resets = 0
        self._write(observation)
        self._return = 0.0
        self._length = 0
        return info

    def _end(self, observation: Any, terminated: bool, info: Mapping) -> list[dict]:
        """Keep the last observation, set the flag and begin the next episode → infos."""
        self._write_final(observation)
        self.terminals[0] = bool(terminated)
        self.truncations[0] = not terminated
        self._flagged = True
        figures = {"episode_return": self._return, "episode_length": self._length}
        infos = [{**figures, **info}]
        first = self._begin(None)
        if first:
            infos.append(dict(first))
        return infos

    def _clear_flags(self):
        self.terminals[0] = False
        self.truncations[0] = False
        self._flagged = False

    def _refuse_step(self):
        if self._closed:
            raise APIUsageError(f"{self._name}: step after close; create a new environment")
        raise APIUsageError(f"{self._name}: step before reset; call reset first")

    def _refuse_result(self, result: Any):
        if not isinstance(result, tuple) or len(result) != 5:
            count = f" of {len(result)}" if isinstance(result, tuple) else ""
            raise APIUsageError(
                f"{self._name}: step returned a {type(result).__name__}{count}, expected "
                "(observation, reward, terminated, truncated, info); wrap an environment of the "
                "old Gym API with pufferlib.emulation.GymToGymnasium"
            )
        raise APIUsageError(f"{self._name}: reward is {result[1]!r}; expected one number")


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
    if hasattr(env, "possible_agents"):
        raise APIUsageError(f"{name} has several agents (PettingZoo); it is not a Gymnasium env")
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


def _takes(function: Callable, parameter: str) -> bool:
    """Whether `function` accepts the keyword `parameter`; False if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return parameter in parameters or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )
