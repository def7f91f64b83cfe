"""The backend of Python environments on several cores: workers that share their rows with us."""

from __future__ import annotations

import os
import subprocess
import time
import warnings
import weakref
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np

from pufferlib import buffers
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError, WorkerError
from pufferlib.machine import usable_cores
from pufferlib.native.exchange import Exchange
from pufferlib.seeding import env_seed
from pufferlib.vector.base import CLOSED, RECV, SEND, VecEnv, check_sizes
from pufferlib.vector.channel import CLOSE, REACH, RESET, STEP, Block, Plan, read_likeness
from pufferlib.vector.child import WATCH_S, Child, check_python, pack, pack_factories

CLOSE_S = 10.0  # How long environments may take to close, and
FAREWELL_S = 1.0  # how long after an error.
START_FACTOR = 10  # A constructor may take this many times as long as a step.


class Multiprocessing(VecEnv):
    """Environments on worker processes that write into rows which this process reads.

    Each worker is a fresh interpreter and steps an equal share of the environments. A batch is the
    environments of one worker, of all, or of some: a contiguous block of workers without a copy,
    or with `zero_copy=False` whichever are ready, copied together. With `sync_traj` batches come
    in the order in which they were sent, else the first that is ready.

    Args:
        factories: one for each environment, from `creation.list_factories`; they travel by
            cloudpickle, so closures and the classes of a script are fine.
        num_workers: 'auto' is as many as cores may be used and sizes allow; more than the cores
            needs `overwork`.
        timeout: seconds that a step or a reset of a worker may take before it counts as frozen.
        restart_workers: how often, in all, a dead or frozen worker is replaced. Its environments
            begin anew, and their running episodes are truncated.
        python: another interpreter for the workers, of this version of Python and with NumPy,
            Gymnasium and cloudpickle.

    Raises `WorkerError` for a worker whose environment raised, that died, or that froze.
    """

    _block: Block
    _views: list[tuple]
    _action_rows: list[np.ndarray]
    _exchange: Exchange
    _told: dict[int, list[dict]]  # Worker → infos that nobody has received.
    _records: list[dict]
    _marked: list[int]  # Workers whose flags tell of a replacement.
    _gathered: buffers.Buffers | None  # The batch, where groups are copied together.
    _driver_env: PufferEnv | None = None

    def __init__(
        self,
        factories,
        *,
        batch_size="auto",
        num_workers="auto",
        zero_copy: bool = True,
        sync_traj: bool = False,
        overwork: bool = False,
        timeout: float = 60.0,
        restart_workers: int = 0,
        python: str | os.PathLike | None = None,
    ):
        num_envs, batch_size = check_sizes(len(factories), batch_size)
        cores = usable_cores()
        num_workers = count_workers(num_envs, batch_size, num_workers, cores, overwork=overwork)
        if not timeout > 0 or restart_workers < 0:
            raise APIUsageError(
                f"timeout is {timeout!r} and restart_workers {restart_workers!r}; expected "
                "seconds above 0 and a number of at least 0"
            )
        self.num_workers, self.timeout, self.restart_workers = num_workers, timeout, restart_workers
        self.factories = factories
        self._python = None if python is None else check_python(python)
        self._plan = Plan(num_envs, num_workers, 0, cores)
        shares = [self._plan.envs(w) for w in range(num_workers)]
        self._payloads = [pack_factories(factories[share], share.start) for share in shares]
        self._children: list[Child] = []
        self._descriptors: list[int] = []
        self._release = weakref.finalize(
            self, _release, os.getpid(), self._children, self._descriptors
        )
        try:
            self._start(num_envs, batch_size)
        except BaseException:
            self._release()
            self._forget()
            raise
        self._lay_out(zero_copy, sync_traj)

    # ------------------------------------------------------------ the contract

    def async_reset(self, seed=None):
        self._check_open("async_reset")
        seeds = self._seeds(seed)
        self.wait()
        for group in (*self._exchange.pending, *self._exchange.ready):
            self._hear(group)
        self._exchange.forget()
        self._told.clear()
        self._marked.clear()
        self._seen[:] = False
        self._block.seeds[:] = seeds
        self._exchange.order(range(self._num_groups), RESET)
        self.expected = RECV

    def send(self, actions):
        if self.expected != SEND:
            self._advance(SEND, RECV)
        actions = self._check_actions(actions)
        self.expected = RECV
        if self._marked:
            self._unmark()
        current = self._exchange.current
        if self._gathered is None:
            self._action_rows[current[0]][...] = actions
        else:
            parts = np.split(actions, len(current))
            for group, part in zip(current, parts, strict=True):
                self._action_rows[group][...] = part
        self._exchange.order(current, STEP)

    def recv(self):
        if self.expected != RECV:
            self._advance(RECV, SEND)
        # No local name for the exchange: the traceback of an error would keep its memory.
        while not self._exchange.gather(WATCH_S):
            self._watch()
        current = self._exchange.current
        infos = []
        if self._told or self._exchange.speaks():
            for group in current:
                infos += self._hear(group)
        if self.restart_workers:
            self._remember(current)
        self.expected = SEND
        if self._gathered is not None:
            views = self._gather(self._gathered)
        else:
            views = self._views[current[0]]
        observations, rewards, terminals, truncations, agent_ids, masks = views
        return observations, rewards, terminals, truncations, infos, agent_ids, masks

    @property
    def final_observations(self):
        if self._gathered is not None:
            return self._gathered.final_observations
        self._check_open("final_observations")
        return self._block.rows.final_observations[self._group_rows(self._exchange.current[0])]

    def wait(self):
        if self.expected == CLOSED:
            return
        for group in list(self._exchange.pending):
            while self._block.lanes.wait([group], self._size, WATCH_S) < 0:
                self._watch()

    def batches(self):
        """See `VecEnv.batches`; refused where the members of a batch are not fixed."""
        if self._gathered is not None:
            raise APIUsageError(
                "with zero_copy=False the next batches are not known; use zero_copy=True"
            )
        self._check_open("batches")
        self.wait()
        batches = []
        for group in range(self._num_groups):
            o, r, t, u, ids, masks = self._views[group]
            batches.append((o, r, t, u, self._hear(group, keep=True), ids, masks))
        return batches

    def episodes(self):
        records, self._records = self._records, []
        return records

    def _reach(self, deeds):
        self._check_open("call")
        self.wait()
        for group in range(self._num_groups):
            self._hear(group, keep=True)
        shares: dict[int, list[int]] = {}  # Worker → the places of its deeds.
        for i, (env, _) in enumerate(deeds):
            shares.setdefault(env // self._plan.envs_per_worker, []).append(i)
        messages = {worker: _pack_deeds([deeds[i] for i in s]) for worker, s in shares.items()}
        for worker, message in messages.items():
            self._block.lanes.order(worker, worker + 1, REACH)
            self._children[worker].channel.send_bytes(message)
        answers = [self._hear_results(self._children[worker]) for worker in messages]
        results: list[Any] = [None] * len(deeds)
        for worker, (said, content) in zip(messages, answers, strict=True):
            if said == "failed" and content["type"] == "AttributeError":
                raise AttributeError(f"environment {content['env']}: {content['text']}")
            if said == "failed":
                raise _explain(worker, content)
            for i, result in zip(shares[worker], content, strict=True):
                results[i] = result
        return results

    def notify(self):
        """Let every environment's `notify` be called before its next step."""
        self._check_open("notify")
        self._block.lanes.notify()

    def spans(self) -> list[np.ndarray]:
        """When each worker was at work since the last call: begin and end of each order
        [orders, 2], nanoseconds of `time.perf_counter`. The first call begins the measurement."""
        return self._block.ledger.read()

    @property
    def buf(self) -> buffers.Buffers:  # type: ignore[override]
        """The rows of all agents, in shared memory."""
        self._check_open("buf")
        return self._block.rows

    @property
    def driver_env(self) -> PufferEnv:  # type: ignore[override]
        """One more environment, in this process; made when first asked for."""
        if self._driver_env is None:
            self._driver_env = self.factories[0]()
        return self._driver_env

    def close(self):
        """Close every environment and end the workers; raises what an environment's close raised.

        May be called again.
        """
        self.expected = CLOSED
        driver, self._driver_env = self._driver_env, None
        if driver is not None:
            driver.close()
        reports = self._shut(CLOSE_S) if self._release.alive else []
        if reports:
            raise _explain(*reports[0])

    def _check_open(self, call: str) -> None:
        if self.expected == CLOSED:
            self._advance(call, RECV)

    # ------------------------------------------------------------ setting up

    def _start(self, num_envs: int, batch_size: int) -> None:
        """Start all workers, learn from them what the environments are like, make the rows."""
        for worker in range(self.num_workers):
            self._children.append(Child(worker, self._python))
        for child in self._children:
            self._introduce(child)
        likenesses = [self._expect(child, "likeness") for child in self._children]
        for worker, plain in enumerate(likenesses):
            if plain != likenesses[0]:
                raise APIUsageError(
                    f"environment {self._plan.envs(worker).start} has {_name_spaces(plain)}, "
                    f"environment 0 has {_name_spaces(likenesses[0])}; the environments of one "
                    "vector must agree"
                )
        like = self._like = read_likeness(likenesses[0])
        super().__init__(like, num_envs, batch_size, like.num_agents)
        self._plan = replace(self._plan, agents_per_env=like.num_agents)
        try:
            self._block = Block(self._plan, like)
        except OSError as error:
            raise EnvironmentSetupError(
                f"no memory for the rows of {num_envs} environments with {like.num_agents} "
                f"agent(s) that observe {like.single_observation_space} ({error.strerror}); use "
                "fewer environments or raise the memory limit"
            ) from error
        self._descriptors.append(self._block.descriptor)
        for child in self._children:
            self._hand_over(child)
        for child in self._children:
            self._expect(child, "ready")

    def _introduce(self, child: Child) -> None:
        try:
            child.introduce(self._plan, self._payloads[child.index])
        except OSError as error:
            raise self._describe_loss(child, child.end()) from error

    def _hand_over(self, child: Child) -> None:
        try:
            child.channel.send_descriptor(self._block.descriptor)
            child.channel.send(self._plan)
        except OSError as error:
            raise self._describe_loss(child, child.end()) from error

    def _expect(self, child: Child, kind: str) -> Any:
        """What the worker says during construction."""
        try:
            said, *content = child.receive(START_FACTOR * self.timeout)
        except EOFError as error:
            raise self._describe_loss(child, child.end() + " during construction") from error
        except TimeoutError as error:
            late = f"did not finish construction in {START_FACTOR * self.timeout:g} s"
            raise self._describe_loss(child, late) from error
        if said == "error":
            raise _explain(child.index, content[0])
        assert said == kind
        return content[0] if content else None

    def _lay_out(self, zero_copy: bool, sync_traj: bool) -> None:
        """Cut the workers into groups; a batch is one group, or several that are copied."""
        size = self.batch_size // self._plan.envs_per_worker
        copies = not zero_copy and not sync_traj and 1 < size < self.num_workers
        self._size = 1 if copies else size  # Workers in a group.
        self._num_groups = self.num_workers // self._size
        self._exchange = Exchange(
            self._block.lanes, self._size, size if copies else 1, in_order=sync_traj
        )
        self.in_order = sync_traj or self.batch_size == self.num_envs
        self._told, self._records, self._marked = {}, [], []
        rows = self._block.rows
        self._views = [self._view(rows, self._group_rows(g)) for g in range(self._num_groups)]
        self._action_rows = [rows.actions[self._group_rows(g)] for g in range(self._num_groups)]
        self._gathered = None
        if copies:
            self._gathered = buffers.allocate(
                self.agents_per_batch, self.single_observation_space, self.single_action_space
            )
        restarts = self.restart_workers
        self._seen = np.zeros(self.num_agents, np.bool_)  # Rows with a running episode.
        self._seen_observations = rows.observations.copy() if restarts else np.zeros(0)

    def _group_rows(self, group: int) -> slice:
        rows = self._size * self._plan.agents_per_worker
        return slice(group * rows, (group + 1) * rows)

    def _view(self, rows: buffers.Buffers, part: slice) -> tuple:
        return (
            rows.observations[part],
            rows.rewards[part],
            rows.terminals[part],
            rows.truncations[part],
            self.agent_ids[part],
            rows.masks[part],
        )

    def _gather(self, batch: buffers.Buffers) -> tuple:
        """Copy the rows of the groups received into one batch → its views."""
        parts = [self._group_rows(group) for group in self._exchange.current]
        for field in fields(batch):
            rows = getattr(self._block.rows, field.name)
            np.concatenate([rows[part] for part in parts], out=getattr(batch, field.name))
        ids = np.concatenate([self.agent_ids[part] for part in parts])
        *views, _, masks = self._view(batch, slice(None))
        return *views, ids, masks

    # ------------------------------------------------------------ answers

    def _watch(self) -> None:
        """Look whether the workers that have not answered are alive and in time."""
        for worker, order, age_s in self._exchange.unanswered():
            child = self._children[worker]
            if child.is_dead():
                self._lose(child, child.end())
            elif age_s > self.timeout:
                what = "step" if order == STEP else "reset"
                self._lose(child, f"has not finished a {what} in {self.timeout:g} s")

    def _hear(self, group: int, *, keep: bool = False) -> list[dict]:
        """The infos that came with the group's answers; with `keep` they will come again."""
        first = group * self._size
        for worker in self._block.lanes.speakers(first, first + self._size):
            self._listen(self._children[worker])
        if not self._told:
            return []
        told = self._told.get if keep else self._told.pop
        return [info for w in range(first, first + self._size) for info in told(w, [])]

    def _listen(self, child: Child) -> None:
        """Read the message that comes with an answer."""
        try:
            said, *content = child.receive(self.timeout)
        except EOFError:
            self._lose(child, child.end())
            return
        except TimeoutError:
            self._lose(child, f"has not finished a message in {self.timeout:g} s")
            return
        if said == "error":
            self._stop()
            raise _explain(child.index, content[0])
        self._told[child.index], records = content
        self._records += records

    def _hear_results(self, child: Child) -> tuple:
        """What a worker says to deeds: ("reached", results) or ("failed", report)."""
        deadline = time.monotonic() + self.timeout
        how = ""
        while not how and self._block.lanes.wait([child.index], 1, WATCH_S) < 0:
            if child.is_dead():
                how = child.end()
            elif time.monotonic() > deadline:
                how = f"has not finished a call in {self.timeout:g} s"
        if not how:
            self._block.lanes.speakers(child.index, child.index + 1)
            try:
                return child.receive(self.timeout)
            except EOFError:
                how = child.end()
            except TimeoutError:
                how = f"has not finished a message in {self.timeout:g} s"
        error = self._describe_loss(child, how)
        self._stop()
        raise error

    # ------------------------------------------------------------ workers that are lost

    def _remember(self, groups: list[int]) -> None:
        """Keep what a worker's death may overwrite: the observations that were received."""
        for part in map(self._group_rows, groups):
            self._seen_observations[part] = self._block.rows.observations[part]
            self._seen[part] = self._block.rows.masks[part]

    def _lose(self, child: Child, how: str) -> None:
        """Replace a dead or frozen worker, or raise `WorkerError`."""
        if self.restarts >= self.restart_workers:
            error = self._describe_loss(child, how)
            self._stop()
            raise error
        self.restarts += 1
        warnings.warn(
            f"{self._name(child)} {how}; replaced, {self.restarts} of {self.restart_workers} times",
            RuntimeWarning,
            stacklevel=4,
        )
        try:
            self._replace(child)
        except WorkerError:
            self._stop()
            raise

    def _replace(self, lost: Child) -> None:
        """Put a new worker in the place of a lost one; running episodes end as truncated."""
        lost.kill()
        worker, lanes = lost.index, self._block.lanes
        lanes.clear(worker)
        child = self._children[worker] = Child(worker, self._python)
        self._introduce(child)
        self._expect(child, "likeness")
        self._hand_over(child)
        self._expect(child, "ready")
        for k in range(self.num_envs)[self._plan.envs(worker)]:
            self._block.seeds[k] = env_seed(int(self._block.seeds[k]), self.restarts)
        deadline = time.monotonic() + self.timeout
        lanes.order(worker, worker + 1, RESET)
        while lanes.wait([worker], 1, WATCH_S) < 0:
            late = time.monotonic() > deadline
            if child.is_dead() or late:
                how = "has not finished a reset in time" if late else child.end()
                self._lose(child, how)
                return
        if lanes.speakers(worker, worker + 1):
            self._listen(child)
        part, rows = self._plan.rows(worker), self._block.rows
        rows.rewards[part] = 0
        rows.terminals[part] = False
        rows.truncations[part] = self._seen[part]
        rows.final_observations[part] = self._seen_observations[part]
        self._marked.append(worker)

    def _unmark(self) -> None:
        """Clear the flags of replaced workers that are about to step; environments may not."""
        current = [w for w in self._marked if w // self._size in self._exchange.current]
        for worker in current:
            self._block.rows.truncations[self._plan.rows(worker)] = False
            self._marked.remove(worker)

    def _name(self, child: Child) -> str:
        envs = self._plan.envs(child.index)
        if envs.stop - envs.start == 1:
            return f"worker {child.index} with environment {envs.start}"
        return f"worker {child.index} with environments {envs.start} to {envs.stop - 1}"

    def _describe_loss(self, child: Child, how: str) -> WorkerError:
        envs = self._plan.envs(child.index)
        return WorkerError(
            f"{self._name(child)} {how}",
            env_index=envs.start if envs.stop - envs.start == 1 else None,
            exit_code=child.process.poll(),
        )

    # ------------------------------------------------------------ the end

    def _stop(self) -> None:
        """End everything after an error."""
        self.expected = CLOSED
        self._shut(FAREWELL_S)

    def _shut(self, patience_s: float) -> list[tuple[int, dict]]:
        """Let workers close their environments, end them → (worker, error) of what went wrong."""
        deadline = time.monotonic() + patience_s
        reports: list[tuple[int, dict]] = []
        idle = [child for child in self._children if self._settle(child, deadline)]
        for child in idle:
            self._block.lanes.order(child.index, child.index + 1, CLOSE)
        for child in idle:
            said = self._settle(child, deadline)
            if said and said[0] == "error":
                reports.append((child.index, said[1]))
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()) if child in idle else 0)
        self._release()
        self._forget()
        return reports

    def _forget(self) -> None:
        """Let go of the shared memory; it lives on only in views that somebody keeps."""
        for name in ("_block", "_exchange", "_views", "_action_rows"):
            self.__dict__.pop(name, None)

    def _settle(self, child: Child, deadline: float) -> tuple:
        """Wait until the worker is idle → its unread message, ('idle',) or () if it is lost."""
        lanes, worker = self._block.lanes, child.index
        while lanes.wait([worker], 1, WATCH_S) < 0:
            if child.is_dead() or time.monotonic() > deadline:
                return ()
        if not lanes.speakers(worker, worker + 1):
            return ("idle",)
        try:
            return child.receive(max(0.0, deadline - time.monotonic()))
        except (EOFError, TimeoutError):
            return ()


