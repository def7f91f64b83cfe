"""Atari: names, the C++ vector equal to single games to the bit, ends, options, silence."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from pufferlib import registry, vector
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError
from pufferlib.seeding import env_seed

pytest.importorskip("ale_py", reason="ale-py is not installed: pip install 'ale-py>=0.12'")

ENTRY = registry.find("atari")
SHORT = {"max_num_frames_per_episode": 240, "repeat_action_probability": 0.25}


def step_both(one, other, steps):
    """Step two vectors with the same actions; their results must be equal. → ends seen."""
    one.action_space.seed(0)
    np.testing.assert_array_equal(one.reset()[0], other.reset()[0])
    ends = np.zeros(2, int)
    for _ in range(steps):
        actions = one.action_space.sample()
        mine, theirs = one.step(actions), other.step(actions)
        for a, b in zip(mine[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        ended = mine[2] | mine[3]
        np.testing.assert_array_equal(
            one.final_observations[ended], other.final_observations[ended]
        )
        ends += mine[2].sum(), mine[3].sum()
    assert one.episodes() == other.episodes()
    return ends


@pytest.mark.parametrize(
    "parameters, kind",
    [
        ({"game": "pong", **SHORT}, 1),
        ({"game": "breakout", "repeat_action_probability": 0.25}, 0),
        ({"game": "breakout", "episodic_life": True}, 0),
    ],
)
def test_the_vector_equals_single_games_to_the_bit(parameters, kind):
    options = {"env_kwargs": parameters, "num_envs": 3, "seed": 5}
    with (
        vector.make("atari", **options, num_workers=2) as one,
        vector.make("atari", **options, backend="Serial") as other,
    ):
        assert "own vector" in one.choice
        assert step_both(one, other, 350)[kind] >= 3


def test_an_environment_of_the_vector_depends_on_its_own_seed_alone():
    parameters = {"game": "space_invaders", **SHORT}
    games = vector.make("atari", env_kwargs=parameters, num_envs=3, seed=9)
    observations, _ = games.reset()
    alone = ENTRY(**parameters)
    for k in range(3):
        np.testing.assert_array_equal(alone.reset(seed=env_seed(9, k))[0], observations[k])
    assert len({o.tobytes() for o in observations}) > 1
    games.close()
    alone.close()


def test_one_game_keeps_the_contract():
    report = check_env(lambda: GymnasiumPufferEnv(env=ENTRY(**SHORT)), steps=200)
    assert report.truncations >= 2


def test_the_last_observation_of_an_episode_is_its_own():
    env = ENTRY(game="pong", max_num_frames_per_episode=40)
    env.reset(seed=1)
    for _ in range(9):
        before, _, terminated, truncated, info = env.step(0)
        assert (terminated, truncated, info) == (False, False, {})
    last, _, terminated, truncated, _ = env.step(0)
    assert (terminated, truncated) == (False, True)
    # Three of the four frames have been seen the step before.
    np.testing.assert_array_equal(last[:3], before[1:])
    begun, _ = env.reset()
    assert not np.array_equal(begun[:3], last[1:])
    env.close()


def test_a_reset_within_an_episode_begins_anew():
    env = ENTRY()
    env.reset(seed=4)
    after = [env.step(2)[0] for _ in range(30)][-1]
    assert not np.array_equal(env.reset()[0][:3], after[1:])
    env.close()


def test_a_lost_life_ends_the_episode_only_if_asked():
    def ends(episodic):
        env = ENTRY(game="breakout", episodic_life=episodic)
        env.reset(seed=0)
        count = 0
        for _ in range(150):
            _, _, terminated, truncated, _ = env.step(2)
            if terminated or truncated:
                count += 1
                env.reset()
        env.close()
        return count

    assert ends(True) > ends(False)


@pytest.mark.parametrize("name", ["ms_pacman", "MsPacman", "ALE/MsPacman-v5", "MsPacman-v4",
                                  "MsPacmanNoFrameskip-v4"])  # fmt: skip
def test_a_game_goes_by_each_of_its_names(name):
    env = ENTRY(game=name)
    assert env.action_space == gymnasium.spaces.Discrete(9)
    env.close()


def test_every_game_can_be_made():
    roms = pytest.importorskip("ale_py.roms")
    games = sorted(set(roms.get_all_rom_ids()) - ENTRY.module().FOR_TWO)
    assert len(games) == 104
    for game in games:
        env = ENTRY(game=game)
        assert env.reset(seed=0)[0].shape == (4, 84, 84)
        env.close()


def test_pictures_are_of_the_same_game_and_change_nothing():
    plain, drawn = ENTRY(**SHORT), ENTRY(**SHORT, render_mode="rgb_array")
    assert plain.render() is None
    one, _ = plain.reset(seed=2)
    other, _ = drawn.reset(seed=2)
    for action in np.random.default_rng(0).integers(6, size=70):
        np.testing.assert_array_equal(one, other)
        frame = drawn.render()
        assert frame.shape == (210, 160, 3) and frame.std() > 5
        one, _, _, ended, _ = plain.step(action)
        other = drawn.step(action)[0]
        if ended:
            one, other = plain.reset()[0], drawn.reset()[0]
    plain.close()
    drawn.close()


def test_nothing_is_printed_and_gymnasiums_own_vectors_stay_as_they_are():
    code = (
        "import gymnasium\n"
        "from pufferlib import vector\n"
        "with vector.make('atari', num_envs=2) as games:\n"
        "    games.reset()\n"
        "    games.step(games.action_space.sample())\n"
        "assert 'autoreset_mode' not in gymnasium.vector.VectorEnv.metadata\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"game": "pongg"}, "there is no game 'pongg'; did you mean 'pong'?"),
        (
            {"frame_skip": 2},
            "there is no parameter of atari 'frame_skip'; did you mean 'frameskip'",
        ),
        ({"num_threads": 2}, "there is no parameter of atari 'num_threads'"),
        ({"render_mode": "human"}, "there is no render mode 'human'"),
    ],
)
def test_what_atari_does_not_know_is_refused(parameters, message):
    with pytest.raises(APIUsageError) as caught:
        vector.make("atari", env_kwargs=parameters, num_envs=2)
    assert message in str(caught.value)


@pytest.mark.parametrize("parameters", [{}, {"grayscale": False}, {"stack_num": 1}])
def test_the_network_takes_what_the_game_shows(parameters):
    import torch

    with vector.make("atari", env_kwargs=parameters, num_envs=2) as games:
        network = ENTRY.module().AtariPolicy
        policy = network(games.single_observation_space, games.single_action_space, hidden_size=16)
        logits, values = policy(torch.from_numpy(games.reset()[0]))
    assert logits.shape == (2, 6) and values.shape == (2,)
