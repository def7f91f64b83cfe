"""Somebody else's vector of environments, a `gymnasium.vector.VectorEnv`, as one of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from pufferlib import buffers
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError, NonFiniteError
from pufferlib.seeding import env_seed, fresh_seed
from pufferlib.spaces import layout_of, pack_space
from pufferlib.vector.base import CLOSED, RECV, SEND, VecEnv
from pufferlib.vector.channel import Likeness
from pufferlib.vector.gymnasium import BatchedActions, GymnasiumVectorEnv

SEEDED_EACH = (SyncVectorEnv, AsyncVectorEnv, GymnasiumVectorEnv)


def adopt(vector_env: VectorEnv, *, autoreset_mode: AutoresetMode | str | None = None) -> VecEnv:
    """Put a vectorized environment of somebody else's behind the contract of `VecEnv`.

    Nothing here loops over environments, but at the ends of episodes over those that ended.
    Episodes restart as `vector_env.metadata["autoreset_mode"]` says, or `autoreset_mode` where it
    does not say:

    - SAME_STEP is our own rule.
    - NEXT_STEP answers the action after an episode's end with the first observation of the next
      episode. The row is absent for that one step: mask False and zeros at the end, present again
      with the next batch. What the filler step is given or gives counts for nothing.
    - DISABLED is refused: nobody would restart the episodes.

    Each environment of Gymnasium's own vectors is seeded with `env_seed(seed, k)`, and of others
    whose attribute `seeded_each` is true; the rest, which take one number for all, with
    `env_seed(seed, 0)`. Infos are told for the environments whose episode ended, with
    `episode_return` and `episode_length`.

    Raises `APIUsageError` for a vector that does not say how its episodes restart.
    """
    return Adopted(vector_env, autoreset_mode)


class Adopted(VecEnv):
    """The backend that `adopt` makes."""

    def __init__(self, vector_env: VectorEnv, autoreset_mode: AutoresetMode | str | None):
        self.vector_env = vector_env
        self._name = type(vector_env.unwrapped).__name__
        self._same_step = self._read_mode(autoreset_mode) is AutoresetMode.SAME_STEP
        count = vector_env.num_envs
        batch_size = getattr(vector_env.unwrapped, "batch_size", count)
        if batch_size != count:
            raise APIUsageError(
                f"{self._name} returns {batch_size} of {count} environments in a step; make it "
                "with a batch of all"
            )
        space = vector_env.single_observation_space
        self._actions = BatchedActions(vector_env.single_action_space, count)
        like = Likeness(pack_space(space, who=self._name), self._actions.space, 1, True)
        super().__init__(like, count, count, 1)
        self._layout = layout_of(space)
        self.driver_env = _Likeness(self)
        self.buf = buffers.allocate(count, like.single_observation_space, like.single_action_space)
        self._waiting = np.zeros(count, np.bool_)  # Rows whose next step is filler.
        self._returns = np.zeros(count)
        self._lengths = np.zeros(count, np.int64)
        self._infos: list[dict] = []
        self._records: list[dict] = []

    def async_reset(self, seed=None):
        if self.expected == CLOSED:
            self._advance("async_reset", RECV)
        given: Any
        theirs = self.vector_env.unwrapped
        if isinstance(theirs, SEEDED_EACH) or getattr(theirs, "seeded_each", False):
            given = [int(s) for s in self._seeds(seed)]
        else:
            seed = self.default_seed if seed is None else seed
            if np.ndim(seed) > 0:
                raise APIUsageError(
                    f"{self._name} takes one seed for all of its environments, not a list"
                )
            given = env_seed(fresh_seed() if seed is None else seed, 0)
        observations, _ = self.vector_env.reset(seed=given)
        buf = self.buf
        buf.observations[...] = buf.final_observations[...] = 0
        buf.rewards[...] = 0
        buf.terminals[...] = buf.truncations[...] = False
        buf.masks[...] = True
        self._write(buf.observations, observations)
        self._waiting[...] = False
        self._returns[...] = self._lengths[...] = 0
        self._infos = []
        self.expected = RECV

    def send(self, actions):
        if self.expected != SEND:
            self._advance(SEND, RECV)
        actions = self._check_actions(actions)
        self.expected = RECV
        self.buf.actions[...] = actions
        self._take(*self.vector_env.step(self._actions.from_rows(actions)))

    def recv(self):
        self._advance(RECV, SEND)
        return self.batches()[0]

    def batches(self):
        o, buf = self.buf.observations, self.buf
        rest = buf.rewards, buf.terminals, buf.truncations
        return [(o, *rest, self._infos, self.agent_ids, buf.masks)]

    @property
    def final_observations(self):
        return self.buf.final_observations

    def _reach(self, deeds):
        """One deed for all environments, done by the vector's own calls."""
        theirs: Any = self.vector_env.unwrapped
        what, name, *rest = deeds[0][1]
        if not hasattr(theirs, "call"):
            raise APIUsageError(f"{self._name} does not let anyone reach its environments")
        if what == "call":
            args, kwargs = rest
            results = theirs.call(name, *args, **kwargs)
            return [results[env] for env, _ in deeds]
        if len(deeds) < self.num_envs:
            raise APIUsageError(f"{self._name} sets attributes of all environments, not of some")
        theirs.set_attr(name, [deed[2] for _, deed in deeds])
        return [None] * len(deeds)

    def episodes(self):
        records, self._records = self._records, []
        return records

    def close(self):
        if self.expected != CLOSED:
            self.expected = CLOSED
            self.vector_env.close()

    def _read_mode(self, given: AutoresetMode | str | None) -> AutoresetMode:
        mode = (self.vector_env.metadata or {}).get("autoreset_mode", given)
        if mode is None:
            raise APIUsageError(
                f'{self._name} does not say in metadata["autoreset_mode"] how its episodes '
                "restart; find out and pass autoreset_mode='NextStep' or 'SameStep'"
            )
        mode = AutoresetMode(mode)
        if mode is AutoresetMode.DISABLED:
            raise APIUsageError(
                f"{self._name} does not restart its episodes (AutoresetMode.DISABLED); make it "
                "with SAME_STEP or NEXT_STEP"
            )
        return mode

    def _take(self, observations, rewards, terminations, truncations, infos) -> None:
        """Bring the results of one step under our rules."""
        buf, filler = self.buf, self._waiting
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise NonFiniteError(
                f"{self._name}: reward of environment {row} is {rewards[row]} at step "
                f"{self._lengths[row] + 1} of the episode; expected a finite number"
            )
        buf.rewards[...] = rewards
        buf.rewards[filler] = 0
        buf.terminals[...] = terminations & ~filler
        buf.truncations[...] = truncations & ~terminations & ~filler
        self._returns += buf.rewards
        self._lengths += ~filler
        self._write(buf.observations, observations)
        ended = np.flatnonzero(buf.terminals | buf.truncations)
        self._infos = []
        if self._same_step:
            if len(ended):
                self._keep_finals(infos, ended)
                self._end(ended, infos.get("final_info", {}))
            return
        self._waiting = buf.terminals | buf.truncations
        buf.masks[...] = ~self._waiting
        if len(ended):
            buf.final_observations[ended] = buf.observations[ended]
            buf.observations[ended] = 0
            self._end(ended, infos)

    def _write(self, rows: np.ndarray, observations: Any) -> None:
        """Observations, batched or of one environment, into their rows."""
        for leaf in self._layout.leaves:
            np.copyto(self._layout.field(leaf, rows), _at(observations, leaf.path), "same_kind")

    def _keep_finals(self, infos: dict, ended: np.ndarray) -> None:
        """`final_obs` into its rows; it is an array of objects, or batched as observations are."""
        if "final_obs" not in infos:
            raise APIUsageError(
                f"{self._name} says SAME_STEP, but its infos lack 'final_obs' at an episode's end"
            )
        finals, rows = infos["final_obs"], self.buf.final_observations
        if isinstance(finals, np.ndarray) and finals.dtype == object:
            for row in ended:
                self._write(rows[row, ...], finals[row])
            return
        for leaf in self._layout.leaves:
            self._layout.field(leaf, rows)[ended] = _at(finals, leaf.path)[ended]

    def _end(self, ended: np.ndarray, infos: dict) -> None:
        """Tell of the episodes that ended."""
        for row in ended.tolist():
            figures = {
                "episode_return": float(self._returns[row]),
                "episode_length": int(self._lengths[row]),
            }
            info = {**figures, **_row_of(infos, row), "env": row}
            self._infos.append(info)
            numbers = (int, float, np.number)
            self._records.append({n: v for n, v in info.items() if isinstance(v, numbers)})
        self._returns[ended] = 0
        self._lengths[ended] = 0


class _Likeness(PufferEnv):
    """Stands for one of the environments: its spaces, and pictures of it."""

    num_agents = 1
    emulated = True

    def __init__(self, adopted: Adopted):
        self._vector_env = adopted.vector_env
        self.single_observation_space = adopted.single_observation_space
        self.single_action_space = adopted.single_action_space
        self.env_single_observation_space = adopted.vector_env.single_observation_space
        self.env_single_action_space = adopted.vector_env.single_action_space
        self.render_mode = adopted.vector_env.render_mode
        super().__init__()

    def render(self):
        """One frame of the first environment."""
        frames: Any = self._vector_env.render()
        return frames[0] if frames else None


def _at(value: Any, path: tuple) -> Any:
    for key in path:
        value = value[key]
    return value


def _row_of(infos: dict, row: int) -> dict[str, Any]:
    """What batched infos say about one row."""
    told = {}
    for key, values in infos.items():
        present = infos.get(f"_{key}")
        if key.startswith("_") or key == "final_obs" or (present is not None and not present[row]):
            continue
        if isinstance(values, dict):
            told[key] = _row_of(values, row)
        elif isinstance(values, np.ndarray) and values.ndim:
            told[key] = values[row]
    return told