def count_workers(
    num_envs: int, batch_size: int, num_workers, cores: int, *, overwork: bool = False
) -> int:
    """The number of workers, 'auto' meaning the most that cores and sizes allow.

    Raises APIUsageError, with both numbers and the nearest that fit, for one that does not.
    """

    possible = _fitting_workers(num_envs, batch_size)
    if num_workers == "auto":
        num_workers = best_workers(num_envs, batch_size, cores)
    if not isinstance(num_workers, int | np.integer) or num_workers < 1:
        raise APIUsageError(
            f"num_workers is {num_workers!r}; expected 'auto' or a whole number of at least 1"
        )
    if num_workers not in possible:
        near = sorted(sorted(possible, key=lambda n: abs(n - num_workers))[:2])
        raise APIUsageError(
            f"num_workers = {num_workers} does not fit num_envs = {num_envs} and batch_size = "
            f"{batch_size}: workers step equally many environments, and a batch is whole workers; "
            f"nearest that fit: {' and '.join(map(str, near))}"
        )
    if num_workers > cores and not overwork:
        raise APIUsageError(
            f"num_workers = {num_workers} for batches of {batch_size} of {num_envs} environments "
            f"is more than the {cores} core(s) that this process may use; use fewer workers or "
            "larger batches, or overwork=True if your environments sleep"
        )
    return int(num_workers)


