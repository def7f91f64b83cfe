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
    `TimeLimit.truncated` and `episode`, so that a `VecMonitor` has nothing to add. What lies
    inside the environments is out of reach: `get_attr` knows `render_mode` only.

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
            """`render_mode` of each environment; other attributes cannot be had."""
            if attr_name != "render_mode":
                raise AttributeError(f"{attr_name} of environments in a vector is out of reach")
            return [self.view.render_mode for _ in self._get_indices(indices)]

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            """Refused: environments may live in other processes."""
            raise APIUsageError(f"{attr_name} of environments in a vector is out of reach")

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **_: Any) -> list:
            """Refused: environments may live in other processes."""
            raise APIUsageError(f"{method_name} of environments in a vector is out of reach")

        def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
            """Whether `wrapper_class` has nothing to add: a `Monitor` has not."""
            return [issubclass(Monitor, wrapper_class) for _ in self._get_indices(indices)]

    return StableBaselinesVecEnv
