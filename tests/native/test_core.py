"""The compiled module: what it refuses, who keeps memory alive, threads that change nothing."""

import gc
import shutil
import textwrap

import numpy as np
import pytest

from pufferlib import buffers, registry, vector
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError
from pufferlib.native import build
from pufferlib.native.core import Library, Params, Worlds
from pufferlib.native_env import NativeEnv, load_library
from pufferlib.seeding import env_seeds

NATIVE = [name for name in registry.names() if registry.find(name).is_native]
NUM_ENVS = 12


@pytest.fixture
def vecenv():
    with vector.make("squared", num_envs=8) as made:
        made.reset(0)
        yield made


@pytest.fixture
def copy_of_squared(tmp_path):
    """A folder of its own with the header of squared, to be spoilt."""
    folder = tmp_path / "squared"
    shutil.copytree(registry.find("squared").folder, folder)
    return folder


def edit(folder, old, new):
    header = folder / f"{folder.name}.h"
    text = header.read_text()
    assert old in text
    header.write_text(text.replace(old, new))


# ---------------------------------------------------------------- libraries and parameters


def test_an_unknown_parameter_is_refused_naming_the_nearest():
    with pytest.raises(APIUsageError, match="squared has no parameter 'sise'; did you mean 'size'"):
        registry.find("squared")(sise=5)


@pytest.mark.parametrize("value", [1, 1000, float("nan")])
def test_a_parameter_outside_its_range_is_refused_with_the_range(value):
    with pytest.raises(
        APIUsageError, match=r"squared: size = .*, expected int from 3 to 63|expected int"
    ):
        registry.find("squared")(size=value)


@pytest.mark.parametrize("value", [5.5, "5", True, None])
def test_a_parameter_of_another_type_is_refused(value):
    with pytest.raises(APIUsageError, match=r"squared: size = .*, expected int"):
        registry.find("squared")(size=value)


def test_parameters_that_do_not_fit_together_are_refused_in_the_headers_words():
    with pytest.raises(APIUsageError, match=r"size must be odd.*size = 4"):
        registry.find("squared")(size=4)


def test_a_whole_float_counts_as_an_int():
    assert registry.find("squared")(size=5.0).params.values["size"] == 5


def test_a_file_that_is_no_library_is_refused(tmp_path):
    path = tmp_path / "x.so"
    path.write_bytes(b"nothing")
    with pytest.raises(EnvironmentSetupError, match=r"cannot load .*x\.so"):
        Library(path)


def test_a_library_of_another_contract_version_is_refused(copy_of_squared, monkeypatch):
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-Wno-error"])
    edit(
        copy_of_squared,
        '#include "puffer.h"',
        '#include "puffer.h"\n#undef PUFFER_ABI\n#define PUFFER_ABI 999',
    )
    with pytest.raises(
        EnvironmentSetupError, match=r"contract version 999, this library has 1.*build"
    ):
        load_library(copy_of_squared)


def test_a_header_that_does_not_compile_is_shown_with_the_compilers_words(copy_of_squared):
    edit(copy_of_squared, "s->tick++;", "s->tock++;")
    with pytest.raises(EnvironmentSetupError, match=r"squared\.h does not compile:[\s\S]*tock"):
        load_library(copy_of_squared)


def test_a_change_of_a_header_is_compiled_and_an_equal_one_is_not(copy_of_squared):
    first = build.compile_env(copy_of_squared)
    stamp = first.stat().st_mtime_ns
    assert build.compile_env(copy_of_squared) == first and first.stat().st_mtime_ns == stamp
    edit(copy_of_squared, "X(int, size, 11,", "X(int, size, 13,")
    second = build.compile_env(copy_of_squared)
    assert second != first
    assert Library(second).params[0][2] == 13


def test_without_a_compiler_the_message_names_the_package(copy_of_squared, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(EnvironmentSetupError, match=r"no C compiler found.*apt-get install gcc"):
        build.compile_env(copy_of_squared)


def test_a_cache_that_cannot_be_written_is_named(copy_of_squared, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PUFFERLIB_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentSetupError, match=r"cannot write to .*set PUFFERLIB_CACHE"):
        build.compile_env(copy_of_squared)


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda x: x.astype(np.float32), "observations: expected a C-contiguous uint8 array"),
        (lambda x: x[:, :-1], "observations: expected"),
        (lambda x: np.zeros((8, 242), np.uint8)[:, ::2], "not C-contiguous"),
        (lambda x: x[:-1].copy(), r"shape \(8, 121\), got uint8 \(7, 121\)"),
        (lambda x: x.tolist(), "got list"),
    ],
)
def test_rows_of_another_kind_are_refused(vecenv, spoil, words):
    buf = vecenv.buf
    with pytest.raises(APIUsageError, match=words):
        vecenv.rows(spoil(buf.observations), buf.rewards, buf.terminals, buf.truncations)