def best_workers(num_envs: int, batch_size: int, cores: int) -> int:
    """The most workers that cores and sizes allow; the fewest, if sizes need more than cores."""
    possible = _fitting_workers(num_envs, batch_size)
    return max((n for n in possible if n <= cores), default=possible[0])


def _fitting_workers(num_envs: int, batch_size: int) -> list[int]:
    """Worker counts that share out environments equally and make up whole batches."""
    counts = [n for n in range(1, num_envs + 1) if num_envs % n == 0]
    return [n for n in counts if batch_size % (num_envs // n) == 0]


def _explain(worker: int, report: dict) -> WorkerError:
    """What a worker reported about an exception, as an exception."""
    return WorkerError(
        f"environment {report['env']} (worker {worker}) raised {report['type']} in "
        f"{report['call']}: {report['text']}\n\nTraceback in the worker:\n{report['trace']}",
        env_index=report["env"],
        remote_traceback=report["trace"],
    )


def _pack_deeds(deeds: list) -> bytes:
    try:
        return pack(deeds)
    except Exception as error:
        raise APIUsageError(
            f"what is passed on to environments cannot be sent to a worker process "
            f"({type(error).__name__}: {error}); make such objects in the environment"
        ) from error


def _name_spaces(plain: tuple) -> str:
    like = read_likeness(plain)
    return (
        f"observations {like.single_observation_space}, actions {like.single_action_space} and "
        f"{like.num_agents} agent(s)"
    )


def _release(owner: int, children: list[Child], descriptors: list[int]) -> None:
    """Kill what still runs and close what is open, in the process that started it."""
    if os.getpid() != owner:
        return
    for child in children:
        child.kill()
    for descriptor in descriptors:
        os.close(descriptor)
    children.clear()
    descriptors.clear()
