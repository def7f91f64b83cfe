"""The environment contract in Python: a batch of agents that reads and writes shared rows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from pufferlib import buffers as _buffers
from pufferlib.exceptions import APIUsageError


class PufferEnv:
    """An environment that writes its results into rows it was given.

    Set `single_observation_space` (Box), `single_action_space` (Discrete, MultiDiscrete or Box)
    and `num_agents` (int ≥ 1), then call `super().__init__(buf)`. You then have, one row an agent:
    `observations`, `final_observations` [A, *O], `actions` [A, *D], `rewards` [A] float32,
    `terminals`, `truncations`, `masks` [A] bool, the joint `observation_space` and `action_space`,
    and `agent_ids` [A].

    Implement `reset(seed)` → (observations, infos) and `step(actions)` → (observations, rewards,
    terminals, truncations, infos), where the arrays are the rows themselves and infos is a list of
    dicts. Episodes restart in the same step: when an agent's episode ends, its flag is set, the
    last observation goes to `final_observations`, and `observations` holds the first of the next
    episode. Termination and truncation are different things. An agent that is absent has mask
    False, observation and reward zero, and no flag.

    `buf` is a `Buffers` of `num_agents` rows to write into; None allocates one.
    """

    single_observation_space: spaces.Box
    single_action_space: spaces.Space
    num_agents: int
    render_mode: str | None = None
    emulated = False

    def __init__(self, buf: _buffers.Buffers | None = None):
        for name in ("single_observation_space", "single_action_space", "num_agents"):
            if getattr(self, name, None) is None:
                raise APIUsageError(
                    f"{type(self).__name__}.{name} is not set; set it before super().__init__(buf)"
                )
        if not isinstance(self.single_observation_space, spaces.Box):
            raise APIUsageError(
                f"single_observation_space is a {type(self.single_observation_space).__name__}; "
                "a PufferEnv observes a Box (wrap other spaces with pufferlib.emulation)"
            )
        if not isinstance(
            self.single_action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.Box
        ):
            raise APIUsageError(
                f"single_action_space is a {type(self.single_action_space).__name__}; "
                "a PufferEnv acts in Discrete, MultiDiscrete or Box"
            )
        if not isinstance(self.num_agents, int | np.integer) or self.num_agents < 1:
            raise APIUsageError(f"num_agents is {self.num_agents!r}; expected an int of at least 1")
        if buf is None:
            buf = _buffers.allocate(
                self.num_agents, self.single_observation_space, self.single_action_space
            )
        self.rebind(buf)
        self.observation_space = joint_space(self.single_observation_space, self.num_agents)
        self.action_space = joint_space(self.single_action_space, self.num_agents)
        self.agent_ids = np.arange(self.num_agents)

    def rebind(self, buf: _buffers.Buffers) -> None:
        """Read and write other rows from now on; before the first reset, or between two steps.

        An environment that keeps addresses or views of its rows must override this.
        """
        if len(buf) != self.num_agents:
            raise APIUsageError(f"buf has {len(buf)} rows for {self.num_agents} agents")
        self.buf = buf
        self.observations = buf.observations
        self.final_observations = buf.final_observations
        self.actions = buf.actions
        self.rewards = buf.rewards
        self.terminals = buf.terminals
        self.truncations = buf.truncations
        self.masks = buf.masks

    def reset(self, seed: int | None = None):
        """Begin every episode anew → (observations [A, *O], infos)."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    def step(self, actions):
        """Advance one step → (observations, rewards, terminals, truncations, infos)."""
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def render(self):
        """One frame as `render_mode` asks for; None where there is nothing to show."""
        return None

    def episodes(self) -> list[dict]:
        """Records of the episodes that ended since the last call, if the infos do not tell.

        A record has `env` (index within this environment), `episode_return`, `episode_length`
        and numeric fields of the environment's own; it may stand for several episodes of equal
        weight by `episodes`, their number.
        """
        return []

    def world_states(self) -> np.ndarray | None:
        """The bytes of each world's state [W, S] uint8, for `check_env`; None if unknown.

        Agents divide evenly over worlds, in the order of rows.
        """
        return None

    def notify(self):
        """Called when the owner of the vector calls `notify`; does nothing by default."""

    def close(self):
        """Free what the environment holds. May be called more than once."""


