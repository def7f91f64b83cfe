"""The backend of native environments: C worlds on a thread pool in this process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pufferlib.exceptions import APIUsageError
from pufferlib.machine import usable_cores
from pufferlib.native.core import Library, Worlds
from pufferlib.native_env import NativeEnv, name_episodes
from pufferlib.vector.base import CLOSED, VecEnv, allocate_rows, check_sizes


class Native(VecEnv):
    """Worlds of one native environment that write straight into the batch.

    `send` and `recv` are the compiled methods themselves. `send(actions, out)` writes the results
    to `out`, made once by `rows(observations, rewards, terminals, truncations)`: a trainer's own
    storage needs no copy. `num_workers` is the number of threads, the caller's included.
    """

    rows: Callable

    def __init__(
        self,
        library: Library,
        params: dict,
        num_envs: int,
        *,
        batch_size="auto",
        num_workers="auto",
    ):
        num_envs, batch_size = check_sizes(num_envs, batch_size)
        driver = NativeEnv(library, **params)
        super().__init__(driver, num_envs, batch_size, driver.num_agents)
        self.driver_env = driver
        self.params = driver.params
        self.buf = allocate_rows(driver, self.num_agents)
        self.num_workers = threads = self._count_threads(num_workers)
        self.worlds = Worlds(self.params, self.buf, num_envs, batch_size, threads, self.agent_ids)
        for name in ("send", "recv", "rows", "wait", "batches"):
            setattr(self, name, getattr(self.worlds, name))

    def _count_threads(self, num_workers) -> int:
        if num_workers == "auto":
            return 1 if self.batch_size == self.num_envs else max(1, usable_cores() - 1)
        if not isinstance(num_workers, int) or num_workers < 1:
            raise APIUsageError(
                f"num_workers is {num_workers!r}; expected 'auto' or a whole number of at least 1"
            )
        return num_workers

    def async_reset(self, seed=None):
        self.worlds.start_reset(self._seeds(seed))

    @property
    def final_observations(self):
        return self.worlds.final_observations

    def episodes(self):
        return name_episodes(self.params, self.worlds.drain())

    def episode_stats(self):
        names = [
            "episode_return",
            "episode_length",
            *(n for n, _ in self.params.library.log_fields),
        ]
        count, *sums = self.worlds.drain_sums()
        if count == 0:
            return {"episodes": 0}
        return {"episodes": int(count)} | {
            name: total / count for name, total in zip(names, sums, strict=True)
        }

    def _reach(self, deeds):
        raise APIUsageError(
            "native environments have parameters, which `params` of the vector holds, and no "
            "attributes or methods"
        )

    def get_state(self) -> dict[str, np.ndarray]:
        """All that the future depends on; `set_state` of an equal vector continues from it."""
        return {
            "worlds": np.frombuffer(self.worlds.get_state(), np.uint8),
            "observations": np.concatenate([batch[0] for batch in self.batches()]),
            "masks": self.buf.masks.copy(),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        self.worlds.set_state(np.ascontiguousarray(state["worlds"]))
        self.buf.observations[...] = state["observations"]
        self.buf.masks[...] = state["masks"]

    def render(self, env: int = 0) -> np.ndarray:
        """A picture of one world, pixels [height, width, 3] uint8."""
        pixels = np.empty(self.params.canvas_shape, np.uint8)
        self.worlds.draw(env, pixels)
        return pixels

    def close(self):
        self.expected = CLOSED
        self.worlds.shut()
        self.driver_env.close()
