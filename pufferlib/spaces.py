"""How a structured Gymnasium space becomes one row of memory, and how values go in and out.

An observation space with several fields is packed into a row. If all fields have one dtype the row
is a flat Box of that dtype; otherwise it is bytes, with each field at an offset aligned to its item
size and the total padded to the largest item size, so that a slice of columns can be viewed as its
dtype without a copy. A space that is one Box already stays as it is. Fields follow the space's own
order of keys.

Values are never reinterpreted. A value of another dtype is cast where that loses nothing; a
narrower float or integer of the same kind is cast with one warning per environment, and integers
must come out unchanged; anything else, lists and wrong shapes included, is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.exceptions import APIUsageError

FIXED_SIZE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True)
class Leaf:
    """One field of a packed row: where it lies and what it holds.

    `path` holds the keys from the root, `offset` is in bytes. `kind` is 'continuous' for a Box and
    'discrete' for the rest; a discrete field has, for each of its elements in C order, `n` choices
    counted from `start`.
    """

    path: tuple
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    kind: str
    n: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The path joined by dots; empty for a space without keys."""
        return ".".join(map(str, self.path))

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """The table of a row: its fields in order, and the dtype, shape and size of the whole.

    `structure` is the nesting of the original space, with the index of a leaf where a field is.
    """

    leaves: tuple[Leaf, ...]
    structure: Any
    dtype: np.dtype
    shape: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        rows = [("name", "offset", "dtype", "shape")]
        for leaf in self.leaves:
            rows.append((leaf.name or "-", str(leaf.offset), str(leaf.dtype), str(leaf.shape)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join((*lines, f"{self.nbytes} bytes as {self.dtype} {self.shape}"))

    def field(self, leaf: Leaf, rows: np.ndarray) -> np.ndarray:
        """The view of one field in `rows` [..., *row] → [..., *leaf.shape]."""
        if self.shape == leaf.shape and self.dtype == leaf.dtype:
            return rows
        step = self.dtype.itemsize
        begin = leaf.offset // step
        columns = rows[..., begin : begin + leaf.nbytes // step]
        return columns.view(leaf.dtype).reshape((*rows.shape[:-1], *leaf.shape))

    def nest(self, values: Sequence) -> Any:
        """One value per leaf, put into dicts and tuples as the original space has them."""
        return _nest(self.structure, values)

    def unpack(self, rows: np.ndarray) -> Any:
        """Views into `rows` [..., *row], nested like the original, each [..., *leaf.shape]."""
        return self.nest([self.field(leaf, rows) for leaf in self.leaves])


class PackedBox(spaces.Box):
    """The Box of a packed space; `original` is the space it stands for, `layout` its table."""

    def __init__(self, original: spaces.Space, layout: Layout, low: Any, high: Any):
        super().__init__(low, high, shape=layout.shape, dtype=layout.dtype.type)
        self.original = original
        self.layout = layout

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """A packed sample of the original space."""
        if mask is not None or probability is not None:
            raise APIUsageError("a packed space samples without mask and probability")
        row = np.zeros(self.shape, self.dtype)
        self.pack(self.original.sample(), row)
        return row

    def seed(self, seed: Any = None) -> Any:
        """Seed the original space, from which samples come."""
        return self.original.seed(seed)

    def pack(self, value: Any, row: np.ndarray) -> None:
        """Write `value`, a member of the original space, into `row`."""
        Packer(self.original).pack(value, row)

    def unpack(self, rows: np.ndarray) -> Any:
        """Views into `rows` [..., *row], nested like the original space."""
        return self.layout.unpack(rows)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PackedBox)
            and self.layout == other.layout
            and self.original == other.original
        )

    def __repr__(self) -> str:
        return f"PackedBox({self.shape}, {self.dtype}, {self.original})"


def pack_space(space: spaces.Space, *, who: str = "") -> spaces.Box:
    """The Box that holds members of `space`: itself if it is a Box, else a `PackedBox`.

    Raises APIUsageError for a field without a fixed size, naming its path and type; `who` names
    the environment in the message.
    """
    if isinstance(space, spaces.Box):
        return space
    layout, members = _lay_out(space, "observation", who)
    if layout.dtype == np.uint8 and any(leaf.dtype != np.uint8 for leaf in layout.leaves):
        return PackedBox(space, layout, 0, 255)
    bounds = [_bounds(member) for member in members]
    low, high = (
        np.concatenate([np.ravel(pair[side]) for pair in bounds]).astype(layout.dtype)
        for side in (0, 1)
    )
    return PackedBox(space, layout, low, high)


def layout_of(space: spaces.Space) -> Layout:
    """The layout of any supported space: one leaf for a plain Box, the table for a packed one."""
    if isinstance(space, PackedBox):
        return space.layout
    return _lay_out(space, "observation", "")[0]


class Packer:
    """Writes the values of one environment into rows; warns at most once about a cast.

    `who` names the environment in messages and `noun` what it returns.
    """

    def __init__(self, space: spaces.Space, *, who: str = "", noun: str = "observation"):
        self.layout, self._members = _lay_out(space, noun, who)
        self._subject = f"{who}: {noun}" if who else noun
        self._warned = False

    def pack(self, value: Any, row: np.ndarray) -> None:
        """Write one value into `row`; use `writer` where the row stays the same."""
        self.writer(row)(value)

    def writer(self, row: np.ndarray) -> Callable[[Any], None]:
        """A function that writes a value into `row`, with everything looked up beforehand.

        Take a row as `rows[i, ...]`, which is a view even where one is a single number. Each call
        checks keys, dtypes and shapes; `check` also checks the bounds.
        """
        views = [self.layout.field(leaf, row) for leaf in self.layout.leaves]
        write = self._writer(self.layout.structure, views, ())
        if isinstance(self.layout.structure, int):
            return write

        def write_structure(value):
            try:
                write(value)
            except (AttributeError, TypeError, OverflowError):
                self.check(value)
                raise

        return write_structure

    def check(self, value: Any) -> None:
        """Raise APIUsageError unless `value` lies in the space, naming field, expected and got."""
        self._check(self.layout.structure, value, ())

    def _writer(self, structure: Any, views: list, path: tuple) -> Callable[[Any], None]:
        if isinstance(structure, dict):
            keys = structure.keys()
            parts = [
                (key, self._writer(part, views, (*path, key))) for key, part in structure.items()
            ]

            def write_dict(value):
                if value.keys() != keys:
                    self._refuse_keys(path, keys, value)
                for key, write in parts:
                    write(value[key])

            return write_dict
        if isinstance(structure, tuple):
            writers = [
                self._writer(part, views, (*path, index)) for index, part in enumerate(structure)
            ]

            def write_tuple(value):
                if len(value) != len(writers):
                    self._refuse(path, f"has {len(value)} members, expected {len(writers)}")
                for write, member in zip(writers, value, strict=True):
                    write(member)

            return write_tuple
        leaf, view = self.layout.leaves[structure], views[structure]
        dtype, shape, convert = leaf.dtype, leaf.shape, partial(self._convert, leaf)
        if isinstance(self._members[structure], spaces.Discrete):
            kinds = (int, dtype.type)

            def write_choice(value):
                view[...] = value if value.__class__ in kinds else convert(value)

            return write_choice

        def write_array(value):
            try:
                fits = value.dtype is dtype and value.shape == shape
            except AttributeError:
                fits = False
            view[...] = value if fits else convert(value)

        return write_array

    def _convert(self, leaf: Leaf, value: Any) -> Any:
        expected = f"expected {leaf.dtype} {list(leaf.shape)}"
        whole = leaf.dtype.kind in "iu"
        if leaf.shape == () and isinstance(value, bool | int | float):
            limits = np.iinfo(leaf.dtype) if whole and isinstance(value, int) else None
            if limits and limits.min <= value <= limits.max:
                return leaf.dtype.type(value)
            value = np.asarray(value)
        if not isinstance(value, np.ndarray | np.generic):
            self._refuse(
                leaf.path, f"is a {type(value).__name__}, {expected}; return a NumPy array"
            )
        if value.shape != leaf.shape:
            self._refuse(leaf.path, f"is {value.dtype} {list(value.shape)}, {expected}")
        if np.can_cast(value.dtype, leaf.dtype, "safe"):
            return value
        same_kind = (
            whole and value.dtype.kind in "iu"
        ) or leaf.dtype.kind == value.dtype.kind == "f"
        if not same_kind:
            self._refuse(
                leaf.path,
                f"is {value.dtype} {list(value.shape)}, {expected}; "
                f"declare {value.dtype} or cast in the environment",
            )
        narrow = value.astype(leaf.dtype)
        if whole and not np.array_equal(narrow, value):
            self._refuse(leaf.path, f"is {value.dtype} with values beyond its type, {expected}")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._field(leaf.path)} is {value.dtype} and is cast to the declared "
                f"{leaf.dtype} at every step; return {leaf.dtype} to save the cast",
                stacklevel=4,
            )
        return narrow

    def _check(self, structure: Any, value: Any, path: tuple) -> None:
        if isinstance(structure, dict):
            if not isinstance(value, Mapping):
                self._refuse(path, f"is a {type(value).__name__}, expected a dict")
            if value.keys() != structure.keys():
                self._refuse_keys(path, structure.keys(), value)
            for key, part in structure.items():
                self._check(part, value[key], (*path, key))
        elif isinstance(structure, tuple):
            if not isinstance(value, tuple | list):
                self._refuse(path, f"is a {type(value).__name__}, expected a tuple")
            if len(value) != len(structure):
                self._refuse(path, f"has {len(value)} members, expected {len(structure)}")
            for index, part in enumerate(structure):
                self._check(part, value[index], (*path, index))
        else:
            array = np.asarray(
                self._convert(self.layout.leaves[structure], value),
                self.layout.leaves[structure].dtype,
            )
            low, high = (np.broadcast_to(b, array.shape) for b in _bounds(self._members[structure]))
            outside = ~((array >= low) & (array <= high))
            if outside.any():
                where = tuple(int(i) for i in np.argwhere(outside)[0])
                place = f" at {list(where)}" if where else ""
                self._refuse(
                    path,
                    f"is {array[where]}{place}, outside the bounds "
                    f"[{low[where]}, {high[where]}] of its space",
                )

    def _field(self, path: tuple) -> str:
        return f"{self._subject} field {'.'.join(map(str, path))!r}" if path else self._subject

    def _refuse(self, path: tuple, problem: str) -> None:
        raise APIUsageError(f"{self._field(path)} {problem}")

    def _refuse_keys(self, path: tuple, expected: Any, value: Any) -> None:
        missing = [key for key in expected if key not in value]
        problem = f"lacks the key {missing[0]!r}" if missing else None
        surplus = [key for key in value if key not in expected]
        problem = problem or f"has the surplus key {surplus[0]!r}"
        self._refuse(path, f"{problem}; the space declares {', '.join(map(str, expected))}")