def test_read_only_rows_are_refused(vecenv):
    frozen = vecenv.buf.rewards.copy()
    frozen.setflags(write=False)
    with pytest.raises(APIUsageError, match=r"rewards: expected .* that can be written"):
        vecenv.rows(vecenv.buf.observations, frozen, vecenv.buf.terminals, vecenv.buf.truncations)


def test_rows_of_another_vector_are_refused(vecenv):
    with vector.make("squared", num_envs=8) as other:
        rows = other.rows(*(getattr(other.buf, name) for name in ROW_FIELDS))
        with pytest.raises(APIUsageError, match="out was made by another vector"):
            vecenv.send(np.zeros(8, np.int32), rows)


ROW_FIELDS = ("observations", "rewards", "terminals", "truncations")


def test_send_writes_to_the_rows_it_was_given_and_recv_returns_them(vecenv):
    mine = [np.ascontiguousarray(np.full_like(getattr(vecenv.buf, n), 7)) for n in ROW_FIELDS]
    before = vecenv.buf.observations.copy()
    vecenv.send(np.zeros(8, np.int32), vecenv.rows(*mine))
    received = vecenv.recv()
    assert all(a is b for a, b in zip(received, mine, strict=False))
    assert set(np.unique(mine[0])) == {0, 1, 2}
    np.testing.assert_array_equal(vecenv.buf.observations, before)


def test_memory_outlives_the_names_of_its_arrays():
    params = Params(load_library(registry.find("squared").folder), {})
    env = NativeEnv(params.library)
    rows = buffers.allocate(4, env.single_observation_space, env.single_action_space)
    worlds = Worlds(params, rows, 4, 4, 1, np.arange(4))
    worlds.start_reset(env_seeds(0, 4))
    del rows
    gc.collect()
    for _ in range(100):
        worlds.recv()
        worlds.send(np.zeros(4, np.int32))
    assert set(np.unique(worlds.recv()[0])) == {0, 1, 2}


# ---------------------------------------------------------------- actions


@pytest.mark.parametrize("action", [-1, 5, 2**31 - 1])
def test_an_action_outside_its_space_is_refused_and_nothing_is_stepped(vecenv, action):
    before = vecenv.get_state()["worlds"].copy()
    actions = np.zeros(8, np.int32)
    actions[3] = action
    with pytest.raises(APIUsageError, match=rf"action {action} of row 3 .*discrete \[5\]"):
        vecenv.send(actions)
    np.testing.assert_array_equal(vecenv.get_state()["worlds"], before)
    vecenv.send(np.zeros(8, np.int32))


@pytest.mark.parametrize(
    "actions, words",
    [
        (np.zeros(8, np.float32), "expected int32 of 8 rows .* got float32"),
        (np.zeros(7, np.int32), r"got int32 \(7,\)"),
        (np.full(8, 2**40), "outside every discrete space"),
        (None, "got object"),
    ],
)
def test_actions_of_another_kind_are_refused(vecenv, actions, words):
    with pytest.raises(APIUsageError, match=words):
        vecenv.send(actions)


@pytest.mark.parametrize(
    "convert", [np.int64, np.uint8, lambda x: x.tolist(), lambda x: np.repeat(x, 2)[::2]]
)
def test_whole_numbers_of_any_type_are_taken(convert):
    results = []
    for change in (np.int32, convert):
        with vector.make("squared", num_envs=8, seed=0) as made:
            made.reset()
            results.append(made.step(change(np.arange(8) % 5))[0].copy())
    np.testing.assert_array_equal(*results)


# ---------------------------------------------------------------- worlds


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("num_workers, batch_size", [(1, 12), (3, 12), (2, 6), (3, 4)])
def test_threads_and_batches_change_nothing(name, num_workers, batch_size):
    entry = registry.find(name)
    plain = vector.make(entry, num_envs=NUM_ENVS, num_workers=1, seed=3)
    other = vector.make(
        entry, num_envs=NUM_ENVS, num_workers=num_workers, batch_size=batch_size, seed=3
    )
    plain.async_reset()
    other.async_reset()
    plain.action_space.seed(0)
    share = plain.num_agents * batch_size // NUM_ENVS
    for _ in range(50):
        whole = plain.recv()
        actions = plain.action_space.sample()
        for first in range(0, plain.num_agents, share):
            part = other.recv()
            for a, b in zip(part[:4], whole[:4], strict=True):
                np.testing.assert_array_equal(a, b[first : first + share])
            assert part[5][0] == first
            other.send(actions[first : first + share])
        plain.send(actions)
    plain.close()
    other.close()


@pytest.mark.parametrize("name", NATIVE)
def test_a_state_carries_over_to_another_vector(name):
    first, second = (vector.make(name, num_envs=4, seed=s) for s in (1, 2))
    first.action_space.seed(0)
    first.reset()
    for _ in range(30):
        first.step(first.action_space.sample())
    second.set_state(first.get_state())
    second.recv()
    for _ in range(200):
        actions = first.action_space.sample()
        for a, b in zip(first.step(actions)[:4], second.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)
    assert first.episode_stats() == second.episode_stats()


