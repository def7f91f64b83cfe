"""The trainer under CleanRL's names."""

from __future__ import annotations

from dataclasses import fields, replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from pufferlib import models, ppo, vector
from pufferlib.exceptions import ConfigError
from pufferlib.frameworks import cleanrl


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Small networks wait for each other's threads more than they compute."""
    monkeypatch.setattr(ppo, "usable_cores", lambda: 1)


class Bandit(gymnasium.Env):
    """Action 1 of two is rewarded; an episode is two steps."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.ones(1, np.float32), float(action), self.time == 2, False, {}


def make_policy(vecenv):
    torch.manual_seed(0)
    spaces_ = vecenv.single_observation_space, vecenv.single_action_space
    return models.Default(*spaces_, hidden_size=8)


@pytest.fixture
def vecenv():
    with vector.make(Bandit, num_envs=8, backend="Serial") as vecenv:
        yield vecenv


SMALL = cleanrl.Config(total_timesteps=4096, num_steps=16, learning_rate=0.02, cuda=False)


def test_training_learns_and_returns_its_curve(vecenv):
    lines = []
    result = cleanrl.train(SMALL, vecenv, make_policy(vecenv), report=lines.append)
    assert result.steps == 4096
    assert result.episodes == 2048
    steps, scores = zip(*result.curve, strict=True)
    assert steps == tuple(range(128, 4097, 128))
    assert scores[0] < 1.3 and scores[-1] > 1.8  # Chance is 1, the best is 2.
    assert result.score == scores[-1]
    assert len(lines) == cleanrl.LINES
    assert lines[-1].startswith(f"step 4,096 of 4,096  return {result.score:.4g}  ")


def test_the_given_policy_is_the_one_that_is_trained(vecenv):
    policy = make_policy(vecenv)
    before = [p.clone() for p in policy.parameters()]
    assert cleanrl.train(SMALL, vecenv, policy, report=None).policy is policy
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    vecenv.reset()


def test_the_seed_repeats_a_training(vecenv):
    def curve(seed):
        config = replace(SMALL, total_timesteps=512, seed=seed)
        return cleanrl.train(config, vecenv, make_policy(vecenv), report=None).curve

    assert curve(1) == curve(1)
    assert curve(1) != curve(2)


def test_lines_are_printed_by_default(vecenv, capsys):
    cleanrl.train(replace(SMALL, total_timesteps=128), vecenv, make_policy(vecenv))
    assert capsys.readouterr().out.startswith("step 128 of 128  return ")


def test_without_an_ended_episode_there_is_no_score():
    with vector.make(Bandit, num_envs=2, backend="Serial") as vecenv:
        config = cleanrl.Config(total_timesteps=2, num_steps=1, num_minibatches=1, cuda=False)
        lines = []
        result = cleanrl.train(config, vecenv, make_policy(vecenv), report=lines.append)
    assert result.score is None and result.curve == () and result.episodes == 0
    assert lines[0].startswith("step 2 of 2  return -  ")


def test_every_setting_reaches_the_trainer():
    changed = cleanrl.Config(
        total_timesteps=7,
        learning_rate=0.5,
        num_steps=3,
        anneal_lr=False,
        gamma=0.5,
        gae_lambda=0.25,
        num_minibatches=2,
        update_epochs=9,
        norm_adv=False,
        clip_coef=0.75,
        clip_vloss=False,
        ent_coef=0.125,
        vf_coef=2.0,
        max_grad_norm=8.0,
        target_kl=0.3,
        seed=11,
        cuda=False,
    )
    default = cleanrl.Config()
    assert all(getattr(changed, f.name) != getattr(default, f.name) for f in fields(default))
    train = cleanrl.translate(changed, 4).train
    one, other = cleanrl.translate(default, 4).train, cleanrl.translate(changed, 4).train
    moved = {f.name: getattr(train, f.name) for f in fields(train)}
    moved = {name: value for name, value in moved.items() if getattr(one, name) != value}
    assert moved == {
        "total_timesteps": 7,
        "learning_rate": 0.5,
        "horizon": 3,
        "anneal_lr": False,
        "gamma": 0.5,
        "gae_lambda": 0.25,
        "minibatch_size": 6,
        "update_epochs": 9,
        "normalize_advantage": False,
        "clip_coef": 0.75,
        "vf_clip_coef": 0.0,
        "ent_coef": 0.125,
        "vf_coef": 2.0,
        "max_grad_norm": 8.0,
        "target_kl": 0.3,
        "seed": 11,
        "device": "cpu",
    }
    assert other.vf_clip_coef == 0 and one.vf_clip_coef == one.clip_coef == 0.2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_minibatches": 3}, "num_minibatches is 3 for 8 agents; .* one of 1, 2, 4, 8"),
        ({"num_minibatches": 0}, "num_minibatches is 0 for 8 agents; .* one of 1, 2, 4, 8"),
        ({"learning_rate": -1}, r"train.learning_rate is -1 \(from cleanrl.Config\); expected a n"),
        ({"num_steps": 0}, r"train.horizon is 0 \(from cleanrl.Config\); expected a whole number"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(vecenv, setting, message):
    with pytest.raises(ConfigError, match=message):
        cleanrl.train(replace(SMALL, **setting), vecenv, make_policy(vecenv))