class ActionLayout:
    """A Gymnasium action space as one row of numbers, and back.

    `space` is what a policy acts in: Discrete for a single choice, MultiDiscrete for several, both
    counted from zero, or a flat float32 Box if every field is a Box. `unpack_action(row)` gives
    the value the environment expects, in its own dtype, shape and structure, with `start` added
    and Boxes clipped into their bounds (a field of an integer Box is rounded first).

    Raises APIUsageError for fields without a fixed size and for a mix of choices and Boxes.
    """

    unpack_action: Callable[[Any], Any]

    def __init__(self, space: spaces.Space, *, who: str = ""):
        self.original = space
        self.layout, members = _lay_out(space, "action", who)
        leaves = self.layout.leaves
        boxes = [leaf for leaf in leaves if leaf.kind == "continuous"]
        if boxes and len(boxes) < len(leaves):
            choice = next(leaf for leaf in leaves if leaf.kind == "discrete")
            raise APIUsageError(
                f"{who + ': ' if who else ''}the action space mixes choices ({choice.name}) and "
                f"continuous values ({boxes[0].name}); wrap the environment so that actions are of "
                "one kind, for example by dividing the Box into a few choices"
            )
        ends = np.cumsum([leaf.size for leaf in leaves]).tolist()
        begins = [0, *ends[:-1]]
        read = _continuous_reader if boxes else _discrete_reader
        readers = [
            read(leaf, member, begin, end)
            for leaf, member, begin, end in zip(leaves, members, begins, ends, strict=True)
        ]
        build = _builder(self.layout.structure, readers)
        self.space: spaces.Space
        if boxes:
            self.space = _continuous_space(space, members)
            self.unpack_action = lambda row: build(np.asarray(row).reshape(-1))
        else:
            sizes = np.array([n for leaf in leaves for n in leaf.n])
            self.space = _discrete_space(space, sizes)
            self.unpack_action = (
                _choice_unpacker(leaves[0])
                if isinstance(space, spaces.Discrete)
                else partial(_unpack_choices, build, sizes)
            )

    def __reduce__(self):
        return ActionLayout, (self.original,)


