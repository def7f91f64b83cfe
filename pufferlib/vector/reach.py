"""Attributes and methods of the environments that a vector's user wrote, wherever they live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pufferlib.exceptions import APIUsageError

Deed = tuple  # ("call", name, args, kwargs) or ("set", name, value).


def reach(env: Any, deed: Deed) -> Any:
    """Do `deed` to the user's environment inside a PufferEnv → what "call" returned."""
    target = env.env if getattr(env, "emulated", False) and hasattr(env, "env") else env
    what, name, *rest = deed
    wrapped = hasattr(target, "get_wrapper_attr")
    if what == "set":
        target.set_wrapper_attr(name, rest[0]) if wrapped else setattr(target, name, rest[0])
        return None
    args, kwargs = rest
    value = target.get_wrapper_attr(name) if wrapped else getattr(target, name)
    return value(*args, **kwargs) if callable(value) else value


def select(envs: int | Sequence[int] | None, count: int) -> list[int]:
    """Indices of environments, None meaning all; refused where there is no such environment."""
    chosen = list(range(count)) if envs is None else [envs] if isinstance(envs, int) else list(envs)
    for env in chosen:
        if not 0 <= env < count:
            raise APIUsageError(f"there is no environment {env}; expected 0 to {count - 1}")
    return [int(env) for env in chosen]
