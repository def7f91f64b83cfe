"""The backend for environments on other machines: actors of a Ray cluster (the extra `ray`)."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any

import numpy as np

from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError, WorkerError
from pufferlib.machine import usable_cores
from pufferlib.vector.base import CLOSED, RECV, SEND, VecEnv, allocate_rows, check_sizes
from pufferlib.vector.channel import describe, read_likeness
from pufferlib.vector.child import pack_factories
from pufferlib.vector.multiprocessing import count_workers
from pufferlib.vector.serial import Serial

FIELDS = ("observations", "rewards", "terminals", "truncations", "masks")


class Ray(VecEnv):
    """Environments in the actors of a Ray cluster, each of which steps an equal share.

    Rows travel through Ray's object store and are copied once into this process. A batch is the
    environments of a block of neighbouring workers; with `sync_traj` blocks come in the order in
    which they were sent, else the first that is ready.

    Args:
        factories: one for each environment, from `creation.list_factories`.
        num_workers: actors; 'auto' is as many as the cluster has processors and sizes allow, more
            than that needs `overwork`.
        timeout: seconds that a step or a reset of a worker may take.

    Connects to `RAY_ADDRESS` if that is set, and starts Ray on this machine if it is not running.
    Raises `WorkerError` for a worker whose environment raised, that died, or that is late.
    """

    def __init__(
        self,
        factories,
        *,
        batch_size="auto",
        num_workers="auto",
        sync_traj: bool = False,
        overwork: bool = False,
        timeout: float = 60.0,
    ):
        try:
            import ray
        except ImportError as error:
            raise EnvironmentSetupError(
                "backend Ray needs the package ray; install it with: pip install 'pufferlib[ray]'"
            ) from error
        self._ray: Any = ray
        num_envs, batch_size = check_sizes(len(factories), batch_size)
        self._started = not ray.is_initialized()
        if self._started:
            _start(ray)
        processors = int(ray.cluster_resources().get("CPU", 1))
        num_workers = count_workers(
            num_envs, batch_size, num_workers, processors, overwork=overwork
        )
        self.num_workers, self.timeout, self.factories = num_workers, timeout, factories
        self._sync_traj = sync_traj
        self.in_order = sync_traj or batch_size == num_envs
        self._share = num_envs // num_workers
        actor = ray.remote(num_cpus=min(1.0, processors / num_workers))(Worker)
        self._workers: list[Any] = []
        self._driver_env: Any = None
        self.expected = CLOSED
        try:
            for first in range(0, num_envs, self._share):
                payload = pack_factories(factories[first : first + self._share], first)
                self._workers.append(actor.remote(payload, first))
            plain = [self._get(k, w.describe.remote()) for k, w in enumerate(self._workers)]
            for k, other in enumerate(plain):
                if other != plain[0]:
                    raise APIUsageError(
                        f"environment {k * self._share} differs from environment 0 in spaces or "
                        "agents; the environments of one vector must agree"
                    )
        except BaseException:
            self._end()
            raise
        like = read_likeness(plain[0])
        super().__init__(like, num_envs, batch_size, like.num_agents)
        self.buf = allocate_rows(like, self.num_agents)
        self._group = num_workers * batch_size // num_envs  # Workers of a batch.
        self._pending: list[int] = []  # Groups under way, oldest first.
        self._answers: dict[int, Any] = {}  # Worker → the reference of its answer.
        self._infos: dict[int, list[dict]] = {}  # Group → what came with its rows.
        self._records: list[dict] = []
        self._current = 0

    @property
    def driver_env(self) -> PufferEnv:  # type: ignore[override]
        """One more environment, in this process; made when first asked for."""
        if self._driver_env is None:
            self._driver_env = self.factories[0]()
        return self._driver_env

    def async_reset(self, seed=None):
        if self.expected == CLOSED:
            self._advance("async_reset", RECV)
        self.wait()
        seeds = self._seeds(seed).reshape(self.num_workers, self._share)
        for k, worker in enumerate(self._workers):
            self._answers[k] = worker.reset.remote(seeds[k])
        self._pending = list(range(self.num_workers // self._group))
        self._infos.clear()
        self.expected = RECV

    def send(self, actions):
        self._advance(SEND, RECV)
        try:
            actions = self._check_actions(actions)
        except APIUsageError:
            self.expected = SEND
            raise
        parts = np.split(actions, self._group)
        for k, part in zip(self._members(self._current), parts, strict=True):
            self._answers[k] = self._workers[k].step.remote(part)
        self._pending.append(self._current)

    def recv(self):
        self._advance(RECV, SEND)
        self._current = self._pending[0] if self._sync_traj else self._first_ready()
        self._pending.remove(self._current)
        self._take(self._current)
        return self._batch(self._current, self._infos.pop(self._current))

    def wait(self):
        for group in self._pending:
            self._take(group)

    def batches(self):
        self.wait()
        groups = range(self.num_workers // self._group)
        return [self._batch(g, self._infos.get(g, [])) for g in groups]

    @property
    def final_observations(self):
        return self.buf.final_observations[self._rows(self._current)]

    def episodes(self):
        records, self._records = self._records, []
        return records

    def _reach(self, deeds):
        if self.expected == CLOSED:
            self._advance("call", RECV)
        self.wait()
        answers = [
            (k := env // self._share, self._workers[k].reach.remote(env, deed))
            for env, deed in deeds
        ]
        results = []
        for k, reference in answers:
            result, failure = self._get(k, reference)
            if failure is not None and failure.summary.startswith("AttributeError"):
                raise AttributeError(f"environment {failure.env}: {failure.summary}")
            if failure is not None:
                raise _explain(k, failure)
            results.append(result)
        return results

    def notify(self):
        for worker in self._workers:
            worker.notify.remote()

    def close(self):
        """Close every environment and end the actors; Ray too, if this vector started it."""
        if self.expected == CLOSED:
            return
        self.expected = CLOSED
        if self._driver_env is not None:
            self._driver_env.close()
        try:
            for k, reference in enumerate([w.close.remote() for w in self._workers]):
                self._get(k, reference)
        finally:
            self._end()

    # ------------------------------------------------------------ workers

    def _members(self, group: int) -> range:
        return range(group * self._group, (group + 1) * self._group)

    def _rows(self, group: int) -> slice:
        return slice(group * self.agents_per_batch, (group + 1) * self.agents_per_batch)

    def _first_ready(self) -> int:
        """The first pending group whose workers have all answered."""
        while True:
            late = []
            for group in self._pending:
                due = [self._answers[k] for k in self._members(group) if k in self._answers]
                if not due:
                    return group
                _, waiting = self._ray.wait(due, num_returns=len(due), timeout=0)
                if not waiting:
                    return group
                late += waiting
            if not self._ray.wait(late, timeout=self.timeout)[0]:
                self._fail(
                    self._pending[0] * self._group, f"has not answered in {self.timeout:g} s"
                )

    def _take(self, group: int) -> None:
        """Copy the answers of a group's workers into the rows; once for each answer."""
        agents = self._share * self.agents_per_env
        infos = self._infos.setdefault(group, [])
        for k in self._members(group):
            if k not in self._answers:
                continue
            answer = self._get(k, self._answers.pop(k))
            rows = self.buf.rows(k * agents, (k + 1) * agents)
            for name in FIELDS:
                getattr(rows, name)[...] = answer[name]
            if answer["final_observations"] is not None:
                rows.final_observations[...] = answer["final_observations"]
            infos += answer["infos"]
            self._records += answer["records"]

    def _batch(self, group: int, infos: list[dict]) -> tuple:
        rows = self.buf.rows(self._rows(group).start, self._rows(group).stop)
        ids = self.agent_ids[self._rows(group)]
        flags = rows.terminals, rows.truncations
        return rows.observations, rows.rewards, *flags, infos, ids, rows.masks

    def _get(self, k: int, reference):
        """The result of a call to worker `k`; raises WorkerError for one that failed."""
        try:
            answer = self._ray.get(reference, timeout=self.timeout)
        except self._ray.exceptions.GetTimeoutError:
            self._fail(k, f"has not finished a call in {self.timeout:g} s")
        except self._ray.exceptions.RayActorError as error:
            self._fail(k, f"died ({error})")
        if isinstance(answer, Failure):
            self._end()
            self.expected = CLOSED
            raise _explain(k, answer)
        return answer

    def _fail(self, k: int, how: str):
        self._end()
        self.expected = CLOSED
        first = k * self._share
        raise WorkerError(
            f"worker {k} with environments {first} to {first + self._share - 1} {how}",
            env_index=first if self._share == 1 else None,
        )

    def _end(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        if self._started:
            self._started = False
            self._ray.shutdown()


class Failure:
    """An exception of an environment, as text that travels anywhere."""

    def __init__(self, error: BaseException, env: int, call: str):
        self.env, self.summary = env, f"{type(error).__name__} in {call}: {error}"
        self.trace = "".join(traceback.format_exception(error))


def _explain(worker: int, failure: Failure) -> WorkerError:
    return WorkerError(
        f"environment {failure.env} (worker {worker}) raised {failure.summary}\n\nTraceback in "
        f"the worker:\n{failure.trace}",
        env_index=failure.env,
        remote_traceback=failure.trace,
    )


class Worker:
    """The environments of one actor."""

    def __init__(self, payload: bytes, first: int):
        self.serial: Any = None
        self.failure: Failure | None = None
        try:
            self.serial = Serial(pickle.loads(payload), first_env=first)
        except Exception as error:
            self.failure = Failure(error, first, "its constructor")

    def describe(self):
        """What the environments are like, or the `Failure` to make them."""
        return self.failure if self.serial is None else describe(self.serial.envs[0])

    def reset(self, seeds):
        """Reset every environment → the rows."""
        return self._call("reset", lambda: self.serial.reset(seeds.copy())[1])

    def step(self, actions):
        """Step every environment → the rows."""
        self.serial.buf.actions[...] = actions
        return self._call("step", self.serial.advance)

    def reach(self, env: int, deed: tuple):
        """Do a deed to an environment → (result, None) or (None, Failure)."""
        try:
            return self.serial._reach([(env, deed)])[0], None
        except Exception as error:
            return None, Failure(error, env, "call")

    def notify(self):
        """Notify every environment."""
        self.serial.notify()

    def close(self):
        """Close every environment."""
        try:
            self.serial.close()
        except Exception as error:
            return Failure(error, self.serial.current_env, "close")
        return None

    def _call(self, name: str, function):
        try:
            infos = function()
        except Exception as error:
            return Failure(error, self.serial.current_env, name)
        buf = self.serial.buf
        ended = bool(buf.terminals.any() or buf.truncations.any())
        return {name: getattr(buf, name) for name in FIELDS} | {
            "final_observations": buf.final_observations if ended else None,
            "infos": infos,
            "records": self.serial.episodes(),
        }


def _start(ray) -> None:
    """Join the cluster of RAY_ADDRESS, or start Ray here; nothing phones home."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": usable_cores()}
    ray.init(log_to_driver=False, include_dashboard=False, **here)
