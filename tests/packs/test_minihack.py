"""MiniHack: tasks, seeds, crops, the end of an episode, silence."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

pytest.importorskip("minihack", reason="minihack is not installed: pip install 'minihack>=1.0.2'")

QUIET = """
import warnings
from pufferlib import registry, vector
warnings.simplefilter("always")
before = warnings.filters[:]
env = registry.find("minihack")()
env.reset(seed=1)
env.step(0)
env.close()
assert warnings.filters == before
"""


@pytest.fixture
def entry():
    return registry.find("minihack")


def play(entry, seed, steps=40, **parameters):
    """Observations and ends of a run with random steps."""
    env = entry(**parameters)
    try:
        trace, ends = [env.reset(seed=seed)[0]["glyphs"].copy()], []
        for action in np.random.default_rng(0).integers(8, size=steps):
            observation, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                ends.append((terminated, truncated, info))
                observation, _ = env.reset()
            trace.append(observation["glyphs"].copy())
        return np.stack(trace), ends
    finally:
        env.close()


def test_a_seed_repeats_and_another_does_not(entry):
    first, ends = play(entry, 1, max_episode_steps=15)
    assert len(ends) >= 2
    assert (first == play(entry, 1, max_episode_steps=15)[0]).all()
    assert (first[0] != play(entry, 2, 1)[0][0]).any()
    assert (play(entry, None, 1)[0][0] != play(entry, None, 1)[0][0]).any()


def test_level_seeds_limit_the_games_and_follow_from_the_seed(entry):
    env = entry(level_seeds=[3, 8])
    try:
        begins = [env.reset(seed=1)[0]["glyphs"].tobytes()]
        begins += [env.reset()[0]["glyphs"].tobytes() for _ in range(11)]
        assert len(set(begins)) == 2
        again = [env.reset(seed=1)[0]["glyphs"].tobytes()]
        again += [env.reset()[0]["glyphs"].tobytes() for _ in range(11)]
        assert again == begins
    finally:
        env.close()


def test_the_time_limit_truncates_with_the_game_still_in_sight(entry):
    env = entry(max_episode_steps=4)
    env.reset(seed=1)
    # One step up and one down, for ever.
    *_, last = [env.step(2 * (k % 2)) for k in range(4)]
    env.close()
    observation, _, terminated, truncated, info = last
    assert (terminated, truncated) == (False, True)
    assert (info["end_status"], info["solved"]) == ("aborted", 0)
    assert observation["blstats"].any()


def test_reaching_the_stairs_terminates_and_is_told(entry):
    _, ends = play(entry, 3, 600, task="MiniHack-Room-Random-5x5-v0")
    solved = [info for terminated, _, info in ends if terminated]
    assert solved and all(i["solved"] == 1 for i in solved)
    assert {i["end_status"] for i in solved} == {"task_successful"}
    assert all(isinstance(v, int | float | str) for i in solved for v in i.values())


@pytest.mark.parametrize(
    "task", ["MiniHack-Corridor-R3-v0", "MiniHack-Quest-Hard-v0", "MiniHack-Sokoban4a-v1"]
)
def test_tasks_of_other_kinds_begin(entry, task):
    env = GymnasiumPufferEnv(env=entry(task=task))
    env.reset(seed=1)
    env.step(np.zeros((1, 1), np.int32))
    env.close()


def test_crops_of_any_shape_and_pixels_can_be_asked_for(entry):
    keys = ["glyphs", "glyphs_crop", "screen_descriptions_crop", "pixel_crop"]
    env = entry(observation_keys=keys, obs_crop_h=5, obs_crop_w=9)
    try:
        observation, _ = env.reset(seed=1)
        assert list(observation) == keys and env.observation_space.contains(observation)
        assert observation["glyphs_crop"].shape == (5, 9)
        column, row = env.env.last_observation[env.env._blstats_index][:2]
        crop = observation["glyphs"][row - 2 : row + 3, column - 4 : column + 5]
        np.testing.assert_array_equal(observation["glyphs_crop"], crop)
        assert observation["pixel_crop"].shape == (80, 144, 3)
    finally:
        env.close()


def test_a_crop_is_filled_up_beyond_the_edge(entry):
    screen = np.arange(1, 13).reshape(3, 4)
    crop = entry.module().crop_around(screen, (0, 2), (1, 2), -1)
    np.testing.assert_array_equal(crop, [[-1, -1, 5, 6, 7], [-1, -1, 9, 10, 11], [-1] * 5])


def test_render_shows_the_terminal_or_tiles(entry):
    for mode in ("ansi", "rgb_array"):
        env = entry(render_mode=mode)
        observation, _ = env.reset(seed=6)
        assert set(observation) == {"glyphs", "blstats", "message"}
        picture = env.render()
        env.close()
        if mode == "ansi":
            assert picture.count("\n") == 23
        else:
            assert picture.shape == (336, 1264, 3) and picture.any()


def test_the_games_folder_goes_with_it(entry, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    env = entry()
    env.reset(seed=1)
    env.close()
    env.close()
    assert list(Path(tmp_path).iterdir()) == []


def test_it_keeps_the_contract(entry):
    def create():
        return GymnasiumPufferEnv(env=entry(max_episode_steps=20))

    report = check_env(create, steps=150)
    assert report.truncations > 0


def test_the_policy_learns_from_any_task_with_steps():
    import torch

    from pufferlib.models import find_policy

    for task, actions in {"MiniHack-Room-5x5-v0": 8, "MiniHack-Quest-Hard-v0": 85}.items():
        with vector.make(
            "minihack", num_envs=2, backend="Serial", env_kwargs={"task": task}, seed=1
        ) as vecenv:
            build = find_policy("MiniHackPolicy", registry.find("minihack").module())
            spaces = vecenv.single_observation_space, vecenv.single_action_space
            policy = build(*spaces, hidden_size=16)
            logits, values = policy(torch.from_numpy(vecenv.reset()[0]))
            assert logits.shape == (2, spaces[1].n) and spaces[1].n >= actions
            (logits.sum() + values.sum()).backward()


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "MiniHack-Rom-5x5-v0"}, "there is no task 'MiniHack-Rom-5x5-v0'; did you mean"),
        ({"observation_keys": ["glyph"]}, "there is no observation key 'glyph'; did you mean"),
        ({"obs_crop": 3}, "there is no parameter of MiniHack-Room-Random-15x15-v0 'obs_crop'"),
        ({"render_mode": "human"}, "there is no render mode 'human'"),
    ],
)
def test_what_minihack_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)


def test_tasks_whose_levels_lie_elsewhere_are_refused(entry):
    with pytest.raises(EnvironmentSetupError) as caught:
        entry(task="MiniHack-Boxoban-Hard-v0")
    assert str(caught.value) == (
        "MiniHack-Boxoban-Hard-v0 needs levels that minihack does not bring; choose another task"
    )


def test_nothing_is_printed_or_changed_in_the_process():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
