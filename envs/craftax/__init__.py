"""Craftax: an open world of mining, crafting and fighting, compiled by JAX (package craftax)."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from dataclasses import fields
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import refuse_unknown, silenced
from pufferlib.exceptions import APIUsageError
from pufferlib.native.build import cache_folder

TASKS = (
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
)
FOREVER = 2**30  # Steps; the time limit is ours, so that it can be told from an end.


def make(
    task: str = "Craftax-Classic-Symbolic-v1",
    *,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    **parameters: Any,
) -> Craftax:
    """One world; `parameters` are fields of the task's EnvParams, such as `day_length`.

    `max_episode_steps` is by default the task's own limit, 10,000 in Classic and 100,000 else.
    `render_mode` is None or "rgb_array".
    Raises: APIUsageError for an unknown task or parameter; ModuleNotFoundError without craftax.
    """
    return Craftax(make_worlds(1, task, max_episode_steps, render_mode, parameters))


def make_vector(
    num_envs: int,
    num_workers: int = 1,
    task: str = "Craftax-Classic-Symbolic-v1",
    *,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
    **parameters: Any,
) -> gymnasium.vector.VectorEnv:
    """`num_envs` worlds in one compiled call a step; JAX itself chooses its threads."""
    worlds = make_worlds(num_envs, task, max_episode_steps, render_mode, parameters)
    return importlib.import_module(".vector", __name__).CraftaxVector(worlds)


def make_worlds(
    count: int, task: str, max_episode_steps: int | None, render_mode: str | None, parameters: dict
) -> Worlds:
    """The worlds behind `make` and `make_vector`."""
    refuse_unknown("task of craftax", [task], TASKS)
    refuse_unknown("render mode of craftax", [render_mode], [None, "rgb_array"])
    if max_episode_steps is not None and max_episode_steps < 1:
        raise APIUsageError(f"max_episode_steps is {max_episode_steps}; expected at least 1")
    with silenced(), warnings.catch_warnings(action="ignore"):
        return Worlds(count, task, max_episode_steps, render_mode, parameters)


class Worlds:
    """Worlds in one JAX state, each with a stream of randomness that its seed began.

    `observations` [N, *O] are read-only and new at each step.
    """

    def __init__(
        self,
        count: int,
        task: str,
        max_episode_steps: int | None,
        render_mode: str | None,
        parameters: dict,
    ):
        self.count, self.render_mode = count, render_mode
        self._jax = jax = _import_jax()
        package = "craftax.craftax_classic" if "Classic" in task else "craftax.craftax"
        constants = importlib.import_module(f"{package}.constants")
        if not os.path.exists(constants.TEXTURE_CACHE_FILE):
            # Craftax would write beside its own code, where not everybody may.
            cache = cache_folder() / os.path.basename(constants.TEXTURE_CACHE_FILE)
            cache.parent.mkdir(parents=True, exist_ok=True)
            constants.TEXTURE_CACHE_FILE = str(cache)
        env = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name(task, False)
        defaults = env.default_params
        names = [f.name for f in fields(defaults) if f.name != "max_timesteps"]
        refuse_unknown(f"parameter of {task}", parameters, names)
        self._limit = max_episode_steps or defaults.max_timesteps
        self._functions = _compile(task, tuple(sorted(parameters.items())))
        space = env.observation_space(defaults)
        self._pixels = "Pixels" in task
        high, dtype = (255, np.uint8) if self._pixels else (1, np.float32)
        self.observation_space = spaces.Box(0, high, space.shape, dtype)
        self.action_space = spaces.Discrete(env.num_actions)
        self._achievements = [a.name.lower() for a in constants.Achievement]
        self._draw = None
        if render_mode is not None:
            renderer = importlib.import_module(f"{package}.renderer")
            size = constants.BLOCK_PIXEL_SIZE_IMG
            self._draw = jax.jit(renderer.make_craftax_pixel_renderer(size))
        # Everything is compiled here, where it may take its time.
        self.begin(range(count))
        self.advance(np.zeros(count, np.int32))
        self.restart(np.zeros(1, np.int64))

    def begin(self, seeds) -> None:
        """Begin all worlds anew, from one seed each."""
        keys = [self._jax.random.key(int(seed)) for seed in seeds]
        begun = [self._functions["begin"](key) for key in keys]
        stack = self._functions["stack"]
        self._keys, observations, self._states = stack(begun)
        self.observations = self._read(observations)
        self.lengths = np.zeros(self.count, np.int64)

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step of all worlds → (rewards, terminals, truncations) [N]; none begins anew."""
        result = self._functions["advance"](self._keys, self._states, actions)
        self._keys, observations, self._states, rewards, ended = result
        self.observations = self._read(observations)
        self.lengths += 1
        terminals = np.array(ended)
        return np.array(rewards, np.float32), terminals, (self.lengths >= self._limit) & ~terminals

    def restart(self, which: np.ndarray) -> None:
        """Begin some worlds anew; their randomness goes on."""
        observations = self.observations.copy()
        for k in which.tolist():
            key, observation, state = self._functions["begin"](self._keys[k])
            observations[k] = self._read(observation)
            self._keys, self._states = self._functions["place"](
                self._keys, self._states, key, state, k
            )
            self.lengths[k] = 0
        self.observations = observations

    def figures(self, k: int) -> dict[str, float]:
        """What was achieved in world k, as numbers."""
        done = np.asarray(self._states.achievements[k]).astype(float)
        each = {f"achievement_{n}": x for n, x in zip(self._achievements, done, strict=True)}
        score = float(np.exp(np.mean(np.log(1 + 100 * done))) - 1)
        return {"score": score, "achievements": float(done.sum()), **each}

    def draw(self, k: int) -> np.ndarray | None:
        """A picture of world k [height, width, 3] uint8."""
        if self._draw is None:
            return None
        with silenced():  # The first is compiled, and pictures of things are loaded.
            state = self._jax.tree.map(lambda x: x[k], self._states)
            return np.asarray(self._draw(state)).clip(0, 255).astype(np.uint8)

    def _read(self, observations: Any) -> np.ndarray:
        read = np.asarray(observations)
        return np.rint(read * 255).astype(np.uint8) if self._pixels else read


