"""PPO on one page, in the way of CleanRL: written for Gymnasium's vectors, run on ours.

    python examples/cleanrl_ppo.py 100000

`make_envs` is the only place that knows of pufferlib. With Gymnasium alone it would return
`gymnasium.vector.SyncVectorEnv([make_env] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)`.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import pufferlib.vector

GAMMA, GAE_LAMBDA = 0.98, 0.9
CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.2, 0.5, 0.0
LEARNING_RATE, EPOCHS, MINIBATCHES, MAX_NORM = 2e-3, 8, 4, 0.5


def make_env() -> gymnasium.Env:
    """One environment, with whatever wrappers it needs."""
    return gymnasium.make("CartPole-v1")


def make_envs(num_envs: int) -> gymnasium.vector.VectorEnv:
    """A vector of environments."""
    return pufferlib.vector.GymnasiumVectorEnv(pufferlib.vector.make(make_env, num_envs=num_envs))


class Agent(nn.Module):
    """Actor and critic, two hidden layers each."""

    def __init__(self, envs: gymnasium.vector.VectorEnv):
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        self.actor = self.tower(inputs, int(envs.single_action_space.n), gain=0.01)
        self.critic = self.tower(inputs, 1, gain=1.0)

    @staticmethod
    def tower(inputs: int, outputs: int, *, gain: float) -> nn.Sequential:
        layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
        for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def forward(self, observations):
        """Observations [B, *O] → the distribution of actions, and values [B]."""
        return Categorical(logits=self.actor(observations)), self.critic(observations).squeeze(-1)


def train(*, total_timesteps: int, num_envs: int = 8, num_steps: int = 128, seed: int = 1) -> list:
    """Train an agent → the returns of all episodes, in the order in which they ended."""
    torch.manual_seed(seed)
    envs = make_envs(num_envs)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    shape = (num_steps, num_envs)
    observations = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions = torch.zeros(shape, dtype=torch.long)
    logprobs, rewards, values, ends = (torch.zeros(shape) for _ in range(4))
    returns: list[float] = []

    observation = torch.as_tensor(envs.reset(seed=seed)[0])
    for _ in range(total_timesteps // (num_envs * num_steps)):
        for t in range(num_steps):
            observations[t] = observation
            with torch.no_grad():
                distribution, values[t] = agent(observation)
                actions[t] = distribution.sample()
                logprobs[t] = distribution.log_prob(actions[t])
            observation, reward, terminations, truncations, infos = envs.step(actions[t].numpy())
            observation = torch.as_tensor(observation)
            rewards[t] = torch.as_tensor(reward)
            ends[t] = torch.as_tensor(terminations | truncations)
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
            # What a time limit cut off is worth what the critic expects of it.
            for row in np.flatnonzero(truncations & ~terminations):
                with torch.no_grad():
                    final = torch.as_tensor(infos["final_obs"][row])
                    rewards[t, row] += GAMMA * agent(final)[1]

        with torch.no_grad():
            following = agent(observation)[1]
        advantages, running = torch.zeros(shape), torch.zeros(num_envs)
        for t in reversed(range(num_steps)):
            goes_on = 1 - ends[t]
            delta = rewards[t] + GAMMA * following * goes_on - values[t]
            advantages[t] = running = delta + GAMMA * GAE_LAMBDA * goes_on * running
            following = values[t]

        stored = (observations, actions, logprobs, advantages, advantages + values)
        batch = [x.flatten(0, 1) for x in stored]
        for _ in range(EPOCHS):
            for rows in torch.randperm(num_steps * num_envs).chunk(MINIBATCHES):
                loss = ppo_loss(agent, *(x[rows] for x in batch))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
                optimizer.step()
    envs.close()
    return returns


def ppo_loss(agent, observations, actions, old_logprobs, advantages, returns):
    """The clipped objective of B rows."""
    distribution, values = agent(observations)
    ratio = (distribution.log_prob(actions) - old_logprobs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP))
    value_loss = 0.5 * (values - returns).square().mean()
    return -gain.mean() + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * distribution.entropy().mean()


if __name__ == "__main__":
    told = train(total_timesteps=int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
    first, last = np.mean(told[:20]), np.mean(told[-20:])
    print(f"{len(told)} episodes, mean return {first:.0f} at first and {last:.0f} at last")
