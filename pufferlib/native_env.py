"""A compiled environment header as a `PufferEnv`: one world, or several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError
from pufferlib.native.build import compile_env
from pufferlib.native.core import Library, Params, Worlds
from pufferlib.seeding import env_seeds, fresh_seed

RENDER_MODES = ("rgb_array", "ansi", "human")


def load_library(folder: str | Path) -> Library:
    """The library of the environment in `folder`, compiled if need be."""
    return Library(compile_env(folder))


def observation_space(params: Params) -> spaces.Box:
    """The Box that one agent of these parameters observes."""
    dtype, shape, low, high = params.observation
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


def action_space(params: Params) -> spaces.Space:
    """Discrete, MultiDiscrete or Box: what one agent of these parameters does."""
    kind, *bounds = params.action
    if kind == "continuous":
        low, high = (np.asarray(b, np.float32) for b in bounds)
        return spaces.Box(low, high, dtype=np.float32)
    return spaces.Discrete(bounds[0][0]) if len(bounds[0]) == 1 else spaces.MultiDiscrete(bounds[0])


def name_episodes(params: Params, rows) -> list[dict]:
    """Episode records (means where one world ended several) from `Worlds.drain`."""
    names = ["episode_return", "episode_length", *(name for name, _ in params.library.log_fields)]
    return [
        {"env": env, "episodes": int(count)}
        | {name: total / count for name, total in zip(names, sums, strict=True)}
        for env, count, *sums in rows
    ]


class NativeEnv(PufferEnv):
    """`num_envs` worlds of a native environment as one PufferEnv.

    `library` from `load_library` (or a folder); `params` are the environment's own parameters.
    `render_mode` is None, 'rgb_array', 'ansi' or 'human'.
    """

    def __init__(
        self,
        library: Library | str | Path,
        num_envs: int = 1,
        *,
        buf=None,
        render_mode=None,
        **params,
    ):
        if not isinstance(library, Library):
            library = load_library(library)
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise APIUsageError(
                f"render_mode is {render_mode!r}; expected None or one of {', '.join(RENDER_MODES)}"
            )
        self.params = Params(library, params)
        self.single_observation_space = observation_space(self.params)
        self.single_action_space = action_space(self.params)
        self.num_envs = num_envs
        self.num_agents = num_envs * self.params.num_agents
        self.render_mode = render_mode
        self._window: Any = None
        super().__init__(buf)

    def rebind(self, buf):
        super().rebind(buf)
        ids = np.arange(self.num_agents)
        self.worlds = Worlds(self.params, buf, self.num_envs, self.num_envs, 1, ids)

    def reset(self, seed: int | None = None):
        if seed is None:
            seed = fresh_seed()
        seeds = [seed] if self.num_envs == 1 else env_seeds(seed, self.num_envs)
        self.worlds.start_reset(np.asarray(seeds, np.uint64))
        return self.worlds.recv()[0], []

    def step(self, actions):
        self.worlds.send(actions)
        return self.worlds.recv()[:5]

    def episodes(self) -> list[dict]:
        """One record for each world in which an episode ended since the last call."""
        return name_episodes(self.params, self.worlds.drain())

    def get_state(self) -> bytes:
        """Everything the future depends on but the rows; `set_state` continues from it."""
        return self.worlds.get_state()

    def set_state(self, state: bytes) -> None:
        self.worlds.set_state(state)

    def world_states(self) -> np.ndarray:
        states = b"".join(self.worlds.world_state(k) for k in range(self.num_envs))
        return np.frombuffer(states, np.uint8).reshape(self.num_envs, -1)

    def render(self, env: int = 0):
        """World `env`: pixels [height, width, 3] uint8, text, or a window, by `render_mode`."""
        pixels = np.empty(self.params.canvas_shape, np.uint8)
        self.worlds.draw(env, pixels)
        if self.render_mode == "ansi":
            return picture_to_text(pixels)
        if self.render_mode != "human":
            return pixels
        if self._window is None:
            from pufferlib.window import Window

            self._window = Window(self.params.library.name)
        self._window.show(pixels)
        return None

    def close(self):
        if self._window is not None:
            self._window.close()
            self._window = None
        self.worlds.shut()


def picture_to_text(pixels: np.ndarray, *, columns: int = 80) -> str:
    """Pixels [height, width, 3] as coloured half-block characters, at most `columns` wide.

    Each character shows the brightest pixel of two blocks, so that thin lines do not vanish.
    """
    height, width = pixels.shape[:2]
    block = max(1, -(-width // columns))
    height -= height % (2 * block)
    width -= width % block
    cut = pixels[:height, :width].reshape(height // block, block, width // block, block, 3)
    flat = cut.transpose(0, 2, 1, 3, 4).reshape(height // block, width // block, -1, 3)
    brightest = flat.sum(-1, dtype=np.int32).argmax(-1)
    cells = np.take_along_axis(flat, brightest[..., None, None], 2)[:, :, 0]
    lines = []
    for top, bottom in zip(cells[::2], cells[1::2], strict=True):
        line, last = [], None
        for a, b in zip(top.tolist(), bottom.tolist(), strict=True):
            if (a, b) != last:
                line.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*a, *b))
                last = (a, b)
            line.append("▀")
        lines.append("".join(line) + "\x1b[0m")
    return "\n".join(lines)
