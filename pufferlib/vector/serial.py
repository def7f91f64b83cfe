"""The reference backend: every environment in this process, one after another."""

from __future__ import annotations

import numpy as np

from pufferlib.exceptions import APIUsageError
from pufferlib.vector.base import CLOSED, RECV, SEND, VecEnv, allocate_rows, check_sizes


class Serial(VecEnv):
    """Steps environments in a Python loop; the definition that other backends must equal.

    `factories` from `creation.list_factories`; environments must agree in spaces and agents.
    """

    def __init__(self, factories, *, batch_size="auto", num_workers="auto", **_):
        num_envs, batch_size = check_sizes(len(factories), batch_size, num_workers)
        first = factories[0]()
        super().__init__(first, num_envs, batch_size, first.num_agents)
        self.buf = allocate_rows(first, self.num_agents)
        self.envs = [first]
        first.rebind(self._rows(0))
        for k, factory in enumerate(factories[1:], 1):
            env = factory(buf=self._rows(k))
            self.envs.append(env)
            self._check_alike(env, k)
        self._slices = [
            slice(start, start + self.agents_per_batch)
            for start in range(0, self.num_agents, self.agents_per_batch)
        ]
        self._current = 0
        self._infos: list[list[dict]] = [[] for _ in self._slices]
        self._records: list[dict] = []

    def _rows(self, env: int):
        return self.buf.rows(env * self.agents_per_env, (env + 1) * self.agents_per_env)

    def _check_alike(self, env, k: int) -> None:
        for name in ("single_observation_space", "single_action_space", "num_agents"):
            mine, first = getattr(env, name), getattr(self.envs[0], name)
            if mine != first:
                self.close()
                raise APIUsageError(
                    f"environment {k} has {name} = {mine}, environment 0 has {first}; the "
                    "environments of one vector must agree"
                )

    def async_reset(self, seed=None):
        if self.expected == CLOSED:
            self._advance("async_reset", RECV)
        for k, (env, env_seed) in enumerate(zip(self.envs, self._seeds(seed), strict=True)):
            _, infos = env.reset(seed=int(env_seed))
            if k % self.batch_size == 0:
                self._infos[k // self.batch_size] = []
            self._take_infos(k, infos)
        self._current = 0
        self.expected = RECV

    def send(self, actions):
        self._advance(SEND, RECV)
        actions = np.asarray(actions)
        if len(actions) != self.agents_per_batch:
            self.expected = SEND
            raise APIUsageError(
                f"actions have {len(actions)} rows; expected {self.agents_per_batch}"
            )
        self._infos[self._current] = []
        first = self._current * self.batch_size
        for i in range(self.batch_size):
            env = self.envs[first + i]
            infos = env.step(actions[i * env.num_agents : (i + 1) * env.num_agents])[4]
            if infos:
                self._take_infos(first + i, infos)
        self._current = (self._current + 1) % len(self._slices)

    def recv(self):
        self._advance(RECV, SEND)
        rows, buf = self._slices[self._current], self.buf
        return (
            buf.observations[rows],
            buf.rewards[rows],
            buf.terminals[rows],
            buf.truncations[rows],
            self._infos[self._current],
            self.agent_ids[rows],
            buf.masks[rows],
        )

    @property
    def final_observations(self):
        return self.buf.final_observations[self._slices[self._current]]

    def _take_infos(self, k: int, infos) -> None:
        for info in infos:
            info["env"] = k
            if "episode_return" in info:
                numbers = (int, float, np.number)
                self._records.append({n: v for n, v in info.items() if isinstance(v, numbers)})
        self._infos[k // self.batch_size].extend(infos)

    def episodes(self):
        records, self._records = self._records, []
        for k, env in enumerate(self.envs):
            records.extend({**record, "env": k} for record in env.episodes())
        return records

    def notify(self):
        for env in self.envs:
            env.notify()

    def close(self):
        if self.expected != CLOSED:
            self.expected = CLOSED
            for env in self.envs:
                env.close()
