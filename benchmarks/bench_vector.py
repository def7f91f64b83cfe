"""Environment steps per second of vector backends, in pairs with other libraries.

The environment spins for a fixed CPU time and returns a new observation. Every number comes from
a process of its own; the members of a pair take turns, and what counts is the ratio of medians.

    python benchmarks/bench_vector.py --peer async=PYTHON --peer puffer3=PYTHON

PYTHON is an interpreter that has the library: Gymnasium for `async` (AsyncVectorEnv), pufferlib
3.0 for `puffer3` (Multiprocessing). Prints a table, and with --json one line for each number.
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

import numpy as np

ACTIONS = np.random.default_rng(0).integers(0, 2, (64, 4096))


def burn(cpu_us: float) -> None:
    """Use CPU time of this thread: a wall clock would let waiting processes finish for free."""
    if cpu_us > 0:
        end = time.thread_time() + cpu_us * 1e-6
        while time.thread_time() < end:
            pass


def make_env(cost_us: float, observation_bytes: int):
    """An environment of 128-step episodes whose step takes `cost_us` of CPU time."""
    import gymnasium

    class Cost(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (observation_bytes,), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)
        observations = [np.full(observation_bytes, k, np.uint8) for k in (1, 2)]

        def reset(self, *, seed=None, options=None):
            self.time = 0
            return self.observations[0], {}

        def step(self, action):
            burn(cost_us)
            self.time += 1
            return self.observations[self.time & 1], 1.0, self.time >= 128, False, {}

    return Cost()


def open_ours(creator, args):
    from pufferlib import vector

    options = {}
    if args.backend == "Multiprocessing":
        options = {"num_workers": args.workers, "batch_size": args.batch or args.envs}
        options |= {"overwork": True}
    vecenv = vector.make(creator, num_envs=args.envs, backend=args.backend, **options)
    vecenv.reset(0)
    return vecenv.step, vecenv.agents_per_batch, np.int32


def open_async(creator, args):
    import gymnasium

    vecenv = gymnasium.vector.AsyncVectorEnv([creator] * args.envs, shared_memory=True)
    vecenv.reset(seed=0)
    return vecenv.step, args.envs, np.int64


def open_puffer3(creator, args):
    os.chdir(tempfile.mkdtemp())  # It makes a link in the working folder.
    import pufferlib.emulation
    import pufferlib.vector

    def create(buf=None, seed=0):
        return pufferlib.emulation.GymnasiumPufferEnv(env_creator=creator, buf=buf, seed=seed)

    batch = args.batch or args.envs
    vecenv = pufferlib.vector.make(
        create,
        num_envs=args.envs,
        num_workers=args.workers,
        batch_size=batch,
        backend="Multiprocessing",
        overwork=True,
    )
    vecenv.async_reset(0)
    vecenv.recv()

    def step(actions):
        vecenv.send(actions)
        vecenv.recv()

    return step, batch, np.int32


OPENERS = {
    "Serial": open_ours,
    "Multiprocessing": open_ours,
    "async": open_async,
    "puffer3": open_puffer3,
}


def measure(args) -> float:
    """Environment steps per second."""

    def creator():
        return make_env(args.cost, args.bytes)

    step, rows, dtype = OPENERS[args.backend](creator, args)
    actions = [row[:rows].astype(dtype) for row in ACTIONS]
    calls, deadline = 0, time.perf_counter() + args.seconds / 4
    while time.perf_counter() < deadline:
        step(actions[0])
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + args.seconds:
        for i in range(8):
            step(actions[i])
        calls += 8
    return calls * rows / (now - start)


def run(backend: str, python: str, args) -> float:
    """`measure` in a process of its own."""
    command = [python, __file__, "--measure", backend, "--seconds", str(args.seconds)]
    for name in ("envs", "workers", "batch", "cost", "bytes"):
        command += [f"--{name}", str(getattr(args, name))]
    # A process that spins without end does not end by itself either.
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60 + 4 * args.seconds,
        start_new_session=True,  # The kernel shares cores out by session: equal shares for all.
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def compare(args, peers: dict[str, str]) -> None:
    print(f"{args.envs} environments, {args.workers} workers, {args.rounds} rounds")
    names = ["Multiprocessing", "Serial", *peers]
    print(f"{'step':>8} {'observation':>12} " + " ".join(f"{n:>16}" for n in names) + "   ratios")
    for size in args.sizes:
        for cost in args.costs:
            args.cost, args.bytes = cost, size
            rates: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(args.rounds):
                for name in names:
                    rates[name].append(run(name, peers.get(name, sys.executable), args))
            middle = {name: statistics.median(values) for name, values in rates.items()}
            ratios = [f"{middle[names[0]] / middle[n]:.2f}x {n}" for n in names[1:]]
            figures = " ".join(f"{middle[n]:>16,.0f}" for n in names)
            print(f"{cost:>5g} µs {size:>10} B {figures}   {', '.join(ratios)}", flush=True)
            if args.json:
                row = {"cost_us": cost, "observation_bytes": size, "steps_per_s": rates}
                print(json.dumps(row | {"envs": args.envs, "workers": args.workers}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", dest="backend", choices=OPENERS, help="one number, here")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0, help="environments a call; 0: all")
    parser.add_argument("--cost", type=float, default=0.0)
    parser.add_argument("--bytes", type=int, default=4)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.0, 20.0, 100.0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 28224])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.backend:
        # The processes of some libraries outlive an ordinary exit.
        print(measure(args), flush=True)
        os._exit(0)
    compare(args, dict(peer.split("=", 1) for peer in args.peer))


if __name__ == "__main__":
    main()
