"""The environment contract in Python: a batch of agents that reads and writes shared rows."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from pufferlib import buffers as _buffers
from pufferlib.exceptions import APIUsageError


class PufferEnv:
    """An environment that writes its results into rows it was given.

    Set `single_observation_space` (Box), `single_action_space` (Discrete, MultiDiscrete or Box)
    and `num_agents` (int ≥ 1), then call `super().__init__(buf)`. You then have, one row an agent:
    `observations`, `final_observations` [A, *O], `actions` [A, *D], `rewards` [A] float32,
    `terminals`, `truncations`, `masks` [A] bool, the joint `observation_space` and `action_space`,
    and `agent_ids` [A].

    Implement `reset(seed)` → (observations, infos) and `step(actions)` → (observations, rewards,
    terminals, truncations, infos), where the arrays are the rows themselves and infos is a list of
    dicts. Episodes restart in the same step: when an agent's episode ends, its flag is set, the
    last observation goes to `final_observations`, and `observations` holds the first of the next
    episode. Termination and truncation are different things. An agent that is absent has mask
    False, observation and reward zero, and no flag.

    `buf` is a `Buffers` of `num_agents` rows to write into; None allocates one.
    """

    single_observation_space: spaces.Box
    single_action_space: spaces.Space
    num_agents: int
    render_mode: str | None = None
    emulated = False

    def __init__(self, buf: _buffers.Buffers | None = None):
        for name in ("single_observation_space", "single_action_space", "num_agents"):
            if getattr(self, name, None) is None:
                raise APIUsageError(
                    f"{type(self).__name__}.{name} is not set; set it before super().__init__(buf)"
                )
        if not isinstance(self.single_observation_space, spaces.Box):
            raise APIUsageError(
                f"single_observation_space is a {type(self.single_observation_space).__name__}; "
                "a PufferEnv observes a Box (wrap other spaces with pufferlib.emulation)"
            )
        if not isinstance(
            self.single_action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box
        ):
            raise APIUsageError(
                f"single_action_space is a {type(self.single_action_space).__name__}; "
                "a PufferEnv acts in Discrete, MultiDiscrete or Box"
            )
        if not isinstance(self.num_agents, int | np.integer) or self.num_agents < 1:
            raise APIUsageError(f"num_agents is {self.num_agents!r}; expected an int of at least 1")
        if buf is None:
            buf = _buffers.allocate(
                self.num_agents, self.single_observation_space, self.single_action_space
            )
        self.rebind(buf)
        self.observation_space = joint_space(self.single_observation_space, self.num_agents)
        self.action_space = joint_space(self.single_action_space, self.num_agents)
        self.agent_ids = np.arange(self.num_agents)

    def rebind(self, buf: _buffers.Buffers) -> None:
        """Read and write other rows from now on; before the first reset, or between two steps.

        An environment that keeps addresses or views of its rows must override this.
        """
        if len(buf) != self.num_agents:
            raise APIUsageError(f"buf has {len(buf)} rows for {self.num_agents} agents")
        self.buf = buf
        self.observations = buf.observations
        self.final_observations = buf.final_observations
        self.actions = buf.actions
        self.rewards = buf.rewards
        self.terminals = buf.terminals
        self.truncations = buf.truncations
        self.masks = buf.masks

    def reset(self, seed: int | None = None):
        """Begin every episode anew → (observations [A, *O], infos)."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    def step(self, actions):
        """Advance one step → (observations, rewards, terminals, truncations, infos)."""
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def render(self):
        """One frame as `render_mode` asks for; None where there is nothing to show."""
        return None

    def episodes(self) -> list[dict]:
        """Records of the episodes that ended since the last call, if the infos do not tell.

        A record has `env` (index within this environment), `episode_return`, `episode_length`
        and numeric fields of the environment's own; it may stand for several episodes of equal
        weight by `episodes`, their number.
        """
        return []

    def notify(self):
        """Called when the owner of the vector calls `notify`; does nothing by default."""

    def close(self):
        """Free what the environment holds. May be called more than once."""


def joint_space(space: spaces.Space, rows: int) -> spaces.Space:
    """The space of `rows` stacked members of `space`; its samples are what `step` takes."""
    if isinstance(space, spaces.Box):
        return spaces.Box(
            np.repeat(space.low[None], rows, 0), np.repeat(space.high[None], rows, 0),
            dtype=space.dtype,
        )
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete(
            np.full(rows, space.n), dtype=np.int32, start=np.full(rows, space.start)
        )
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.repeat(space.nvec[None], rows, 0), dtype=np.int32)
    raise APIUsageError(f"no joint space for a {type(space).__name__}")
