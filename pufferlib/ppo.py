"""Proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347), top to bottom.

One update is: `rollout` fills the storage with `horizon` steps of every agent, `advantage` turns
rewards and values into advantages, `update` walks over minibatches of whole segments and `loss`
says what each of them costs. `train` repeats that until the steps are done.

Row t of the storage is the step from observation t: the action taken on it, and the reward and
flags that came of it. Environments reset in the same step, so observation t+1 of an agent whose
episode ended at t is the first of the next one; the last one of a truncated episode is in the
vector's `final_observations`, and its value takes the place of the return that was cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pufferlib import fused
from pufferlib.clock import Clock
from pufferlib.config import Config, TrainConfig, validate
from pufferlib.exceptions import APIUsageError, NonFiniteError
from pufferlib.machine import usable_cores
from pufferlib.native import core
from pufferlib.optimizers import make_optimizer
from pufferlib.vector import Native, VecEnv


@dataclass
class Storage:
    """What one rollout leaves behind; T steps of A agents, time-major.

    NumPy arrays are what environments and the advantage kernel touch, tensors what the policy
    does. On a CPU `observations` and `device_observations` are the same memory.
    """

    observations: np.ndarray  # [T+1, A, *O]
    rewards: np.ndarray  # [T, A] float32
    terminals: np.ndarray  # [T, A] bool
    truncations: np.ndarray  # [T, A] bool
    masks: np.ndarray  # [T, A] bool: the agent was there to act
    bootstraps: np.ndarray  # [T, A] float32: value of the final observation where truncated
    advantages: np.ndarray  # [T, A] float32
    device_observations: Tensor  # [T+1, A, *O]
    parameters: Tensor  # [T, A, P] of the action distribution
    actions: Tensor  # [T, A, D]
    logprobs: Tensor  # [T, A]
    values: Tensor  # [T, A]
    noise: Tensor  # [T, A, K] standard samples that drive the action distribution
    slots: list = field(default_factory=list)  # [T][slice]: where `Native` writes a step's results

    @classmethod
    def allocate(cls, vecenv: VecEnv, policy: Any, horizon: int, device: torch.device) -> Storage:
        """Storage for `horizon` steps of `vecenv`, with slots if it can write there itself."""
        space, rows = vecenv.single_observation_space, (horizon, vecenv.num_agents)
        distribution, dtype = policy.distribution, getattr(torch, str(np.dtype(space.dtype)))
        shape = (horizon + 1, vecenv.num_agents, *space.shape)
        host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        floats, flags = "rewards bootstraps advantages", "terminals truncations masks"
        arrays: dict[str, Any] = {name: np.zeros(rows, np.float32) for name in floats.split()}
        arrays |= {name: np.zeros(rows, np.bool_) for name in flags.split()}
        storage = cls(
            **arrays,
            observations=host.numpy(),
            device_observations=host.to(device),
            actions=torch.zeros(
                (*rows, *distribution.action_shape), dtype=distribution.action_dtype, device=device
            ),
            parameters=torch.zeros((*rows, distribution.num_parameters), device=device),
            logprobs=torch.zeros(rows, device=device),
            values=torch.zeros(rows, device=device),
            noise=torch.zeros((*rows, distribution.num_noise), device=device),
        )
        if isinstance(vecenv, Native):
            for t in range(horizon):
                fields = [storage.observations[t + 1], storage.rewards[t]]
                fields += [storage.terminals[t], storage.truncations[t]]
                storage.slots.append(
                    [vecenv.rows(*(f[rows] for f in fields)) for rows in vecenv.slices]
                )
        return storage


# ---------------------------------------------------------------- rollout


@torch.no_grad()
def rollout(
    vecenv: VecEnv, policy: Any, storage: Storage, generator: torch.Generator, clock: Clock
) -> None:
    """Fill `storage` with one horizon of experience under the current policy.

    Raises `NonFiniteError` naming environment, step and field for a NaN or infinity.
    """
    horizon = len(storage.rewards)
    action_shape, parts = vecenv.single_action_space.shape or (), vecenv.slices
    distribution = policy.distribution
    send: Any = vecenv.send
    storage.bootstraps.fill(0.0)
    distribution.draw_noise(storage.noise, generator)
    clock.lap("inference")
    for t in range(horizon):
        for k, rows in enumerate(parts):
            batch = vecenv.recv()
            clock.lap("environment")
            keep(vecenv, policy, storage, t, rows, batch)
            clock.lap("copy")
            parameters, values = policy(storage.device_observations[t, rows])
            storage.values[t, rows] = values
            noise, actions = storage.noise[t, rows], storage.actions[t, rows]
            if fast := fused.fits(distribution, parameters, values):
                fused.sample(distribution, parameters, noise, actions, storage.logprobs[t, rows])
            else:
                actions.copy_(distribution.sample(parameters, noise))
                storage.parameters[t, rows] = parameters
            chosen = actions.cpu().numpy().reshape(-1, *action_shape)
            clock.lap("inference")
            if storage.slots:
                send(chosen, storage.slots[t][k])
            else:
                send(chosen)
            clock.lap("environment")
    vecenv.wait()
    clock.lap("environment")
    for rows, batch in zip(parts, vecenv.batches(), strict=True):
        keep(vecenv, policy, storage, horizon, rows, batch)
    check_finite(storage, vecenv.agents_per_env)
    clock.lap("copy")
    if not fast:
        flat = storage.parameters.flatten(0, 1), storage.actions.flatten(0, 1)
        storage.logprobs.copy_(distribution.evaluate(*flat)[0].view_as(storage.logprobs))
        clock.lap("inference")


def keep(vecenv: VecEnv, policy: Any, storage: Storage, t: int, rows: slice, batch: tuple) -> None:
    """Store a received batch: observation t, and what came of the step before it."""
    observations, rewards, terminals, truncations, _, _, masks = batch
    if t == 0 or not storage.slots:
        storage.observations[t, rows] = observations
    if t < len(storage.masks):
        storage.masks[t, rows] = masks
    if storage.device_observations.device.type != "cpu":
        source = torch.from_numpy(storage.observations[t, rows])
        storage.device_observations[t, rows].copy_(source, non_blocking=True)
    if t == 0:
        return
    if not storage.slots:
        storage.rewards[t - 1, rows] = rewards
        storage.terminals[t - 1, rows] = terminals
        storage.truncations[t - 1, rows] = truncations
    if truncations.any():
        cut = np.flatnonzero(truncations)
        final = torch.from_numpy(vecenv.buf.final_observations[rows.start + cut])
        values = policy(final.to(storage.device_observations.device))[1]
        storage.bootstraps[t - 1, rows.start + cut] = values.float().cpu().numpy()


def check_finite(storage: Storage, agents_per_env: int) -> None:
    """Raise `NonFiniteError` for the first reward, observation or value that is not finite.

    An observation that is not finite makes its value so; all of them are looked at only then.
    """
    values = storage.values.cpu().numpy()
    fields = [("reward", storage.rewards), ("value", values), ("bootstrap", storage.bootstraps)]
    if storage.observations.dtype == np.float32:
        rest = slice(-1, None) if np.isfinite(values).all() else slice(None)
        fields.insert(0, ("observation", storage.observations[rest]))
    for name, array in fields:
        flat = core.first_nonfinite(array)
        if flat < 0:
            continue
        step, row, *_ = np.unravel_index(flat, array.shape)
        step += len(values) + 1 - len(array) if name == "observation" else 0
        raise NonFiniteError(
            f"{name} {array.reshape(-1)[flat]} at step {step} of the rollout, environment "
            f"{row // agents_per_env}, agent row {row}; weights are as they were before it"
        )


# ---------------------------------------------------------------- learning


@torch.no_grad()
def advantage(policy: Any, storage: Storage, config: TrainConfig) -> None:
    """Generalized advantage estimates of a whole rollout, into `storage.advantages`."""
    last_values = policy(storage.device_observations[-1])[1].float().cpu().numpy()
    rewards = storage.rewards
    if config.reward_clip > 0:
        rewards = np.clip(rewards, -config.reward_clip, config.reward_clip)
    core.advantages(
        rewards,
        storage.values.cpu().numpy(),
        np.ascontiguousarray(last_values),
        storage.bootstraps,
        storage.terminals,
        storage.truncations,
        storage.masks,
        storage.advantages,
        config.gamma,
        config.gae_lambda,
    )


def loss(
    policy: Any,
    observations: Tensor,
    actions: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    old_values: Tensor,
    *,
    config: TrainConfig,
) -> tuple[Tensor, Tensor]:
    """The PPO loss of B rows, and [policy, value, entropy, kl, clipped share] to look at.

    Observations [B, *O], actions [B, D], the rest [B]. `fused.DiscreteLoss` is the same in one
    pass, for discrete actions on a CPU.
    """
    parameters, values = policy(observations)
    returns = advantages + old_values
    if config.normalize_advantage:
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    if fused.fits(policy.distribution, parameters, values):
        old, sizes = (old_logprobs, advantages, old_values, returns), policy.distribution.sizes
        return fused.DiscreteLoss.apply(parameters, values, actions, *old, sizes, config)

    values = values.float()
    logprobs, entropy = policy.distribution.evaluate(parameters.float(), actions)
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
    policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()

    value_loss = (values - returns).square()
    if config.vf_clip_coef > 0:
        near = old_values + (values - old_values).clamp(-config.vf_clip_coef, config.vf_clip_coef)
        value_loss = torch.maximum(value_loss, (near - returns).square())
    value_loss = 0.5 * value_loss.mean()

    entropy = entropy.mean()
    total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
    with torch.no_grad():
        kl = (ratio - 1 - log_ratio).mean()  # Schulman 2020, "Approximating KL divergence", k3.
        share = (ratio != clipped).float().mean()
    return total, torch.stack([policy_loss, value_loss, entropy, kl, share]).detach()


def update(
    policy: Any,
    optimizer: torch.optim.Optimizer,
    storage: Storage,
    generator: torch.Generator,
    config: TrainConfig,
) -> dict[str, float]:
    """Gradient steps over the rollout in minibatches of whole segments → means to look at.

    Segments are shuffled in blocks of neighbours, so that gathering them reads memory in runs.
    Rows of absent agents are left out. Raises `NonFiniteError` before a step that would spoil the
    weights.
    """
    device = storage.actions.device
    horizon, agents = storage.rewards.shape
    segments = config.minibatch_size // horizon
    block = math.gcd(segments, 16)
    advantages, masks = map(torch.from_numpy, (storage.advantages, storage.masks))
    known = [storage.actions, storage.logprobs, advantages, storage.values, masks]
    known = [x.to(device).unflatten(1, (-1, block)) for x in known]
    observations = storage.device_observations[:-1].unflatten(1, (-1, block))
    gathered = torch.empty_like(observations[:, : segments // block])
    all_present = bool(storage.masks.all())
    seen, norms = [], []
    for _ in range(config.update_epochs):
        order = torch.randperm(agents // block, generator=generator, device=device)
        for chosen in order.split(segments // block):
            blocks = [observations[:, k : k + 1] for k in chosen.tolist()]
            obs = torch.cat(blocks, 1, out=gathered).flatten(0, 2)  # Uses all threads.
            *fields, present = (x.index_select(1, chosen).flatten(0, 2) for x in known)
            if not all_present:
                obs, *fields = (x[present] for x in (obs, *fields))
            if len(obs) == 0:
                continue
            with autocast(config, device):
                total, figures = loss(policy, obs, *fields, config=config)
            optimizer.zero_grad(set_to_none=True)
            total.backward()
            norm = nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            if not torch.isfinite(total.detach() + norm):
                raise NonFiniteError(
                    f"loss {total.item()}, gradient norm {norm.item()}: this step is not taken, "
                    "the weights are finite still; lower train.learning_rate"
                )
            optimizer.step()
            seen.append(figures)
            norms.append(norm)
        if config.target_kl > 0 and seen and seen[-1][3] > config.target_kl:
            break
    names = ("policy", "value", "entropy", "kl", "clipped")
    means = torch.stack(seen).mean(0).tolist() if seen else [0.0] * len(names)
    return dict(zip(names, means, strict=True)) | {
        "gradient_norm": torch.stack(norms).mean().item() if norms else 0.0,
        "explained_variance": explained_variance(storage),
    }


def explained_variance(storage: Storage) -> float:
    """1 - Var(return - value) / Var(return) over the rows of present agents; 0 if undefined."""
    returns = (storage.advantages + storage.values.cpu().numpy())[storage.masks]
    spread = returns.var() if returns.size else 0.0
    return float(1 - storage.advantages[storage.masks].var() / spread) if spread > 0 else 0.0


def autocast(config: TrainConfig, device: torch.device):
    """The context in which the policy runs: bfloat16 where the settings ask for it."""
    if config.precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


# ---------------------------------------------------------------- the whole


@dataclass
class Trainer:
    """One training run under way; everything that the next update depends on.

    `step` counts agent steps (rows of present agents), `updates` completed updates.
    """

    config: Config
    vecenv: VecEnv
    policy: Any
    device: torch.device
    optimizer: torch.optim.Optimizer
    storage: Storage
    generator: torch.Generator
    clock: Clock
    step: int = 0
    updates: int = 0

    @property
    def done(self) -> bool:
        """Whether the configured number of steps has been taken."""
        return self.step >= self.config.train.total_timesteps

    def learning_rate(self) -> float:
        """The rate of the next update: constant, or falling linearly to its least share."""
        train = self.config.train
        if not train.anneal_lr:
            return train.learning_rate
        left = max(0.0, 1.0 - self.step / train.total_timesteps)
        return train.learning_rate * (train.min_lr_ratio + (1 - train.min_lr_ratio) * left)

    def advance(self) -> dict[str, Any]:
        """One update → metrics {"losses", "episodes", "seconds", "learning_rate", "steps"}."""
        train = self.config.train
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with autocast(train, self.device):
            rollout(self.vecenv, self.policy, self.storage, self.generator, self.clock)
            advantage(self.policy, self.storage, train)
        self.clock.lap("advantage")
        losses = update(self.policy, self.optimizer, self.storage, self.generator, train)
        self.clock.lap("update")
        steps = int(self.storage.masks.sum())
        self.step += steps
        self.updates += 1
        episodes = self.vecenv.episode_stats()
        self.clock.lap("other")
        return {
            "losses": losses,
            "episodes": episodes,
            "seconds": self.clock.read(),
            "learning_rate": rate,
            "steps": steps,
        }

    def state(self) -> dict[str, Any]:
        """All but the weights, as tensors and plain containers; `restore` continues from it.

        The state of environments is in it if the vector can give it (native ones can); others
        begin new episodes when a run is resumed.
        """
        state = {
            "step": self.step,
            "updates": self.updates,
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }
        arrays = self.vecenv.get_state()
        if arrays is not None:
            state["vecenv"] = {name: torch.from_numpy(x.copy()) for name, x in arrays.items()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned; the weights are loaded separately."""
        self.step, self.updates = state["step"], state["updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        if "vecenv" in state:
            self.vecenv.set_state({name: x.numpy() for name, x in state["vecenv"].items()})


def choose_device(name: str) -> torch.device:
    """The torch device of a setting; 'auto' is CUDA where it works, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def create(config: Config, vecenv: VecEnv, policy: Any) -> Trainer:
    """A trainer at step 0, with the environments reset from the configured seed.

    `policy(observations)` → (parameters, values), with a `distribution` (see pufferlib.models).
    Sets torch's thread count. Raises `ConfigError` where sizes do not divide.
    """
    validate(config, vecenv.num_agents)
    if not vecenv.in_order:
        raise APIUsageError(
            "the vector returns whichever batch is ready first, but an update has equally many "
            "steps of every environment; make it with sync_traj=True"
        )
    train = config.train
    torch.set_num_threads(train.threads or usable_cores())
    device = choose_device(train.device)
    policy = policy.to(device)
    vecenv.async_reset(train.seed)
    return Trainer(
        config=config,
        vecenv=vecenv,
        policy=policy,
        device=device,
        optimizer=make_optimizer(policy, train),
        storage=Storage.allocate(vecenv, policy, train.horizon, device),
        generator=torch.Generator(device).manual_seed(train.seed),
        clock=Clock(),
    )


def train(trainer: Trainer, on_update: Callable[[Trainer, dict], bool | None]) -> None:
    """Update until the steps are done or `on_update(trainer, metrics)` returns True."""
    while not trainer.done:
        if on_update(trainer, trainer.advance()):
            break
