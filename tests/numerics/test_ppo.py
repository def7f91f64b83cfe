"""The trainer on environments whose answers can be worked out by hand."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from pufferlib import models, ppo, vector
from pufferlib.config import Config, PolicyConfig, TrainConfig, VecConfig
from pufferlib.env import PufferEnv
from pufferlib.exceptions import APIUsageError, ConfigError, NonFiniteError


class Toy(PufferEnv):
    """Counts its steps; `num_agents` rows see the count, an episode is cut after `length` steps.

    `faults` maps (field, step) to a value written there; `absent` rows never act.
    """

    def __init__(self, buf=None, *, num_agents=1, length=5, actions=None, faults=None, absent=()):
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = actions or spaces.Discrete(2)
        self.num_agents = num_agents
        self.length, self.faults, self.absent = length, faults or {}, list(absent)
        self.total = 0
        self.received = []
        super().__init__(buf)

    def observe(self, rows):
        rows[:, 0] = self.count
        rows[:, 1] = 1
        rows[self.absent] = 0

    def reset(self, seed=None):
        self.count = 0
        self.masks[:] = True
        self.masks[self.absent] = False
        self.observe(self.observations)
        return self.observations, []

    def step(self, actions):
        self.received.append(np.array(actions))
        self.count += 1
        self.total += 1
        self.rewards[:] = 1.0
        self.rewards[self.absent] = 0
        self.terminals[:] = False
        self.truncations[:] = self.count == self.length
        self.truncations[self.absent] = False
        if self.count == self.length:
            self.observe(self.final_observations)
            self.count = 0
        self.observe(self.observations)
        for (field, step), value in self.faults.items():
            if step == self.total:
                getattr(self, field)[:] = value
        return self.observations, self.rewards, self.terminals, self.truncations, []


def make_trainer(creator=Toy, num_envs=4, **train):
    settings = {"horizon": 8, "minibatch_size": 8, "total_timesteps": 10**9, "threads": 1}
    config = Config(train=TrainConfig(**{**settings, **train}))
    vecenv = vector.make(creator, num_envs=num_envs, backend="Serial")
    torch.manual_seed(config.train.seed)
    policy = models.Default(vecenv.single_observation_space, vecenv.single_action_space)
    return ppo.create(config, vecenv, policy)


def collect(trainer):
    ppo.rollout(trainer.vecenv, trainer.policy, trainer.storage, trainer.generator, trainer.clock)
    ppo.advantage(trainer.policy, trainer.storage, trainer.config.train)
    return trainer.storage


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])


def test_the_storage_holds_every_observation_and_not_the_last_one():
    # Field report O-17.
    storage = collect(make_trainer(lambda: Toy(length=100)))
    assert storage.observations[:, 0, 0].tolist() == list(range(9))


def test_a_second_rollout_continues_where_the_first_one_ended():
    trainer = make_trainer(lambda: Toy(length=100))
    collect(trainer)
    assert collect(trainer).observations[:, 0, 0].tolist() == list(range(8, 17))


@pytest.mark.parametrize("num_envs, batch_size", [(4, 4), (4, 2), (4, 1)])
def test_batches_of_any_size_fill_the_same_storage(num_envs, batch_size):
    vecenv = vector.make(
        "squared", num_envs=num_envs, batch_size=batch_size, env_kwargs={"size": 5}
    )
    whole = vector.make("squared", num_envs=num_envs, env_kwargs={"size": 5}, backend="Serial")
    storages = []
    for made in (vecenv, whole):
        config = Config(train=TrainConfig(horizon=16, minibatch_size=16, threads=1))
        torch.manual_seed(0)
        policy = models.Default(made.single_observation_space, made.single_action_space)
        trainer = ppo.create(config, made, policy)
        collect(trainer)
        storages.append(collect(trainer))
    first, second = storages
    for name in ("observations", "rewards", "terminals", "truncations"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    # Matrix products of 1, 2 and 4 rows round differently.
    np.testing.assert_allclose(first.advantages, second.advantages, atol=1e-5)


def test_a_truncation_bootstraps_from_the_final_observation_not_from_the_reset_one():
    trainer = make_trainer(lambda: Toy(length=5), gamma=0.9, gae_lambda=0.8)
    storage = collect(trainer)
    value = trainer.policy(torch.tensor([[5.0, 1.0]]))[1].item()
    assert storage.truncations[4].all() and not storage.terminals.any()
    assert storage.bootstraps[4] == pytest.approx(value)
    assert storage.observations[5, 0, 0] == 0
    expected = 1 + 0.9 * value - storage.values[4, 0].item()
    assert storage.advantages[4, 0] == pytest.approx(expected, rel=1e-5)


def test_before_the_first_update_the_ratio_is_one():
    trainer = make_trainer()
    storage = collect(trainer)
    for t in range(8):
        parameters, _ = trainer.policy(storage.device_observations[t])
        logprobs, _ = trainer.policy.distribution.evaluate(parameters, storage.actions[t])
        # Two ways to add up exponentials, which differ in the last place.
        torch.testing.assert_close(logprobs, storage.logprobs[t], rtol=0, atol=2.5e-7)


def test_the_loss_by_hand():
    class Fixed:
        distribution = models.Categorical([2])

        def __call__(self, observations):
            return torch.zeros(2, 2), torch.tensor([1.0, 3.0])

    config = TrainConfig(
        normalize_advantage=False, vf_coef=0.5, vf_clip_coef=0.0, ent_coef=0.1, clip_coef=0.2
    )
    half = float(np.log(0.5))
    old = torch.tensor([half, half - np.log(2.0)], dtype=torch.float32)  # Ratios 1 and 2.
    advantages, values = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0])
    actions = torch.zeros((2, 1), dtype=torch.int32)
    total, figures = ppo.loss(
        Fixed(), torch.zeros(2, 1), actions, old, advantages, values, config=config
    )
    policy = -(1.0 + 1.2) / 2  # The second ratio is cut to 1.2.
    value = 0.5 * ((1 - 2) ** 2 + (3 - 2) ** 2) / 2
    entropy = np.log(2)
    assert figures[:3].tolist() == pytest.approx([policy, value, entropy])
    assert figures[3].item() == pytest.approx((1 - np.log(2)) / 2)
    assert figures[4].item() == 0.5
    assert total.item() == pytest.approx(policy + 0.5 * value - 0.1 * entropy)


def test_value_clipping_takes_the_worse_of_both():
    class Fixed:
        distribution = models.Categorical([1])

        def __call__(self, observations):
            return torch.zeros(1, 1), torch.tensor([2.0])

    config = TrainConfig(normalize_advantage=False, vf_clip_coef=0.5)
    zero = torch.zeros(1)
    _, figures = ppo.loss(
        Fixed(), zero[None], zero[None].int(), zero, torch.tensor([1.9]), zero, config=config
    )
    assert figures[1].item() == pytest.approx(0.5 * (0.5 - 1.9) ** 2)


def test_absent_agents_do_not_train_and_are_not_counted():
    present = make_trainer(lambda: Toy(num_agents=2), num_envs=2, minibatch_size=32)
    trainer = make_trainer(lambda: Toy(num_agents=4, absent=(1, 3)), num_envs=2, minibatch_size=64)
    trainer.policy.load_state_dict(present.policy.state_dict())
    metrics = []
    for t in (present, trainer):
        collect(t)
        noise = torch.zeros_like(t.storage.logprobs)  # Same actions for the rows that are there.
        t.storage.actions.zero_()
        t.storage.logprobs.copy_(noise - 0.7)
        metrics.append(ppo.update(t.policy, t.optimizer, t.storage, t.generator, t.config.train))
    assert trainer.storage.masks.sum() == present.storage.masks.sum()
    assert metrics[1]["value"] == pytest.approx(metrics[0]["value"], rel=1e-5)
    assert metrics[1]["policy"] == pytest.approx(metrics[0]["policy"], rel=1e-5)
    # Rows come in another order, so sums round differently.
    torch.testing.assert_close(weights(trainer), weights(present), rtol=1e-4, atol=1e-5)


def test_a_whole_update_without_agents_changes_nothing():
    trainer = make_trainer(lambda: Toy(absent=(0,)))
    before = weights(trainer)
    metrics = trainer.advance()
    assert metrics["steps"] == 0 and torch.equal(weights(trainer), before)


@pytest.mark.parametrize(
    "field, value, step, told",
    [
        ("rewards", np.nan, 50, 1),
        ("observations", np.inf, 60, 12),
        ("observations", np.nan, 64, 16),
    ],
)
def test_a_value_that_is_not_finite_is_named_and_spoils_nothing(field, value, step, told):
    # Field report O-18: environment 5 of 8.
    made = iter(range(8))

    def creator():
        return Toy(length=1000, faults={(field, step): value} if next(made) == 5 else None)

    trainer = make_trainer(creator, num_envs=8, horizon=16, minibatch_size=16)
    name = field.removesuffix("s")
    for _ in range(3):
        trainer.advance()
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match=rf"{name} .* at step {told} .* environment 5"):
        trainer.advance()
    assert torch.equal(weights(trainer), before) and torch.isfinite(before).all()


def test_an_emulated_environment_with_a_bad_reward_is_named_with_its_step():
    class Poisoned(gymnasium.Env):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Discrete(2)
        steps = 0

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.steps += 1
            return (
                np.zeros(1, np.float32),
                float("nan") if self.steps == 7 else 0.0,
                False,
                False,
                {},
            )

    made = []

    def creator():
        made.append(Poisoned())
        made[-1].steps = 0 if len(made) == 3 else -1000
        return made[-1]

    trainer = make_trainer(creator)
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match=r"environment 2: Poisoned: reward is nan at step 7"):
        trainer.advance()
    assert torch.equal(weights(trainer), before)


def test_a_loss_that_is_not_finite_takes_no_step():
    trainer = make_trainer()
    storage = collect(trainer)
    storage.advantages[0, 0] = np.nan
    before = weights(trainer)
    train = Config().train.__class__(horizon=8, minibatch_size=32, normalize_advantage=False)
    with pytest.raises(NonFiniteError, match="this step is not taken"):
        ppo.update(trainer.policy, trainer.optimizer, storage, trainer.generator, train)
    assert torch.equal(weights(trainer), before)


def test_continuous_actions_keep_their_shape_and_are_stored_raw():
    box = spaces.Box(-0.1, 0.1, (2, 2), np.float32)
    envs = []

    def creator():
        envs.append(Toy(actions=box))
        return envs[-1]

    storage = collect(make_trainer(creator))
    assert envs[0].received[0].shape == (1, 2, 2)
    raw = storage.actions[:, 0].reshape(8, 2, 2).numpy()
    np.testing.assert_array_equal(np.stack(envs[0].received)[:, 0], raw)
    assert np.abs(raw).max() > 0.1


def test_components_of_unequal_size_reach_the_environment():
    envs = []

    def creator():
        envs.append(Toy(actions=spaces.MultiDiscrete([3, 5, 7])))
        return envs[-1]

    trainer = make_trainer(creator, horizon=64, minibatch_size=64)
    collect(trainer)
    seen = np.concatenate([action for env in envs for action in env.received])
    assert seen.max(0).tolist() == [2, 4, 6] and seen.min(0).tolist() == [0, 0, 0]


def test_reward_clipping_reaches_the_advantages_only():
    clipped = collect(make_trainer(reward_clip=0.25, gamma=0.0))
    assert (clipped.rewards == 1).all()
    np.testing.assert_allclose(clipped.advantages, 0.25 - clipped.values, rtol=1e-6)


def test_sizes_that_do_not_divide_are_refused_before_anything_runs():
    # Field report O-16.
    with pytest.raises(ConfigError, match=r"train.minibatch_size 1000 .* the nearest that fit"):
        make_trainer(num_envs=64, horizon=64, minibatch_size=1000)


def native_trainer(seed=1, num_workers=1):
    config = Config(
        train=TrainConfig(
            seed=seed, horizon=16, minibatch_size=256, total_timesteps=20 * 16 * 32, threads=1
        ),
        vec=VecConfig(num_envs=32),
        policy=PolicyConfig(hidden_size=32),
    )
    vecenv = vector.make("squared", num_envs=32, num_workers=num_workers)
    torch.manual_seed(seed)
    policy = models.Default(
        vecenv.single_observation_space, vecenv.single_action_space, hidden_size=32
    )
    return ppo.create(config, vecenv, policy)


def test_the_same_seed_gives_the_same_weights_for_any_number_of_threads():
    runs = [native_trainer(), native_trainer(), native_trainer(num_workers=2)]
    for _ in range(20):
        for trainer in runs:
            trainer.advance()
    first, again, threaded = (weights(trainer) for trainer in runs)
    assert torch.equal(first, again) and torch.equal(first, threaded)
    other = native_trainer(seed=2)
    other.advance()
    assert not torch.equal(weights(other), first)


def test_worker_processes_train_the_same_weights_through_truncations():
    results = []
    for options in ({"backend": "Serial"}, {"num_workers": 2, "sync_traj": True, "overwork": True}):
        config = Config(train=TrainConfig(horizon=16, minibatch_size=32, threads=1))
        create = lambda: gymnasium.make("CartPole-v1", max_episode_steps=9)  # noqa: E731
        with vector.make(create, num_envs=4, batch_size=2, **options) as vecenv:
            torch.manual_seed(0)
            policy = models.Default(vecenv.single_observation_space, vecenv.single_action_space)
            trainer = ppo.create(config, vecenv, policy)
            for _ in range(4):
                trainer.advance()
            assert (trainer.storage.bootstraps != 0).any()
            results.append(weights(trainer))
    assert torch.equal(*results)


def test_a_restored_trainer_continues_to_the_bit():
    straight, first = native_trainer(), native_trainer()
    for _ in range(10):
        straight.advance()
        first.advance()
    resumed = native_trainer(seed=3)
    resumed.policy.load_state_dict(first.policy.state_dict())
    resumed.restore(first.state())
    for _ in range(10):
        expected, metrics = straight.advance(), resumed.advance()
    assert torch.equal(weights(straight), weights(resumed))
    assert expected["episodes"] == metrics["episodes"]
    assert straight.step == resumed.step and straight.done


@pytest.mark.parametrize("sync_traj", [False, True])
def test_batches_must_come_in_the_order_in_which_they_were_sent(sync_traj):
    options = {"num_workers": 2, "batch_size": 1, "overwork": True, "sync_traj": sync_traj}
    with vector.make(Toy, num_envs=2, backend="Multiprocessing", **options) as vecenv:
        policy = models.Default(vecenv.single_observation_space, vecenv.single_action_space)
        config = Config(train=TrainConfig(horizon=4, minibatch_size=8))
        if sync_traj:
            ppo.create(config, vecenv, policy)
        else:
            with pytest.raises(APIUsageError, match="is ready first, .* with sync_traj=True"):
                ppo.create(config, vecenv, policy)


def test_the_learning_rate_falls_to_its_least_share():
    trainer = make_trainer(total_timesteps=4 * 8 * 4, learning_rate=0.1, min_lr_ratio=0.5)
    rates = [trainer.advance()["learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.1, 0.0875, 0.075, 0.0625])
    assert trainer.learning_rate() == pytest.approx(0.05)


def test_epochs_end_when_the_policy_has_moved_too_far():
    def gradient_steps(target_kl):
        trainer = make_trainer(update_epochs=5, target_kl=target_kl, learning_rate=0.05)
        trainer.advance()
        return trainer.optimizer.state[trainer.policy.head.bias]["step"].item()

    minibatches = 4
    assert gradient_steps(1e-9) == minibatches and gradient_steps(0.0) == 5 * minibatches
