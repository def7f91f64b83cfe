"""One root seed for a run, and from it a seed of its own for every environment.

For each root the map from index to seed is a permutation of the 31-bit integers, so no two
environments of a run can share a seed. The permutation mixes: neighbouring roots and neighbouring
indices give unrelated seeds.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

BITS = 31
_MASK = (1 << BITS) - 1
_MASK64 = (1 << 64) - 1
_ROUNDS = 4
_ODD = 0x2C1B3C6D  # An odd factor below 2**31, so that products fit into 62 bits.


def env_seed(root: int, index: int) -> int:
    """The seed of environment `index` in a run with seed `root`, in [0, 2**31).

    Distinct for all indices in [0, 2**31) of one root; any integer is a root.
    """
    if not 0 <= index <= _MASK:
        raise ValueError(f"index is {index}; expected 0 to {_MASK}")
    return _permute(int(index), _keys(root))


def env_seeds(root: int, n: int) -> np.ndarray:
    """`env_seed(root, k)` for k in 0 … n-1 → [n] uint64."""
    if not 0 <= n <= _MASK + 1:
        raise ValueError(f"n is {n}; expected 0 to {_MASK + 1}")
    return _permute(np.arange(n, dtype=np.uint64), _keys(root))


def fresh_seed() -> int:
    """A seed in [0, 2**31) from the operating system's random source."""
    return int.from_bytes(os.urandom(4), "little") & _MASK


def _keys(root: int) -> list[int]:
    """Two numbers of 31 bits per round, from a 64-bit mixing generator started at `root`."""
    keys, state = [], int(root) & _MASK64
    for _ in range(2 * _ROUNDS):
        state = (state + 0x9E3779B97F4A7C15) & _MASK64
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
        keys.append((word ^ (word >> 31)) & _MASK)
    return keys


def _permute(x: Any, keys: list[int]) -> Any:
    """Invertible rounds on 31 bits; `x` is an int or an array of uint64."""
    for add, flip in zip(keys[::2], keys[1::2], strict=True):
        x = ((x + add) & _MASK) ^ flip
        x = x ^ (x >> 16)
        x = (x * _ODD) & _MASK
        x = x ^ (x >> 15)
    return x
