"""Griddly: seeds, the time limit, pictures only where they can be made, silence."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError

pytest.importorskip("griddly", reason="griddly is not installed: pip install 'griddly>=1.6.7'")

QUIET = """
import sys, warnings
from pufferlib import registry, vector
before = sys.path[:], warnings.filters[:]
env = registry.find("griddly")()
env.reset(seed=1)
env.step(env.action_space.sample())
env.close()
assert (sys.path[:], warnings.filters[:]) == before
"""


@pytest.fixture
def entry():
    return registry.find("griddly")


def play(entry, seed, steps=120, **parameters):
    """Observations and rewards of a run with random actions."""
    env = entry(**parameters)
    try:
        trace = [env.reset(seed=seed)[0]]
        for action in np.random.default_rng(0).integers([2, 5], size=(steps, 2)):
            observation, reward, terminated, truncated, _ = env.step(action)
            trace += [observation, reward]
            if terminated or truncated:
                trace.append(env.reset()[0])
        return trace
    finally:
        env.close()


def equal(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def test_a_seed_repeats_and_another_does_not(entry):
    first = play(entry, 1, max_episode_steps=50)
    assert equal(first, play(entry, 1, max_episode_steps=50))
    assert not equal(first, play(entry, 2, max_episode_steps=50))


def test_environments_without_a_seed_differ(entry):
    assert not equal(play(entry, None), play(entry, None))


def test_the_time_limit_truncates(entry):
    env = entry(max_episode_steps=5)
    env.reset(seed=1)
    ends = [env.step(np.array([0, 0]))[2:] for _ in range(5)]
    env.close()
    assert [end[:2] for end in ends] == [(False, False)] * 4 + [(False, True)]
    assert ends[-1][2] == {"won": 0}


def test_the_rules_of_a_game_terminate(entry):
    report = check_env(lambda: GymnasiumPufferEnv(env=entry(game="clusters")), steps=600)
    assert report.terminations > 0


def test_observations_stay_what_they_were(entry):
    env = entry()
    kept, _ = env.reset(seed=1)
    copy = kept.copy()
    for action in np.random.default_rng(1).integers([2, 5], size=(40, 2)):
        env.step(action)
    env.close()
    np.testing.assert_array_equal(kept, copy)


def test_a_picture_of_the_level_needs_no_driver(entry):
    env = entry(render_mode="rgb_array")
    env.reset(seed=1)
    picture = env.render()
    env.close()
    assert picture.shape[2] == 3 and picture.dtype == np.uint8 and picture.any()


def test_without_vulkan_sprites_are_refused_instead_of_crashing(entry, monkeypatch):
    monkeypatch.setattr(entry.module(), "can_paint", lambda observer: False)
    with pytest.raises(EnvironmentSetupError) as caught:
        entry(observer="sprite")
    assert "the observer 'sprite' needs a Vulkan driver" in str(caught.value)
    assert "mesa-vulkan-drivers" in str(caught.value)


def test_sprites_are_seen_where_a_driver_works(entry):
    if not entry.module().can_paint("sprite"):
        pytest.skip("no Vulkan driver works here")
    env = entry(game="spider-nest", observer="sprite")
    observation, _ = env.reset(seed=1)
    env.close()
    assert observation.shape[2] in (3, 4) and observation.max() > 1


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"game": "zeldaa"}, "there is no game 'zeldaa'; did you mean 'zelda'?"),
        ({"observer": "vectors"}, "there is no observer 'vectors'; did you mean 'vector'?"),
        ({"level": 7}, "zelda has no level 7; expected 0 to 2"),
        ({"render_mode": "human"}, "there is no render mode 'human'"),
    ],
)
def test_what_griddly_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)


def test_nothing_is_printed_or_changed_in_the_process():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
