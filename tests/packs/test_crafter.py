"""Crafter: seeds in every process, pictures that change nothing, achievements, the time limit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

pytest.importorskip("crafter", reason="crafter is not installed: pip install 'crafter>=1.8.3'")

# Objects of other sizes between them give the creatures other addresses.
HASH = """
import hashlib, sys
import numpy as np
from pufferlib import registry
waste = [bytearray(k * int(sys.argv[1])) for k in range(2000)]
env = registry.find("crafter")()
digest = hashlib.sha256(env.reset(seed=3)[0].tobytes())
for action in np.random.default_rng(0).integers(17, size=150):
    observation, *_, terminated, truncated, _ = env.step(action)
    if terminated or truncated:
        observation, _ = env.reset()
    digest.update(observation.tobytes())
print(digest.hexdigest(), end="")
"""


@pytest.fixture
def entry():
    return registry.find("crafter")


def play(entry, seed, steps=60, *, hour=0, look=False, **parameters):
    """The pictures of a run with random actions from step `hour` of a day of 300; `look` renders
    after each step."""
    env = entry(render_mode="rgb_array" if look else None, **parameters)
    trace = [env.reset(seed=seed)[0]]
    env._env._step = hour
    for action in np.random.default_rng(0).integers(17, size=steps):
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
        trace.append(observation)
        if look:
            assert env.render().shape == (576, 576, 3)
    return np.stack(trace)


def test_a_seed_repeats_a_game_in_another_process():
    runs = [
        subprocess.run([sys.executable, "-c", HASH, waste], capture_output=True, text=True)
        for waste in ("0", "1")
    ]
    assert runs[0].stdout == runs[1].stdout != ""
    assert [run.stderr for run in runs] == ["", ""]


def test_another_seed_and_no_seed_give_other_worlds(entry):
    first = play(entry, 1, max_episode_steps=30)
    assert (first == play(entry, 1, max_episode_steps=30)).all()
    assert (first[0] != play(entry, 2, 1)[0]).any()
    assert (first[0] != first[30]).any(), "the second world follows from the seed, and is another"
    assert (play(entry, None, 1)[0] != play(entry, None, 1)[0]).any()


def test_a_game_repeats_after_a_reset_with_the_same_seed(entry):
    env = entry()
    first, _ = env.reset(seed=5)
    env.reset()
    np.testing.assert_array_equal(env.reset(seed=5)[0], first)


def test_rendering_changes_nothing(entry):
    """At night a picture is drawn with the game's own random numbers."""
    seen, unseen = (play(entry, 4, 15, hour=200, look=look) for look in (True, False))
    assert (seen == unseen).all()


def test_the_time_limit_truncates_and_tells_the_achievements(entry):
    env = entry(max_episode_steps=8)
    env.reset(seed=1)
    ends = [env.step(0)[2:] for _ in range(8)]
    assert [end[:2] for end in ends] == [(False, False)] * 7 + [(False, True)]
    assert [end[2] for end in ends[:7]] == [{}] * 7
    info = ends[-1][2]
    unlocked = [value for name, value in info.items() if name.startswith("achievement_")]
    assert len(unlocked) == 22 and sum(unlocked) == info["achievements"]


def test_death_terminates(entry):
    env = entry()
    env.reset(seed=1)
    env._env._player.health = 0
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (True, False)
    assert "achievements" in info


def test_the_reward_can_be_left_out_and_sizes_chosen(entry):
    env = entry(task="no_reward", size=96, area=(32, 32))
    observation, _ = env.reset(seed=1)
    assert observation.shape == (96, 96, 3)
    actions = np.random.default_rng(0).integers(17, size=50)
    assert {env.step(action)[1] for action in actions} == {0.0}


def test_it_keeps_the_contract(entry):
    def create():
        return GymnasiumPufferEnv(env=entry(max_episode_steps=40))

    assert check_env(create, steps=150).truncations >= 3


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"task": "rewards"}, "there is no task 'rewards'; did you mean 'reward'?"),
        ({"render_mode": "human"}, "there is no render mode 'human'"),
        ({"size": 8}, "size 8 is less than a pixel for each of the 9 tiles"),
    ],
)
def test_what_crafter_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)
