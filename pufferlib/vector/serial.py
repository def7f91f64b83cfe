"""The reference backend: every environment in this process, one after another."""

from __future__ import annotations

import numpy as np

from pufferlib.exceptions import APIUsageError, PufferError
from pufferlib.vector.base import CLOSED, RECV, SEND, VecEnv, allocate_rows, check_sizes
from pufferlib.vector.reach import reach


class Serial(VecEnv):
    """Steps environments in a Python loop; the definition that other backends must equal.

    `factories` from `creation.list_factories`; environments must agree in spaces and agents.
    Their indices count from `first_env`, and `allocate(env, num_agents)` makes the rows.
    `num_workers` changes nothing. `current_env` is the index of the environment called last, which
    is the one to blame for an exception.
    """

    def __init__(
        self,
        factories,
        *,
        batch_size="auto",
        num_workers="auto",
        first_env: int = 0,
        allocate=allocate_rows,
    ):
        num_envs, batch_size = check_sizes(len(factories), batch_size)
        self.current_env = self.first_env = first_env
        self.envs: list = []
        try:
            self.envs.append(first := factories[0]())
            super().__init__(first, num_envs, batch_size, first.num_agents)
            self.driver_env = first
            self.buf = allocate(first, self.num_agents)
            first.rebind(self._rows(0))
            for k, factory in enumerate(factories[1:], 1):
                self.current_env = first_env + k
                self.envs.append(factory(buf=self._rows(k)))
                self._check_alike(k)
        except BaseException:
            for env in self.envs:
                env.close()
            raise
        self._slices = self.slices
        self._current = 0
        self._infos: list[list[dict]] = [[] for _ in self._slices]
        self._records: list[dict] = []

    def _rows(self, env: int):
        return self.buf.rows(env * self.agents_per_env, (env + 1) * self.agents_per_env)

    def _check_alike(self, k: int) -> None:
        for name in ("single_observation_space", "single_action_space", "num_agents"):
            mine, first = getattr(self.envs[k], name), getattr(self.envs[0], name)
            if mine != first:
                raise APIUsageError(
                    f"environment {self.first_env + k} has {name} = {mine}, environment "
                    f"{self.first_env} has {first}; the environments of one vector must agree"
                )

    def async_reset(self, seed=None):
        if self.expected == CLOSED:
            self._advance("async_reset", RECV)
        seeds = self._seeds(seed)
        self._infos = [[] for _ in self._slices]
        self._current = 0
        self.expected = RECV
        for k, (env, env_seed) in enumerate(zip(self.envs, seeds, strict=True)):
            self.current_env = self.first_env + k
            self._take_infos(k, env.reset(seed=int(env_seed))[1])

    def send(self, actions):
        if self.expected != SEND:
            self._advance(SEND, RECV)
        actions = self._check_actions(actions)
        self.expected = RECV
        self.buf.actions[self._slices[self._current]] = actions
        try:
            self.advance()
        except PufferError as error:
            raise type(error)(f"environment {self.current_env}: {error}") from error

    def advance(self) -> list[dict]:
        """Step the batch that is due with the actions in its rows → infos."""
        actions, agents = self.buf.actions, self.agents_per_env
        infos = self._infos[self._current] = []
        first, row = self._current * self.batch_size, self._slices[self._current].start
        for k in range(first, first + self.batch_size):
            self.current_env = self.first_env + k
            told = self.envs[k].step(actions[row : row + agents])[4]
            row += agents
            if told:
                self._take_infos(k, told)
        self._current = (self._current + 1) % len(self._slices)
        return infos

    def recv(self):
        self._advance(RECV, SEND)
        return self._batch(self._current)

    def batches(self):
        return [self._batch(i) for i in range(len(self._slices))]

    def _batch(self, i: int) -> tuple:
        rows, buf = self._slices[i], self.buf
        return (
            buf.observations[rows],
            buf.rewards[rows],
            buf.terminals[rows],
            buf.truncations[rows],
            self._infos[i],
            self.agent_ids[rows],
            buf.masks[rows],
        )

    @property
    def final_observations(self):
        return self.buf.final_observations[self._slices[self._current]]

    def _take_infos(self, k: int, infos) -> None:
        for info in infos:
            info = {**info, "env": self.first_env + k}
            self._infos[k // self.batch_size].append(info)
            if "episode_return" in info:
                numbers = (int, float, np.number)
                self._records.append(
                    {n: v for n, v in info.items() if n == "agent" or isinstance(v, numbers)}
                )

    def episodes(self):
        records, self._records = self._records, []
        for k, env in enumerate(self.envs, self.first_env):
            records.extend({**record, "env": k} for record in env.episodes())
        return records

    def _reach(self, deeds):
        results = []
        for k, deed in deeds:
            self.current_env = k
            results.append(reach(self.envs[k - self.first_env], deed))
        return results

    def notify(self):
        for env in self.envs:
            env.notify()

    def close(self):
        """Close every environment, also where one refuses; the first refusal is raised."""
        if self.expected == CLOSED:
            return
        self.expected = CLOSED
        errors = []
        for k, env in enumerate(self.envs, self.first_env):
            try:
                env.close()
            except Exception as error:
                errors.append(error)
                self.current_env = k
        if errors:
            raise errors[0]