def joint_space(space: spaces.Space, rows: int) -> spaces.Space:
    """The space of `rows` stacked members of `space`; its samples are what `step` takes."""
    if isinstance(space, spaces.Box):
        return spaces.Box(
            np.repeat(space.low[None], rows, 0),
            np.repeat(space.high[None], rows, 0),
            dtype=space.low.dtype.type,
        )
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete(
            np.full(rows, space.n), dtype=np.int32, start=np.full(rows, space.start)
        )
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(np.repeat(space.nvec[None], rows, 0), dtype=np.int32)
    raise APIUsageError(f"no joint space for a {type(space).__name__}")


@dataclass(frozen=True)
class CheckReport:
    """What a run of `check_env` put to the test; everything in it passed."""

    steps: int  # Steps of the longest run.
    terminations: int  # Episodes of single agents that ended by termination in it,
    truncations: int  # by truncation,
    absences: int  # and rows of agents that were absent.
    untried: tuple[str, ...]  # Rules that nothing in the runs put to the test, and why.


def check_env(
    env_or_creator: PufferEnv | Callable[[], PufferEnv],
    *,
    steps: int = 500,
    seed: int = 0,
    rows_differ: bool = True,
    restarts_flagged: bool = True,
) -> CheckReport:
    """Run an environment with random actions and hold it to the contract of `PufferEnv`.

    Raises APIUsageError with one sentence for the first rule that is violated. A creator is
    called once and its environment closed at the end; an instance stays open, and the rules about
    stepping before the first reset and about closing are left out.

    The rules: step before reset is refused; results are the environment's own rows, of the right
    dtype and shape; observations lie in the declared space; rewards are finite; an absent agent
    (mask False) observes zeros and gets no reward and no flag from the next step on, so that the
    step at which it leaves still counts; a flag lasts one step; `final_observations` is written
    when a flag is set; infos is a list of dicts; the same seed repeats a trajectory and, where
    chance plays a part, other seeds and no seed give others; closing twice is fine.

    `rows_differ`: all rows being equal after each reset is an error where chance plays a part;
    pass False for agents that share one view of one world.

    `restarts_flagged`: an episode that begins anew without a flag is an error. Elements of the
    state (or of the observation, if `world_states` gives None) that are equal after every reset
    but move in between are the restart signature. A step without a flag that brings all of them
    back at once, one by a larger change than it makes elsewhere, is taken for a restart. Pass
    False for an environment in which that is part of the game, like a fall back to the start.
    """
    if steps < 1:
        raise APIUsageError(f"steps is {steps}; expected at least 1")
    if isinstance(env_or_creator, PufferEnv):
        return _Check(env_or_creator, steps).run(seed, rows_differ, restarts_flagged, False)
    env = env_or_creator()
    if not isinstance(env, PufferEnv):
        raise APIUsageError(
            f"check_env got a {type(env).__name__}, expected a PufferEnv; wrap a Gymnasium "
            "environment with pufferlib.emulation.GymnasiumPufferEnv"
        )
    check = _Check(env, steps)
    try:
        check.step_before_reset()
        report = check.run(seed, rows_differ, restarts_flagged, True)
    except BaseException:
        env.close()
        raise
    check.close_twice()
    return report


