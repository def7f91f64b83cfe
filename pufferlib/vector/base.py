"""What every backend of `pufferlib.vector` is: the contract, the call order, the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from gymnasium import spaces

from pufferlib import buffers as _buffers
from pufferlib.env import PufferEnv, joint_space
from pufferlib.exceptions import APIUsageError
from pufferlib.seeding import env_seeds, fresh_seed
from pufferlib.vector.reach import Deed, select

RESET, RECV, SEND, CLOSED = "reset or async_reset", "recv", "send", "nothing (it is closed)"


class VecEnv:
    """Many environments behind one batch of rows.

    A batch is `batch_size` environments; row i belongs to one agent slot for ever. Calls alternate:
    `async_reset`, then `recv` and `send` in turn; `reset` and `step` are those two in one. What
    `recv` returns are views that the next `send` overwrites.

    Attributes: `num_envs`, `num_agents` (rows of all environments), `agents_per_batch`,
    `single_observation_space`, `single_action_space`, the joint `observation_space` and
    `action_space` of one batch, `driver_env` (one environment, for its spaces and pictures).
    """

    driver_env: PufferEnv
    buf: _buffers.Buffers
    choice = ""  # Why `make` took this backend, where it had the choice.
    in_order = True  # Batches come in the order in which they were sent.
    restarts = 0  # Workers that were replaced, where there are any.

    def __init__(self, like, num_envs: int, batch_size: int, agents_per_env: int):
        """`like` has the spaces and `emulated` of every environment."""
        self.num_envs = num_envs
        self.batch_size = batch_size
        self.agents_per_env = agents_per_env
        self.num_agents = num_envs * agents_per_env
        self.agents_per_batch = batch_size * agents_per_env
        self.single_observation_space = like.single_observation_space
        self.single_action_space = like.single_action_space
        self.action_space = joint_space(self.single_action_space, self.agents_per_batch)
        self._action_shape: tuple[int, ...] = self.action_space.shape or ()
        self._action_kinds = "fiu" if isinstance(self.action_space, spaces.Box) else "iu"
        self.agent_ids = np.arange(self.num_agents)
        self.emulated = like.emulated
        self.default_seed: int | None = None
        self.expected = RESET

    @cached_property
    def observation_space(self):
        """The joint space of one batch; made when asked for, its bounds take as much as a batch."""
        return joint_space(self.single_observation_space, self.agents_per_batch)

    @property
    def slices(self) -> list[slice]:
        """The rows of each batch, in the order in which a vector that keeps one returns them."""
        size = self.agents_per_batch
        return [slice(first, first + size) for first in range(0, self.num_agents, size)]

    def async_reset(self, seed: int | Sequence[int] | None = None) -> None:
        """Begin every episode anew; environment k gets `env_seed(seed, k)` or its own of a list."""
        raise NotImplementedError

    def recv(self):
        """The batch that is due → (observations, rewards, terminals, truncations, infos,
        agent_ids, masks), shapes [agents_per_batch, ...]."""
        raise NotImplementedError

    def send(self, actions) -> None:
        """Step the batch received last with actions [agents_per_batch, *D]."""
        raise NotImplementedError

    @property
    def final_observations(self) -> np.ndarray:
        """Last observations of the episodes flagged by the last `recv` [agents_per_batch, *O]."""
        raise NotImplementedError

    def reset(self, seed: int | Sequence[int] | None = None):
        """`async_reset` and `recv` → (observations, infos)."""
        self.async_reset(seed)
        observations, _, _, _, infos, _, _ = self.recv()
        return observations, infos

    def step(self, actions):
        """`send` and `recv` → (observations, rewards, terminals, truncations, infos)."""
        self.send(actions)
        return self.recv()[:5]

    def wait(self) -> None:
        """Return once no step is under way; the call order stays as it is."""

    def batches(self) -> list[tuple]:
        """What the coming `recv` of each batch returns, in turn, once no step is under way."""
        raise NotImplementedError

    def get_state(self) -> dict[str, np.ndarray] | None:
        """All that the future depends on, or None if the environments cannot give it."""
        return None

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Continue from what `get_state` of an equal vector returned."""
        raise APIUsageError(f"{type(self).__name__} cannot restore the state of its environments")

    def episodes(self) -> list[dict]:
        """One record for each episode that ended since the last call: `env`, `episode_return`,
        `episode_length` and the environment's own numbers. A record may stand for several
        episodes of one environment, whose number is then its `episodes`."""
        raise NotImplementedError

    def episode_stats(self) -> dict[str, float]:
        """Means over the episodes that ended since the last call, and `episodes`, their number."""
        return average_episodes(self.episodes())

    def call(self, name: str, *args, envs: int | Sequence[int] | None = None, **kwargs) -> list:
        """The attribute `name` of each environment, or what it returns if it is a method.

        Environments are the user's own, within their wrappers; `envs` are the indices of some.
        Waits for steps under way; the call order stays as it is. Raises AttributeError for one
        that an environment lacks, and WorkerError for what a method raises in a worker.
        """
        chosen = select(envs, self.num_envs)
        return self._reach([(env, ("call", name, args, kwargs)) for env in chosen])

    def set_attr(self, name: str, values, envs: int | Sequence[int] | None = None) -> None:
        """Set the attribute `name` of each environment; a list has a value for each."""
        chosen = select(envs, self.num_envs)
        values = values if isinstance(values, list | tuple) else [values] * len(chosen)
        if len(values) != len(chosen):
            raise APIUsageError(f"{len(values)} values were given for {len(chosen)} environments")
        pairs = zip(chosen, values, strict=True)
        self._reach([(env, ("set", name, value)) for env, value in pairs])

    def _reach(self, deeds: list[tuple[int, Deed]]) -> list:
        """Do each deed to its environment → their results."""
        raise APIUsageError(f"the environments of {type(self).__name__} have no attributes")

    def notify(self) -> None:
        """Call `notify` of every environment."""

    def close(self) -> None:
        """Close every environment and free what the vector holds. May be called again."""
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _advance(self, call: str, following: str) -> None:
        if self.expected != call:
            raise APIUsageError(f"{call} was called, but {self.expected} is expected")
        self.expected = following

    def _check_actions(self, actions) -> np.ndarray:
        """`actions` as an array, if it has the shape and the kind of the joint action space."""
        actions = np.asarray(actions)
        if actions.shape != self._action_shape or actions.dtype.kind not in self._action_kinds:
            raise APIUsageError(
                f"actions are {actions.dtype} of shape {list(actions.shape)}; expected "
                f"{self.action_space.dtype} of shape {list(self._action_shape)}, one row an agent "
                "of the batch"
            )
        return actions

    def _seeds(self, seed) -> np.ndarray:
        if seed is None:
            seed = fresh_seed() if self.default_seed is None else self.default_seed
        if isinstance(seed, Sequence | np.ndarray):
            if len(seed) != self.num_envs:
                raise APIUsageError(
                    f"{len(seed)} seeds were given for {self.num_envs} environments"
                )
            return np.asarray(seed, np.uint64)
        return env_seeds(seed, self.num_envs)