class Craftax(gymnasium.Env):
    """One world with Gymnasium's rules; the time limit is truncation."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, worlds: Worlds):
        self.render_mode = worlds.render_mode
        self.observation_space, self.action_space = worlds.observation_space, worlds.action_space
        self._worlds = worlds
        self._begun = False

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin a world → (observation, {}); without a seed its randomness goes on."""
        super().reset(seed=seed)
        if seed is not None or not self._begun:
            self._worlds.begin([self.np_random.integers(2**31) if seed is None else seed])
            self._begun = True
        else:
            self._worlds.restart(np.zeros(1, np.int64))
        return self._worlds.observations[0], {}

    def step(self, action):
        """One action → (observation, reward, terminated, truncated, info)."""
        rewards, terminals, truncations = self._worlds.advance(np.array([action], np.int32))
        ended = bool(terminals[0] or truncations[0])
        info = self._worlds.figures(0) if ended else {}
        flags = bool(terminals[0]), bool(truncations[0])
        return self._worlds.observations[0], float(rewards[0]), *flags, info

    def render(self):
        """One picture [height, width, 3] uint8."""
        return self._worlds.draw(0)


def _import_jax() -> Any:
    """JAX, on the CPU unless something else was chosen or already runs."""
    fresh = "jax" not in sys.modules and "JAX_PLATFORMS" not in os.environ
    jax = importlib.import_module("jax")
    if fresh:
        jax.config.update("jax_platforms", "cpu")
    return jax


@lru_cache(maxsize=8)
def _compile(task: str, parameters: tuple) -> dict[str, Any]:
    """The functions that step and begin worlds; JAX compiles them when they are first called."""
    jax = _import_jax()
    craftax = importlib.import_module("craftax.craftax_env")
    env = craftax.make_craftax_env_from_name(task, False)
    params = env.default_params.replace(max_timesteps=FOREVER, **dict(parameters))

    def strong(value, like):
        # Types that a reset left open, and a step settled, would have all compiled twice.
        if jax.numpy.issubdtype(like.dtype, jax.dtypes.prng_key):
            return value
        return jax.lax.convert_element_type(value, like.dtype)

    def begin(key):
        key, now = jax.random.split(key)
        observation, state = env.reset_env(now, params)
        state = jax.tree.map(jax.numpy.asarray, state)
        return key, observation, jax.tree.map(strong, state, state)

    def advance(key, state, action):
        key, now = jax.random.split(key)
        observation, after, reward, ended, _ = env.step_env(now, state, action, params)
        return key, observation, jax.tree.map(strong, after, state), reward, ended

    def place(keys, states, key, state, k):
        replaced = jax.tree.map(lambda all_, one: all_.at[k].set(one), states, state)
        return keys.at[k].set(key), replaced

    def stack(worlds):
        return jax.tree.map(lambda *parts: jax.numpy.stack(parts), *worlds)

    functions = {
        "begin": begin,
        "advance": jax.vmap(advance),
        "place": place,
        "stack": stack,
    }
    return {name: jax.jit(function) for name, function in functions.items()}
