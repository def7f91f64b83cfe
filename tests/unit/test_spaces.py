"""Packing: layouts, round trips, what is cast and what is refused; and the action path."""

import copy
import pickle
import warnings
from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferlib.exceptions import APIUsageError
from pufferlib.spaces import ActionLayout, PackedBox, Packer, layout_of, pack_space

MIXED = spaces.Dict(
    [
        ("img", spaces.Box(0, 255, (2, 2), np.uint8)),
        ("xy", spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32)),
        ("f", spaces.Box(-np.inf, np.inf, (1,), np.float32)),
        ("flag", spaces.MultiBinary(3)),
    ]
)
MIXED_VALUE = {
    "img": np.array([[255, 0], [1, 254]], np.uint8),
    "xy": np.array([-(2**31), 2**31 - 1], np.int32),
    "f": np.array([1e-40], np.float32),
    "flag": np.array([1, 0, 1], np.int8),
}


def pack(space, value):
    box = pack_space(space)
    row = np.zeros(box.shape, box.dtype)
    Packer(space, who="Env").pack(value, row)
    return row


def leaves_of(value):
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves_of(part)]
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves_of(part)]
    return [value]


# ---------------------------------------------------------------- layout


def test_mixed_dtypes_are_aligned_and_padded_bytes():
    space = spaces.Dict(
        [
            ("a", spaces.Box(0, 1, (3,), np.uint8)),
            ("b", spaces.Box(0, 1, (1,), np.float64)),
            ("c", spaces.Box(0, 1, (1,), np.int16)),
        ]
    )
    layout = pack_space(space).layout
    assert [(leaf.name, leaf.offset) for leaf in layout.leaves] == [("a", 0), ("b", 8), ("c", 16)]
    assert (layout.nbytes, layout.dtype, layout.shape) == (24, np.uint8, (24,))


def test_equal_dtypes_make_a_flat_box_with_the_bounds_of_the_fields():
    space = spaces.Dict(
        [
            ("b", spaces.Box(-1, 1, (2, 2), np.float32)),
            ("a", spaces.Box(0, 5, (1,), np.float32)),
        ]
    )
    box = pack_space(space)
    assert (box.dtype, box.shape) == (np.float32, (5,))
    assert box.low.tolist() == [-1, -1, -1, -1, 0]
    assert box.high.tolist() == [1, 1, 1, 1, 5]


def test_a_box_stays_itself():
    box = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    assert pack_space(box) is box
    assert layout_of(box).field(layout_of(box).leaves[0], row := box.sample()) is row


def test_the_table_can_be_printed():
    assert str(pack_space(MIXED).layout) == (
        "name  offset  dtype    shape\n"
        "img   0       uint8    (2, 2)\n"
        "xy    4       int32    (2,)\n"
        "f     12      float32  (1,)\n"
        "flag  16      int8     (3,)\n"
        "20 bytes as uint8 (20,)"
    )


def test_discrete_leaves_carry_choices_and_start():
    space = spaces.Tuple([spaces.Discrete(4, start=-2), spaces.MultiDiscrete([[2, 3], [4, 5]])])
    choice, choices = layout_of(pack_space(space)).leaves
    assert (choice.kind, choice.n, choice.start) == ("discrete", (4,), (-2,))
    assert (choices.n, choices.start, choices.shape) == ((2, 3, 4, 5), (0, 0, 0, 0), (2, 2))


def test_packed_box_equals_its_copies_and_survives_pickle():
    box = pack_space(MIXED)
    assert isinstance(box, PackedBox)
    assert copy.deepcopy(box) == box
    assert pickle.loads(pickle.dumps(box)) == box
    assert box != spaces.Box(0, 255, box.shape, np.uint8)
    assert box != pack_space(spaces.Dict(dict(reversed(MIXED.spaces.items()))))
    assert repr(box).startswith("PackedBox((20,), uint8, Dict(")