def average_episodes(records: list[dict]) -> dict[str, float]:
    """Means of episode records weighted by the episodes they stand for; a field is averaged over
    the records that have it."""
    totals: dict[str, float] = {}
    weights: dict[str, float] = {}
    for record in records:
        weight = record.get("episodes", 1)
        for name, value in record.items():
            if name in ("env", "agent", "episodes"):
                continue
            totals[name] = totals.get(name, 0.0) + weight * value
            weights[name] = weights.get(name, 0.0) + weight
    means = {name: totals[name] / weights[name] for name in totals}
    return {"episodes": sum(r.get("episodes", 1) for r in records)} | means


def check_sizes(num_envs, batch_size) -> tuple[int, int]:
    """(num_envs, batch_size) as ints, 'auto' meaning all; refused where they do not divide."""
    for name, value in (("num_envs", num_envs), ("batch_size", batch_size)):
        automatic = name == "batch_size" and value == "auto"
        if not automatic and (not isinstance(value, int | np.integer) or value < 1):
            raise APIUsageError(f"{name} is {value!r}; expected a whole number of at least 1")
    batch_size = num_envs if batch_size == "auto" else int(batch_size)
    if num_envs % batch_size:
        fits = [n for n in range(1, num_envs + 1) if num_envs % n == 0]
        near = sorted(fits, key=lambda n: abs(n - batch_size))[:2]
        raise APIUsageError(
            f"num_envs = {num_envs} cannot be cut into batches of batch_size = {batch_size}; "
            f"nearest sizes that fit: {' and '.join(map(str, sorted(near)))}"
        )
    return int(num_envs), batch_size


def allocate_rows(like, num_agents: int) -> _buffers.Buffers:
    """Rows for `num_agents` agents with the spaces that `like` has."""
    return _buffers.allocate(num_agents, like.single_observation_space, like.single_action_space)
