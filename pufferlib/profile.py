"""Where the time of a training run goes, and what to change about it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pufferlib import ppo
from pufferlib.clock import Clock
from pufferlib.exceptions import APIUsageError
from pufferlib.machine import usable_cores
from pufferlib.native_env import NativeEnv
from pufferlib.vector import Multiprocessing, Native, Serial

ACTIVITIES = ("environment", "waiting", "inference", "copies", "learning", "other")
NAMES = {"copy": "copies", "advantage": "learning", "update": "learning"}  # Of the trainer's laps.
LARGE_BATCH, LARGE_MINIBATCH = 256, 4096  # Rows from which a call of the policy is worth its price.
LEAST_SHARE = 0.4  # Of the policy, from which other thread counts are tried, and
WORTHWHILE = 1.15  # how much faster one must be to be advised.
UNEVEN = 1.5  # Slowest worker over the mean, from which its environments are to blame.


@dataclass
class Recorder(Clock):
    """A trainer's clock that also keeps each lap as (phase, begin, end), in seconds."""

    laps: list[tuple[str, float, float]] = field(default_factory=list)

    def lap(self, phase: str) -> None:
        """Count the time since the last lap as `phase`, and keep it."""
        begin = self.last
        super().lap(phase)
        self.laps.append((phase, begin, self.last))


@dataclass(frozen=True)
class Track:
    """One process or one activity after another: `spans` are (activity, begin, end), in seconds
    from the begin of the measurement; what lies between them is idle."""

    name: str
    spans: list[tuple[str, float, float]]

    def seconds(self) -> dict[str, float]:
        """Seconds of each activity."""
        totals = dict.fromkeys(ACTIVITIES, 0.0)
        for activity, begin, end in self.spans:
            totals[activity] += end - begin
        return totals


@dataclass(frozen=True)
class Setup:
    """What the verdict has to know of the run that was measured. With `trial_threads` of torch
    the policy was `trial_speedup` times as fast as with those of the run, where that was tried."""

    env_name: str
    backend: str
    is_native: bool
    num_envs: int
    num_agents: int
    batch_size: int
    num_workers: int
    cores: int
    trial_threads: int
    trial_speedup: float
    device: str
    has_gpu: bool
    update_epochs: int
    minibatch_size: int
    hidden_size: int