def test_packed_box_samples_the_original_space_by_seed():
    box = pack_space(spaces.Dict(a=spaces.Discrete(3, start=5), b=spaces.MultiBinary(4)))
    box.seed(7)
    samples = [box.sample() for _ in range(50)]
    box.seed(7)
    assert all(np.array_equal(box.sample(), sample) for sample in samples)
    assert all(box.contains(sample) for sample in samples)
    assert {int(box.unpack(sample)["a"]) for sample in samples} == {5, 6, 7}


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (
            spaces.Dict(head=spaces.Box(0, 1, (2,)), tail=spaces.Sequence(spaces.Box(0, 1, (2,)))),
            "(tail: Sequence)",
        ),
        (spaces.Graph(spaces.Box(0, 1, (2,)), None), "(observation: Graph)"),
        (spaces.Text(10), "(observation: Text)"),
        (spaces.Tuple([spaces.Dict(deep=spaces.Text(3))]), "(0.deep: Text)"),
        (spaces.Dict(a=spaces.OneOf([spaces.Discrete(2)])), "(a: OneOf)"),
    ],
)
def test_a_field_without_fixed_size_is_refused_by_path_and_type(space, named):
    with pytest.raises(APIUsageError) as error:
        pack_space(space, who="Env")
    assert str(error.value) == (
        f"Env: observation space has no fixed size {named}; pad the field to a fixed-size Box, "
        "or leave it out, in a wrapper around the environment"
    )


def test_an_empty_space_is_refused():
    with pytest.raises(APIUsageError, match=r"observation space Dict\(\) is empty; declare"):
        pack_space(spaces.Dict())


# ---------------------------------------------------------------- round trip


def test_round_trip_of_mixed_dtypes_is_exact():
    unpacked = pack_space(MIXED).unpack(pack(MIXED, MIXED_VALUE))
    assert list(unpacked) == ["img", "xy", "f", "flag"]
    for key, value in MIXED_VALUE.items():
        assert unpacked[key].dtype == value.dtype
        assert unpacked[key].tobytes() == value.tobytes()


DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]
DTYPES += [np.uint64, np.float16, np.float32, np.float64]
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
LEAVES = st.one_of(
    st.builds(lambda shape, dtype: spaces.Box(0, 1, shape, dtype), SHAPES, st.sampled_from(DTYPES)),
    st.builds(
        lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-9, 9)
    ),
    SHAPES.filter(len).map(lambda shape: spaces.MultiDiscrete(np.full(shape, 4))),
    SHAPES.filter(len).map(spaces.MultiBinary),
)


def nested(leaves):
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.lists(parts, min_size=1, max_size=3).map(spaces.Tuple),
            st.lists(parts, min_size=1, max_size=3).map(
                lambda members: spaces.Dict([(f"k{9 - i}", m) for i, m in enumerate(members)])
            ),
        ),
        max_leaves=6,
    )


SPACES = nested(LEAVES)


@settings(max_examples=150, deadline=None)
@given(space=SPACES, seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 3))
def test_any_bits_of_any_nested_space_survive_the_round_trip(space, seed, batch):
    rng = np.random.default_rng(seed)
    box = pack_space(space)
    layout = layout_of(box)
    rows = np.zeros((batch, *box.shape), box.dtype)
    packer = Packer(space)
    written = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in range(batch):
            values = []
            for leaf in layout.leaves:
                bits = rng.integers(0, 256, leaf.nbytes, np.uint8)
                bits = bits & 1 if leaf.dtype == np.bool_ else bits
                array = bits.view(leaf.dtype).reshape(leaf.shape)
                values.append(array[()] if leaf.shape == () else array)
            packer.pack(layout.nest(values), rows[index, ...])
            written.append(values)
    unpacked = leaves_of(layout.unpack(rows))
    assert len(unpacked) == len(layout.leaves)
    for index, (leaf, column) in enumerate(zip(layout.leaves, unpacked, strict=True)):
        assert column.dtype == leaf.dtype
        assert column.shape == (batch, *leaf.shape)
        assert leaf.offset % leaf.dtype.itemsize == 0
        assert np.shares_memory(column, rows)
        for row in range(batch):
            assert column[row].tobytes() == written[row][index].tobytes()


# ---------------------------------------------------------------- compiled and plain


