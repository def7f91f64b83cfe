"""The trainer under the names of CleanRL's `ppo.py`: `train(Config(…), vec_env, policy)`.

Two things differ from that script: minibatches are whole segments (`num_steps` rows of one agent)
instead of single rows, and a truncated episode is bootstrapped from its final observation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pufferlib import config as _config
from pufferlib import ppo
from pufferlib.exceptions import ConfigError
from pufferlib.vector import VecEnv
from pufferlib.vector.base import average_episodes

RECENT_EPISODES = 100
LINES = 20  # Printed in the course of a training, evenly spaced.


@dataclass(frozen=True, kw_only=True)
class Config:
    """CleanRL's settings for PPO, with CleanRL's defaults."""

    total_timesteps: int = 500_000  # Agent steps to train for.
    learning_rate: float = 2.5e-4  # Step size of Adam.
    num_steps: int = 128  # Steps of each agent per update.
    anneal_lr: bool = True  # Lower the learning rate linearly to zero.
    gamma: float = 0.99  # Discount per step.
    gae_lambda: float = 0.95  # Decay of the advantage estimate.
    num_minibatches: int = 4  # Gradient steps per pass; divides the number of agents.
    update_epochs: int = 4  # Passes over the rows of an update.
    norm_adv: bool = True  # Scale advantages to mean 0, deviation 1 per minibatch.
    clip_coef: float = 0.2  # The probability ratio is clipped to 1 plus or minus this.
    clip_vloss: bool = True  # Clip the change of a value likewise.
    ent_coef: float = 0.01  # Weight of the entropy bonus.
    vf_coef: float = 0.5  # Weight of the value loss.
    max_grad_norm: float = 0.5  # Gradients are scaled down to this norm.
    target_kl: float | None = None  # Ends an update's epochs above this divergence.
    seed: int = 1  # Root of the randomness of environments and sampling.
    cuda: bool = True  # Use a GPU if there is one.


@dataclass(frozen=True)
class Result:
    """What a training came to.

    `score` is the mean return of the last hundred episodes, None if none ended; `curve` holds
    (step, score) after each update in which an episode ended.
    """

    policy: Any
    score: float | None
    steps: int
    episodes: int
    seconds: float
    curve: tuple[tuple[int, float], ...]


def train(
    config: Config,
    vec_env: VecEnv,
    policy: Any,
    *,
    report: Callable[[str], None] | None = print,
) -> Result:
    """Train `policy` (see `pufferlib.models`) in place on the environments of `vec_env`.

    The vector stays open. `report` gets a line of text about twenty times; None is silent.
    Raises ConfigError for a setting that does not fit, before anything is stepped.
    """
    trainer = ppo.create(translate(config, vec_env.num_agents), vec_env, policy)
    progress = Progress(config.total_timesteps, report)
    ppo.train(trainer, progress.on_update)
    return Result(
        policy=trainer.policy,
        score=progress.score(),
        steps=trainer.step,
        episodes=progress.episodes,
        seconds=progress.seconds(),
        curve=tuple(progress.curve),
    )


def translate(config: Config, num_agents: int) -> _config.Config:
    """The same settings in our own names, for `num_agents` rows. Raises ConfigError."""
    parts, steps = config.num_minibatches, config.num_steps
    if not isinstance(parts, int) or parts < 1 or num_agents % parts:
        fits = [n for n in range(1, num_agents + 1) if num_agents % n == 0]
        raise ConfigError(
            f"num_minibatches is {parts!r} for {num_agents} agents; a minibatch is the segments of "
            f"equally many agents, so expected one of {', '.join(map(str, fits))}"
        )
    same = "total_timesteps learning_rate anneal_lr gamma gae_lambda update_epochs clip_coef"
    names = [*same.split(), "ent_coef", "vf_coef", "max_grad_norm", "seed"]
    settings = {f"train.{name}": getattr(config, name) for name in names} | {
        "train.horizon": steps,
        "train.minibatch_size": num_agents // parts * steps,
        "train.normalize_advantage": config.norm_adv,
        "train.vf_clip_coef": config.clip_coef if config.clip_vloss else 0.0,
        "train.target_kl": config.target_kl or 0.0,
        "train.device": "auto" if config.cuda else "cpu",
    }
    return _config.Config().override(settings, source="cleanrl.Config")


@dataclass
class Progress:
    """Episodes of a training under way, and the lines that tell of them."""

    total: int
    report: Callable[[str], None] | None
    episodes: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    _recent: deque[dict] = field(default_factory=deque)
    _began: float = field(default_factory=time.perf_counter)
    _lines: int = 0

    def seconds(self) -> float:
        """Time since the training began."""
        return time.perf_counter() - self._began

    def score(self) -> float | None:
        """Mean return of the last hundred episodes, or a few more."""
        return average_episodes(list(self._recent)).get("episode_return")

    def on_update(self, trainer: ppo.Trainer, metrics: Mapping[str, Any]) -> None:
        """Take in what an update came to, and tell of it when it is time."""
        ended = metrics["episodes"]
        if ended["episodes"]:
            self._recent.append(ended)
            self.episodes += int(ended["episodes"])
            known = sum(stats["episodes"] for stats in self._recent)
            while known - self._recent[0]["episodes"] >= RECENT_EPISODES:
                known -= self._recent.popleft()["episodes"]
            if (score := self.score()) is not None:
                self.curve.append((trainer.step, score))
        due = trainer.step * LINES // self.total
        if self.report is not None and (due > self._lines or trainer.done):
            self._lines = due
            score = self.score()
            self.report(
                f"step {trainer.step:,} of {self.total:,}  return "
                f"{'-' if score is None else f'{score:.4g}'}  "
                f"{trainer.step / self.seconds():,.0f} steps/s"
            )