def _lay_out(space: spaces.Space, noun: str, who: str) -> tuple[Layout, list[spaces.Space]]:
    """The layout of `space`, and the space of each leaf."""
    found: list[tuple[tuple, spaces.Space]] = []
    structure = _structure(space, (), found)
    refused = [
        f"{'.'.join(map(str, path)) or noun}: {type(member).__name__}"
        for path, member in found
        if not isinstance(member, FIXED_SIZE)
    ]
    prefix = f"{who}: " if who else ""
    if refused:
        raise APIUsageError(
            f"{prefix}{noun} space has no fixed size ({', '.join(refused)}); pad the field to a "
            "fixed-size Box, or leave it out, in a wrapper around the environment"
        )
    members = [member for _, member in found]
    dtypes = [np.dtype(member.dtype) for member in members]
    if isinstance(space, spaces.Box):
        leaf = Leaf((), dtypes[0], space.shape, 0, "continuous")
        return Layout((leaf,), 0, leaf.dtype, leaf.shape, leaf.nbytes), members
    leaves: list[Leaf] = []
    end = 0
    for (path, member), dtype in zip(found, dtypes, strict=True):
        offset = _round_up(end, dtype.itemsize)
        kind = "continuous" if isinstance(member, spaces.Box) else "discrete"
        low, high = _bounds(member)
        n = () if kind == "continuous" else tuple((np.ravel(high) - np.ravel(low) + 1).tolist())
        start = () if kind == "continuous" else tuple(np.ravel(low).tolist())
        shape = tuple(member.shape or ())
        leaves.append(Leaf(path, dtype, shape, offset, kind, n, start))
        end = offset + leaves[-1].nbytes
    if end == 0:
        raise APIUsageError(f"{prefix}{noun} space {space} is empty; declare at least one field")
    nbytes = _round_up(end, max(dtype.itemsize for dtype in dtypes))
    dtype = dtypes[0] if len(set(dtypes)) == 1 else np.dtype(np.uint8)
    shape = (nbytes // dtype.itemsize,)
    return Layout(tuple(leaves), structure, dtype, shape, nbytes), members


def _structure(space: spaces.Space, path: tuple, found: list) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _structure(part, (*path, key), found) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            _structure(part, (*path, index), found) for index, part in enumerate(space.spaces)
        )
    found.append((path, space))
    return len(found) - 1