class _Check:
    """One environment under test, and the rules it is held to."""

    SHORT_RUN = 32
    SEEDS = 8
    WATCHED_WORLDS = 8
    WATCHED_ELEMENTS = 2048
    FLAGS = ("terminals", "truncations")
    FIELDS = ("observations", "rewards", *FLAGS, "masks")

    def __init__(self, env: PufferEnv, steps: int):
        self.env = env
        self.name = type(getattr(env, "unwrapped", env)).__name__
        self.steps = steps
        assert isinstance(env.observation_space, spaces.Box)
        self.low, self.high = env.observation_space.low, env.observation_space.high
        self.absent = np.zeros(env.num_agents, np.bool_)

    def run(self, seed: int, rows_differ: bool, restarts: bool, created: bool) -> CheckReport:
        """All rules that need a running environment, and the report."""
        self.rows()
        trace, watch, counts = self.trajectory(seed, self.steps)
        again = self.trajectory(seed, self.steps)[0]
        self.compare(
            trace,
            again,
            "{field} differ at step {step} between two runs with the same seed and actions; "
            "draw all randomness from a generator that reset(seed) seeds",
        )
        cleared = self.trajectory(seed, self.steps, clear=True)[0]
        self.compare(
            trace,
            cleared,
            "{field} at step {step} are left over from the step before; "
            "write rewards and both flags at every step",
        )
        random = self.seeds(seed)
        if rows_differ and random and self.env.num_agents > 1:
            self.different_rows(seed)
        signed = restarts and self.restarts(seed, watch)
        terminations, truncations, absences = counts
        untried = {
            "step before reset, close: an instance was given, not a creator": not created,
            "flags, final observations: no episode ended": not terminations + truncations,
            "termination: no episode terminated": not terminations,
            "truncation: no episode was truncated": not truncations,
            "absent agents: every agent was present": not absences,
            "seeds: nothing is left to chance": not random,
            "rows differ: one row, nothing left to chance, or switched off": not (
                rows_differ and random and self.env.num_agents > 1
            ),
            "restarts: nothing tells a new episode apart, or switched off": not signed,
        }
        return CheckReport(
            self.steps,
            terminations,
            truncations,
            absences,
            tuple(rule for rule, is_untried in untried.items() if is_untried),
        )

    def fail(self, problem: str) -> None:
        raise APIUsageError(f"{self.name}: {problem}")

    def step_before_reset(self) -> None:
        try:
            self.env.step(self.actions(0)())
        except APIUsageError:
            return
        except Exception as error:
            raise APIUsageError(
                f"{self.name}: step before the first reset raised {error!r}; "
                "raise APIUsageError instead"
            ) from error
        self.fail("step before the first reset went through; raise APIUsageError instead")

    def close_twice(self) -> None:
        self.env.close()
        try:
            self.env.close()
        except Exception as error:
            raise APIUsageError(
                f"{self.name}: the second close raised {error!r}; make it do nothing instead"
            ) from error

    def rows(self) -> None:
        """The rows have the dtypes and shapes that the contract and the spaces say."""
        env, space = self.env, self.env.single_observation_space
        agents = (env.num_agents,)
        expected = {
            "observations": (space.dtype, agents + space.shape),
            "final_observations": (space.dtype, agents + space.shape),
            "rewards": (np.float32, agents),
            "terminals": (np.bool_, agents),
            "truncations": (np.bool_, agents),
            "masks": (np.bool_, agents),
        }
        for name, (dtype, shape) in expected.items():
            row = getattr(env, name)
            if row.dtype != dtype or row.shape != shape:
                self.fail(
                    f"{name} is {row.dtype} {list(row.shape)}, expected {np.dtype(dtype)} "
                    f"{list(shape)}; write into the rows instead of replacing them"
                )

    def actions(self, seed: int) -> Callable[[], np.ndarray]:
        """A stream of random joint actions."""
        space = deepcopy(self.env.action_space)
        space.seed(seed)
        return space.sample

    def reset(self, seed: int | None) -> tuple:
        """Reset under all rules → digest."""
        result = self.env.reset(seed)
        if not isinstance(result, tuple) or len(result) != 2:
            self.fail("reset must return (observations, infos)")
        self.own_rows("reset", result[:1])
        self.infos("reset", result[1])
        for name in self.FLAGS:
            if getattr(self.env, name).any():
                self.fail(f"{name} are set after reset; clear them there")
        self.contents("reset")
        # Rewards mean nothing before the first step; old ones must not get into the next.
        self.env.rewards[...] = 0
        return tuple(None if name == "rewards" else self.digest(name) for name in self.FIELDS)

    def step(self, actions: np.ndarray, when: str) -> tuple:
        """Step under all rules → digest."""
        result = self.env.step(actions)
        if not isinstance(result, tuple) or len(result) != 5:
            self.fail("step must return (observations, rewards, terminals, truncations, infos)")
        self.own_rows("step", result[:4])
        self.infos("step", result[4])
        self.contents(when)
        return tuple(self.digest(name) for name in self.FIELDS)

    def own_rows(self, call: str, arrays: tuple) -> None:
        for name, array in zip(self.FIELDS, arrays, strict=False):
            row = getattr(self.env, name)
            same = (
                isinstance(array, np.ndarray)
                and array.dtype == row.dtype
                and array.shape == row.shape
                and array.ctypes.data == row.ctypes.data
            )
            if not same:
                self.fail(
                    f"{call} returned {name} that are not the environment's own rows; "
                    f"write into self.{name} and return it"
                )

    def infos(self, call: str, infos: object) -> None:
        if not isinstance(infos, list) or not all(isinstance(info, dict) for info in infos):
            self.fail(f"{call} returned infos {infos!r:.60}; expected a list of dicts")

    def contents(self, when: str) -> None:
        """Observations, rewards and the rows of absent agents, as they are now."""
        env, masks = self.env, self.env.masks
        inside = (env.observations >= self.low) & (env.observations <= self.high)
        if not inside[masks].all():
            index = next(tuple(i) for i in np.argwhere(~inside).tolist() if masks[i[0]])
            self.fail(
                f"observation {list(index)} is {env.observations[index]} at {when}, outside the "
                f"bounds [{self.low[index]}, {self.high[index]}] of its space"
            )
        if when != "reset" and not np.isfinite(env.rewards).all():
            row = int(np.flatnonzero(~np.isfinite(env.rewards))[0])
            self.fail(f"reward of row {row} is {env.rewards[row]} at {when}; expected a finite one")
        if when != "reset":
            flagged = self.absent & (env.terminals | env.truncations)
            if flagged.any():
                self.fail(
                    f"row {int(flagged.argmax())} is flagged at {when} but was absent before; "
                    "an absent agent has no flag"
                )
            rewarded = self.absent & (env.rewards != 0)
            if rewarded.any():
                self.fail(
                    f"row {int(rewarded.argmax())} is rewarded at {when} but was absent before; "
                    "an absent agent has reward zero"
                )
        for row in np.flatnonzero(~masks).tolist():
            if env.observations[row].any():
                self.fail(f"row {row} is masked at {when} and its observation is not zero")
        self.absent = ~masks

    def digest(self, name: str) -> int:
        return hash(getattr(self.env, name).tobytes())

    def trajectory(self, seed: int | None, steps: int, *, clear: bool = False):
        """Digests of reset and `steps` steps, what `restarts` needs, and the counts of the report.

        With `clear`, rewards and flags are zeroed and the final observations poisoned before each
        step, which must change nothing but what the environment writes anyway.
        """
        env = self.env
        sample = self.actions(0 if seed is None else seed)
        trace, states, ended, present = [self.reset(seed)], [self.state()], [], [env.masks.copy()]
        counts = np.zeros(3, np.int64)
        final = env.final_observations.reshape(env.num_agents, -1).view(np.uint8)
        for step in range(1, steps + 1):
            if clear:
                for name in ("rewards", *self.FLAGS):
                    getattr(env, name)[...] = 0
                final[...] = _buffers.POISON
            trace.append(self.step(sample(), f"step {step}"))
            flagged = env.terminals | env.truncations
            if clear and flagged.any():
                unwritten = flagged & (final == _buffers.POISON).all(1)
                if unwritten.any():
                    self.fail(
                        f"final_observations of row {int(unwritten.argmax())} are not written at "
                        f"step {step}, at which its episode ended"
                    )
            states.append(self.state())
            ended.append(flagged)
            present.append(env.masks.copy())
            counts += env.terminals.sum(), env.truncations.sum(), (~env.masks).sum()
        return trace, (states, ended, present), counts.tolist()

    def compare(self, one: list, other: list, problem: str) -> None:
        for step, (mine, yours) in enumerate(zip(one, other, strict=True)):
            for name, a, b in zip(self.FIELDS, mine, yours, strict=True):
                if a != b:
                    self.fail(problem.format(field=name, step=step))

    def seeds(self, seed: int) -> bool:
        """Whether chance plays a part; if so, seeds and the lack of one must show it."""
        steps = min(self.steps, self.SHORT_RUN)
        sample = self.actions(seed)
        actions = [sample() for _ in range(steps)]

        def different(seeds):
            seen = set()
            for one in seeds:
                digests = [self.reset(one)]
                digests += [self.step(a, f"step {k}") for k, a in enumerate(actions, 1)]
                seen.add(tuple(digests))
            return len(seen) > 1

        seeded = different(range(seed, seed + self.SEEDS))
        unseeded = different([None] * self.SEEDS)
        if unseeded and not seeded:
            self.fail(f"{self.SEEDS} different seeds gave the same trajectory; use the seed")
        if seeded and not unseeded:
            self.fail(
                f"{self.SEEDS} resets without a seed gave the same trajectory; without a seed the "
                "generator must go on, or start from the operating system's randomness"
            )
        return seeded

    def different_rows(self, seed: int) -> None:
        equal, seen = True, set()
        for one in range(seed, seed + self.SEEDS):
            self.reset(one)
            rows = self.env.observations
            equal = equal and bool((rows == rows[:1]).all())
            seen.add(self.digest("observations"))
        if equal and len(seen) > 1:
            self.fail(
                "all rows are equal after each reset; give every world a seed of its own "
                "(pufferlib.seeding.env_seeds), or pass rows_differ=False for a shared view"
            )

    def state(self) -> np.ndarray:
        """A copy of what may tell a restart, one row a world: states, or else observations."""
        rows = self.env.world_states()
        if rows is None:
            rows = self.env.observations.reshape(self.env.num_agents, -1)
        count = rows.shape[1]
        columns = np.linspace(0, count - 1, min(count, self.WATCHED_ELEMENTS)).astype(np.int64)
        return rows[: self.WATCHED_WORLDS, columns]

    def restarts(self, seed: int, watch: tuple) -> bool:
        """Refuse an unflagged restart → whether there was a signature to tell one by."""
        states, ended, present = (np.stack(part) for part in watch)
        worlds = self.env.num_agents
        if (known := self.env.world_states()) is not None:
            worlds = len(known)
        ended, present = (part.reshape(len(part), worlds, -1) for part in (ended, present))
        resets = [states[0]]
        for one in range(seed + 1, seed + self.SEEDS):
            self.reset(one)
            resets.append(self.state())
        signed = False
        for world in range(states.shape[1]):
            start = resets[0][world]
            constant = np.all([reset[world] == start for reset in resets], axis=0)
            signature = constant & (states[:, world] != start).any(0)
            if not signature.any():
                continue
            signed = True
            away = states[:, world, signature].astype(np.float64) - start[signature]
            home = (away == 0).all(1)
            quiet = ~ended[:, world].any(1) & (present[1:, world] & present[:-1, world]).all(1)
            back = home[1:] & ~home[:-1] & quiet
            changes = np.abs(np.diff(away, axis=0))
            usual = changes[quiet & ~back].max(0, initial=0)
            sudden = back & (changes > usual).any(1)
            if sudden.any():
                self.fail(
                    f"world {world} began a new episode at step {int(sudden.argmax()) + 1} without "
                    "a flag; set terminals or truncations there, or pass restarts_flagged=False if "
                    "this is part of the game"
                )
        return signed
