"""NetHack through emulation: seeds, truncation, folders, the policy and a short training."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest

from pufferlib import registry, vector
from pufferlib.config import load_config
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

pytest.importorskip("nle", reason="nle is not installed: pip install 'nle>=1.3'")

PRINT_HASH = """
import hashlib, sys
import numpy as np
from pufferlib import registry
env = registry.find("nethack")()
seen = hashlib.sha256()
observation, _ = env.reset(seed=int(sys.argv[1]))
actions = np.random.default_rng(0).integers(env.action_space.n, size=100)
for action in actions:
    for array in observation.values():
        seen.update(array.tobytes())
    observation, _, terminated, truncated, _ = env.step(action)
    if terminated or truncated:
        observation, _ = env.reset()
env.close()
print(seen.hexdigest())
"""


@pytest.fixture
def entry():
    return registry.find("nethack")


@pytest.fixture
def env(entry):
    env = entry()
    yield env
    env.close()


def play(env, seed, steps, *, actions_seed=0):
    """Observations, rewards and flags of a run with random actions that begins anew at each end."""
    observation, _ = env.reset(seed=seed)
    trace, ends = [{k: v.copy() for k, v in observation.items()}], []
    for action in np.random.default_rng(actions_seed).integers(env.action_space.n, size=steps):
        observation, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            ends.append((terminated, truncated, info, observation["blstats"].copy()))
            observation, _ = env.reset()
        trace.append({k: v.copy() for k, v in observation.items()} | {"reward": reward})
    return trace, ends


def equal(a, b):
    return all(np.array_equal(a[key], b[key]) for key in ("glyphs", "blstats", "message"))


def hash_in_new_process(seed: int) -> str:
    command = [sys.executable, "-W", "error", "-c", PRINT_HASH, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ""
    return done.stdout


def test_a_seed_repeats_a_game_in_another_process_and_another_seed_does_not():
    assert hash_in_new_process(7) == hash_in_new_process(7) != hash_in_new_process(8)


def test_games_begun_without_a_seed_follow_from_the_last_seed(entry):
    first, second = entry(max_episode_steps=20), entry(max_episode_steps=20)
    try:
        one, ends = play(first, 3, 100)
        other, _ = play(second, 3, 100)
        assert len(ends) == 5
        assert all(map(equal, one, other))
        begins = [one[k]["glyphs"] for k in range(0, 100, 20)]
        assert len({glyphs.tobytes() for glyphs in begins}) == 5
    finally:
        first.close()
        second.close()


def test_neighbouring_seeds_and_no_seed_give_other_games(env):
    begins = [env.reset(seed=seed)[0]["glyphs"].tobytes() for seed in range(6)]
    assert len(set(begins)) == 6
    unseeded = {registry.find("nethack")().reset()[0]["glyphs"].tobytes() for _ in range(3)}
    assert len(unseeded) == 3


def test_two_games_in_turn_equal_each_of_them_alone(entry, env):
    alone, _ = play(env, 5, 60)
    pair = [entry(), entry()]
    try:
        observations = [game.reset(seed=5)[0] for game in pair]
        for k, action in enumerate(np.random.default_rng(0).integers(23, size=60)):
            assert all(equal(observation, alone[k]) for observation in observations)
            observations = [game.step(action)[0] for game in pair]
    finally:
        for game in pair:
            game.close()


def test_the_time_limit_truncates_and_keeps_the_last_observation(entry):
    env = entry(max_episode_steps=15)
    try:
        _, ends = play(env, 1, 15)
    finally:
        env.close()
    [(terminated, truncated, info, blstats)] = ends
    assert (terminated, truncated, info["end_status"]) == (False, True, "aborted")
    assert blstats[10] > 0, "hit points: the game was still there to be seen"
    assert info["turns"] == blstats[20] > 1


def test_death_terminates_and_tells_what_was_reached(entry):
    env = GymnasiumPufferEnv(env=entry())
    try:
        env.reset(seed=2)
        actions = np.random.default_rng(2).integers(23, size=(6000, 1)).astype(np.int32)
        infos = next(i for a in actions if (i := env.step(a)[4]))
        assert env.terminals[0] and not env.truncations[0]
        assert infos[0]["end_status"] == "death"
        assert infos[0]["depth"] >= 1 and infos[0]["experience_level"] >= 1
        assert infos[0]["turns"] > 1 and infos[0]["gold"] >= 0
        assert infos[0]["episode_length"] > 1
    finally:
        env.close()


def test_the_bonus_for_exploring_is_paid_but_not_reported(entry):
    """Seed 1 goes down the stairs, so a second level is explored."""
    plain, paid = entry(max_episode_steps=80), entry(max_episode_steps=80, explore_bonus=0.5)
    seen, rewards, bonuses = {}, [], []

    def look(observation):
        level = observation["blstats"][24]
        unseen = observation["glyphs"][0, 0]
        seen[level] = max(seen.get(level, 0), np.count_nonzero(observation["glyphs"] != unseen))

    try:
        look(plain.reset(seed=1)[0])
        start = sum(seen.values())
        paid.reset(seed=1)
        for action in np.random.default_rng(1).integers(23, size=80):
            observation, reward, *_, info = plain.step(action)
            look(observation)
            rewards.append(reward)
            bonuses.append(paid.step(action)[1] - reward)
    finally:
        plain.close()
        paid.close()
    assert len(seen) == 2 and min(bonuses) >= 0
    assert sum(bonuses) == pytest.approx(0.5 * (sum(seen.values()) - start))
    assert info["episode_return"] == pytest.approx(sum(rewards))


def test_the_working_folder_stays_and_the_games_folder_goes(entry, away, monkeypatch):
    scratch = away / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = Path.cwd()
    env = entry(max_episode_steps=10)
    steps = [lambda: env.reset(seed=1), lambda: play(env, 1, 25), env.close, env.close]
    assert Path.cwd() == before
    assert len(list(scratch.iterdir())) == 1
    for step in steps:
        step()
        assert Path.cwd() == before
    assert list(scratch.iterdir()) == []
    assert os.listdir(before) == ["scratch"]


def test_a_game_that_was_never_begun_can_be_closed_twice(entry):
    env = entry()
    env.close()
    env.close()


def test_packing_the_real_observation_changes_no_bit(entry):
    packed, plain = GymnasiumPufferEnv(env=entry()), entry()
    try:
        layout = packed.single_observation_space.layout
        assert {leaf.name: str(leaf.dtype) for leaf in layout.leaves} == {
            "glyphs": "int16",
            "blstats": "int64",
            "message": "uint8",
        }
        packed.reset(seed=4)
        observation, _ = plain.reset(seed=4)
        for action in np.random.default_rng(4).integers(23, size=(50, 1)).astype(np.int32):
            fields = packed.single_observation_space.unpack(packed.observations[0])
            for name, value in observation.items():
                assert fields[name].dtype == value.dtype
                np.testing.assert_array_equal(fields[name], value)
            packed.step(action)
            observation = plain.step(action[0])[0]
    finally:
        packed.close()
        plain.close()


def test_one_environment_keeps_the_contract(entry):
    def create():
        return GymnasiumPufferEnv(env=entry(max_episode_steps=40))

    report = check_env(create, steps=200)
    assert report.truncations >= 5


def test_render_shows_the_terminal_or_tiles_and_the_same_observation(entry, env):
    expected = env.reset(seed=6)[0]
    for mode in ("ansi", "rgb_array"):
        seen = entry(render_mode=mode)
        try:
            observation, _ = seen.reset(seed=6)
            assert equal(observation, expected) and observation.keys() == expected.keys()
            picture = seen.render()
            if mode == "ansi":
                assert "\x1b[4m" in picture and picture.count("\n") == 23
            else:
                assert picture.shape == (336, 1264, 3) and picture.any()
        finally:
            seen.close()


@pytest.mark.slow
def test_memory_and_descriptors_stay_over_two_thousand_games(env):
    process = psutil.Process()
    seen = []
    for game in range(2001):
        env.reset(seed=game)
        for action in range(5):
            env.step(action)
        if game % 500 == 0:
            seen.append((process.memory_info().rss, process.num_fds()))
    # nle itself keeps about 1.5 MB in a thousand games; a leak of a level would be ten times that.
    assert seen[-1][0] - seen[1][0] < 8 * 2**20
    assert seen[-1][1] == seen[1][1]


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "NetHackScor-v0"}, "no task 'NetHackScor-v0'; did you mean 'NetHackScore-v0'?"),
        ({"max_steps": 3}, "no parameter of NetHackScore-v0 'max_steps'; did you mean"),
        ({"observation_keys": ["glyph"]}, "no observation key 'glyph'; did you mean 'glyphs'?"),
        ({"render_mode": "human"}, "no render mode 'human'; expected one of"),
    ],
)
def test_what_nethack_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)


def test_without_nle_the_command_that_installs_it_is_named(entry, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "nle"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nle", None)
    with pytest.raises(EnvironmentSetupError) as caught:
        entry()
    assert str(caught.value) == (
        "environment 'nethack' needs the package 'nle', which is not installed; "
        "install it with: pip install 'nle>=1.3'"
    )


def test_importing_the_environment_imports_neither_nle_nor_torch():
    code = (
        "import sys; from pufferlib import registry; registry.find('nethack').module();"
        "print(sorted({'nle', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.fixture
def vecenv():
    with vector.make("nethack", num_envs=2, backend="Serial", seed=1) as vecenv:
        yield vecenv


def make_policy(vecenv, **parameters):
    from pufferlib.models import find_policy

    build = find_policy("NetHackPolicy", registry.find("nethack").module())
    return build(vecenv.single_observation_space, vecenv.single_action_space, **parameters)


def test_every_field_of_the_observation_reaches_the_policy(vecenv):
    import torch

    policy = make_policy(vecenv, hidden_size=32)
    observations = torch.from_numpy(vecenv.reset()[0].copy())
    before = policy(observations)[0]
    for leaf in vecenv.single_observation_space.layout.leaves:
        changed = observations.clone()
        field = vecenv.single_observation_space.unpack(changed.numpy())[leaf.name]
        field[:, ..., : field.shape[-1] // 2] += 1
        assert not torch.equal(policy(changed)[0], before), leaf.name


def test_the_policy_takes_the_empty_map_after_a_death(vecenv):
    import torch

    policy = make_policy(vecenv, hidden_size=32)
    shape = (3, *vecenv.single_observation_space.shape)
    logits, values = policy(torch.zeros(shape, dtype=torch.uint8))
    assert logits.shape == (3, 23) and torch.isfinite(logits).all() and torch.isfinite(values).all()


def test_stairs_down_are_pointed_at_from_the_hero():
    import torch

    policy = pytest.importorskip("pufferlib.envs.nethack.policy")
    there = torch.zeros(2, policy.CELLS, dtype=torch.bool)
    there[0, 5 * policy.COLUMNS + 20] = True
    row, column = torch.tensor([7, 7]), torch.tensor([12, 12])
    found, nothing = policy.point_at(there, row, column)
    # Known, up by 2 and right by 8 columns.
    assert found.tolist() == pytest.approx([1, -1, 1, np.log(3), np.log(9)])
    assert nothing.tolist() == [0] * 5


def test_patches_lie_in_the_direction_and_at_the_distance_of_their_cells():
    policy = pytest.importorskip("pufferlib.envs.nethack.policy")
    patches = policy.find_patches().view(2 * policy.ROWS - 1, 2 * policy.COLUMNS - 1)

    def find(down, right):
        patch = int(patches[down + policy.ROWS - 1, right + policy.COLUMNS - 1])
        ring = patch % policy.SECTOR // len(policy.KINDS)
        return policy.DIRECTIONS[patch // policy.SECTOR], policy.RINGS[ring]

    assert [find(-1, 0), find(1, 1), find(-3, 0)] == [((-1, 0), 1), ((1, 1), 1), ((-1, 0), 3)]
    assert [find(0, -12), find(5, 60), find(9, -7)] == [((0, -1), 12), ((0, 1), 25), ((1, -1), 6)]
    assert int(patches[policy.ROWS - 1, policy.COLUMNS - 1]) == policy.HERO


def test_glyphs_are_told_apart_as_the_map_shows_them():
    policy = pytest.importorskip("pufferlib.envs.nethack.policy")
    tokens, kinds = policy.classify_glyphs()
    nh = policy.nh
    shown = {
        nh.GLYPH_CMAP_OFF: "unseen",
        nh.GLYPH_CMAP_OFF + 1: "wall",
        nh.GLYPH_CMAP_OFF + 19: "floor",
        nh.GLYPH_CMAP_OFF + 24: "stairs down",
        nh.GLYPH_PET_OFF: "pet",
        nh.GLYPH_MON_OFF: "monster",
        nh.GLYPH_BODY_OFF: "object",
        nh.GLYPH_OBJ_OFF + nh.NUM_OBJECTS - 1: "object",
    }
    assert {glyph: policy.KINDS[kinds[glyph]] for glyph in shown} == shown
    assert len(set(tokens[nh.GLYPH_CMAP_OFF : nh.GLYPH_EXPLODE_OFF].tolist())) == 87


def test_the_policy_refuses_an_observation_without_its_keys():
    with (
        vector.make(
            "nethack", env_kwargs={"observation_keys": ["glyphs", "blstats"]}, backend="Serial"
        ) as vecenv,
        pytest.raises(APIUsageError) as caught,
    ):
        make_policy(vecenv)
    assert "needs the observation keys glyphs, blstats, message" in str(caught.value)


def test_two_updates_of_training_and_an_evaluation(entry, away):
    from pufferlib import run

    flags = "--vec.num-envs 2 --train.horizon 16 --train.minibatch-size 32 --train.total-timesteps"
    flags += " 64 --policy.hidden-size 32 --run.dashboard off --run.tensorboard false --run.dir run"
    config = load_config("nethack", env_config_path=entry.config_path, overrides=flags.split())
    result = run.train(entry, config)
    assert (result["step"], result["updates"]) == (64, 2)
    short = config.override({"env.max_episode_steps": 10}, source="test")
    summary = run.evaluate(entry, short, loaded=None, episodes=2)
    assert summary["episode_length"] == {"mean": 10.0, "std": 0.0, "count": 2}


def test_workers_tell_the_packed_space_so_that_a_policy_can_read_it(vecenv):
    with vector.make("nethack", num_envs=2, backend="Multiprocessing", num_workers=1) as remote:
        assert remote.single_observation_space == vecenv.single_observation_space
        observations, _ = remote.reset(seed=5)
        np.testing.assert_array_equal(observations, vecenv.reset(seed=5)[0])
        make_policy(remote, hidden_size=16)


@pytest.mark.slow
def test_the_shipped_settings_earn_two_and_a_half_times_what_chance_does(entry, away):
    from pufferlib import checkpoint, run

    config = load_config(
        "nethack", env_config_path=entry.config_path, overrides={"run.dir": str(away / "run")}
    )
    assert config.train.total_timesteps == 1_000_000
    result = run.train(entry, config)
    loaded = checkpoint.load(result["checkpoint"], env_name="nethack")
    trained = run.evaluate(entry, config, loaded=loaded, episodes=100)["episode_return"]["mean"]
    chance = run.evaluate(entry, config, loaded=None, episodes=100)["episode_return"]["mean"]
    assert trained >= 2.5 * chance


def test_puffer_check_holds_the_shipped_settings_to_the_contract(capsys):
    from pufferlib.cli import main

    assert main(["check", "nethack"]) == 0
    assert "nethack: Serial keeps the contract" in capsys.readouterr().out
