"""Training speed of PufferLib 3.0.0's own trainer on one of its native games; one JSON line.

Run with the Python of an environment that has pufferlib 3.0.0:
    PYTHON pufferl.py breakout --num-envs 1024 --horizon 64 --minibatch 8192 --threads 2 --seconds 8

The default network of its Breakout, one hidden layer of 128, on the CPU, stepped by its native
backend; one epoch per update as its settings say.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import warnings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--horizon", type=int, default=64)
    parser.add_argument("--minibatch", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--seconds", type=float, default=8)
    options = parser.parse_args()
    sys.argv = sys.argv[:1]
    warnings.filterwarnings("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.chdir(tempfile.mkdtemp())  # Importing it makes a symlink in the current folder.
    import torch

    import pufferlib.models
    import pufferlib.vector
    from pufferlib import pufferl
    from pufferlib.ocean.environment import env_creator

    torch.set_num_threads(options.threads)
    config = pufferl.load_config("puffer_" + options.env)
    parameters = {k: v for k, v in config["env"].items() if k != "num_envs"}
    envs = pufferlib.vector.make(
        env_creator("puffer_" + options.env),
        env_kwargs={**parameters, "num_envs": options.num_envs},
        backend="PufferEnv",
    )
    policy = pufferlib.models.Default(envs.driver_env, hidden_size=128)
    train = config["train"]
    train.update(
        device="cpu", seed=1, total_timesteps=10**9, bptt_horizon=options.horizon,
        batch_size="auto", use_rnn=False, env=options.env, checkpoint_interval=10**9,
        data_dir=tempfile.mkdtemp(), minibatch_size=options.minibatch,
        optimizer=options.optimizer,
    )  # fmt: skip
    trainer = pufferl.PuffeRL(train, envs, policy)
    trainer.evaluate()
    trainer.train()
    before, start = trainer.global_step, time.perf_counter()
    while time.perf_counter() - start < options.seconds:
        trainer.evaluate()
        trainer.train()
    spent = time.perf_counter() - start
    sps = (trainer.global_step - before) / spent
    json.dump({"env": options.env, "sps": round(sps), "threads": options.threads}, out)
    out.write("\n")
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
