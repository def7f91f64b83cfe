"""Any vector of environments as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from pufferlib.exceptions import APIUsageError
from pufferlib.spaces import ActionLayout, layout_of
from pufferlib.vector.base import VecEnv

NUMBERS = (bool, int, float, np.number, np.bool_, np.ndarray)


class GymnasiumVectorEnv(VectorEnv):
    """The view of `vecenv` that Gymnasium's users know: original spaces, batched, and infos as
    dicts of arrays with masks.

    Each agent row is one of its environments. Episodes restart in the same step, as `metadata`
    says (`AutoresetMode.SAME_STEP`): `final_obs` and `final_info` hold what the last step of an
    episode gave. `episode` holds its return `r`, length `l` and seconds `t`, unless the
    environments are in Gymnasium's `RecordEpisodeStatistics`, whose figures are handed on.

    Args:
        vecenv: returns all of its environments in each batch. Closing the view closes it.
        copy: hand out copies; False hands out views, which the next step overwrites.
        record_episodes: False leaves `episode` to a wrapper around this vector.

    Raises `APIUsageError` in `step` and `reset` where an agent is absent: a row without an agent
    is not to be trained on, and Gymnasium has no way to say so.
    """

    def __init__(self, vecenv: VecEnv, *, copy: bool = True, record_episodes: bool = True):
        self.closed = True  # Nothing to close for the collector if this is refused.
        if vecenv.batch_size != vecenv.num_envs:
            raise APIUsageError(
                f"the vector returns {vecenv.batch_size} of {vecenv.num_envs} environments in a "
                "batch; Gymnasium's step returns all, so make it with batch_size='auto'"
            )
        self.vecenv, self.copy = vecenv, copy
        self.num_envs = vecenv.num_agents
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space: spaces.Space = vecenv.single_observation_space
        self.single_action_space: spaces.Space = vecenv.single_action_space
        self._names: Sequence = range(vecenv.agents_per_env)
        self.unpack: Callable[[np.ndarray], Any] = np.asarray
        self.to_rows: Callable[[Any], np.ndarray] = np.asarray
        counted = False
        if vecenv.emulated:
            driver: Any = vecenv.driver_env
            self.single_observation_space = driver.env_single_observation_space
            self.single_action_space = driver.env_single_action_space
            self.render_mode = driver.render_mode
            self._names = getattr(driver, "possible_agents", self._names)
            self.unpack = layout_of(self.single_observation_space).unpack
            self.to_rows = BatchedActions(self.single_action_space, self.num_envs).to_rows
            counted = _counts_episodes(getattr(driver, "env", None))
        self.counts = record_episodes and not counted
        self._tells = record_episodes
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._begin()
        self.closed = False

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict | None = None):
        """Begin every episode anew → (observations, infos).

        Environment k is seeded with `env_seed(seed, k)`, or with its own of a list.
        """
        if options:
            raise APIUsageError(f"reset takes no options here, got {options}")
        observations, infos = self.vecenv.reset(seed)[:2]
        self._begin()
        told: dict[int, dict] = {}
        for row, info in self._spread(infos):
            told.setdefault(row, {}).update(info)
        return self.unpack(self._keep(observations)), columns(told, self.num_envs)

    def step(self, actions: Any):
        """Advance one step with `actions` of the joint action space → (observations, rewards,
        terminations, truncations, infos)."""
        self.vecenv.send(self.to_rows(actions))
        observations, rewards, terminals, truncations, infos = self.receive()
        table = {}
        if infos or len(self.ended):
            table = self._tabulate(infos)
        return observations, rewards.astype(np.float64), terminals, truncations, table

    def receive(self) -> tuple:
        """The batch that is due → (observations, rewards float32, terminals, truncations, infos),
        infos still a flat list of dicts."""
        observations, rewards, terminals, truncations, infos, _, masks = self.vecenv.recv()
        if not masks.all():
            raise APIUsageError(
                f"agent row {int(masks.argmin())} is absent, which Gymnasium's vectors cannot say; "
                "use the vector itself, whose masks tell"
            )
        self._count(rewards, terminals | truncations)
        kept = (self._keep(array) for array in (observations, rewards, terminals, truncations))
        observations, *flags = kept
        return self.unpack(observations), *flags, infos

    def render(self) -> tuple:
        """One frame of each environment."""
        if hasattr(self.vecenv, "render"):
            return tuple(self.vecenv.render(k) for k in range(self.vecenv.num_envs))
        return tuple(self.vecenv.call("render"))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple:
        """The attribute `name` of each environment, or what it returns if it is a method."""
        return self._for_rows(self.vecenv.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple:
        """The attribute `name` of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set the attribute `name` of each environment; a list has a value for each."""
        self.vecenv.set_attr(name, values)

    def _for_rows(self, values: list) -> tuple:
        return tuple(value for value in values for _ in range(self.vecenv.agents_per_env))

    def close_extras(self, **_: Any) -> None:
        """Close the vector."""
        self.vecenv.close()

    def _begin(self) -> None:
        self.ended = np.zeros(0, np.int64)  # Rows whose episode the last step ended.
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._now = time.perf_counter()
        self._began = np.full(self.num_envs, self._now)

    def _keep(self, array: np.ndarray) -> np.ndarray:
        return array.copy() if self.copy else array

    def _spread(self, infos: list[dict]):
        """Each info for each of the rows that it is about."""
        agents = self.vecenv.agents_per_env
        for info in infos:
            info = dict(info)
            first = info.pop("env") * agents
            rows = range(first, first + agents)
            if agents > 1 and "agent" in info:
                first += self._names.index(info.pop("agent"))
                rows = range(first, first + 1)
            for row in rows:
                yield row, info

    def _count(self, rewards: np.ndarray, flags: np.ndarray) -> None:
        fresh = self.ended
        self._returns[fresh] = self._lengths[fresh] = 0
        self._began[fresh] = self._now
        self._returns += rewards
        self._lengths += 1
        self.ended = np.flatnonzero(flags)
        self._now = time.perf_counter()

    def divide(self, infos: list[dict]) -> tuple[dict[int, dict], dict[int, dict]]:
        """Infos by row: those of the episodes that ended in this step, and all others."""
        final: dict[int, dict] = {}
        told: dict[int, dict] = {}
        over = set(self.ended.tolist())
        for row, info in self._spread(infos):
            if row in over and row not in final:
                final[row] = info
            else:
                told.setdefault(row, {}).update(info)
        return final, told

    def _tabulate(self, infos: list[dict]) -> dict[str, Any]:
        final, told = self.divide(infos)
        table = columns(told, self.num_envs)
        if not len(self.ended):
            return table
        over = np.zeros(self.num_envs, np.bool_)
        over[self.ended] = True
        finals = columns(final, self.num_envs)
        if self.counts and "episode" not in finals:
            finals |= {"episode": self._episode_table(over), "_episode": over.copy()}
        if self._tells and "episode" in finals:
            table |= {"episode": finals["episode"], "_episode": finals["_episode"]}
        table |= {"final_info": finals, "_final_info": over, "_final_obs": over.copy()}
        table["final_obs"] = np.full(self.num_envs, None, object)
        for row, final_observation in zip(self.ended, self.final_observations(), strict=True):
            table["final_obs"][row] = final_observation
        return table

    def figures(self) -> list[dict[str, Any]]:
        """Return, length and seconds of each episode that the last step ended, in order of rows."""
        values = (v[self.ended].tolist() for v in (self._returns, self._lengths, self._seconds()))
        return [{"r": r, "l": n, "t": t} for r, n, t in zip(*values, strict=True)]

    def _episode_table(self, over: np.ndarray) -> dict[str, np.ndarray]:
        table: dict[str, np.ndarray] = {}
        for name, values in (("r", self._returns), ("l", self._lengths), ("t", self._seconds())):
            table |= {name: np.where(over, values, values.dtype.type(0)), f"_{name}": over.copy()}
        return table

    def _seconds(self) -> np.ndarray:
        return np.round(self._now - self._began, 6)

    def final_observations(self) -> list:
        """Copies of the last observations of the episodes that the last step ended, in order."""
        return [self.unpack(row) for row in self.vecenv.final_observations[self.ended]]


class BatchedActions:
    """Actions of `count` environments, batched as Gymnasium does, as rows and back."""

    def __init__(self, space: spaces.Space, count: int):
        actions = ActionLayout(space)
        self.space, self.count = actions.space, count
        self._layout = actions.layout
        self._shape: tuple[int, ...] = actions.space.shape or ()
        self._members = []
        for leaf in self._layout.leaves:
            member: Any = space
            for key in leaf.path:
                member = member[key]
            self._members.append(member)

    def to_rows(self, actions: Any) -> np.ndarray:
        """Rows [count, *D] that a policy would have given, every choice counted from zero.

        Raises APIUsageError for a field of the wrong shape.
        """
        parts = []
        for leaf in self._layout.leaves:
            value = actions
            for key in leaf.path:
                value = value[key]
            value = np.asarray(value)
            if value.shape != (self.count, *leaf.shape):
                raise APIUsageError(
                    f"actions{f' {leaf.name!r}' if leaf.name else ''} have the shape "
                    f"{list(value.shape)}; expected {[self.count, *leaf.shape]}"
                )
            value = value.reshape(self.count, -1)
            if leaf.kind == "discrete":
                value = value - np.array(leaf.start, leaf.dtype)
            parts.append(value)
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
        return rows.reshape(self.count, *self._shape)

    def from_rows(self, rows: np.ndarray) -> Any:
        """Actions of the joint space from rows [count, *D]; Boxes are clipped into their bounds."""
        rows = np.asarray(rows).reshape(self.count, -1)
        values, begin = [], 0
        for leaf, member in zip(self._layout.leaves, self._members, strict=True):
            value = rows[:, begin : begin + leaf.size].reshape(self.count, *leaf.shape)
            begin += leaf.size
            if leaf.kind == "discrete":
                start = np.array(leaf.start, leaf.dtype).reshape(leaf.shape)
                value = value.astype(leaf.dtype) + start
            else:
                value = value if leaf.dtype.kind == "f" else np.rint(value)
                value = np.clip(value, member.low, member.high).astype(leaf.dtype)
            values.append(value)
        return self._layout.nest(values)


def columns(told: Mapping[int, Mapping], count: int) -> dict[str, Any]:
    """Infos by row as Gymnasium batches them: for each key an array of `count` and, below the key
    with an underscore before it, which rows have it. Dicts within become tables themselves."""
    by_key: dict[str, dict[int, Any]] = {}
    for row, info in told.items():
        for key, value in info.items():
            by_key.setdefault(key, {})[row] = value
    table: dict[str, Any] = {}
    for key, values in by_key.items():
        table[key] = _column(values, count)
        table[f"_{key}"] = np.zeros(count, np.bool_)
        table[f"_{key}"][list(values)] = True
    return table


def _column(values: dict[int, Any], count: int) -> Any:
    if all(isinstance(value, Mapping) for value in values.values()):
        return columns(values, count)
    column = np.full(count, None, object)
    if all(isinstance(value, NUMBERS) for value in values.values()):
        arrays = [np.asarray(value) for value in values.values()]
        if len({array.shape for array in arrays}) == 1:
            stacked = np.stack(arrays)
            column = np.zeros((count, *stacked.shape[1:]), stacked.dtype)
            column[list(values)] = stacked
            return column
    for row, value in values.items():
        column[row] = value
    return column


def _counts_episodes(env: Any) -> bool:
    """Whether an environment is in Gymnasium's own wrapper that counts episodes."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.RecordEpisodeStatistics):
            return True
        env = env.env
    return False
