"""One environment under another interpreter, as if it lived in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pufferlib.buffers import Buffers
from pufferlib.env import PufferEnv
from pufferlib.vector.multiprocessing import Multiprocessing

FIELDS = ("observations", "rewards", "terminals", "truncations", "masks")


class IsolatedEnv(PufferEnv):
    """The environment that `factory` makes in a worker process under the interpreter `python`.

    For one environment at a time: to be checked, played or looked at. Many of them belong behind
    one `Multiprocessing(python=…)`, which `vector.make` sees to.
    """

    def __init__(
        self,
        factory: Callable[..., PufferEnv],
        python: str | Path,
        *,
        render_mode: str | None = None,
        buf: Buffers | None = None,
    ):
        self._vecenv = vecenv = Multiprocessing([factory], python=python)
        self.single_observation_space = vecenv.single_observation_space
        self.single_action_space = vecenv.single_action_space
        self.num_agents = vecenv.num_agents
        self.emulated = vecenv.emulated
        self.render_mode = render_mode
        self._random: np.random.Generator | None = None
        self._records: list[dict] = []
        super().__init__(buf)

    def reset(self, seed: int | None = None):
        """Begin every episode anew → (observations [A, *O], infos); no seed: chance goes on."""
        if seed is None and self._random is not None:
            seed = int(self._random.integers(2**31))
        elif seed is not None:
            self._random = np.random.default_rng(seed)
        _, infos = self._vecenv.reset(None if seed is None else [seed])
        self.final_observations[...] = 0
        self._records.clear()
        return self.observations, self._take(infos)

    def step(self, actions):
        """Advance one step → (observations, rewards, terminals, truncations, infos)."""
        infos = self._take(self._vecenv.step(actions)[4])
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def render(self):
        """One frame as `render_mode` asks for."""
        return self._vecenv.call("render")[0]

    def episodes(self) -> list[dict]:
        """Records of the episodes that no info told of."""
        records, self._records = self._records, []
        return records

    def notify(self):
        """Passed on to the environment."""
        self._vecenv.notify()

    def close(self):
        """Close the environment and end its process."""
        self._vecenv.close()

    def _take(self, infos: list[dict]) -> list[dict]:
        """Copy the worker's rows into ours → its infos."""
        theirs = self._vecenv.buf
        for field in FIELDS:
            getattr(self, field)[...] = getattr(theirs, field)
        ended = self.terminals | self.truncations
        if ended.any():
            self.final_observations[ended] = theirs.final_observations[ended]
        records = self._vecenv.episodes()
        if not any("episode_return" in info for info in infos):
            self._records += records
        return [{name: info[name] for name in info if name != "env"} for info in infos]
