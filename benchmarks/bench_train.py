"""Training throughput by phase, against the bare network's time on the same batches.

    python benchmarks/bench_train.py [NAME] [--updates 10] [--rounds 5] [--json] [--SECTION.KEY V]

Bare is what cannot be avoided: for each update the policy's forward pass on `horizon` batches, as
in the rollout, and its forward and backward pass on every minibatch; no sampling, no loss, no
optimizer, no environment. Both are measured in turn in every round; the ratio is that of medians.
With `--peer PYTHON`, an interpreter that has PufferLib 3.0.0, its own trainer runs in every round
too, on its game of the same name with the same sizes and threads (peers/pufferl.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from pufferlib import ppo, registry
from pufferlib.clock import PHASES
from pufferlib.config import load_config
from pufferlib.machine import keep_freed_memory
from pufferlib.run import make_policy, make_vecenv


def time_bare(trainer: ppo.Trainer) -> float:
    """Seconds of the bare network for one update."""
    config, policy, storage = trainer.config.train, trainer.policy, trainer.storage
    batches = trainer.vecenv.num_agents // trainer.vecenv.agents_per_batch
    rows = trainer.vecenv.agents_per_batch
    segments = config.minibatch_size // config.horizon
    steps = trainer.vecenv.num_agents * config.horizon // config.minibatch_size
    minibatch = storage.device_observations[:-1, :segments].flatten(0, 1).contiguous()
    start = time.perf_counter()
    with torch.no_grad():
        for t in range(config.horizon):
            for k in range(batches):
                policy(storage.device_observations[t, k * rows : (k + 1) * rows])
    for _ in range(config.update_epochs * steps):
        parameters, values = policy(minibatch)
        (parameters.sum() + values.sum()).backward()
    policy.zero_grad(set_to_none=True)
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def run_peer(python: str, name: str, trainer: ppo.Trainer, seconds: float) -> float:
    """Steps per second of PufferLib 3.0.0 with the sizes of `trainer`."""
    config = trainer.config.train
    sizes = {
        "num-envs": trainer.vecenv.num_envs,
        "horizon": config.horizon,
        "minibatch": config.minibatch_size,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
    }
    script = Path(__file__).parent / "peers" / "pufferl.py"
    command = [python, str(script), name, *(f"--{key}={value}" for key, value in sizes.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["sps"]


def measure(
    trainer: ppo.Trainer, updates: int, rounds: int, peer: Callable[[], float] | None
) -> dict:
    """Steps per second, share of each phase, and the ratios to the bare network and the peer."""
    trainer.advance()
    time_bare(trainer)
    whole, bare, theirs = [], [], []
    seconds = dict.fromkeys(PHASES, 0.0)
    steps = 0
    for _ in range(rounds):
        trainer.clock.lap("other")
        trainer.clock.read()
        start = time.perf_counter()
        for _ in range(updates):
            metrics = trainer.advance()
            steps += metrics["steps"]
            for phase, spent in metrics["seconds"].items():
                seconds[phase] += spent
        whole.append((time.perf_counter() - start) / updates)
        bare.append(statistics.median(time_bare(trainer) for _ in range(3)))
        if peer is not None:
            theirs.append(peer())
    per_update = steps / (rounds * updates)
    total = sum(seconds.values())
    sps = per_update / statistics.median(whole)
    ratio = {"peer_sps": theirs, "peer_ratio": round(sps / statistics.median(theirs or [sps]), 3)}
    return (ratio if theirs else {}) | {
        "agents": trainer.vecenv.num_agents,
        "horizon": trainer.config.train.horizon,
        "minibatch_size": trainer.config.train.minibatch_size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "sps": round(sps),
        "bare_sps": round(per_update / statistics.median(bare)),
        "ratio": round(statistics.median(bare) / statistics.median(whole), 3),
        "shares": {phase: round(spent / total, 3) for phase, spent in seconds.items()},
        "seconds_whole": [round(s, 5) for s in whole],
        "seconds_bare": [round(s, 5) for s in bare],
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="breakout")
    parser.add_argument("--updates", type=int, default=10, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", metavar="PYTHON", help="one that has PufferLib 3.0.0")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options, flags = parser.parse_known_args()
    entry = registry.find(options.name)
    path = entry.config_path if entry.config_path.is_file() else None
    config = load_config(entry.name, env_config_path=path, overrides=flags)
    keep_freed_memory()
    vecenv = make_vecenv(entry, config)
    trainer = ppo.create(config, vecenv, make_policy(entry, config, vecenv))
    peer = options.peer and partial(run_peer, options.peer, options.name, trainer, 6.0)
    row = {"env": options.name} | measure(trainer, options.updates, options.rounds, peer)
    vecenv.close()
    if options.json:
        print(json.dumps(row))
        return 0
    print(
        f"{row['env']}: {row['sps']:,} steps/s with {row['agents']} agents, horizon "
        f"{row['horizon']}, minibatches of {row['minibatch_size']}, {row['threads']} threads\n"
        f"bare network {row['bare_sps']:,} rows/s, ratio {row['ratio']:.2f}"
    )
    if "peer_ratio" in row:
        print(f"{row['peer_ratio']:.2f} times PufferLib 3.0.0")
    for phase, share in row["shares"].items():
        print(f"  {phase:<12} {share:6.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
