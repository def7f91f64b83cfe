"""Stable-Baselines3's PPO on our vector instead of its own.

    python examples/sb3_ppo.py 100000

`make_envs` is the only place that knows of pufferlib. With Stable-Baselines3 alone it would return
`make_vec_env("CartPole-v1", n_envs=num_envs, vec_env_cls=SubprocVecEnv)`.
"""

from __future__ import annotations

import sys

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

import pufferlib.vector


def make_env() -> gymnasium.Env:
    """One environment, with whatever wrappers it needs."""
    return gymnasium.make("CartPole-v1")


def make_envs(num_envs: int) -> VecEnv:
    """A vector of environments."""
    vecenv = pufferlib.vector.make(make_env, num_envs=num_envs)
    return pufferlib.vector.to_stable_baselines(vecenv)


def train(*, total_timesteps: int, num_envs: int = 8, seed: int = 1) -> tuple[float, float]:
    """Train a policy → its mean return before and after."""
    envs = make_envs(num_envs)
    model = PPO(
        "MlpPolicy", envs, n_steps=32, batch_size=256, n_epochs=20, learning_rate=1e-3,
        gamma=0.98, gae_lambda=0.8, ent_coef=0.0, seed=seed, device="cpu",
    )  # fmt: skip
    before, _ = evaluate_policy(model, envs, n_eval_episodes=24)
    model.learn(total_timesteps)
    after, _ = evaluate_policy(model, envs, n_eval_episodes=24)
    envs.close()
    return before, after


if __name__ == "__main__":
    before, after = train(total_timesteps=int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
    print(f"mean return {before:.0f} before and {after:.0f} after")
