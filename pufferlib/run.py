"""A run: its folder, what is written to it, how it continues, and how its policy is judged."""

from __future__ import annotations

import datetime
import inspect
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from pufferlib import checkpoint, models, ppo, vector
from pufferlib.checkpoint import Checkpoint
from pufferlib.clock import PHASES
from pufferlib.config import Config, validate
from pufferlib.dashboard import Dashboard, count, duration, export_svg, number
from pufferlib.exceptions import APIUsageError, CheckpointError
from pufferlib.logging import RunLogger, read_metrics, warn
from pufferlib.machine import keep_freed_memory, usable_cores
from pufferlib.native.core import Params
from pufferlib.registry import Entry
from pufferlib.threads import ThreadTuner
from pufferlib.vector.base import average_episodes

RUNS = Path("runs")
RECENT_EPISODES = 100
SNAPSHOT_S = 0.2
SMOOTHING = 0.3


# ---------------------------------------------------------------- what a run is made of


def make_vecenv(entry: Entry, config: Config, **options: Any) -> vector.VecEnv:
    """The environments of a run; `options` replace arguments of `vector.make`."""
    vec = config.vec
    arguments = {
        "env_kwargs": dict(config.env),
        "backend": vec.backend,
        "num_envs": vec.num_envs,
        "num_workers": vec.num_workers,
        "batch_size": vec.batch_size,
        "sync_traj": True,  # A rollout has the same number of steps of every environment.
        "seed": config.train.seed,
        "restart_workers": vec.restart_workers,
        "timeout": vec.timeout_s,
    }
    return vector.make(entry, **{**arguments, **options})


def make_policy(entry: Entry, config: Config, vecenv: vector.VecEnv) -> Any:
    """The network of a run, with weights drawn from the run's seed."""
    has_code = (entry.folder / "__init__.py").is_file()
    build = models.find_policy(config.policy.name, entry.module() if has_code else None)
    known = inspect.signature(build).parameters
    sizes = {"hidden_size": config.policy.hidden_size, "num_layers": config.policy.num_layers}
    torch.manual_seed(config.train.seed)
    return build(
        vecenv.single_observation_space,
        vecenv.single_action_space,
        **{name: value for name, value in sizes.items() if name in known},
    )


def find_checkpoint(which: str | Path, *, run_dir: str | Path = "", env_name: str) -> Path:
    """The folder of a checkpoint: `which` is one, a run's folder, or "latest".

    The latest is that of `run_dir`, else of the newest run of `env_name` below runs/.
    Raises: CheckpointError.
    """
    if str(which) != "latest":
        path = Path(which)
        return checkpoint.latest(path) if (path / "checkpoints").is_dir() else path
    return checkpoint.latest(run_dir) if run_dir else checkpoint.find_latest(RUNS, env_name)


# ---------------------------------------------------------------- training


