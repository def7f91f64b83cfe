"""The rules that every backend of `pufferlib.vector` keeps, for anyone to run on a backend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError
from pufferlib.seeding import env_seed, env_seeds
from pufferlib.vector.base import VecEnv
from pufferlib.vector.creation import list_factories

NUM_ENVS = 4
RESETS = 8
FIELDS = ("observations", "rewards", "terminals", "truncations")


def check_backend(
    make_vecenv: Callable[..., VecEnv],
    *,
    creator: Any = None,
    env_kwargs: Mapping[str, Any] | None = None,
    batch_sizes: tuple[int, ...] = (4, 2, 1),
    steps: int = 40,
) -> None:
    """Run a backend under the contract of `VecEnv`; its environments must step as they do alone.

    `make_vecenv(creator, num_envs=4, batch_size=…, seed=…)` makes the vector, for example
    `functools.partial(vector.make, backend="Serial")`. `creator` is what `vector.make` takes, and
    `env_kwargs`, if any, are passed on to it; it must give the same trajectory for the same seed.
    By default it is `Probe`, which puts every rule to the test. Each environment is
    stepped `steps` times for each of `batch_sizes`.

    Raises APIUsageError with one sentence for the first rule that is violated.
    """
    if env_kwargs:
        make_vecenv = partial(make_vecenv, env_kwargs=env_kwargs)
    check = _Check(make_vecenv, Probe if creator is None else creator, steps, env_kwargs)
    check.sizes()
    for batch_size in batch_sizes:
        vecenv = check.make(batch_size, seed=7)
        try:
            check.call_order(vecenv)
            if batch_size == NUM_ENVS:
                check.results(vecenv)
            check.trajectories(vecenv)
            if batch_size == NUM_ENVS:
                check.actions(vecenv)
                check.seeds(vecenv, 7)
                check.episodes(vecenv)
            check.closed(vecenv)
        finally:
            vecenv.close()
    check.chance(min(batch_sizes))


class Probe(PufferEnv):
    """Two agents that tell all: observations hold the seed's chance, the time and the last action.

    Episodes take 2 to 6 steps and end by termination or truncation. Agent 1 terminates half-way
    and is absent for the rest. Infos come at some steps, as one and the same dict every time.
    """

    def __init__(self, buf=None):
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.single_action_space = spaces.MultiDiscrete([3, 5])
        self.num_agents = 2
        self.info: dict[str, Any] = {}
        self.time = -1
        super().__init__(buf)

    def reset(self, seed: int | None = None):
        """Begin every episode anew."""
        self.random = np.random.default_rng(seed)
        self.rewards[:] = 0
        self.terminals[:] = self.truncations[:] = False
        self._begin()
        return self.observations, []

    def step(self, actions):
        """Advance one step."""
        if self.time < 0:
            raise APIUsageError("step before reset; call reset first")
        self.time += 1
        self.rewards[:] = np.where(self.masks, self.random.random(2) + actions[:, 0], 0)
        self.terminals[:] = self.truncations[:] = False
        self._look(actions)
        self.total += float(self.rewards[0])
        if self.time == self.length:
            self._end()
        elif self.time == self.length // 2:
            self.final_observations[1] = self.observations[1]
            self.terminals[1] = True
        elif self.time > self.length // 2:
            self.masks[1] = False
            self.observations[1] = 0
        infos = []
        if self.time == 0 or self.time % 3 == 2:
            infos.append(self.info)
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def _begin(self):
        self.time, self.total = 0, 0.0
        self.length = int(self.random.integers(2, 7))
        self.masks[:] = True
        self._look(np.zeros((2, 2)))

    def _look(self, actions):
        self.observations[:, 0] = self.random.random(2)
        self.observations[:, 1] = self.time
        self.observations[:, 2] = (0, 1)
        self.observations[:, 3:] = actions
        self.info.clear()
        self.info.update(agent=0, time=self.time, map=[0, 1], note="text", nothing=None)

    def _end(self):
        flags = self.terminals if self.length % 2 else self.truncations
        flags[:] = self.masks
        self.final_observations[self.masks] = self.observations[self.masks]
        total, length = self.total, self.length
        self._begin()
        self.info.update(episode_return=total, episode_length=length, score=length / 2)


class _Check:
    """A backend under test and the rules it is held to."""

    def __init__(self, make_vecenv, creator, steps: int, env_kwargs=None):
        self.make_vecenv, self.creator, self.steps = make_vecenv, creator, steps
        self.env_kwargs = env_kwargs
        self.name = "the backend"

    def fail(self, problem: str) -> None:
        raise APIUsageError(f"{self.name}: {problem}")

    def make(self, batch_size: int, seed: int | None = None) -> VecEnv:
        vecenv = self.make_vecenv(self.creator, num_envs=NUM_ENVS, batch_size=batch_size, seed=seed)
        self.name = type(vecenv).__name__
        return vecenv

    def refused(self, call: Callable, *words: str) -> None:
        """`call` raises APIUsageError, and its message has all `words`."""
        try:
            call()
        except APIUsageError as error:
            missing = [word for word in words if word not in str(error)]
            if missing:
                self.fail(f"the error {str(error)!r} does not say {missing[0]!r}")
        else:
            self.fail(f"a call went through that must be refused, saying {' … '.join(words)!r}")

    def call_order(self, vecenv: VecEnv) -> None:
        """`recv` and `send` alternate after a reset; anything else is refused and harmless."""
        actions = vecenv.action_space.sample()
        first = "reset or async_reset is expected"
        self.refused(vecenv.recv, "recv was called, but", first)
        self.refused(lambda: vecenv.send(actions), "send was called, but", first)
        vecenv.async_reset()
        self.refused(lambda: vecenv.send(actions), "send was called, but recv is expected")
        vecenv.recv()
        self.refused(vecenv.recv, "recv was called, but send is expected")
        vecenv.send(actions)
        vecenv.recv()

    def closed(self, vecenv: VecEnv) -> None:
        """A closed vector refuses everything but another close."""
        actions = vecenv.action_space.sample()
        closed = "nothing (it is closed) is expected"
        self.close(vecenv)
        self.refused(vecenv.recv, "recv was called, but", closed)
        self.refused(lambda: vecenv.send(actions), "send was called, but", closed)
        self.refused(vecenv.async_reset, closed)

    def close(self, vecenv: VecEnv) -> None:
        vecenv.close()
        try:
            vecenv.close()
        except Exception as error:
            raise APIUsageError(f"{self.name}: the second close raised {error!r}") from error

    def results(self, vecenv: VecEnv) -> None:
        """Sizes, shapes and types of everything that a caller gets."""
        vecenv.reset()
        agents = vecenv.num_agents // vecenv.num_envs
        if vecenv.num_envs != NUM_ENVS or vecenv.agents_per_batch != NUM_ENVS * agents:
            self.fail("num_envs, num_agents and agents_per_batch do not fit together")
        vecenv.send(vecenv.action_space.sample())
        batch, rows = vecenv.recv(), vecenv.agents_per_batch
        single = vecenv.single_observation_space
        expected = [
            ("observations", (rows, *single.shape), single.dtype),
            ("rewards", (rows,), np.float32),
            ("terminals", (rows,), np.bool_),
            ("truncations", (rows,), np.bool_),
        ]
        if not isinstance(batch, tuple) or len(batch) != 7:
            self.fail("recv must return seven things")
        arrays = [*zip(batch[:4], expected, strict=True)]
        arrays.append((batch[6], ("masks", (rows,), np.bool_)))
        arrays.append((vecenv.final_observations, ("final_observations", *expected[0][1:])))
        for array, (name, shape, dtype) in arrays:
            if array.shape != shape or array.dtype != dtype:
                self.fail(
                    f"{name} are {array.dtype} {list(array.shape)}, expected {np.dtype(dtype)} "
                    f"{list(shape)}"
                )
        if vecenv.observation_space.shape != expected[0][1]:
            self.fail("observation_space is not the joint space of one batch")
        if len(vecenv.step(vecenv.action_space.sample())) != 5 or len(vecenv.reset()) != 2:
            self.fail("step must return five things and reset two")

    def sizes(self) -> None:
        """Sizes that do not divide are refused with both numbers and the nearest that fit."""
        words = (f"num_envs = {NUM_ENVS}", "batch_size = 3", "fit: 2 and 4")
        self.refused(lambda: self.make(batch_size=3).close(), *words)
        self.refused(lambda: self.make(batch_size=0).close(), "batch_size is 0")

    def trajectories(self, vecenv: VecEnv) -> None:
        """Each environment steps as it does alone, in its own rows, whatever comes with it."""
        vecenv.async_reset(11)
        worlds = self.worlds(env_seeds(11, NUM_ENVS))
        kept: list[tuple] = []
        for _ in range(self.steps * vecenv.num_agents // vecenv.agents_per_batch):
            batch = vecenv.recv()
            before = [array.copy() for array in (*batch[:4], *batch[5:])]
            envs = self.owners(vecenv, batch[5])
            for slot, k in enumerate(envs):
                rows = slice(slot * worlds[k].agents, (slot + 1) * worlds[k].agents)
                self.same_rows(worlds[k], batch, vecenv.final_observations, rows)
            self.same_infos([worlds[k] for k in envs], batch[4])
            kept.append((batch[4], repr(batch[4])))
            actions = np.concatenate([worlds[k].choose() for k in envs])
            vecenv.wait()
            for array, copy in zip((*batch[:4], *batch[5:]), before, strict=True):
                if not np.array_equal(array, copy):
                    self.fail("what recv returned changed before the next send")
            vecenv.send(actions)
            for k in envs:
                worlds[k].step()
        for infos, text in kept:
            if repr(infos) != text:
                self.fail("infos of one step changed at a later one; hand out copies")

    def worlds(self, seeds) -> list[_World]:
        factories = list_factories(self.creator, None, self.env_kwargs, len(seeds))
        return [_World(factory(), k, seeds[k]) for k, factory in enumerate(factories)]

    def owners(self, vecenv: VecEnv, agent_ids) -> list[int]:
        """The environments of a batch, each with all of its agents, in order."""
        agents = vecenv.num_agents // vecenv.num_envs
        ids = np.asarray(agent_ids).reshape(-1, agents)
        envs = ids[:, 0] // agents
        if not np.array_equal(ids, envs[:, None] * agents + np.arange(agents)):
            self.fail(f"agent_ids {ids.ravel().tolist()} do not name whole environments")
        return envs.tolist()

    def same_rows(self, world: _World, batch, finals, rows: slice) -> None:
        env, when = world.env, f"environment {world.index} at step {world.time}"
        if not np.array_equal(batch[6][rows], env.masks):
            self.fail(f"masks of {when} differ from those of the environment alone")
        for name, array in zip(FIELDS, batch, strict=False):
            alone = getattr(env, name)
            if not np.array_equal(array[rows], alone, equal_nan=array.dtype.kind == "f"):
                self.fail(
                    f"{name} of {when} are {array[rows].tolist()!s:.80}, and "
                    f"{getattr(env, name).tolist()!s:.80} where the environment is alone"
                )
        ended = env.terminals | env.truncations
        if not np.array_equal(finals[rows][ended], env.final_observations[ended]):
            self.fail(f"final_observations of {when} are not the last ones of its episode")

    def same_infos(self, worlds: list[_World], infos) -> None:
        if not isinstance(infos, list) or not all(isinstance(info, dict) for info in infos):
            self.fail("infos must be a flat list of dicts")
        by_env = defaultdict(list)
        for info in infos:
            if info.get("env") not in [world.index for world in worlds]:
                self.fail(f"the info {info!s:.60} does not name an environment of its batch")
            by_env[info["env"]].append({n: v for n, v in info.items() if n != "env"})
        for world in worlds:
            if repr(by_env[world.index]) != repr(world.infos):
                self.fail(f"infos of environment {world.index} differ from what it gave")

    def actions(self, vecenv: VecEnv) -> None:
        """Actions of the wrong shape or kind are refused; the right ones may follow."""
        vecenv.reset()
        good = vecenv.action_space.sample()
        self.refused(lambda: vecenv.send(good[:-1]), "actions")
        if good.dtype.kind in "iu":
            self.refused(lambda: vecenv.send(good.astype(np.float64)), "float64")
        vecenv.step(good)

    def seeds(self, vecenv: VecEnv, default: int) -> None:
        """Environment k depends on the root seed and k alone; a list is used as it is."""
        seeded, listed = ([env_seed(root, k) for k in range(NUM_ENVS)] for root in (default, 5))
        if not self.begins_like(vecenv, None, seeded):
            self.fail("the seed given to make must be the seed of a reset without one")
        if not self.begins_like(vecenv, 5, listed):
            self.fail("environment k must be reset with env_seed(seed, k)")
        if not self.begins_like(vecenv, seeded, seeded):
            self.fail("a list of seeds must be used as it is, one an environment")
        self.refused(lambda: vecenv.async_reset([1, 2]), "2 seeds", f"{NUM_ENVS} environments")

    def begins_like(self, vecenv: VecEnv, seed, env_seeds) -> bool:
        alone = [world.env.observations for world in self.worlds(env_seeds)]
        return np.array_equal(vecenv.reset(seed)[0], np.concatenate(alone))

    def chance(self, batch_size: int) -> None:
        """Without a seed resets are random; a vector may be closed at any time."""
        starts: list[np.ndarray] = []
        for _ in range(2):
            vecenv = self.make(batch_size)
            # Where an episode begins in one of few ways, two in a row may well be alike.
            starts.append(np.array([vecenv.reset()[0].copy() for _ in range(RESETS)]))
            vecenv.send(vecenv.action_space.sample())
            self.close(vecenv)
        random = self.worlds([1, 2])
        if np.array_equal(random[0].env.observations, random[1].env.observations):
            return
        if np.array_equal(starts[0], starts[1]) or (starts[0] == starts[0][:1]).all():
            self.fail("two resets without a seed begin alike")

    def episodes(self, vecenv: VecEnv) -> None:
        """Each episode is told once, with its environment, and averaged by its weight."""
        vecenv.reset(11)
        vecenv.episodes()
        worlds = self.worlds(env_seeds(11, NUM_ENVS))
        for _ in range(self.steps):
            vecenv.step(np.concatenate([world.choose() for world in worlds]))
            for world in worlds:
                world.step()
        records = vecenv.episodes()
        if vecenv.episodes():
            self.fail("episodes() told an episode twice")
        for world in worlds:
            mine = [r for r in records if r["env"] == world.index]
            sums, expected = _sums(mine), _sums(world.records())
            # A native environment keeps its sums in float32.
            close = (np.isclose(sums[n], expected[n], rtol=1e-4) for n in expected)
            if sums.keys() != expected.keys() or not all(close):
                self.fail(f"episodes of environment {world.index} are not those that it ended")
        if vecenv.episode_stats() != {"episodes": 0}:
            self.fail("episode_stats() must be {'episodes': 0} where no episode ended")


class _World:
    """One environment alone, and what its vector must therefore return."""

    def __init__(self, env: PufferEnv, index: int, seed: int):
        self.env, self.index, self.time = env, index, 0
        self.agents = env.num_agents
        self.told: list[dict] = []
        self.keep(env.reset(seed=int(seed))[1])

    def keep(self, infos) -> None:
        self.infos = [dict(info) for info in infos]
        self.told += [info for info in self.infos if "episode_return" in info]

    def choose(self) -> np.ndarray:
        """Random actions that depend on the environment and the time alone."""
        self.env.action_space.seed(1000 * self.index + self.time)
        self.chosen = self.env.action_space.sample().astype(self.env.actions.dtype)
        return self.chosen

    def step(self) -> None:
        self.time += 1
        self.keep(self.env.step(self.chosen)[4])

    def records(self) -> list[dict]:
        return [*self.told, *self.env.episodes()]


def _sums(records: list[dict]) -> dict[str, float]:
    """Sums over the episodes behind `records`."""
    sums: dict[str, float] = defaultdict(float)
    for record in records:
        weight = record.get("episodes", 1)
        sums["episodes"] += weight
        for name, value in record.items():
            if name not in ("env", "agent", "episodes") and isinstance(value, int | float):
                sums[name] += weight * value
    return sums
