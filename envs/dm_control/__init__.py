"""The DeepMind Control Suite: bodies of the MuJoCo physics to be moved (package dm-control)."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import refuse_unknown, silenced
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError


def make(
    task: str = "cartpole/swingup",
    *,
    frame_skip: int = 1,
    max_episode_steps: int | None = None,
    height: int = 240,
    width: int = 320,
    camera: int = 0,
    render_mode: str | None = None,
    **parameters: Any,
) -> ControlSuite:
    """One task of the suite, as domain/task, such as "walker/walk"; `parameters` are its own.

    Each action is repeated `frame_skip` times. `max_episode_steps`, in steps of this environment,
    is by default the suite's own limit, 1,000 of its steps for most tasks. `render_mode` is None
    or "rgb_array", pictures being [height, width, 3] from `camera`.
    Raises: APIUsageError for an unknown task or parameter; ModuleNotFoundError without dm-control;
    EnvironmentSetupError where pictures are asked for and cannot be drawn.
    """
    refuse_unknown("render mode of dm_control", [render_mode], [None, "rgb_array"])
    for name, value in (("frame_skip", frame_skip), ("max_episode_steps", max_episode_steps)):
        if value is not None and value < 1:
            raise APIUsageError(f"{name} is {value}; expected at least 1")
    suite = _import_suite()
    if render_mode and importlib.import_module("dm_control._render").BACKEND == "off":
        raise EnvironmentSetupError(
            "dm_control cannot draw: EGL does not start here; install libegl1, or set MUJOCO_GL to "
            "osmesa or glfw"
        )
    tasks = ["/".join(task) for task in suite.ALL_TASKS]
    refuse_unknown("task of dm_control", [task], tasks)
    try:
        with silenced(), warnings.catch_warnings(action="ignore"):
            env = suite.load(*task.split("/"), task_kwargs={"random": 0, **parameters})
    except TypeError as error:
        raise APIUsageError(f"{task} does not take {parameters}: {error}") from error
    return ControlSuite(env, frame_skip, max_episode_steps, (height, width, camera), render_mode)


class ControlSuite(gymnasium.Env):
    """A task of the suite with Gymnasium's rules.

    Observations are a dict of float64 arrays, a new one each step; actions are float32. The time
    limit is truncation; most tasks never terminate. Where the simulation leaves the finite numbers
    the episode terminates with what was observed last and `diverged` in its info.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(
        self,
        env: Any,
        frame_skip: int,
        max_episode_steps: int | None,
        view: tuple[int, int, int],
        render_mode: str | None,
    ):
        self.render_mode = render_mode
        self._env, self._view = env, view
        self._skip, self._limit = frame_skip, max_episode_steps
        if max_episode_steps is not None:
            env._step_limit = float("inf")
        self.observation_space = spaces.Dict(
            {
                name: spaces.Box(-np.inf, np.inf, spec.shape or (1,), np.float64)
                for name, spec in env.observation_spec().items()
            }
        )
        action = env.action_spec()
        low, high = (bound.astype(np.float32) for bound in (action.minimum, action.maximum))
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        # Rounding to float32 must not lead out of the bounds that the suite checks.
        self._bounds = action.minimum, action.maximum
        self._divergence = importlib.import_module("dm_control.rl.control").PhysicsError
        self.metadata = {**self.metadata, "render_fps": round(1 / env.control_timestep())}

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode → (observation, {})."""
        super().reset(seed=seed)
        self._env.task.random.seed(int(self.np_random.integers(2**32)))
        self._steps = 0
        return self._read(self._env.reset()), {}

    def step(self, action):
        """Move for `frame_skip` steps → (observation, reward, terminated, truncated, info)."""
        action = np.clip(np.asarray(action, np.float64), *self._bounds)
        reward = 0.0
        self._steps += 1
        for _ in range(self._skip):
            try:
                with _unlogged():
                    time = self._env.step(action)
            except self._divergence:
                return self._last, reward, True, False, {"diverged": 1}
            reward += time.reward or 0.0
            if time.last():
                break
        terminated = bool(time.last() and time.discount == 0)
        out_of_time = time.last() or self._steps == self._limit
        return self._read(time), reward, terminated, bool(out_of_time and not terminated), {}

    def render(self):
        """One picture [height, width, 3] uint8."""
        if self.render_mode is None:
            return None
        height, width, camera = self._view
        with silenced():
            return self._env.physics.render(height, width, camera_id=camera)

    def close(self):
        """Free the physics and what it draws with; may be called more than once."""
        env, self._env = self._env, None
        if env is not None:
            env.close()
            env.physics.free()

    def _read(self, time: Any) -> dict[str, np.ndarray]:
        self._last = {n: np.array(x, np.float64, ndmin=1) for n, x in time.observation.items()}
        return self._last


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep MuJoCo from warning of what the info tells."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _import_suite() -> Any:
    """The module dm_control.suite, which chooses how to draw when it is imported.

    Where nobody chose, that is EGL, or no way at all where EGL does not start: bodies move without.
    """
    if "dm_control.suite" in sys.modules:
        return sys.modules["dm_control.suite"]
    if "MUJOCO_GL" in os.environ or "DISPLAY" in os.environ:
        return _import_quietly()
    before = {name: os.environ.get(name) for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    try:
        os.environ["MUJOCO_GL"] = "egl"
        try:
            return _import_quietly()
        except ImportError:
            half = [name for name in sys.modules if name.partition(".")[0] == "dm_control"]
            for name in half:
                del sys.modules[name]
            os.environ["MUJOCO_GL"] = "disabled"
            return _import_quietly()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _import_quietly() -> Any:
    importlib.import_module("dm_control")
    importlib.import_module("absl.logging")  # It keeps the stderr of when it is imported.
    with silenced(), warnings.catch_warnings(action="ignore"):
        return importlib.import_module("dm_control.suite")
