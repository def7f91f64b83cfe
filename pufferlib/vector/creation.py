"""What `vector.make` is given, turned into one factory for each environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from pathlib import Path

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv, PettingZooPufferEnv, has_agents
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError
from pufferlib.vector.isolation import IsolatedEnv


def list_factories(creators, env_args, env_kwargs, num_envs: int) -> list[Factory]:
    """One `factory(buf=None) -> PufferEnv` for each environment.

    `creators` is a name, a folder, a callable, or a list of those of length `num_envs`; `env_args`
    and `env_kwargs` one value for all or a list of length `num_envs`. A list that ends in `...`
    goes on with what stands before it, again and again. Raises what a registered environment
    says of its parameters.
    """
    if isinstance(creators, list | tuple):
        creators = _write_out("creators", creators, num_envs)
    else:
        creators = [creators] * num_envs
    args = _one_each("env_args", env_args, num_envs, (), list)
    kwargs = _one_each("env_kwargs", env_kwargs, num_envs, {}, Mapping)
    made: dict[str, registry.Entry] = {}
    checked: set[tuple[int, int, int]] = set()
    factories = []
    for creator, one_args, one_kwargs in zip(creators, args, kwargs, strict=True):
        if isinstance(creator, str | Path):
            creator = made.setdefault(str(creator), registry.find(creator))
        if not callable(creator):
            raise APIUsageError(
                f"an environment creator is a {type(creator).__name__}; expected a registered "
                "name, a folder, or a callable that returns an environment"
            )
        same = (id(creator), id(one_args), id(one_kwargs))
        if isinstance(creator, registry.Entry) and same not in checked:
            creator.check(*one_args, **one_kwargs)
            checked.add(same)
        factories.append(Factory(creator, tuple(one_args), dict(one_kwargs)))
    return factories


def find_home(factories: list[Factory]) -> Path | None:
    """The interpreter that all of these environments must live in, if there is such a one."""
    one_each = {id(factory.creator): factory for factory in factories}
    homes = {factory.python for factory in one_each.values()}
    return homes.pop() if len(homes) == 1 else None


class Factory:
    """Makes one environment from a creator and its arguments, wrapped if it needs to be."""

    def __init__(self, creator: Callable, args: tuple, kwargs: dict):
        self.creator, self.args, self.kwargs = creator, args, kwargs

    @property
    def python(self) -> Path | None:
        """The interpreter that the environment must live in, if it is not this one."""
        return self.creator.python if isinstance(self.creator, registry.Entry) else None

    def __call__(self, buf=None) -> PufferEnv:
        if (python := self.python) is not None:
            return IsolatedEnv(self, python, render_mode=self.kwargs.get("render_mode"), buf=buf)
        kwargs = dict(self.kwargs)
        if buf is not None and _accepts_buf(self.creator):
            kwargs["buf"] = buf
        env = wrap(self.creator(*self.args, **kwargs), buf=buf)
        if buf is not None and env.buf is not buf:
            env.rebind(buf)
        return env


def wrap(env, *, buf=None) -> PufferEnv:
    """`env` as a PufferEnv: itself, or one of Gymnasium, the old Gym or PettingZoo."""
    if isinstance(env, PufferEnv):
        return env
    return (PettingZooPufferEnv if has_agents(env) else GymnasiumPufferEnv)(env=env, buf=buf)


def _accepts_buf(creator: Callable) -> bool:
    try:
        return "buf" in inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return False


def _one_each(name, value, num_envs, empty, single_type) -> list:
    if value is None:
        return [empty] * num_envs
    many = (
        isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple | Mapping)
    )
    if single_type is Mapping:
        many = not isinstance(value, Mapping)
    if not many:
        return [value] * num_envs
    return _write_out(name, value, num_envs)


def _write_out(name: str, values, num_envs: int) -> list:
    """`values` as a list with an entry for each environment."""
    if len(values) > 1 and values[-1] is ...:
        return list(islice(cycle(values[:-1]), num_envs))
    if len(values) != num_envs:
        raise APIUsageError(
            f"{name} has {len(values)} entries for num_envs = {num_envs}; a list that ends in ... "
            "is repeated"
        )
    return list(values)
