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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from pufferlib.exceptions import APIUsageError
from pufferlib.native import packing

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
        self.plain_writer(row)(value)

    def writer(self, row: np.ndarray) -> Callable[[Any], None]:
        """A function that writes a value into `row`, compiled, with everything looked up before.

        Take a row as `rows[i, ...]`, which is a view even where one is a single number. Each call
        checks keys, dtypes and shapes; `check` also checks the bounds.
        """
        plain, structure = self.plain_writer(row), self.layout.structure
        if not row.flags.c_contiguous or _has_bare_branch(structure):
            return plain
        fields = tuple(
            _field(leaf, structure, self.layout.field(leaf, row), partial(self._convert, leaf))
            for leaf in self.layout.leaves
        )
        return packing.Writer(fields, plain).write

    def plain_writer(self, row: np.ndarray) -> Callable[[Any], None]:
        """The same in plain Python, slowly: it casts, refuses, and is what `writer` must equal."""
        views = [self.layout.field(leaf, row) for leaf in self.layout.leaves]

        def write(value):
            members = self._walk(self.layout.structure, value, ())
            for view, (_, member) in zip(views, members, strict=True):
                view[...] = member

        return write

    def check(self, value: Any) -> None:
        """Raise APIUsageError unless `value` lies in the space, naming field, expected and got."""
        for index, member in self._walk(self.layout.structure, value, ()):
            leaf, space = self.layout.leaves[index], self._members[index]
            array = np.asarray(member, leaf.dtype)
            low, high = (np.broadcast_to(bound, array.shape) for bound in _bounds(space))
            outside = ~((array >= low) & (array <= high))
            if outside.any():
                where = tuple(int(i) for i in np.argwhere(outside)[0])
                place = f" at {list(where)}" if where else ""
                self._refuse(
                    leaf.path,
                    f"is {array[where]}{place}, outside the bounds "
                    f"[{low[where]}, {high[where]}] of its space",
                )

    def _walk(self, structure: Any, value: Any, path: tuple) -> Iterator[tuple[int, Any]]:
        """The index of each leaf and what `value` has there, cast if need be."""
        if isinstance(structure, dict):
            if not isinstance(value, Mapping):
                self._refuse(path, f"is a {type(value).__name__}, expected a dict")
            if value.keys() != structure.keys():
                self._refuse_keys(path, structure.keys(), value)
            for key, part in structure.items():
                yield from self._walk(part, value[key], (*path, key))
        elif isinstance(structure, tuple):
            if not isinstance(value, tuple | list):
                self._refuse(path, f"is a {type(value).__name__}, expected a tuple")
            if len(value) != len(structure):
                self._refuse(path, f"has {len(value)} members, expected {len(structure)}")
            for index, part in enumerate(structure):
                yield from self._walk(part, value[index], (*path, index))
        else:
            yield structure, self._convert(self.layout.leaves[structure], value)

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
                stacklevel=5,
            )
        return narrow

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
    and Boxes clipped into their bounds (a field of an integer Box is rounded first). It is
    compiled, in `reader`; `plain_action(row)` does the same in plain Python, for rows and fields of
    types that the compiled one does not know, and to say what is wrong with a row.

    Raises APIUsageError for fields without a fixed size and for a mix of choices and Boxes.
    """

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
            self.plain_action = partial(_unpack_numbers, build, ends[-1])
            limits, dtypes = None, ["float32"]
            fits = all(leaf.dtype in (np.float32, np.float64) for leaf in leaves)
        else:
            sizes = np.array([n for leaf in leaves for n in leaf.n])
            self.space = _discrete_space(space, sizes)
            lone = isinstance(space, spaces.Discrete)
            self.plain_action = partial(_unpack_choice if lone else _unpack_choices, build, sizes)
            limits, dtypes = sizes.astype(np.int64).tobytes(), ["int32", "int64"]
            numbers = [x for leaf in leaves for x in (*leaf.n, *leaf.start)]
            fits = (
                all(leaf.dtype.isnative for leaf in leaves)
                and max(map(abs, numbers), default=0) < 2**62
            )
        parts = [*map(_part, leaves, members, begins)] if fits else []
        self.reader = packing.Reader(
            tuple(_in_order(self.layout.structure, parts)) if fits else (),
            tuple(map(np.dtype, dtypes)) if fits else (),
            ends[-1],
            limits,
            self.plain_action,
        )
        self.unpack_action = self.reader.read

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


def _has_bare_branch(structure: Any) -> bool:
    """Whether there is a dict or tuple without members, which no leaf's path would lead through."""
    if isinstance(structure, int):
        return False
    members = structure.values() if isinstance(structure, dict) else structure
    return not structure or any(map(_has_bare_branch, members))


def _field(leaf: Leaf, structure: Any, view: np.ndarray, convert: Callable) -> packing.Field:
    """One leaf of a compiled writer, which fills `view`."""
    steps = []
    for key in leaf.path:
        steps.append(packing.Step(key, len(structure), isinstance(structure, dict)))
        structure = structure[key]
    limits = None
    if leaf.shape == () and leaf.dtype.kind in "iu" and leaf.dtype.isnative:
        info = np.iinfo(leaf.dtype)
        limits = info.min, min(info.max, 2**63 - 1)
    real = leaf.shape == () and leaf.dtype == np.float64
    return packing.Field(tuple(steps), view, limits, real, convert)


def _part(leaf: Leaf, space: spaces.Space, begin: int) -> packing.Part:
    """One leaf of a compiled reader of actions, `begin` numbers into the row."""
    if isinstance(space, spaces.Discrete):
        return packing.Choice(begin, *leaf.n, *leaf.start, leaf.dtype.type)
    template = np.zeros(leaf.shape, leaf.dtype)
    if leaf.kind == "discrete":
        return packing.Choices(begin, template, np.array(leaf.start, np.int64).tobytes())
    return packing.Reals(begin, template, *(b.astype(np.float64).tobytes() for b in _bounds(space)))


def _in_order(structure: Any, parts: list) -> list:
    """The parts of leaves and groups, each group behind its members."""
    if isinstance(structure, int):
        return [parts[structure]]
    named = isinstance(structure, dict)
    members = structure.values() if named else structure
    group = packing.Group(tuple(structure) if named else None, len(structure))
    return [part for member in members for part in _in_order(member, parts)] + [group]


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


def _unpack_choice(build: Callable, sizes: np.ndarray, row: Any) -> Any:
    choice = np.asarray(row)
    if choice.size != 1 or choice.item() not in range(sizes[0]):
        raise APIUsageError(f"action is {row!r}; expected one integer from 0 to {sizes[0] - 1}")
    return build(choice.reshape(1))


def _unpack_choices(build: Callable, sizes: np.ndarray, row: Any) -> Any:
    row = np.asarray(row).reshape(-1)
    if row.shape != sizes.shape or not ((row >= 0) & (row < sizes)).all():
        raise APIUsageError(
            f"action is {row.tolist()}; expected {len(sizes)} integers, each from 0 and below "
            f"{sizes.tolist()}"
        )
    return build(row)


def _unpack_numbers(build: Callable, count: int, row: Any) -> Any:
    row = np.asarray(row).reshape(-1)
    if row.shape != (count,):
        raise APIUsageError(f"action is {row.tolist()}; expected {count} numbers")
    return build(row)


def _discrete_reader(leaf: Leaf, space: spaces.Space, begin: int, end: int) -> Callable:
    kind, shape = leaf.dtype.type, leaf.shape
    if isinstance(space, spaces.Discrete):
        start = leaf.start[0]
        return lambda row: kind(start + int(row[begin]))
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
