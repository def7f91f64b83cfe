"""Gymnasium's robots on the physics of MuJoCo, such as HalfCheetah-v5."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import gymnasium

from pufferlib.adapters import make_registered, silenced
from pufferlib.exceptions import EnvironmentSetupError

TASKS = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)
OFF_SCREEN = ("egl", "osmesa")  # Ways to draw without a display, the faster one first.


def make(
    task: str = "HalfCheetah-v5", *, render_mode: str | None = None, **parameters: Any
) -> gymnasium.Env:
    """One robot; `parameters` are those of the task's class, and `max_episode_steps`.

    MuJoCo's own warnings go to the logger "mujoco" from now on, instead of to the terminal and a
    file in the working folder.
    Raises: APIUsageError for an unknown task or parameter; ModuleNotFoundError without mujoco.
    """
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.set_mju_user_warning(logging.getLogger("mujoco").info)
    with silenced():
        robot = make_registered(task, TASKS, render_mode=render_mode, **parameters)
    return robot if render_mode is None else Pictures(robot)


class Pictures(gymnasium.Wrapper):
    """A robot whose pictures need no display.

    The environment variable MUJOCO_GL, where it is set, says what draws them.
    """

    def __init__(self, robot: gymnasium.Env):
        super().__init__(robot)
        chosen = "MUJOCO_GL" in os.environ or "DISPLAY" in os.environ
        self._ways = [] if chosen else list(OFF_SCREEN)

    def render(self):
        """One frame [480, 480, 3] uint8, or what else the class draws.

        Raises: EnvironmentSetupError where nothing can draw.
        """
        if not self._ways:
            return self.env.render()
        failures = []
        for way in list(self._ways):
            os.environ["MUJOCO_GL"] = way
            try:
                with silenced():
                    frame = self.env.render()
            except Exception as error:
                failures.append(f"{way}: {error}")
            else:
                self._ways = [way]
                return frame
            finally:
                del os.environ["MUJOCO_GL"]
        raise EnvironmentSetupError(
            "MuJoCo cannot draw without a display; install libegl1 or libosmesa6 "
            f"({'; '.join(failures)})"
        )