def outcome(call, *arguments):
    """What a call returns, raises and warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(*arguments)
        except (APIUsageError, OverflowError) as error:
            result = repr(error)
    return result, [str(warning.message) for warning in caught]


FORMS = {
    "plain": lambda array: array[()],
    "array": np.asarray,
    "python": lambda array: array.item() if array.shape == () else array,
    "double": lambda array: array.astype(np.float64),
    "long": lambda array: np.nan_to_num(array).astype(np.int64),
    "strided": lambda array: np.repeat(array[..., None], 2, -1)[..., 0],
    "columns": lambda array: np.asarray(array, order="F"),
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "swapped": lambda array: array.astype(array.dtype.newbyteorder()),
    "list": lambda array: array.tolist(),
    "longer": lambda array: np.repeat(array[None], 2, 0),
    "none": lambda array: None,
}


def restructured(value, rng):
    """`value` with its containers of other kinds and in one case in five one thing amiss."""
    if isinstance(value, dict):
        items = [(key, restructured(part, rng)) for key, part in value.items()]
        items = items[:: rng.choice([-1, 1])]
        if rng.integers(5) == 0:
            items = rng.choice([0, 1]) * items + [("odd", 1)] * rng.choice([0, 1])
        return [dict, OrderedDict][rng.integers(2)](items)
    if isinstance(value, tuple):
        parts = [restructured(part, rng) for part in value]
        if rng.integers(5) == 0:
            parts = parts[1:]
        return [tuple, list][rng.integers(2)](parts)
    return value


@settings(max_examples=100, deadline=None)
@given(space=SPACES, seed=st.integers(0, 2**32 - 1), amiss=st.booleans())
def test_the_compiled_writer_equals_the_plain_one(space, seed, amiss):
    rng = np.random.default_rng(seed)
    layout = layout_of(pack_space(space))
    common = ["plain", "array", "python", "strided", "columns", "read-only"]
    values = []
    for leaf in layout.leaves:
        bits = rng.integers(0, 2 if leaf.dtype == np.bool_ else 256, leaf.nbytes, np.uint8)
        form = FORMS[rng.choice([*FORMS] if amiss else common)]
        with np.errstate(all="ignore"):
            values.append(form(bits.view(leaf.dtype).reshape(leaf.shape)))
    value = layout.nest(values)
    value = value if amiss else restructured(value, rng)
    results = []
    for kind in (Packer.writer, Packer.plain_writer):
        row = np.zeros(layout.shape, layout.dtype)
        write = kind(Packer(space, who="Env"), row[...])
        results.append((outcome(write, value), row.tobytes()))
    (compiled, filled), (plain, expected) = results
    assert compiled == plain
    assert plain[0] is not None or filled == expected


CHOICES = LEAVES.filter(lambda space: not isinstance(space, spaces.Box))
BOXES = st.builds(
    lambda low, high, shape, dtype: spaces.Box(low, high, shape, dtype),
    st.sampled_from([-np.inf, -1.5, 0.1]),
    st.sampled_from([0.7, np.inf]),
    SHAPES,
    st.sampled_from([np.float16, np.float32, np.float64]),
)
BYTES = SHAPES.map(lambda shape: spaces.Box(3, 9, shape, np.uint8))


def bits_of(action):
    """Type, dtype, shape and bits of each part of an action."""
    if isinstance(action, dict):
        return [(key, bits_of(part)) for key, part in action.items()]
    if isinstance(action, tuple):
        return tuple(bits_of(part) for part in action)
    array = np.asarray(action)
    return type(action), array.dtype, array.shape, array.tobytes()


@settings(max_examples=100, deadline=None)
@given(
    space=st.one_of(nested(CHOICES), nested(st.one_of(BOXES, BYTES))),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_compiled_reader_equals_the_plain_one(space, seed):
    rng = np.random.default_rng(seed)
    layout = ActionLayout(space, who="Env")
    count = layout.space.shape[0] if layout.space.shape else 1
    if isinstance(layout.space, spaces.Box):
        rows = [rng.normal(0, 5, count).astype(dtype) for dtype in (np.float32, np.float64)]
    else:
        sizes = getattr(layout.space, "nvec", getattr(layout.space, "n", None))
        legal = rng.integers(0, sizes, count)
        rows = [legal.astype(dtype) for dtype in (np.int32, np.int64, np.int16)]
        rows += [legal[None], np.repeat(legal, 2)[::2], legal + rng.integers(-1, 2, count)]
    for row in (*rows, rows[0][1:]):
        (compiled, told), (plain, expected) = (
            outcome(read, row) for read in (layout.unpack_action, layout.plain_action)
        )
        assert bits_of(compiled) == bits_of(plain)
        assert told == expected


def refuse(*arguments):
    raise AssertionError("taken the plain way")


def pickled(thing):
    """A copy whose dtypes are equal to those of NumPy, and other objects."""
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("travel", [lambda space: space, pickled])
def test_observations_that_fit_are_written_by_compiled_code_only(travel, monkeypatch):
    space = spaces.Dict(mixed=MIXED, pair=spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)]))
    space = travel(space)
    for name in ("_walk", "_convert"):
        monkeypatch.setattr(Packer, name, refuse)
    layout = layout_of(space)
    row = np.zeros(layout.shape, layout.dtype)
    write = Packer(space).writer(row)
    write({"mixed": MIXED_VALUE, "pair": [1, True]})
    write({"pair": (1, np.int64(2)), "mixed": OrderedDict(pickled(MIXED_VALUE))})
    assert layout.unpack(row)["mixed"]["xy"].tolist() == MIXED_VALUE["xy"].tolist()
    assert layout.unpack(row)["pair"][1] == 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5000, start=-3),
        spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([spaces.MultiBinary(2)])),
        spaces.Box(-1, 1, (2, 2), np.float64),
    ],
)
@pytest.mark.parametrize("travel", [lambda space: space, pickled])
def test_actions_are_read_by_compiled_code_only(space, travel, monkeypatch):
    space = travel(space)
    for name in ("_unpack_choice", "_unpack_choices", "_unpack_numbers"):
        monkeypatch.setattr(f"pufferlib.spaces.{name}", refuse)
    layout = ActionLayout(space)
    row = np.zeros(layout.space.shape or 1, layout.space.dtype)
    assert space.contains(layout.unpack_action(row))


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_fields_keep_their_place_whatever_order_the_observation_has(kind):
    space = spaces.Dict(
        kind([("b", spaces.Box(0, 9, (1,))), ("a", spaces.Box(0, 9, (2,)))])  # O-01
    )
    a, b = np.array([1, 2], np.float32), np.array([9], np.float32)
    odd, even = pack(space, {"a": a, "b": b}), pack(space, {"b": b, "a": a})
    assert np.array_equal(odd, even)
    unpacked = pack_space(space).unpack(odd)
    assert unpacked["a"].tolist() == [1, 2]
    assert unpacked["b"].tolist() == [9]
    assert [leaf.name for leaf in pack_space(space).layout.leaves] == list(space.spaces)


def test_missing_and_surplus_keys_are_refused_by_name():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=spaces.Discrete(2)))
    with pytest.raises(
        APIUsageError, match=r"Env: observation lacks the key 'b'; .* declares a, b"
    ):
        pack(space, {"a": 1})
    with pytest.raises(
        APIUsageError, match=r"Env: observation field 'b' has the surplus key 'x'; .* declares c"
    ):
        pack(space, {"a": 1, "b": {"c": 1, "x": 1}})


# ---------------------------------------------------------------- casts and refusals


@pytest.mark.parametrize(
    ("space", "value", "problem"),
    [
        (
            spaces.Box(-9, 9, (4,), np.int32),
            np.zeros(4, np.float32),
            "is float32 [4], expected int32 [4]; declare float32 or cast in the environment",
        ),
        (
            spaces.Box(-9, 9, (4,), np.float32),
            [0.0, 0.0, 0.0, 0.0],
            "is a list, expected float32 [4]; return a NumPy array",
        ),
        (
            spaces.Box(-9, 9, (4,), np.float32),
            np.zeros((4, 1), np.float32),
            "is float32 [4, 1], expected float32 [4]",
        ),
        (
            spaces.Box(-9, 9, (4,), np.float32),
            np.zeros(1, np.float32),
            "is float32 [1], expected float32 [4]",
        ),
        (
            spaces.Box(-9, 9, (2,), np.float32),
            np.zeros(2, np.int64),
            "is int64 [2], expected float32 [2]; declare int64 or cast in the environment",
        ),
        (
            spaces.Box(0, 255, (1,), np.uint8),
            np.array([256]),
            "is int64 with values beyond its type, expected uint8 [1]",
        ),
        (spaces.Discrete(3), 1.0, "is float64 [], expected int64 []"),
        (spaces.Discrete(3), None, "is a NoneType, expected int64 []"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_lossy_values_are_refused_with_field_expected_and_got(space, value, problem, nested):
    subject = "Env: observation "
    if nested:
        space, value = spaces.Dict(f=space), {"f": value}
        subject += "field 'f' "
    packer = Packer(space, who="Env")
    row = np.zeros(pack_space(space).shape, pack_space(space).dtype)
    for call in (packer.check, packer.writer(row)):
        with pytest.raises(APIUsageError) as error:
            call(value)
        assert str(error.value).startswith(subject + problem)


@pytest.mark.parametrize(
    ("declared", "returned"), [(np.float32, np.float64), (np.uint8, np.int64), (np.int32, np.int64)]
)
def test_a_narrowing_cast_keeps_values_and_warns_once_per_environment(declared, returned):
    space = spaces.Dict(a=spaces.Box(0, 200, (2,), declared), b=spaces.Box(0, 200, (2,), declared))
    packer = Packer(space, who="Env")
    row = np.zeros(4, declared)
    value = {"a": np.array([1, 200], returned), "b": np.array([3, 4], returned)}
    with pytest.warns(UserWarning, match=r"Env: observation field 'a' is \w+ and is cast"):
        packer.check(value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packer.pack(value, row)
        packer.check(value)
    assert row.tolist() == [1, 200, 3, 4]


def test_a_cast_that_loses_nothing_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = pack(spaces.Box(-9, 9, (2,), np.float32), np.array([1, -2], np.int16))
        flags = pack(spaces.MultiBinary(2), np.array([True, False]))
    assert row.tolist() == [1, -2]
    assert flags.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([0, np.nan], r"field 'f' is nan at \[1\], outside the bounds \[-1\.0, 1\.0\] of its"),
        ([np.inf, 0], r"field 'f' is inf at \[0\], outside the bounds"),
        ([0, 1.5], r"field 'f' is 1\.5 at \[1\], outside the bounds"),
    ],
)
def test_check_refuses_values_outside_the_bounds(value, problem):
    packer = Packer(spaces.Dict(f=spaces.Box(-1, 1, (2,))), who="Env")
    with pytest.raises(APIUsageError, match=problem):
        packer.check({"f": np.array(value, np.float32)})


def test_check_refuses_a_choice_outside_its_range():
    packer = Packer(spaces.Discrete(3, start=5), who="Env")
    packer.check(5)
    with pytest.raises(APIUsageError, match=r"is 8, outside the bounds \[5, 7\] of its space"):
        packer.check(8)


def test_infinity_is_inside_an_unbounded_box_and_nan_is_not():
    packer = Packer(spaces.Box(-np.inf, np.inf, (1,)), who="Env")
    packer.check(np.array([np.inf], np.float32))
    with pytest.raises(APIUsageError, match="observation is nan at"):
        packer.check(np.array([np.nan], np.float32))


def test_structures_of_another_type_are_refused():
    with pytest.raises(APIUsageError, match="observation is a ndarray, expected a dict"):
        pack(spaces.Dict(a=spaces.Discrete(2)), np.zeros(1))
    with pytest.raises(APIUsageError, match="observation has 1 members, expected 2"):
        pack(spaces.Tuple([spaces.Discrete(2)] * 2), (1,))
    with pytest.raises(APIUsageError, match="observation is a int, expected a tuple"):
        pack(spaces.Tuple([spaces.Discrete(2)] * 2), 1)


# ---------------------------------------------------------------- actions


@pytest.mark.parametrize(
    ("space", "packed"),
    [
        (spaces.Discrete(3, start=5), spaces.Discrete(3)),
        (spaces.Discrete(1), spaces.Discrete(1)),
        (spaces.MultiDiscrete([3, 5, 7]), spaces.MultiDiscrete([3, 5, 7])),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), spaces.MultiDiscrete([2, 3, 4, 5])),
        (spaces.MultiBinary(3), spaces.MultiDiscrete([2, 2, 2])),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.MultiDiscrete([4, 4])]),
            spaces.MultiDiscrete([2, 4, 4]),
        ),
        (spaces.Dict(only=spaces.Discrete(6, start=-1)), spaces.Discrete(6)),
        (spaces.Box(-1, 1, (2, 2)), spaces.Box(-1, 1, (4,))),
        (
            spaces.Dict(
                [("b", spaces.Box(0, 5, (1,))), ("a", spaces.Box(-np.inf, 2, (1,), np.float64))]
            ),
            spaces.Box(np.array([0, -np.inf], "f"), np.array([5, 2], "f")),
        ),
    ],
)
def test_action_spaces_become_one_row(space, packed):
    layout = ActionLayout(space)
    assert layout.space == packed
    packed.seed(3)
    for _ in range(200):
        assert space.contains(layout.unpack_action(packed.sample()))


@pytest.mark.parametrize("row", [np.array([2], np.int32), np.int64(2), 2, np.array([[2]])])
def test_a_choice_has_start_added_and_the_dtype_of_its_space(row):
    action = ActionLayout(spaces.Discrete(3, start=5)).unpack_action(row)
    assert action == 7
    assert type(action) is np.int64


def test_choices_have_start_dtype_shape_and_structure():
    space = spaces.Dict(
        [
            ("z", spaces.Discrete(4, start=-1)),
            ("a", spaces.Tuple([spaces.MultiDiscrete([[2, 3]]), spaces.MultiBinary(2)])),
        ]
    )
    action = ActionLayout(space).unpack_action(np.array([3, 1, 2, 0, 1], np.int32))
    assert list(action) == ["z", "a"]
    assert action["z"] == 2
    assert action["a"][0].tolist() == [[1, 2]]
    assert action["a"][1].tolist() == [0, 1]
    assert space.contains(action)


@pytest.mark.parametrize("n", [3, 5000])
@pytest.mark.parametrize("choice", [-1, 5000, 0.5])
def test_a_choice_out_of_range_is_refused(n, choice):
    unpack = ActionLayout(spaces.Discrete(n)).unpack_action
    assert unpack(np.array([n - 1])) == n - 1
    with pytest.raises(APIUsageError, match=f"expected one integer from 0 to {n - 1}"):
        unpack(np.array([choice]))


@pytest.mark.parametrize("row", [[0, 3], [-1, 0], [0], [0, 0, 0]])
def test_choices_out_of_range_are_refused(row):
    unpack = ActionLayout(spaces.MultiDiscrete([4, 3])).unpack_action
    with pytest.raises(APIUsageError, match=r"expected 2 integers, each .* below \[4, 3\]"):
        unpack(np.array(row))


@pytest.mark.parametrize("row", [[0.0], [0.0] * 3])
def test_numbers_of_another_count_are_refused(row):
    unpack = ActionLayout(spaces.Box(-1, 1, (2,))).unpack_action
    with pytest.raises(APIUsageError, match=r"action is \[0\.0.*\]; expected 2 numbers"):
        unpack(np.array(row, np.float32))


def test_boxes_are_clipped_into_their_bounds_in_their_own_dtype_and_shape():
    low, high = np.array([-1.0, 0.0, -np.inf]), np.array([1.0, 5.0, np.inf])
    space = spaces.Tuple(
        [spaces.Box(low, high, dtype=np.float64), spaces.Box(0, 9, (2, 2), np.uint8)]
    )
    row = np.array([3, -3, 1e6, 4.4, 4.6, -2, 300], np.float32)
    kept = row.copy()
    flat, image = ActionLayout(space).unpack_action(row)
    assert flat.dtype == np.float64
    assert flat.tolist() == [1, 0, 1e6]
    assert image.dtype == np.uint8
    assert image.tolist() == [[4, 5], [0, 9]]
    assert np.array_equal(row, kept), "the stored raw sample is left alone"


def test_a_bound_that_float32_rounds_up_still_holds():
    space = spaces.Box(0.0, 0.1, (1,), np.float64)
    action = ActionLayout(space).unpack_action(np.array([0.1], np.float32))
    assert space.contains(action)


def test_a_mix_of_choices_and_boxes_is_refused():
    space = spaces.Dict(jump=spaces.Discrete(2), turn=spaces.Box(-1, 1, (1,)))
    with pytest.raises(APIUsageError) as error:
        ActionLayout(space, who="Env")
    assert str(error.value) == (
        "Env: the action space mixes choices (jump) and continuous values (turn); wrap the "
        "environment so that actions are of one kind, for example by dividing the Box into a few "
        "choices"
    )


def test_an_action_without_fixed_size_is_refused():
    with pytest.raises(APIUsageError, match=r"action space has no fixed size \(action: Text\)"):
        ActionLayout(spaces.Text(5))


def test_action_layouts_survive_pickle():
    layout = pickle.loads(pickle.dumps(ActionLayout(spaces.Discrete(3, start=1))))
    assert layout.unpack_action(np.array([0])) == 1