def _nest(structure: Any, values: Sequence) -> Any:
    if isinstance(structure, dict):
        return {key: _nest(part, values) for key, part in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_nest(part, values) for part in structure)
    return values[structure]


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _bounds(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value of each element."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        return start, start + space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    raise AssertionError(f"{space} is not a leaf")


def _builder(structure: Any, readers: list) -> Callable[[Any], Any]:
    """A function that reads each leaf from a row and nests the values."""
    if isinstance(structure, dict):
        named = [(key, _builder(part, readers)) for key, part in structure.items()]
        return lambda row: {key: build(row) for key, build in named}
    if isinstance(structure, tuple):
        parts = [_builder(part, readers) for part in structure]
        return lambda row: tuple([build(row) for build in parts])
    return readers[structure]


def _discrete_space(space: spaces.Space, sizes: np.ndarray) -> spaces.Space:
    if len(sizes) == 1:
        unchanged = isinstance(space, spaces.Discrete) and space.start == 0
        return space if unchanged else spaces.Discrete(int(sizes[0]))
    flat = isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1
    return space if flat and not np.any(_bounds(space)[0]) else spaces.MultiDiscrete(sizes)


def _continuous_space(space: spaces.Space, members: list[spaces.Space]) -> spaces.Box:
    if isinstance(space, spaces.Box) and space.dtype == np.float32 and len(space.shape) == 1:
        return space
    # A bound beyond the range of float32 becomes infinite: there is nothing to clip there.
    with np.errstate(over="ignore"):
        low, high = (
            np.concatenate([np.ravel(_bounds(member)[side]) for member in members]).astype(
                np.float32
            )
            for side in (0, 1)
        )
    return spaces.Box(low, high, dtype=np.float32)


def _choice_unpacker(leaf: Leaf) -> Callable[[Any], Any]:
    (n,), (start,) = leaf.n, leaf.start
    kind = leaf.dtype.type
    if n > 4096:
        choices: Any = _Choices(n, start, kind)
    else:
        choices = {choice: kind(start + choice) for choice in range(n)}

    def unpack(row):
        try:
            return choices[row.item()]
        except (AttributeError, KeyError, ValueError):
            choice = np.asarray(row)
            if choice.size != 1 or choice.item() not in choices:
                raise APIUsageError(
                    f"action is {row!r}; expected one integer from 0 to {n - 1}"
                ) from None
            return choices[choice.item()]

    return unpack


class _Choices:
    """The values of a Discrete space with too many of them to tabulate."""

    def __init__(self, n: int, start: int, kind: type):
        self._n, self._start, self._kind = n, start, kind

    def __contains__(self, choice):
        return isinstance(choice, int) and 0 <= choice < self._n

    def __getitem__(self, choice):
        if choice not in self:
            raise KeyError(choice)
        return self._kind(self._start + choice)


def _unpack_choices(build: Callable, sizes: np.ndarray, row: Any) -> Any:
    row = np.asarray(row).reshape(-1)
    if row.shape != sizes.shape or not ((row >= 0) & (row < sizes)).all():
        raise APIUsageError(
            f"action is {row.tolist()}; expected {len(sizes)} integers, each from 0 and below "
            f"{sizes.tolist()}"
        )
    return build(row)


def _discrete_reader(leaf: Leaf, space: spaces.Space, begin: int, end: int) -> Callable:
    kind, shape = leaf.dtype.type, leaf.shape
    if isinstance(space, spaces.Discrete):
        start = leaf.start[0]
        return lambda row: kind(start + row[begin].item())
    starts = np.array(leaf.start, leaf.dtype)
    return lambda row: (row[begin:end].astype(kind) + starts).reshape(shape)


def _continuous_reader(leaf: Leaf, space: spaces.Space, begin: int, end: int) -> Callable:
    dtype, shape = leaf.dtype, leaf.shape
    low, high = (np.ravel(bound) for bound in _bounds(space))
    if dtype.kind != "f":
        low, high = low.astype(np.float64), high.astype(np.float64)

        def read_rounded(row):
            value = np.rint(row[begin:end].astype(np.float64))
            return np.minimum(np.maximum(value, low), high).astype(dtype).reshape(shape)

        return read_rounded
    bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def read(row):
        value = row[begin:end].astype(dtype)
        if bounded:
            np.maximum(value, low, out=value)
            np.minimum(value, high, out=value)
        return value.reshape(shape)

    return read
