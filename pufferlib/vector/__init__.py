"""Vectorization: `make` puts many environments behind one batch of rows."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import pufferlib.emulation  # noqa: F401  (the founding snippets use it after importing this)
from pufferlib import registry
from pufferlib.exceptions import APIUsageError
from pufferlib.vector.base import VecEnv
from pufferlib.vector.conformance import check_backend
from pufferlib.vector.creation import list_factories
from pufferlib.vector.multiprocessing import Multiprocessing
from pufferlib.vector.native import Native
from pufferlib.vector.serial import Serial

__all__ = ["Multiprocessing", "Native", "Serial", "VecEnv", "check_backend", "make"]

BACKENDS = {"Multiprocessing": Multiprocessing, "Native": Native, "Serial": Serial}


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
    **options,
) -> VecEnv:
    """Put `num_envs` environments behind one batch of rows.

    Args:
        env_creator_or_creators: a registered name ('breakout'), an environment's folder, a
            callable that returns an environment (PufferEnv, Gymnasium or old Gym), or a list of
            those of length `num_envs`.
        env_args, env_kwargs: arguments of the creator; one set for all, or a list of `num_envs`.
        backend: 'auto', a backend's name or its class.
        seed: what `async_reset()` without a seed uses; None is really random.
        num_workers: threads of `Native`.
        batch_size: environments that one `recv` returns; 'auto' is all of them.

    Raises `APIUsageError` for anything that does not fit together, before anything starts.
    """
    backend = _find_backend(backend)
    single = not isinstance(env_creator_or_creators, list | tuple)
    options |= {"num_workers": num_workers, "batch_size": batch_size}
    if single and backend in ("auto", Native):
        entry = _find_native(env_creator_or_creators)
        plain = env_args is None and (env_kwargs is None or isinstance(env_kwargs, Mapping))
        if entry is not None and plain:
            vecenv = Native(entry.library, dict(env_kwargs or {}), num_envs, **options)
            return _seeded(vecenv, seed)
    if backend is Native:
        raise APIUsageError(
            "backend Native runs one native environment with one set of parameters; for "
            f"{env_creator_or_creators!r} use Serial"
        )
    factories = list_factories(env_creator_or_creators, env_args, env_kwargs, num_envs)
    return _seeded((Serial if backend == "auto" else backend)(factories, **options), seed)


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


def _seeded(vecenv: VecEnv, seed: int | None) -> VecEnv:
    vecenv.default_seed = seed
    return vecenv