@dataclass(frozen=True)
class Profile:
    """The measurement: a track of the main process, one of each worker, and the ends of updates."""

    setup: Setup
    steps: int
    seconds: float
    updates: list[float]
    main: Track
    workers: list[Track]

    @property
    def shares(self) -> dict[str, float]:
        """Share of the time that the main process spends on each activity."""
        return {name: s / self.seconds for name, s in self.main.seconds().items()}

    @property
    def busy(self) -> list[float]:
        """Share of the time that each worker steps environments."""
        return [track.seconds()["environment"] / self.seconds for track in self.workers]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the spans, in plain values."""
        bottleneck, verdict = judge(self.setup, self.shares, self.busy)
        return {
            "setup": asdict(self.setup),
            "updates": len(self.updates),
            "steps": self.steps,
            "seconds": self.seconds,
            "steps_per_second": self.steps / self.seconds,
            "main": self.main.seconds(),
            "shares": self.shares,
            "workers": [{"environment": s, "idle": 1 - s} for s in self.busy],
            "bottleneck": bottleneck,
            "verdict": verdict,
        }

    def table(self) -> str:
        """The shares of all processes as text, and the verdict."""
        setup = self.setup
        lines = [
            f"{setup.env_name}: {len(self.updates)} updates, {self.steps:,} steps in "
            f"{self.seconds:.2f} s, {self.steps / self.seconds:,.0f} steps/s; {setup.backend}, "
            f"{setup.num_envs} environments",
            "",
            f"{'':<12}" + "".join(f"{name:>12}" for name in (*ACTIVITIES, "idle")),
            _row("main", [*self.shares.values(), 0.0]),
        ]
        for track, busy in zip(self.workers, self.busy, strict=True):
            lines.append(_row(track.name, [busy, *[0.0] * 5, max(0.0, 1 - busy)]))
        return "\n".join([*lines, "", judge(setup, self.shares, self.busy)[1]])

    def write_trace(self, path: str | Path) -> None:
        """Write the spans as Trace Event JSON, which ui.perfetto.dev and chrome://tracing show.

        Raises: APIUsageError if the file cannot be written.
        """
        events = list(self._events())
        try:
            text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise APIUsageError(f"cannot write {path}: {error.strerror}") from error

    def _events(self) -> Iterator[dict[str, Any]]:
        begins = [0.0, *self.updates[:-1]]
        ends = [
            (f"update {k + 1}", b, e)
            for k, (b, e) in enumerate(zip(begins, self.updates, strict=True))
        ]
        yield _named("process_name", 0, f"puffer profile {self.setup.env_name}")
        tracks = [Track("main", [*ends, *self.main.spans]), *self.workers]
        for thread, track in enumerate(tracks):
            yield _named("thread_name", thread, track.name)
            yield {**_named("thread_sort_index", thread, ""), "args": {"sort_index": thread}}
            for name, begin, end in track.spans:
                yield {
                    "name": name, "cat": track.name, "ph": "X", "pid": 1, "tid": thread,
                    "ts": 1e6 * begin, "dur": 1e6 * (end - begin),
                }  # fmt: skip


def measure(trainer: ppo.Trainer, *, updates: int = 10, warmup: int = 2) -> Profile:
    """Run `warmup` updates and then measure `updates` more.

    Raises: APIUsageError for fewer than one update.
    """
    if updates < 1 or warmup < 0:
        raise APIUsageError(
            f"updates is {updates} and warmup {warmup}; expected at least 1 and at least 0"
        )
    vecenv, clock = trainer.vecenv, Recorder()
    trainer.clock = clock
    workers = vecenv if isinstance(vecenv, Multiprocessing) else None
    for _ in range(warmup):
        trainer.advance()
    if workers:
        workers.spans()
    clock.laps.clear()
    clock.last = start = time.perf_counter()
    ends: list[float] = []
    orders: list[list[np.ndarray]] = [[] for _ in range(workers.num_workers if workers else 0)]
    first_step = trainer.step
    for _ in range(updates):
        trainer.advance()
        ends.append(clock.last - start)
        for kept, new in zip(orders, workers.spans() if workers else [], strict=True):
            kept.append(new)
    names = NAMES | ({"environment": "waiting"} if workers else {})
    laps = [(names.get(p, p), begin - start, end - start) for p, begin, end in clock.laps]
    main, steps = Track("main", laps), trainer.step - first_step
    return Profile(
        setup=_describe(trainer, _try_threads(trainer, main.seconds(), updates)),
        steps=steps,
        seconds=ends[-1],
        updates=ends,
        main=main,
        workers=[_worker_track(k, spans, start, ends[-1]) for k, spans in enumerate(orders)],
    )


def judge(setup: Setup, shares: dict[str, float], busy: list[float]) -> tuple[str, str]:
    """What is the bottleneck, in one word, and in one sentence what it costs and what to change.

    `shares` of the main process; `busy` shares of the workers.
    """
    groups = {
        "environment": shares["environment"] + shares["waiting"],
        "policy": shares["inference"] + shares["learning"],
        "copies": shares["copies"],
        "other": shares["other"],
    }
    bottleneck = max(groups, key=lambda name: groups[name])
    share = groups[bottleneck]
    advice = {
        "environment": lambda: _speed_up_environment(setup, shares["waiting"], busy),
        "policy": lambda: _speed_up_policy(setup, shares),
        "copies": lambda: "make observations smaller, for example of bytes instead of floats",
        "other": lambda: "log and save less often (--run.log-interval-s)",
    }[bottleneck]()
    noun = {"environment": "The environment", "policy": "The policy", "copies": "Copying"}
    return bottleneck, (
        f"{noun.get(bottleneck, 'What is neither environment nor policy')} is the bottleneck, "
        f"{100 * share:.0f} % of the time: {advice}."
    )


def _speed_up_environment(setup: Setup, waiting: float, busy: list[float]) -> str:
    """What to change where the environment is the bottleneck."""
    if not busy:
        if setup.is_native and setup.backend != "Native":
            return "step it natively (--vec.backend auto)"
        if min(setup.cores, setup.num_envs) > setup.num_workers:
            workers = min(setup.cores, setup.num_envs)
            return f"step it on {workers} workers (--vec.num-workers {workers})"
        return "make its step cheaper, or give it more cores"
    slowest, mean = max(busy), sum(busy) / len(busy)
    if slowest < 0.5 * waiting:
        return (
            f"its workers step for only {100 * slowest:.0f} % of the time, so most of the wait is "
            "the way to them; give each more environments (--vec.num-envs) or use none "
            "(--vec.backend Serial)"
        )
    if slowest > UNEVEN * mean:
        return (
            f"worker {busy.index(slowest)} takes {slowest / mean:.1f} times as long as the mean "
            "and the others wait for it; put its slow environments among the quick ones"
        )
    if len(busy) < min(setup.cores, setup.num_envs):
        workers = min(setup.cores, setup.num_envs)
        return f"use more workers (--vec.num-workers {workers})"
    if setup.batch_size == setup.num_envs and setup.num_envs % 2 == 0 and len(busy) % 2 == 0:
        return (
            "let the policy work while half of the environments step "
            f"(--vec.batch-size {setup.num_envs // 2})"
        )
    return "make its step cheaper, or give it more cores"


def _speed_up_policy(setup: Setup, shares: dict[str, float]) -> str:
    """What to change where the policy is the bottleneck."""
    learning = shares["learning"] >= shares["inference"]
    part = f"{'learning' if learning else 'choosing actions'} takes most of it; "
    if setup.device == "cpu" and setup.has_gpu:
        return part + "use the GPU (--train.device cuda)"
    if setup.trial_speedup > WORTHWHILE:
        threads = f"{setup.trial_threads} thread{'s' if setup.trial_threads > 1 else ''}"
        return part + (
            f"give torch {threads} (--train.threads {setup.trial_threads}), with which it was "
            f"{setup.trial_speedup:.1f} times as fast"
        )
    rows = setup.batch_size * setup.num_agents // setup.num_envs
    if not learning and rows < LARGE_BATCH:
        return part + f"give it more rows than {rows} at once (--vec.num-envs, --vec.batch-size)"
    if learning and setup.minibatch_size < LARGE_MINIBATCH:
        return part + (
            f"use larger minibatches than {setup.minibatch_size} rows (--train.minibatch-size)"
        )
    if learning and setup.update_epochs > 1:
        return part + (
            f"use fewer epochs than {setup.update_epochs} (--train.update-epochs) or a smaller "
            "network (--policy.hidden-size)"
        )
    return part + f"use a network narrower than {setup.hidden_size} (--policy.hidden-size)"


def _try_threads(
    trainer: ppo.Trainer, seconds: dict[str, float], updates: int
) -> tuple[int, float]:
    """Another number of torch's threads, one or all cores, and how many times as fast the policy
    is with it, by one more update; not tried where the policy takes little or runs on a GPU.

    More are often slower: they wait for each other, and workers want the same cores.
    """
    now, cores = torch.get_num_threads(), usable_cores()
    policy = (seconds["inference"] + seconds["learning"]) / updates
    other = cores if now == 1 else 1
    share = policy * updates / sum(seconds.values())
    if other == now or trainer.device.type != "cpu" or share < LEAST_SHARE:
        return now, 1.0
    torch.set_num_threads(other)
    try:
        laps = trainer.advance()["seconds"]
    finally:
        torch.set_num_threads(now)
    return other, policy / (laps["inference"] + laps["advantage"] + laps["update"])


def _describe(trainer: ppo.Trainer, trial: tuple[int, float]) -> Setup:
    vecenv, config = trainer.vecenv, trainer.config
    serial = isinstance(vecenv, Serial)
    return Setup(
        env_name=config.env_name,
        backend=type(vecenv).__name__,
        is_native=isinstance(vecenv.driver_env if serial else vecenv, Native | NativeEnv),
        num_envs=vecenv.num_envs,
        num_agents=vecenv.num_agents,
        batch_size=vecenv.batch_size,
        num_workers=vecenv.num_workers if isinstance(vecenv, Multiprocessing | Native) else 1,
        cores=usable_cores(),
        trial_threads=trial[0],
        trial_speedup=trial[1],
        device=trainer.device.type,
        has_gpu=torch.cuda.is_available(),
        update_epochs=config.train.update_epochs,
        minibatch_size=config.train.minibatch_size,
        hidden_size=config.policy.hidden_size,
    )


def _worker_track(k: int, spans: list[np.ndarray], start: float, seconds: float) -> Track:
    """The orders of one worker within the measurement."""
    times = np.concatenate(spans).reshape(-1, 2) / 1e9 - start
    times = np.clip(times, 0.0, seconds)
    kept = times[times[:, 1] > times[:, 0]].tolist()
    return Track(f"worker {k}", [("environment", begin, end) for begin, end in kept])


def _row(name: str, shares: list[float]) -> str:
    return f"{name:<12}" + "".join(f"{100 * share:>10.0f} %" for share in shares)


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
