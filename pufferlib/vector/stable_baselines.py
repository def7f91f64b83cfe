"""Any vector of environments as a `VecEnv` of Stable-Baselines3."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pufferlib.exceptions import APIUsageError
from pufferlib.vector.base import VecEnv
from pufferlib.vector.gymnasium import GymnasiumVectorEnv


def to_stable_baselines(vecenv: VecEnv):
    """The view of `vecenv` that Stable-Baselines3's algorithms take for `env`.

    Each agent row is one of its environments. Infos have `terminal_observation`,
    `TimeLimit.truncated` and `episode`, so that a `VecMonitor` has nothing to add. Attributes and
    methods of the environments are in reach, those of native ones but for `render_mode` are not.

    Raises `APIUsageError` without Stable-Baselines3, and where `GymnasiumVectorEnv` does.
    """
    try:
        return _class()(GymnasiumVectorEnv(vecenv))
    except ImportError as error:
        raise APIUsageError(
            "this view is one of Stable-Baselines3; install it with: pip install stable-baselines3"
        ) from error


@cache
def _class() -> type:
    """The view's class, whose base is only there where Stable-Baselines3 is."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv as Base

    class StableBaselinesVecEnv(Base):
        """See `to_stable_baselines`."""

        def __init__(self, view: GymnasiumVectorEnv):
            self.view = view
            self._root: int | None = None
            super().__init__(view.num_envs, view.single_observation_space, view.single_action_space)

        def seed(self, seed: int | None = None) -> list[int | None]:
            """What the next reset makes the seeds of all environments from."""
            self._root = seed
            return [seed] * self.num_envs

        def reset(self):
            """Begin every episode anew → observations."""
            observations, _ = self.view.reset(seed=self._root)
            self._root = None
            return observations

        def step_async(self, actions: np.ndarray) -> None:
            """Begin a step."""
            self.view.vecenv.send(self.view.to_rows(actions))

        def step_wait(self):
            """The end of the step → (observations, rewards, dones, infos)."""
            observations, rewards, terminals, truncations, told = self.view.receive()
            final, others = self.view.divide(told)
            infos: list[dict] = [others.get(row, {}) for row in range(self.num_envs)]
            ends = self.view.ended.tolist(), self.view.figures(), self.view.final_observations()
            for row, figures, observation in zip(*ends, strict=True):
                self.reset_infos[row] = infos[row]
                infos[row] = ({"episode": figures} if self.view.counts else {}) | {
                    **final.get(row, {}),
                    "terminal_observation": observation,
                    "TimeLimit.truncated": bool(truncations[row] and not terminals[row]),
                }
            return observations, rewards, terminals | truncations, infos

        def close(self) -> None:
            """Close the vector."""
            self.view.close()

        def get_images(self):
            """One picture of each environment."""
            return self.view.render()

        def get_attr(self, attr_name: str, indices: Any = None) -> list:
            """An attribute of each environment, or of those of `indices`."""
            if attr_name == "render_mode":
                return [self.view.render_mode for _ in self._get_indices(indices)]
            return self.view.vecenv.call(attr_name, envs=self._envs(indices))

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Set an attribute of each environment, or of those of `indices`, to one value."""
            envs = self._envs(indices)
            self.view.vecenv.set_attr(attr_name, [value] * len(envs), envs)

        def env_method(
            self, method_name: str, *args: Any, indices: Any = None, **more: Any
        ) -> list:
            """What a method of each environment, or of those of `indices`, returns."""
            return self.view.vecenv.call(method_name, *args, envs=self._envs(indices), **more)

        def _envs(self, indices: Any) -> list[int]:
            agents = self.view.vecenv.agents_per_env
            return [row // agents for row in self._get_indices(indices)]

        def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
            """Whether `wrapper_class` has nothing to add: a `Monitor` has not."""
            return [issubclass(Monitor, wrapper_class) for _ in self._get_indices(indices)]

    return StableBaselinesVecEnv
