"""All worlds of a Craftax vector in one compiled call."""

from __future__ import annotations

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from pufferlib.envs.craftax import Worlds
from pufferlib.seeding import env_seeds, fresh_seed


class CraftaxVector(VectorEnv):
    """Worlds as Gymnasium's vector; episodes restart in the step in which they end."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": ["rgb_array"]}
    seeded_each = True

    def __init__(self, worlds: Worlds):
        self.num_envs, self.render_mode = worlds.count, worlds.render_mode
        self.single_observation_space = worlds.observation_space
        self.single_action_space = worlds.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._worlds = worlds

    def reset(self, *, seed: int | list[int] | None = None, options: dict | None = None):
        """Begin all worlds anew, from one seed for all or a list → (observations, {})."""
        if seed is None or isinstance(seed, int):
            seed = env_seeds(fresh_seed() if seed is None else seed, self.num_envs).tolist()
        self._worlds.begin(seed)
        return self._worlds.observations, {}

    def step(self, actions):
        """One action each → (observations, rewards, terminations, truncations, infos)."""
        worlds = self._worlds
        rewards, terminals, truncations = worlds.advance(np.asarray(actions, np.int32))
        ended = np.flatnonzero(terminals | truncations)
        infos: dict = {}
        if len(ended):
            infos["final_obs"] = worlds.observations
            figures = {k: worlds.figures(k) for k in ended.tolist()}
            told: dict[str, np.ndarray] = {}
            for k, numbers in figures.items():
                for name, value in numbers.items():
                    told.setdefault(name, np.zeros(self.num_envs))[k] = value
            infos["final_info"] = told
            worlds.restart(ended)
        return worlds.observations, rewards, terminals, truncations, infos

    def render(self):
        """Pictures of all worlds."""
        return tuple(self._worlds.draw(k) for k in range(self.num_envs))
