"""What a parent and its workers say to each other, and the memory that they share."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib import buffers
from pufferlib.native.exchange import Lanes
from pufferlib.spaces import PackedBox, pack_space
from pufferlib.vector.ledger import Ledger

NOTIFY, STEP, RESET, CLOSE, REACH = range(5)
SPIN_US = 1000.0
CORE = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
_HEADER = struct.Struct("<Q")


class _Unpickler(pickle.Unpickler):
    """Finds what another line of NumPy packed: its core was renamed for 2.0."""

    def find_class(self, module, name):
        package, _, rest = module.partition("core.")
        if package in ("numpy.", "numpy._"):
            module = f"{CORE}.{rest}"
        return super().find_class(module, name)


def unpack(data: bytes) -> Any:
    """What `data`, a pickle of either line of NumPy, holds."""
    with io.BytesIO(data) as file:
        return _Unpickler(file).load()


class Channel:
    """Whole messages over a stream socket: pickles, bytes and file descriptors."""

    def __init__(self, stream: socket.socket):
        self.stream = stream

    def send(self, message: Any) -> None:
        self.send_bytes(pickle.dumps(message, 5))

    def send_bytes(self, data: bytes) -> None:
        self.stream.sendall(_HEADER.pack(len(data)) + data)

    def receive(self) -> Any:
        return unpack(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """The next message. Raises EOFError if the other side is gone."""
        (size,) = _HEADER.unpack(self._read(_HEADER.size))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.stream.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError("the other process closed its socket")
            data += part
        return bytes(data)

    def send_descriptor(self, descriptor: int) -> None:
        socket.send_fds(self.stream, [b"d"], [descriptor])

    def receive_descriptor(self) -> int:
        descriptors = socket.recv_fds(self.stream, 1, 1)[1]
        if not descriptors:
            raise EOFError("the other process closed its socket")
        return descriptors[0]


@dataclass(frozen=True)
class Likeness:
    """What a vector must know of an environment."""

    single_observation_space: spaces.Space
    single_action_space: spaces.Space
    num_agents: int
    emulated: bool


def describe(env) -> tuple:
    """The `Likeness` of `env` in plain values, which any Gymnasium and NumPy can read."""
    return (
        _describe_space(env.single_observation_space),
        _describe_space(env.single_action_space),
        int(env.num_agents),
        bool(env.emulated),
    )


def read_likeness(plain: tuple) -> Likeness:
    """The `Likeness` in the plain values of `describe`."""
    observation_space, action_space, num_agents, emulated = plain
    return Likeness(_read_space(observation_space), _read_space(action_space), num_agents, emulated)


def _describe_space(space) -> tuple:
    if isinstance(space, PackedBox):
        return "Packed", _describe_space(space.original)
    if isinstance(space, spaces.Dict):
        return "Dict", [(key, _describe_space(part)) for key, part in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        return "Tuple", [_describe_space(part) for part in space.spaces]
    if isinstance(space, spaces.Discrete):
        return "Discrete", int(space.n), int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return "MultiDiscrete", space.nvec.tolist(), space.nvec.dtype.str, space.start.tolist()
    if isinstance(space, spaces.MultiBinary):
        return "MultiBinary", space.shape
    return "Box", space.low.dtype.str, space.shape, space.low.tobytes(), space.high.tobytes()


def _read_space(plain: tuple) -> spaces.Space:
    kind, *rest = plain
    if kind == "Packed":
        return pack_space(_read_space(rest[0]))
    if kind == "Dict":
        return spaces.Dict([(key, _read_space(part)) for key, part in rest[0]])
    if kind == "Tuple":
        return spaces.Tuple([_read_space(part) for part in rest[0]])
    if kind == "Discrete":
        return spaces.Discrete(rest[0], start=rest[1])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(rest[0], dtype=np.dtype(rest[1]).type, start=rest[2])
    if kind == "MultiBinary":
        return spaces.MultiBinary(rest[0])
    dtype, shape, low, high = rest
    low, high = (np.frombuffer(bound, dtype).reshape(shape) for bound in (low, high))
    return spaces.Box(low, high, shape, np.dtype(dtype).type)


@dataclass(frozen=True)
class Plan:
    """How environments, agents and workers are laid out, and how both sides wait."""

    num_envs: int
    num_workers: int
    agents_per_env: int
    cores: int

    @property
    def waiting(self) -> tuple[float, bool]:
        """Microseconds to spin before a sleep, and if others get the core meanwhile.

        Who spins without a core of its own keeps from work what it waits for: with a core for
        each worker and none for the parent they make room for each other.
        """
        if self.num_workers > self.cores:
            return 0.0, False
        return SPIN_US, self.num_workers == self.cores

    @property
    def envs_per_worker(self) -> int:
        return self.num_envs // self.num_workers

    @property
    def agents_per_worker(self) -> int:
        return self.envs_per_worker * self.agents_per_env

    def envs(self, worker: int) -> slice:
        """The environments of one worker."""
        return slice(worker * self.envs_per_worker, (worker + 1) * self.envs_per_worker)

    def rows(self, worker: int) -> slice:
        """The rows of one worker."""
        return slice(worker * self.agents_per_worker, (worker + 1) * self.agents_per_worker)


class Block:
    """Shared memory: `lanes`, `seeds` [N] uint64, `ledger` and `rows`, the Buffers of all agents.

    The parent makes it and keeps `descriptor`, by which a worker maps it. Raises OSError where
    the memory cannot be had.
    """

    def __init__(self, plan: Plan, likeness: Any, descriptor: int | None = None):
        placed, rows_size = buffers.layout(
            plan.num_envs * plan.agents_per_env,
            likeness.single_observation_space,
            likeness.single_action_space,
        )
        seeds_at = Lanes.size(plan.num_workers)
        ledger_at = seeds_at + 8 * plan.num_envs
        rows_at = ledger_at + Ledger.size(plan.num_workers)
        rows_at = -(-rows_at // buffers.ALIGNMENT) * buffers.ALIGNMENT
        self.size = rows_at + rows_size
        if descriptor is None:
            self.descriptor, memory = buffers.shared_block(self.size)
        else:
            memory = mmap.mmap(descriptor, self.size)
            os.close(descriptor)
        self.lanes = Lanes(memory, plan.num_workers, *plan.waiting)
        self.seeds = np.ndarray(plan.num_envs, np.uint64, memory, seeds_at)
        self.ledger = Ledger(memory, ledger_at, plan.num_workers)
        self.rows = buffers.view(memoryview(memory)[rows_at:], placed)
        if descriptor is None:
            buffers.clear(self.rows)
