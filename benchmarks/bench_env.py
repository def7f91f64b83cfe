"""Steps per second of native environments through `vector.make`, against their pure C loop.

    python benchmarks/bench_env.py [NAME ...] [--envs 1024 4096] [--rounds 5] [--json]

Both run on one core, one after the other in every round; the ratio is that of the medians. The C
loop (loop.c) calls the same step function of the same header, compiled with the same flags.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pufferlib import registry, vector
from pufferlib.native import build

RING = 64


def compile_loop(folder: Path, target: Path) -> Path:
    """The pure C loop of the environment in `folder`."""
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC")]
    flags = ["-std=gnu11" if flag == "-std=c11" else flag for flag in flags]
    header = folder / f"{folder.name}.h"
    command = [build.find_compiler(), *flags, f"-I{build.SOURCES}", *build.defines(header)]
    subprocess.run([*command, str(Path(__file__).parent / "loop.c"), "-o", target], check=True)
    return target


def run_loop(program: Path, num_envs: int, seconds: float) -> float:
    """Agent steps per second of the C loop."""
    done = subprocess.run([program, str(num_envs), str(seconds)], capture_output=True, check=True)
    return float(done.stdout)


def run_vector(vecenv: vector.VecEnv, actions: list[np.ndarray], seconds: float) -> float:
    """Agent steps per second through `send` and `recv`."""
    send, recv, clock = vecenv.send, vecenv.recv, time.perf_counter
    for i in range(RING):
        send(actions[i])
        recv()
    calls, start = 0, clock()
    end = start + seconds
    while clock() < end:
        for i in range(16):
            send(actions[(calls + i) % RING])
            recv()
        calls += 16
    return calls * vecenv.agents_per_batch / (clock() - start)


def measure(name: str, num_envs: int, rounds: int, seconds: float) -> dict:
    """One row of the table: median steps per second of both, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        program = compile_loop(registry.find(name).folder, Path(folder) / "loop")
        with vector.make(name, num_envs=num_envs, seed=0, num_workers=1) as vecenv:
            vecenv.action_space.seed(0)
            actions = [vecenv.action_space.sample() for _ in range(RING)]
            vecenv.reset()
            pairs = []
            for _ in range(rounds):
                through = run_vector(vecenv, actions, seconds)
                pairs.append((through, run_loop(program, num_envs, seconds)))
    through, floor = (statistics.median(values) for values in zip(*pairs, strict=True))
    return {
        "env": name,
        "num_envs": num_envs,
        "agents": vecenv.num_agents,
        "vector_sps": round(through),
        "loop_sps": round(floor),
        "ratio": round(through / floor, 3),
        "pairs": [[round(a), round(b)] for a, b in pairs],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="environments; every native one by default")
    parser.add_argument("--envs", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--core", type=int, default=None, help="pin to this core")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    names = options.names or [n for n in registry.names() if registry.find(n).is_native]
    if not options.json:
        print(
            f"{'environment':<14}{'envs':>6}{'agents':>8}{'vector':>10}{'C loop':>10}{'ratio':>7}"
        )
    for name in names:
        for num_envs in options.envs:
            row = measure(name, num_envs, options.rounds, options.seconds)
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    f"{name:<14}{num_envs:>6}{row['agents']:>8}{row['vector_sps'] / 1e6:>9.1f}M"
                    f"{row['loop_sps'] / 1e6:>9.1f}M{row['ratio']:>7.2f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
