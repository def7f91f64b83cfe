"""Vectorization: `make` puts many environments behind one batch of rows."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pufferlib.emulation  # noqa: F401  (the founding snippets use it after importing this)
from pufferlib import registry
from pufferlib.exceptions import APIUsageError
from pufferlib.machine import usable_cores
from pufferlib.vector.base import VecEnv, check_sizes
from pufferlib.vector.conformance import check_backend
from pufferlib.vector.creation import find_home, list_factories
from pufferlib.vector.multiprocessing import Multiprocessing, best_workers
from pufferlib.vector.native import Native
from pufferlib.vector.ray import Ray
from pufferlib.vector.serial import Serial
from pufferlib.vector.tuning import autotune

if TYPE_CHECKING:
    from pufferlib.vector.adoption import adopt
    from pufferlib.vector.gymnasium import GymnasiumVectorEnv
    from pufferlib.vector.stable_baselines import to_stable_baselines

__all__ = [
    "GymnasiumVectorEnv",
    "Multiprocessing",
    "Native",
    "Ray",
    "Serial",
    "VecEnv",
    "adopt",
    "autotune",
    "check_backend",
    "make",
    "to_stable_baselines",
]

BACKENDS = {
    "Multiprocessing": Multiprocessing,
    "Native": Native,
    "Ray": Ray,
    "Serial": Serial,
}

# Front ends of other libraries are imported when asked for: they need Gymnasium 1.1, and a worker
# under another interpreter may have less.
FRONT_ENDS = {
    "GymnasiumVectorEnv": "gymnasium",
    "adopt": "adoption",
    "to_stable_baselines": "stable_baselines",
}

PROBE_STEPS, PROBE_S = 20, 1.0
WORKERS_COST_US = 20.0  # What orders and answers add to a batch, by benchmarks/bench_vector.py.
WORTHWHILE = 1.2  # Workers must be that much faster to be worth their start and their memory.


def make(
    env_creator_or_creators,
    env_args=None,
    env_kwargs=None,
    backend="auto",
    num_envs: int = 1,
    seed: int | None = None,
    *,
    num_workers: int | str = "auto",
    batch_size: int | str = "auto",
    zero_copy: bool = True,
    sync_traj: bool = False,
    overwork: bool = False,
    timeout: float = 60.0,
    restart_workers: int = 0,
    python: str | Path | None = None,
) -> VecEnv:
    """Put `num_envs` environments behind one batch of rows.

    Args:
        env_creator_or_creators: a registered name ('breakout'), an environment's folder, a
            callable that returns an environment (PufferEnv, Gymnasium, PettingZoo or old
            Gym), or a list of those of length `num_envs`.
        env_args, env_kwargs: arguments of the creator; one set for all, or a list of `num_envs`.
        backend: 'auto', a backend's name or its class. 'auto' takes Native for a native
            environment, the vector of an environment that has its own (`make_vector` in its
            folder, put behind `adopt`), and otherwise what is faster, Serial or Multiprocessing;
            `choice` of the result says why. Where sizes leave it open, one environment is timed
            for some steps.
        seed: what `async_reset()` without a seed uses; None is really random.
        num_workers: threads of Native and of an environment's own vector, processes of
            Multiprocessing.
        batch_size: environments that one `recv` returns; 'auto' is all of them.
        zero_copy, sync_traj, overwork, timeout, restart_workers, python: see Multiprocessing;
            other backends have no use for them.

    Raises `APIUsageError` for anything that does not fit together, before anything starts.
    """
    backend = _find_backend(backend)
    single = not isinstance(env_creator_or_creators, list | tuple)
    sizes: dict[str, Any] = {"num_workers": num_workers, "batch_size": batch_size}
    if single and backend in ("auto", Native) and python is None:
        entry = _find_native(env_creator_or_creators)
        plain = env_args is None and (env_kwargs is None or isinstance(env_kwargs, Mapping))
        if entry is not None and plain:
            native = Native(entry.library, dict(env_kwargs or {}), num_envs, **sizes)
            return _finish(native, seed, f"Native: {entry.name} is compiled")
    if backend == "auto" and single and python is None and env_args is None:
        own = _find_own_vector(env_creator_or_creators, env_kwargs, num_envs, **sizes)
        if own is not None:
            from pufferlib.vector.adoption import adopt

            return _finish(adopt(own), seed, f"{type(own).__name__}: the environment's own vector")
    if backend is Native:
        raise APIUsageError(
            "backend Native runs one native environment with one set of parameters; for "
            f"{env_creator_or_creators!r} use Serial"
        )
    factories = list_factories(env_creator_or_creators, env_args, env_kwargs, num_envs)
    choice = f"{getattr(backend, '__name__', backend)}: it was asked for"
    if python is None and backend in ("auto", Multiprocessing):
        python = find_home(factories)
        if python is not None and backend == "auto":
            backend, choice = Multiprocessing, f"Multiprocessing: the environments need {python}"
    if backend == "auto":
        check_sizes(num_envs, batch_size)
        backend, choice = _choose(factories, num_workers, batch_size, python)
    if backend is Serial:
        if python is not None:
            raise APIUsageError("python= needs worker processes; use backend='Multiprocessing'")
        return _finish(Serial(factories, **sizes), seed, choice)
    if backend is Ray:
        ray = Ray(factories, **sizes, sync_traj=sync_traj, overwork=overwork, timeout=timeout)
        return _finish(ray, seed, choice)
    vecenv = Multiprocessing(
        factories,
        **sizes,
        zero_copy=zero_copy,
        sync_traj=sync_traj,
        overwork=overwork,
        timeout=timeout,
        restart_workers=restart_workers,
        python=python,
    )
    return _finish(vecenv, seed, choice)


def _choose(factories, num_workers, batch_size, python):
    """The faster backend for Python environments, and why."""
    num_envs, cores = len(factories), usable_cores()
    if python is not None:
        return Multiprocessing, "Multiprocessing: python= asks for workers of another interpreter"
    if num_workers != "auto":
        if num_workers == 1:
            return Serial, "Serial: one worker would only add the way to it"
        return Multiprocessing, f"Multiprocessing: num_workers = {num_workers} was asked for"
    if num_envs == 1 or cores == 1:
        what = "environment" if num_envs == 1 else "core"
        return Serial, f"Serial: there is one {what}"
    batch_size = num_envs if batch_size == "auto" else batch_size
    workers = best_workers(num_envs, batch_size, cores)
    if workers < 2:
        return Serial, f"Serial: batches of {batch_size} of {num_envs} do not suit {cores} cores"
    step_us = _time_step(factories[0])
    alone = num_envs * step_us
    shared = alone / workers + WORKERS_COST_US
    backend = Multiprocessing if alone > WORTHWHILE * shared else Serial
    return backend, (
        f"{backend.__name__}: a step takes {step_us:.3g} µs, those of {num_envs} environments "
        f"{alone:,.0f} µs in this process and about {shared:,.0f} µs on {workers} workers"
    )


def _time_step(factory) -> float:
    """Microseconds that one step of an environment takes, episodes' ends included."""
    env = factory()
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        actions = [env.action_space.sample() for _ in range(PROBE_STEPS)]
        start = now = time.perf_counter()
        steps = 0
        while steps < PROBE_STEPS and now - start < PROBE_S:
            env.step(actions[steps])
            steps += 1
            now = time.perf_counter()
    finally:
        env.close()
    return 1e6 * (now - start) / steps


