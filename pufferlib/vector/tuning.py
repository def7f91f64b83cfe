"""Which backend, how many environments and how many workers are fastest on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from pufferlib import registry
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError
from pufferlib.machine import usable_cores
from pufferlib.vector.base import VecEnv

SLOTS = (1, 2, 4)  # Batches under way at a time; 1 waits for every environment.
ACTION_BATCHES = 16
WORTH = 1.03  # A more complicated setting must be this much faster to be preferred.


@dataclass(frozen=True)
class Trial:
    """Arguments of `vector.make` and the agent steps per second that they gave."""

    arguments: Mapping[str, Any]
    speed: float


def autotune(
    env_creator,
    batch_size: int,
    *,
    max_envs: int = 256,
    max_workers: int | str = "auto",
    model_forward_s: float = 0.0,
    time_per_test: float = 5.0,
    env_args=None,
    env_kwargs=None,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Try the sensible arguments of `vector.make` for batches of `batch_size` environments.

    Args:
        env_creator, env_args, env_kwargs: as in `vector.make`, one for all environments.
        max_envs: most environments at a time; a larger `batch_size` is cut to it.
        max_workers: most processes or threads; 'auto' is as many as cores may be used.
        model_forward_s: seconds that your policy takes for a batch; environments that step
            meanwhile are then worth more.
        time_per_test: seconds for each setting.
        report: gets the lines of a table and the call that was fastest.

    Returns the arguments of `vector.make` that gave the most steps per second; a simpler setting
    wins where the difference is within 3 %.
    """
    for name, value in (("batch_size", batch_size), ("max_envs", max_envs)):
        if not isinstance(value, int) or value < 1:
            raise APIUsageError(f"{name} is {value!r}; expected a whole number of at least 1")
    if batch_size > max_envs:
        report(
            f"batch_size {batch_size} is more than max_envs {max_envs}; "
            f"trying batches of {max_envs} environments"
        )
        batch_size = max_envs
    workers = usable_cores() if max_workers == "auto" else int(max_workers)
    settings = list(_settings(batch_size, max_envs, workers, native=_is_native(env_creator)))
    report(f"{len(settings)} settings of {time_per_test:g} s each")
    report(_row("backend", "num_envs", "num_workers", "batch_size", "zero_copy", "steps/s"))
    best: Trial | None = None
    for arguments in settings:
        try:
            vecenv = _make(env_creator, env_args, env_kwargs, arguments)
        except EnvironmentSetupError as error:
            report(f"{_describe(arguments)}: {error}")
            continue
        try:
            trial = Trial(arguments, measure(vecenv, time_per_test, model_forward_s))
        finally:
            vecenv.close()
        columns = ("backend", "num_envs", "num_workers", "batch_size", "zero_copy")
        report(_row(*(arguments.get(name, "") for name in columns), f"{trial.speed:,.0f}"))
        if best is None or trial.speed > WORTH * best.speed:
            best = trial
    if best is None:
        raise EnvironmentSetupError("no setting could be made; see the lines above")
    report(f"fastest: vector.make(env_creator, {_describe(best.arguments)})")
    return dict(best.arguments)


def measure(vecenv: VecEnv, seconds: float, model_forward_s: float = 0.0) -> float:
    """Agent steps per second of a fresh vector with random actions, after a round to warm up."""
    vecenv.async_reset(0)
    actions = [vecenv.action_space.sample() for _ in range(ACTION_BATCHES)]
    for _ in range(2 * vecenv.num_envs // vecenv.batch_size):
        vecenv.recv()
        vecenv.send(actions[0])
    batches, began = 0, perf_counter()
    while batches < 2 or perf_counter() < began + seconds:
        vecenv.recv()
        if model_forward_s:
            time.sleep(model_forward_s)
        vecenv.send(actions[batches % ACTION_BATCHES])
        batches += 1
    return batches * vecenv.agents_per_batch / (perf_counter() - began)


def _settings(
    batch_size: int, max_envs: int, max_workers: int, *, native: bool
) -> Iterator[dict[str, Any]]:
    """Arguments of `vector.make` to try, simple ones first."""
    backend = "Native" if native else "Multiprocessing"
    if not native:
        yield {"backend": "Serial", "num_envs": batch_size, "batch_size": batch_size}
    counts = {2**k for k in range(max_workers.bit_length())} | {max_workers}
    for num_envs in (slots * batch_size for slots in SLOTS if slots * batch_size <= max_envs):
        for workers in sorted(counts):
            setting = {
                "backend": backend,
                "num_envs": num_envs,
                "num_workers": workers,
                "batch_size": batch_size,
            }
            share = num_envs // workers
            if native:
                yield setting
            elif num_envs % workers == 0 and batch_size % share == 0:
                yield setting | {"zero_copy": True}
                if share < batch_size < num_envs:
                    yield setting | {"zero_copy": False}


def _is_native(creator) -> bool:
    entry = registry.find(creator) if isinstance(creator, str | Path) else creator
    return isinstance(entry, registry.Entry) and entry.is_native


def _make(creator, args, kwargs, arguments: Mapping[str, Any]) -> VecEnv:
    from pufferlib import vector  # The package imports this module.

    return vector.make(creator, args, kwargs, **arguments)


def _describe(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _row(*cells: Any) -> str:
    return f"{cells[0]!s:<16}" + "".join(f"{cell!s:>13}" for cell in cells[1:])