class Stop(KeyboardInterrupt):
    """The user or the system asked to end: `signum` says how."""

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class StopRequests:
    """While active, the first SIGINT or SIGTERM asks for a stop and the second forces it."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _receive(self, signum: int, _: object) -> None:
        if self.signum is not None:
            raise Stop(signum, "stopped at once; the last checkpoint is kept")
        self.signum = signum


def train(entry: Entry, config: Config, *, resume: Path | None = None) -> dict[str, Any]:
    """Train as `config` says, or continue the checkpoint `resume`, into the run's folder.

    Returns: {"run_dir", "checkpoint", "step", "updates", "seconds", "score", "reason"}.
    Raises: Stop after SIGINT or SIGTERM, once the update under way is saved.
    """
    keep_freed_memory()
    if entry.is_native:  # The agents of others are counted, and checked, once they are made.
        agents = Params(entry.library, dict(config.env)).num_agents
        validate(config, config.vec.num_envs * agents)
    loaded = None if resume is None else checkpoint.load(resume, env_name=entry.name)
    config = replace(config, run=replace(config.run, dir=str(_claim_folder(entry, config, loaded))))
    vecenv = make_vecenv(entry, config)
    try:
        trainer = ppo.create(config, vecenv, make_policy(entry, config, vecenv))
        seconds = 0.0 if loaded is None else _restore(trainer, loaded)
        with (
            StopRequests() as requests,
            Dashboard(config) as dashboard,
            RunLogger(config.run.dir, tensorboard=config.run.tensorboard) as logger,
        ):
            if config.vec.backend == "auto" and not entry.is_native:
                dashboard.print(vecenv.choice)
            session = Session(trainer, logger, dashboard, requests, seconds=seconds)
            ppo.train(trainer, session.on_update)
            result = session.finish()
    finally:
        vecenv.close()
    if requests.signum is not None:
        raise Stop(
            requests.signum,
            f"stopped at step {trainer.step}; --resume continues from {result['checkpoint']}",
        )
    return result


class Session:
    """What happens after each update of a run: metrics, the dashboard, checkpoints, the end."""

    def __init__(
        self,
        trainer: ppo.Trainer,
        logger: RunLogger,
        dashboard: Dashboard,
        requests: StopRequests,
        *,
        seconds: float = 0.0,
    ):
        self._trainer, self._logger, self._dashboard = trainer, logger, dashboard
        self._requests = requests
        self._process = psutil.Process()
        self._config = trainer.config
        self._began = time.monotonic() - seconds
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._recent: deque[dict[str, float]] = deque()
        self._speed = self._episodes = 0.0
        self._metrics: Mapping[str, Any] = {}
        self._shown_at, self._shown_step = self._began + seconds, trainer.step
        self._logged_at = float("-inf")
        self._saved: Path | None = None
        self._saved_at = trainer.updates
        self._reason = "done"
        self._tuner: ThreadTuner | None = None
        free = self._config.train.threads == 0 and trainer.device.type == "cpu"
        if free and os.environ.get("MKL_CBWR") and torch.backends.mkl.is_available():
            self._tuner = ThreadTuner(usable_cores())

    @property
    def seconds(self) -> float:
        """Training time since the run began, interruptions left out."""
        return time.monotonic() - self._began

    def on_update(self, trainer: ppo.Trainer, metrics: Mapping[str, Any]) -> bool:
        """Take in an update's metrics; True ends the training."""
        self._metrics = metrics
        if self._tuner is not None:
            spent = metrics["seconds"]
            self._tuner.after_update(spent["inference"] + spent["update"])
        for phase, seconds in metrics["seconds"].items():
            self._spent[phase] += seconds
        self._remember(metrics["episodes"])
        if time.monotonic() - self._shown_at >= SNAPSHOT_S:
            self._show()
        interval = self._config.train.checkpoint_interval
        if interval and trainer.updates % interval == 0:
            try:
                self._save()
            except CheckpointError as error:
                warn(f"{error}; training goes on")
        return self._should_stop()

    def finish(self) -> dict[str, Any]:
        """Show and save the end of the training. Raises: CheckpointError."""
        if self._metrics:
            self._show(last=True)
        if self._saved is None or self._saved_at != self._trainer.updates:
            self._save()
        return {
            "run_dir": self._config.run.dir,
            "checkpoint": str(self._saved),
            "step": self._trainer.step,
            "updates": self._trainer.updates,
            "seconds": self.seconds,
            "score": self.recent().get(self._config.goal.metric),
            "reason": self._reason,
        }

    def recent(self) -> dict[str, float]:
        """Means over the last hundred episodes, or a few more."""
        return average_episodes(list(self._recent))

    def _remember(self, episodes: dict[str, float]) -> None:
        if not episodes["episodes"]:
            return
        self._episodes += episodes["episodes"]
        self._recent.append(episodes)
        known = sum(stats["episodes"] for stats in self._recent)
        while known - self._recent[0]["episodes"] >= RECENT_EPISODES:
            known -= self._recent.popleft()["episodes"]

    def _show(self, *, last: bool = False) -> None:
        trainer, metrics, now = self._trainer, self._metrics, time.monotonic()
        if trainer.step > self._shown_step:
            speed = (trainer.step - self._shown_step) / (now - self._shown_at)
            self._speed += SMOOTHING * (speed - self._speed) if self._speed else speed
        snapshot = {
            "performance/sps": self._speed,
            "performance/cpu": self._process.cpu_percent(),
            "performance/memory": self._process.memory_info().rss,
            "performance/learning_rate": metrics["learning_rate"],
            **{f"environment/{name}": value for name, value in self.recent().items()},
            "environment/episodes": int(self._episodes),
            **({"environment/restarts": restarts} if (restarts := trainer.vecenv.restarts) else {}),
            **{f"losses/{name}": value for name, value in metrics["losses"].items()},
            **{f"time/{phase}": seconds for phase, seconds in self._spent.items()},
        }
        position: dict[str, Any] = {
            "step": trainer.step,
            "update": trainer.updates,
            "seconds": self.seconds,
        }
        self._dashboard.update({**position, **snapshot})
        if last or now - self._logged_at >= self._config.run.log_interval_s:
            self._logger.log(snapshot, **position)
            self._logged_at = now
        self._shown_at, self._shown_step = now, trainer.step

    def _save(self) -> None:
        trainer, config = self._trainer, self._config
        space, action = trainer.vecenv.single_observation_space, trainer.vecenv.single_action_space
        self._saved = checkpoint.save(
            config.run.dir,
            step=trainer.step,
            policy_state=trainer.policy.state_dict(),
            trainer_state=trainer.state(),
            meta={
                "env_name": config.env_name,
                "update": trainer.updates,
                "seconds": self.seconds,
                "num_agents": trainer.vecenv.num_agents,
                "policy": f"{config.policy.name} of width {config.policy.hidden_size}",
                "spaces": f"{_describe(space)} to {_describe(action)}",
                "config": config.to_toml(),
            },
            keep=config.run.keep_checkpoints,
        )
        self._saved_at = trainer.updates

    def _should_stop(self) -> bool:
        train, goal = self._config.train, self._config.goal
        if self._requests.signum is not None:
            self._reason = "stopped"
        elif train.time_limit_s and self.seconds >= train.time_limit_s:
            self._reason = "time limit"
        elif train.stop_score is not None:
            recent = self.recent()
            enough = recent["episodes"] >= RECENT_EPISODES
            if enough and recent.get(goal.metric, -math.inf) >= train.stop_score:
                self._reason = "score"
        return self._reason != "done"


