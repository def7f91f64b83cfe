"""Retro: console games through stable-retro; one that is free comes with it, Airstriker."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from pufferlib.adapters import refuse_unknown, shrink, silenced, to_gray
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

RENDER_MODES = (None, "rgb_array")
ACTIONS = {"discrete": "DISCRETE", "multi_discrete": "MULTI_DISCRETE", "buttons": "FILTERED"}
FRAMES_PER_SECOND = 60
ONE_PER_PROCESS = True  # `puffer check` then leaves out what needs several in one.


def make(
    game: str = "Airstriker-Genesis-v0",
    *,
    state: str | None = None,
    scenario: str | None = None,
    actions: str = "discrete",
    frame_skip: int = 4,
    shrink: int = 4,
    color: bool = False,
    max_episode_steps: int = 4500,
    noops: int = 30,
    render_mode: str | None = None,
) -> Retro:
    """A game whose ROM comes with stable-retro or was imported (python -m stable_retro.import).

    `state` and `scenario` are names of the game's own. `actions` are "discrete" (each combination
    of buttons that makes sense), "multi_discrete" or "buttons" (a bit each). An action is held
    for `frame_skip` frames. The screen is reduced by averaging `shrink` x `shrink` pixels and grey
    unless `color`. Up to `noops` frames, as the seed says, pass before an episode begins; episodes
    are truncated after `max_episode_steps`.
    Raises: ModuleNotFoundError without stable-retro; EnvironmentSetupError for a game whose ROM is
    not there; APIUsageError for unknown names, and for a second game in one process.
    """
    with silenced():
        import stable_retro

    refuse_unknown("game", [game], stable_retro.data.list_games())
    for what, given, known in (
        ("state", state, stable_retro.data.list_states(game)),
        ("scenario", scenario, stable_retro.data.list_scenarios(game)),
        ("kind of actions", actions, ACTIONS),
        ("render mode", render_mode, RENDER_MODES),
    ):
        if given is not None:
            refuse_unknown(f"{what} of {game}", [given], known)
    if frame_skip < 1 or max_episode_steps < 1 or noops < 0 or not 1 <= shrink <= 16:
        raise APIUsageError(
            f"frame_skip is {frame_skip}, max_episode_steps {max_episode_steps}, noops {noops} and "
            f"shrink {shrink}; expected at least 1, 1 and 0, and 1 to 16"
        )
    try:
        with silenced():
            emulator = stable_retro.make(
                game,
                state=stable_retro.State.DEFAULT if state is None else state,
                scenario=scenario,
                use_restricted_actions=stable_retro.Actions[ACTIONS[actions]],
                render_mode="rgb_array",
            )
    except FileNotFoundError as error:
        raise EnvironmentSetupError(
            f"the ROM of {game} is not there; import yours with: "
            "python -m stable_retro.import FOLDER"
        ) from error
    except RuntimeError as error:
        raise APIUsageError(
            "stable-retro runs one game per process, and this process has one that is not closed; "
            "put others into workers of their own: backend='Multiprocessing', num_workers=num_envs"
        ) from error
    return Retro(
        emulator,
        frame_skip=frame_skip,
        shrink=shrink,
        color=color,
        max_episode_steps=max_episode_steps,
        noops=noops,
        render_mode=render_mode,
    )


class Retro(gymnasium.Wrapper):
    """A game of stable-retro with frame skip, a small screen, seeds and a time limit.

    Observations are screens [H, W, C] uint8. Infos, at an episode's end only, are the game's own
    variables, such as its score. For the parameters see `make`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND}

    def __init__(
        self,
        emulator: Any,
        *,
        frame_skip: int,
        shrink: int,
        color: bool,
        max_episode_steps: int,
        noops: int,
        render_mode: str | None,
    ):
        super().__init__(emulator)
        self._frames, self._shrink, self._color = frame_skip, shrink, color
        self._limit, self._noops, self._render_mode = max_episode_steps, noops, render_mode
        self.metadata = self.metadata | {"render_fps": max(1, FRAMES_PER_SECOND // frame_skip)}
        height, width = emulator.observation_space.shape[:2]
        shape = (height // shrink, width // shrink, 3 if color else 1)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        space = emulator.action_space
        self._nothing: Any = 0 if isinstance(space, spaces.Discrete) else np.zeros(space.shape, int)

    @property
    def render_mode(self) -> str | None:
        """As given to `make`."""
        return self._render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin an episode from the state → (observation, {})."""
        screen, _ = self.env.reset(seed=seed)
        for _ in range(int(self.np_random.integers(self._noops + 1))):
            screen, *_ = self.env.step(self._nothing)
        self._steps = 0
        return self._observe(screen), {}

    def step(self, action):
        """Hold buttons for `frame_skip` frames → the five of Gymnasium."""
        total, terminated = 0.0, False
        for _ in range(self._frames):
            screen, reward, terminated, _, info = self.env.step(action)
            total += reward
            if terminated:
                break
        self._steps += 1
        truncated = self._steps >= self._limit and not terminated
        info = dict(info) if terminated or truncated else {}
        return self._observe(screen), total, terminated, truncated, info

    def render(self):
        """The screen [height, width, 3] uint8 before it is reduced."""
        return self.env.render().copy() if self._render_mode else None

    def close(self):
        """Switch it off, so that another may be made here; may be called more than once."""
        self.env.close()

    def _observe(self, screen: np.ndarray) -> np.ndarray:
        return shrink(screen if self._color else to_gray(screen), self._shrink)
