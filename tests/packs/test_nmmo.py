"""Neural MMO: memory, maps, seeds, agents that die, the horizon, masks."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from pufferlib import registry, vector
from pufferlib.emulation import PettingZooPufferEnv
from pufferlib.env import check_env
from pufferlib.exceptions import APIUsageError

pytest.importorskip("nmmo", reason="nmmo is not installed: pip install 'nmmo>=2.1.1'")

MAKE = """
import sys
from pufferlib import registry
env = registry.find("nmmo")(size="small")
print(len(env.reset(seed=1)[0]), end="")
env.close()
"""


@pytest.fixture
def entry():
    return registry.find("nmmo")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """Maps of these tests, apart from those of the user and drawn once."""
    folder = tmp_path_factory.getbasetemp() / "maps"
    monkeypatch.setenv("PUFFERLIB_CACHE", str(folder))
    return folder


def play(entry, seed, steps=25, **parameters):
    """What all agents saw and got in a run with random actions, in bytes."""
    env = entry(**{"size": "small", **parameters})
    rng = np.random.default_rng(0)
    try:
        trace = [flat(env.reset(seed=seed)[0])]
        for _ in range(steps):
            actions = {
                agent: {
                    verb: {name: int(rng.integers(choice.n)) for name, choice in part.items()}
                    for verb, part in env.action_space(agent).items()
                }
                for agent in sorted(env.agents)
            }
            observations, rewards, *_ = env.step(actions)
            trace += [flat(observations), sorted(rewards.items())]
        return trace
    finally:
        env.close()


def flat(observations):
    keys = ("Tile", "Entity", "Inventory")
    return [observations[agent][key].tobytes() for agent in sorted(observations) for key in keys]


def test_a_seed_repeats_and_another_does_not(entry):
    first = play(entry, 1)
    assert first == play(entry, 1)
    assert first[0] != play(entry, 2, 0)[0]
    assert play(entry, None, 0) != play(entry, None, 0)


def test_worlds_that_are_closed_leave_no_memory_behind(entry):
    """Each that is dropped by nmmo's own rules leaves 40 MB, 6 MB at this size."""

    def cycle():
        env = entry(size="small", map_size=160, map_center=128)
        env.reset(seed=1)
        env.step({})
        env.close()
        env.close()
        del env
        gc.collect()
        return psutil.Process().memory_info().rss / 2**20

    sizes = [cycle() for _ in range(6)]
    # The first two warm up allocators and caches.
    assert sizes[-1] - sizes[1] < 30


def test_maps_lie_in_the_cache_and_nothing_in_the_working_folder(
    entry, cache, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        env = entry(size="small", map_n=2)
        env.reset(seed=1)
        env.close()
    assert list(Path(tmp_path).iterdir()) == []
    folders = [sorted(p.name for p in f.iterdir()) for f in (cache / "nmmo").iterdir()]
    assert ["map1", "map2"] in folders


def test_workers_that_begin_at_once_share_one_set_of_maps(tmp_path, monkeypatch):
    monkeypatch.setenv("PUFFERLIB_CACHE", str(tmp_path))
    command = [sys.executable, "-c", MAKE]
    pipe = subprocess.PIPE
    runs = [subprocess.Popen(command, stdout=pipe, stderr=pipe) for _ in range(3)]
    assert [run.communicate(timeout=300) for run in runs] == [(b"64", b"")] * 3
    [place] = (tmp_path / "nmmo").iterdir()
    assert [p.name for p in place.iterdir()] == ["map1"]


def test_agents_die_for_good_and_tell_how_they_lived(entry):
    env = PettingZooPufferEnv(env=entry(size="small", resource_depletion_rate=50, horizon=120))
    env.reset(seed=1)
    dead = set()
    for _ in range(30):
        infos = env.step(np.zeros(env.action_space.shape, np.int32))[4]
        dead |= {info["agent"] for info in infos}
        for info in infos:
            assert info.keys() >= {"time_alive", "level", "kills", "exploration", "episode_return"}
            assert all(isinstance(value, int | float | np.number) for value in info.values())
        if len(dead) > 5:
            break
    assert len(dead) > 5
    assert not env.masks[[agent - 1 for agent in dead]].any()
    env.close()


def test_the_horizon_truncates_those_who_live(entry):
    env = PettingZooPufferEnv(env=entry(size="small", horizon=6, immortal=True))
    env.reset(seed=1)
    for step in range(6):
        env.step(np.zeros(env.action_space.shape, np.int32))
        assert env.truncations.all() == (step == 5) and not env.terminals.any()
    assert env.masks.all(), "the next episode has begun"
    env.close()


def test_it_keeps_the_contract(entry):
    def create():
        return PettingZooPufferEnv(env=entry(size="small", horizon=20))

    assert check_env(create, steps=45).truncations > 0


def test_systems_that_are_left_out_take_their_keys_and_actions_along(entry):
    env = entry(
        size="small",
        systems=["terrain", "resource", "combat"],
        observation_keys=["Tile", "Entity", "ActionTargets"],
    )
    assert list(env.action_space(1)) == ["Attack", "Move"]
    observations, _ = env.reset(seed=1)
    assert set(observations[1]) == {"Tile", "Entity", "ActionTargets"}
    env.close()


def test_a_picture_shows_the_world(entry):
    env = entry(size="small", render_mode="rgb_array")
    env.reset(seed=1)
    picture = env.render()
    env.close()
    assert picture.shape == (256, 256, 3) and picture.dtype == np.uint8
    assert (picture == [255, 48, 48]).all(2).sum() >= 16, "agents"


def test_the_policy_never_does_what_is_forbidden():
    import torch

    from pufferlib.models import find_policy

    with vector.make(
        "nmmo", num_envs=1, backend="Serial", env_kwargs={"size": "small"}, seed=1
    ) as vecenv:
        build = find_policy("NeuralMMOPolicy", registry.find("nmmo").module())
        policy = build(vecenv.single_observation_space, vecenv.single_action_space, hidden_size=16)
        rows = vecenv.reset()[0]
        logits, values = policy(torch.from_numpy(rows))
        fields = vecenv.single_observation_space.unpack(rows)["ActionTargets"]
        masks = [fields[verb][name] for verb in sorted(fields) for name in sorted(fields[verb])]
        allowed = np.concatenate(masks, 1) > 0
        assert logits.shape == allowed.shape and torch.isfinite(values).all()
        assert ((logits.detach().numpy() > -1e7) == allowed).all()
        actions = policy.distribution.best(logits)
        logprobs, entropies = policy.distribution.evaluate(logits, actions)
        assert torch.isfinite(logprobs).all() and torch.isfinite(entropies).all()
        # Absent agents are rows of zeros.
        assert torch.isfinite(policy(torch.zeros_like(torch.from_numpy(rows)))[1]).all()


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"size": "smal"}, "there is no size 'smal'; did you mean 'small'?"),
        ({"systems": ["terain"]}, "there is no system 'terain'; did you mean 'terrain'?"),
        ({"systems": ["npc"]}, "systems npc: Invalid Config: NPC requires Combat"),
        ({"observation_keys": ["Tiles"]}, "there is no observation key 'Tiles'; did you mean"),
        ({"horizn": 3}, "there is no parameter 'horizn'; did you mean 'horizon'?"),
        ({"render_mode": "human"}, "there is no render mode 'human'"),
    ],
)
def test_what_neural_mmo_does_not_know_is_refused(entry, parameters, message):
    with pytest.raises(APIUsageError) as caught:
        entry(**{"size": "small", **parameters})
    assert message in str(caught.value)