def summarize(result: Mapping[str, Any], config: Config) -> str:
    """The end of a training in one line."""
    score = result["score"]
    return (
        f"{config.env_name}: {count(result['step'])} steps in {duration(result['seconds'])}, "
        f"{config.goal.metric} {'-' if score is None else number(score)}, {result['checkpoint']}"
    )


def picture(run_dir: str | Path, *, width: int = 100) -> str:
    """The dashboard at the end of a run, drawn from its folder, as SVG."""
    config = Config.from_toml((Path(run_dir) / "config.toml").read_text(encoding="utf-8"))
    dashboard = Dashboard(config, stream=StringIO(), force=True, width=width)
    for line in read_metrics(run_dir):
        dashboard.update({name: value for name, value in line.items() if value is not None})
    return export_svg(dashboard, width=width)


def _claim_folder(entry: Entry, config: Config, loaded: Checkpoint | None) -> Path:
    """Make the run's folder and write the settings into it.

    Raises: CheckpointError if it holds another run, or cannot be written.
    """
    if config.run.dir:
        folder = Path(config.run.dir)
    elif loaded is not None:
        folder = loaded.path.parent.parent
    else:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        folder = RUNS / entry.name / f"{stamp}-{config.train.seed}"
        while folder.exists():
            folder = folder.with_name(folder.name + "+")
    root = folder / "checkpoints"
    taken = root.is_dir() and any(root.glob("[0-9]*"))
    if loaded is None and (taken or (folder / "metrics.jsonl").exists()):
        raise CheckpointError(
            f"{folder} already holds a run; --resume continues it, --run.dir names another folder"
        )
    if loaded is not None and taken:
        newest = checkpoint.latest(folder)
        if checkpoint.read_meta(newest)["step"] > loaded.step:
            raise CheckpointError(
                f"{folder} goes on to {newest.name} behind step {loaded.step}; continue from its "
                "latest, or name another folder with --run.dir"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / ".config.toml"
        temporary.write_text(
            replace(config, run=replace(config.run, dir=str(folder))).to_toml(), encoding="utf-8"
        )
        os.replace(temporary, folder / "config.toml")
    except OSError as error:
        raise CheckpointError(
            f"cannot write the run folder {folder}: {error.strerror}; name another with --run.dir"
        ) from error
    return folder


def _restore(trainer: ppo.Trainer, loaded: Checkpoint) -> float:
    """Continue `trainer` from a checkpoint; the training time until then, in seconds."""
    checkpoint.restore_policy(trainer.policy, loaded)
    state = dict(loaded.trainer_state)
    if "vecenv" in state and loaded.meta.get("num_agents") != trainer.vecenv.num_agents:
        warn("the number of agents changed, so the environments begin new episodes")
        del state["vecenv"]
    trainer.restore(state)
    return float(loaded.meta.get("seconds", 0.0))


def _describe(space: Any) -> str:
    name = type(space).__name__
    size = getattr(space, "n", None) or getattr(space, "nvec", None)
    return f"{name}{tuple(space.shape)}" if size is None else f"{name}({size})"


# ---------------------------------------------------------------- evaluation


def evaluate(
    entry: Entry,
    config: Config,
    *,
    loaded: Checkpoint | None,
    episodes: int,
    seed: int = 0,
    greedy: bool = False,
) -> dict[str, dict[str, float]]:
    """Play whole episodes → {"episode_return": {"mean", "std", "count"}, …}.

    `loaded` None takes uniformly random actions; `greedy` takes the likeliest action instead of
    sampling. Each agent plays as many episodes as the others and what it plays beyond is not
    counted, so that short episodes do not weigh more than long ones.
    """
    if episodes < 1:
        raise APIUsageError(f"episodes is {episodes}; expected at least 1")
    num_envs = min(episodes, config.vec.num_envs)
    vecenv = make_vecenv(entry, config, num_envs=num_envs, batch_size="auto", num_workers="auto")
    try:
        act = make_actor(entry, config, vecenv, loaded=loaded, seed=seed, greedy=greedy)
        rows, agents = vecenv.num_agents, vecenv.agents_per_env
        quotas = np.full(rows, episodes // rows)
        quotas[: episodes % rows] += 1
        records: list[dict[str, float]] = []
        observations, _ = vecenv.reset(seed)
        while quotas.any():
            observations, _, terminals, truncations, _ = vecenv.step(act(observations))
            counted = (terminals | truncations) & (quotas > 0)
            for record in vecenv.episodes():
                first = record["env"] * agents
                ended = first + np.flatnonzero(counted[first : first + agents])
                ended = ended[: int(record.get("episodes", 1))]
                quotas[ended] -= 1
                counted[ended] = False
                if len(ended):
                    records.append({**record, "episodes": len(ended)})
    finally:
        vecenv.close()
    return summarize_episodes(records)


def make_actor(
    entry: Entry,
    config: Config,
    vecenv: vector.VecEnv,
    *,
    loaded: Checkpoint | None,
    seed: int,
    greedy: bool = False,
):
    """A function from observations [A, *O] to actions [A, *D]: a trained policy, or chance."""
    if loaded is None:
        vecenv.action_space.seed(seed)
        return lambda observations: vecenv.action_space.sample()
    torch.set_num_threads(config.train.threads or usable_cores())
    device = ppo.choose_device(config.train.device)
    policy = make_policy(entry, config, vecenv).to(device).eval()
    checkpoint.restore_policy(policy, loaded)
    generator = torch.Generator(device).manual_seed(seed)
    distribution = policy.distribution
    shape = vecenv.single_action_space.shape
    noise = torch.zeros((vecenv.agents_per_batch, distribution.num_noise), device=device)

    @torch.no_grad()
    def act(observations: np.ndarray) -> np.ndarray:
        parameters, _ = policy(torch.from_numpy(observations).to(device))
        if greedy:
            actions = distribution.best(parameters)
        else:
            distribution.draw_noise(noise, generator)
            actions = distribution.sample(parameters, noise)
        return actions.to(distribution.action_dtype).cpu().numpy().reshape(-1, *shape)

    return act


def summarize_episodes(records: Iterable[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation and count of every number of some episode records.

    A record of several episodes weighs as many, and their spread within it is not known.
    """
    columns: dict[str, list[tuple[float, int]]] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("env", "agent", "episodes"):
                weight = int(record.get("episodes", 1))
                columns.setdefault(name, []).append((float(value), weight))
    summary = {}
    for name, column in columns.items():
        values, weights = np.array(column).T
        mean = np.average(values, weights=weights)
        deviation = np.sqrt(np.average((values - mean) ** 2, weights=weights))
        summary[name] = {"mean": float(mean), "std": float(deviation), "count": int(weights.sum())}
    return summary


def _frame_rate(entry: Entry, env: Any) -> float:
    """Pictures a second: what a native environment, or the metadata of another, says."""
    if entry.is_native:
        return env.params.frames_per_second
    metadata = getattr(getattr(env, "env", env), "metadata", None) or {}
    return metadata.get("render_fps", 30)


def record_gif(
    entry: Entry,
    config: Config,
    path: str | Path,
    *,
    loaded: Checkpoint | None,
    seed: int = 0,
    greedy: bool = False,
    max_frames: int = 1500,
) -> int:
    """Write the pictures of one episode to `path` and return their number.

    Raises: APIUsageError if the environment draws no pictures or pillow is missing.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise APIUsageError(
            'a gif needs pillow; install it with: pip install "pufferlib[pictures]"'
        ) from error
    options = {"render_mode": "rgb_array", **config.env}
    vecenv = make_vecenv(
        entry, config, env_kwargs=options, num_envs=1, batch_size="auto", num_workers="auto",
        backend="Serial",
    )  # fmt: skip
    frames: list[Any] = []
    try:
        act = make_actor(entry, config, vecenv, loaded=loaded, seed=seed, greedy=greedy)
        env: Any = vecenv.driver_env
        observations, _ = vecenv.reset(seed)
        over = False
        while not over and len(frames) < max_frames:
            picture = env.render()
            if not isinstance(picture, np.ndarray):
                raise APIUsageError(f"{entry.name} draws no pictures (render_mode rgb_array)")
            frames.append(Image.fromarray(picture))
            observations, _, terminals, truncations, _ = vecenv.step(act(observations))
            over = bool((terminals | truncations).all())
        rate = _frame_rate(entry, env)
    finally:
        vecenv.close()
    try:
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000 / rate, loop=0)
    except (OSError, ValueError) as error:
        raise APIUsageError(f"cannot write {path}: {error}") from error
    return len(frames)
