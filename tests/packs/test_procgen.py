"""Procgen: games, seeds, levels, ends, the policy, silence."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.emulation import GymnasiumPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

pytest.importorskip(
    "procgen", reason="procgen is not installed: pip install 'procgen-mirror>=0.10.7'"
)

QUIET = """
import warnings
import numpy as np
from pufferlib import registry, vector
before, state = warnings.filters[:], str(np.random.get_state())
env = registry.find("procgen")()
env.reset(seed=1)
env.step(0)
env.close()
assert warnings.filters == before and str(np.random.get_state()) == state
"""


TWICE = """
import gc
from pufferlib import registry
for _ in range(3):
    env = registry.find("procgen")()
    env.reset(seed=1)
    env.close()
    del env
    gc.collect()
"""
WORK = """
from pufferlib import vector

if __name__ == "__main__":
    with vector.make("procgen", num_envs=32, num_workers=2, backend="Multiprocessing") as vecenv:
        vecenv.reset(seed=1)
        for _ in range(5):
            vecenv.step(vecenv.action_space.sample())
"""


@pytest.fixture
def entry():
    return registry.find("procgen")


def play(entry, seed, steps=200, **parameters):
    """Pictures and ends of a run with random actions."""
    env = entry(**parameters)
    trace, ends = [env.reset(seed=seed)[0]], []
    for action in np.random.default_rng(0).integers(15, size=steps):
        observation, _, terminated, truncated, info = env.step(action)
        trace.append(observation)
        if terminated or truncated:
            ends.append((len(trace) - 1, terminated, truncated, info))
            trace.append(env.reset()[0])
    env.close()
    return np.stack(trace), ends


def test_every_game_begins(entry):
    from procgen.env import ENV_NAMES

    assert len(ENV_NAMES) == 16
    for game in ENV_NAMES:
        env = entry(game=game)
        observation, _ = env.reset(seed=1)
        env.step(0)
        env.close()
        assert observation.any(), game


def test_a_seed_repeats_and_another_does_not(entry):
    first, ends = play(entry, 1, game="starpilot")
    assert len(ends) >= 2
    again, _ = play(entry, 1, game="starpilot")
    assert first.shape == again.shape and (first == again).all()
    assert (first[0] != play(entry, 2, 1, game="starpilot")[0][0]).any()
    assert (play(entry, None, 1)[0][0] != play(entry, None, 1)[0][0]).any()


def test_a_reset_with_a_seed_begins_anew_and_one_without_goes_on(entry):
    env = entry()
    first, _ = env.reset(seed=7)
    env.step(7)
    second, _ = env.reset()
    assert (first != second).any()
    np.testing.assert_array_equal(env.reset(seed=7)[0], first)
    env.close()
    env.close()


def test_a_game_can_be_made_after_all_others_are_gone():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_levels_are_those_that_were_asked_for(entry):
    _, ends = play(entry, 1, 600, game="starpilot", num_levels=2, start_level=50)
    assert {info["level"] for *_, info in ends} == {50, 51}


def test_the_games_own_time_limit_truncates_and_its_rules_terminate(entry):
    env = entry(game="leaper")
    env.reset(seed=1)
    for _ in range(499):
        assert env.step(entry.module().NOTHING)[2:4] == (False, False)
    *_, terminated, truncated, info = env.step(entry.module().NOTHING)
    env.close()
    assert (terminated, truncated, info["solved"]) == (False, True, 0)
    _, ends = play(entry, 1, game="starpilot")
    assert all(terminated and not truncated for _, terminated, truncated, _ in ends)


def test_the_last_observation_is_of_the_episode_that_ends(entry):
    """Procgen itself shows the next level there."""
    trace, ends = play(entry, 1, game="starpilot")
    last = ends[0][0]
    np.testing.assert_array_equal(trace[last], trace[last - 1])
    assert (trace[last] != trace[last + 1]).any()


def test_observations_stay_what_they_were(entry):
    env = entry()
    kept, _ = env.reset(seed=1)
    copy = kept.copy()
    for _ in range(20):
        env.step(7)
    env.close()
    np.testing.assert_array_equal(kept, copy)


def test_a_picture_is_large_and_changes_nothing(entry):
    seen, unseen = entry(render_mode="rgb_array"), entry()
    seen.reset(seed=1), unseen.reset(seed=1)
    for _ in range(10):
        picture = seen.render()
        np.testing.assert_array_equal(seen.step(7)[0], unseen.step(7)[0])
    seen.close(), unseen.close()
    assert picture.shape == (512, 512, 3) and picture.any()


def test_it_keeps_the_contract(entry):
    report = check_env(lambda: GymnasiumPufferEnv(env=entry(game="starpilot")), steps=200)
    assert report.terminations >= 2


def test_the_policy_takes_pictures_and_knows_three_sizes(entry):
    import torch

    from pufferlib.models import find_policy

    build = find_policy("Impala", entry.module())
    env = GymnasiumPufferEnv(env=entry())
    observations = torch.from_numpy(env.reset(seed=1)[0])
    sizes = []
    for layers in (0, 1, 2):
        policy = build(env.single_observation_space, env.single_action_space, num_layers=layers)
        logits, values = policy(observations)
        assert logits.shape == (1, 15) and values.shape == (1,)
        sizes.append(sum(p.numel() for p in policy.parameters()))
    env.close()
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"game": "coinrum"}, "there is no game 'coinrum'; did you mean 'coinrun'?"),
        ({"distribution_mode": "esay"}, "there is no distribution mode 'esay'; did you mean"),
        ({"levels": 3}, "there is no parameter 'levels'"),
        ({"render_mode": "human"}, "there is no render mode 'human'"),
        (
            {"game": "bigfish", "distribution_mode": "exploration"},
            "there is no exploration mode of 'bigfish'",
        ),
        (
            {"distribution_mode": "exploration", "num_levels": 3},
            "exploration is one fixed level; leave num_levels and start_level",
        ),
    ],
)
def test_what_procgen_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**parameters)
    assert message in str(caught.value)


def test_nothing_is_printed_or_changed_in_the_process():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_workers_that_collect_garbage_do_not_crash(tmp_path):
    """Their last words come on stderr: the collector trips over memory that gym3 lends."""
    script = tmp_path / "work.py"
    script.write_text(WORK)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
