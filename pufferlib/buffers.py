"""One block of memory with a typed view for each field of a batch of agents."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, fields

import numpy as np

ALIGNMENT = 64
GAP = 5 * ALIGNMENT  # Between fields: row k of each must not fall into the same set of a cache.
POISON = 0xA5


@dataclass(frozen=True, eq=False)
class Buffers:
    """The rows that environments write and policies read; row `i` is one agent slot for ever.

    observations, final_observations [A, *O]; actions [A, *D]; rewards [A] float32;
    terminals, truncations, masks [A] bool. All views share one block, which lives as long as
    any of them does.
    """

    observations: np.ndarray
    final_observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    truncations: np.ndarray
    masks: np.ndarray

    def rows(self, begin: int, end: int) -> Buffers:
        """Views of rows `begin` to `end` (not included); nothing is copied."""
        return Buffers(**{f.name: getattr(self, f.name)[begin:end] for f in fields(self)})

    def __len__(self) -> int:
        return len(self.rewards)


def layout(num_agents, observation_space, action_space):
    """Field name → (byte offset, dtype, shape) for `num_agents` rows, and the size in bytes.

    Args: `observation_space` a Box, `action_space` a Box, Discrete or MultiDiscrete.
    """
    observation = (np.dtype(observation_space.dtype), (num_agents, *observation_space.shape))
    is_box = type(action_space).__name__ == "Box"
    action_dtype = np.dtype(action_space.dtype if is_box else np.int32)
    table = {
        "observations": observation,
        "final_observations": observation,
        "actions": (action_dtype, (num_agents, *action_space.shape)),
        "rewards": (np.dtype(np.float32), (num_agents,)),
        "terminals": (np.dtype(np.bool_), (num_agents,)),
        "truncations": (np.dtype(np.bool_), (num_agents,)),
        "masks": (np.dtype(np.bool_), (num_agents,)),
    }
    placed, offset = {}, 0
    for name, (dtype, shape) in table.items():
        placed[name] = (offset, dtype, shape)
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        offset += -(-size // ALIGNMENT) * ALIGNMENT + GAP
    return placed, max(offset, ALIGNMENT)


def view(block, placed) -> Buffers:
    """`Buffers` over `block` (anything with the buffer protocol) by a table from `layout`."""
    return Buffers(
        **{
            name: np.ndarray(shape, dtype, buffer=block, offset=offset)
            for name, (offset, dtype, shape) in placed.items()
        }
    )


def clear(buffers: Buffers) -> None:
    """Flags and rewards to zero, masks to True, observations to a poison byte.

    A row that was never written then shows at once in a test or a picture.
    """
    for name in ("observations", "final_observations"):
        getattr(buffers, name).view(np.uint8).reshape(-1)[:] = POISON
    buffers.actions[...] = 0
    buffers.rewards[...] = 0
    buffers.terminals[...] = False
    buffers.truncations[...] = False
    buffers.masks[...] = True


def allocate(num_agents: int, observation_space, action_space) -> Buffers:
    """Private, 64-byte aligned, poisoned buffers for `num_agents` rows."""
    placed, size = layout(num_agents, observation_space, action_space)
    block = np.empty(size + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    buffers = view(block[start : start + size], placed)
    clear(buffers)
    return buffers


def shared_block(size: int) -> tuple[int, mmap.mmap]:
    """An anonymous file of `size` bytes, to be handed to children by `pass_fds`, and its mapping.

    The memory is reserved at once, so a full machine answers with `OSError` here instead of a
    bus error later. The name is gone from the start: nothing is left behind after SIGKILL.
    """
    descriptor = os.memfd_create("pufferlib")
    try:
        os.posix_fallocate(descriptor, 0, size)
        return descriptor, mmap.mmap(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