def _find_backend(backend):
    if backend == "auto" or backend in BACKENDS.values():
        return backend
    if backend in BACKENDS:
        return BACKENDS[backend]
    near = get_close_matches(str(backend), list(BACKENDS), 1, 0.4)
    raise APIUsageError(
        f"no backend {backend!r}; expected 'auto' or one of {', '.join(BACKENDS)}"
        + (f" (did you mean {near[0]!r}?)" if near else "")
    )


def _find_native(creator) -> registry.Entry | None:
    if isinstance(creator, str | Path):
        creator = registry.find(creator)
    return creator if isinstance(creator, registry.Entry) and creator.is_native else None


def _find_own_vector(creator, env_kwargs, num_envs, num_workers, batch_size):
    """The vector that a registered environment makes by itself, in its `make_vector`, or None."""
    if isinstance(creator, str | Path):
        creator = registry.find(creator)
    if not isinstance(creator, registry.Entry) or creator.is_native or creator.python is not None:
        return None
    num_envs, batch_size = check_sizes(num_envs, batch_size)
    if batch_size != num_envs or not (env_kwargs is None or isinstance(env_kwargs, Mapping)):
        return None
    num_workers = min(usable_cores(), num_envs) if num_workers == "auto" else num_workers
    return creator.make_vector(num_envs, num_workers, **(env_kwargs or {}))


def _finish(vecenv: VecEnv, seed: int | None, choice: str) -> VecEnv:
    vecenv.default_seed, vecenv.choice = seed, choice
    return vecenv


def __getattr__(name: str) -> Any:
    if name not in FRONT_ENDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{FRONT_ENDS[name]}"), name)