def test_a_state_of_another_size_is_refused(vecenv):
    with (
        vector.make("squared", num_envs=4) as small,
        pytest.raises(APIUsageError, match="does not fit 4"),
    ):
        small.set_state(vecenv.get_state())


def test_neighbouring_seeds_give_unrelated_worlds():
    env = registry.find("squared")
    first = [env(), env()]
    boards = [world.reset(seed=seed)[0].copy() for seed, world in enumerate(first)]
    assert not np.array_equal(*boards)
    with vector.make("squared", num_envs=64, env_kwargs={"size": 31}) as made:
        observations, _ = made.reset(0)
        assert len(np.unique(observations, axis=0)) > 40


def test_rows_differ_and_ids_count_up():
    # Field report O-30: a stale binding shows every environment the same row and id 0.
    with vector.make("cartpole", num_envs=4, seed=0) as made:
        made.async_reset()
        received = made.recv()
        assert len(np.unique(received[0], axis=0)) == 4
        assert received[5].tolist() == [0, 1, 2, 3]


def test_a_world_that_does_not_exist_cannot_be_drawn(vecenv):
    with pytest.raises(APIUsageError, match="world 8 does not exist; there are 8"):
        vecenv.render(8)


def test_closing_twice_is_fine_and_stepping_after_it_is_not(vecenv):
    vecenv.close()
    vecenv.close()
    with pytest.raises(
        APIUsageError, match=r"send was called, but nothing .it is closed. is expected"
    ):
        vecenv.send(np.zeros(8, np.int32))


# ---------------------------------------------------------------- the contract of many agents

TEAM = """
#include "puffer.h"
#define TEAM_PARAMS(X) X(int, length, 4, 1, 100, "Steps of the last agent.")
#define TEAM_LOG(X) X(age, "Steps lived.")
PUFFER_DECLARE(Team, TEAM_PARAMS, TEAM_LOG, float, int32_t)
typedef struct { PufferRng rng; int32_t tick; uint8_t gone[3]; } Team;
static const char *team_describe(const TeamParams *p, PufferSpec *spec) {
    (void)p;
    spec->num_agents = 3;
    spec->obs_rank = 1;
    spec->obs_shape[0] = 2;
    spec->action_sizes[0] = 2;
    spec->width = spec->height = 8;
    return NULL;
}
static void team_reset(Team *s, const TeamParams *p) {
    (void)p;
    s->tick = 0;
    for (int a = 0; a < 3; a++) s->gone[a] = 0;
}
/* Agent 1 ends after two steps and leaves; the others are cut off at `length`. */
static void team_step(Team *s, const TeamParams *p, TeamRows *rows) {
    s->tick++;
    for (int a = 0; a < 3; a++) {
        if (s->gone[a]) continue;
        rows->rewards[a] = (float)(a + 1);
        rows->terminals[a] = a == 1 && s->tick == 2;
        rows->truncations[a] = s->tick == p->length;
        if (rows->terminals[a]) {
            s->gone[a] = 1;
            rows->masks[a] = 0;
        }
    }
}
static void team_observe(const Team *s, const TeamParams *p, int agent, float *row) {
    (void)p;
    row[0] = (float)s->tick + 1;
    row[1] = (float)agent + 1;
}
static void team_draw(const Team *s, const TeamParams *p, PufferCanvas *canvas) {
    (void)s; (void)p;
    puffer_fill(canvas, PUFFER_INK);
}
"""


def test_an_agent_that_ends_first_waits_for_the_others(tmp_path):
    # Field report O-09, in C.
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "team.h").write_text(textwrap.dedent(TEAM))
    with vector.make(folder, num_envs=2, seed=0) as made:
        made.reset()
        seen = []
        for _ in range(5):
            observations, rewards, terminals, truncations, _ = made.step(np.zeros(6, np.int32))
            seen.append((rewards[:3].tolist(), terminals[:3].tolist(), truncations[:3].tolist(),
                         made.buf.masks[:3].tolist(), observations[:3, 0].tolist()))  # fmt: skip
        final = made.final_observations[:3].tolist()
        stats = made.episode_stats()
    no, yes = False, True
    assert seen == [
        ([1, 2, 3], [no] * 3, [no] * 3, [yes] * 3, [2, 2, 2]),
        ([1, 2, 3], [no, yes, no], [no] * 3, [yes, no, yes], [3, 0, 3]),
        ([1, 0, 3], [no] * 3, [no] * 3, [yes, no, yes], [4, 0, 4]),
        ([1, 0, 3], [no] * 3, [yes, no, yes], [yes] * 3, [1, 1, 1]),
        ([1, 2, 3], [no] * 3, [no] * 3, [yes] * 3, [2, 2, 2]),
    ]
    assert final == [[5, 1], [3, 2], [5, 3]]
    assert stats == {"episodes": 6, "episode_return": pytest.approx((4 + 4 + 12) / 3),
                     "episode_length": pytest.approx((4 + 2 + 4) / 3), "age": 0}  # fmt: skip
