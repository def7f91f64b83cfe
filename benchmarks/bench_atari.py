"""Pong steps per second, in turns with EnvPool: 84 x 84 grey, four frames a step, stacks of four.

Each way lives in a process of its own; all take turns, a short window each, as in bench_vector.py,
and what counts is the ratio of medians.

    python benchmarks/bench_atari.py --peer envpool=PYTHON

PYTHON is an interpreter that has the package envpool. `vector` is what `vector.make("atari")`
gives: ale-py's threads behind our contract. `Serial` is one process, `Multiprocessing` our workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

import numpy as np
from bench_vector import Server, answer, take_turns

ACTIONS = np.random.default_rng(0).integers(0, 6, (64, 4096))


def open_ours(args):
    from pufferlib import vector

    backend = "auto" if args.backend == "vector" else args.backend
    workers = 1 if backend == "Serial" else args.workers
    games = vector.make("atari", num_envs=args.envs, num_workers=workers, backend=backend)
    games.reset(0)
    return games.step, np.int32


def open_envpool(args):
    import envpool

    games = envpool.make(
        "Pong-v5",
        env_type="gymnasium",
        num_envs=args.envs,
        num_threads=args.workers,
        reward_clip=False,
        seed=1,
    )
    games.reset()
    return games.step, np.int32


OPENERS = {
    "vector": open_ours,
    "Serial": open_ours,
    "Multiprocessing": open_ours,
    "envpool": open_envpool,
}


def compare(args, peers: dict[str, str]) -> None:
    """Let all ways take turns; print medians and their ratios to the first."""
    names = ["vector", "Multiprocessing", "Serial", *peers]
    sizes = ["--envs", str(args.envs), "--workers", str(args.workers), "--window", str(args.window)]
    servers = [
        Server([peers.get(name, sys.executable), __file__, "--serve", name, *sizes])
        for name in names
    ]
    rounds, quiet = take_turns(servers, args)
    for server in servers:
        server.close()
    load = "quiet" if quiet else "other processes were at work as well"
    print(f"{args.envs} games of Pong, {args.workers} threads or workers; {load}")
    print(f"{'':>16} {'steps/s':>9} {'a CPU s':>9}   vector is faster by")
    rates, efficiencies = (
        [statistics.median(r[i][k] for r in rounds) for i in range(len(names))] for k in (0, 1)
    )
    for name, rate, efficiency in zip(names, rates, efficiencies, strict=True):
        ratios = f"{rates[0] / rate:.2f} ({efficiencies[0] / efficiency:.2f})"
        print(f"{name:>16} {rate:>9,.0f} {efficiency:>9,.0f}   {ratios}")
    if args.json:
        row = {"envs": args.envs, "workers": args.workers, "names": names, "quiet": quiet}
        print(json.dumps(row | {"rounds": rounds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--serve", dest="backend", choices=OPENERS, help="measure, when told")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--window", type=float, default=0.5, help="seconds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--foreign", type=float, default=0.05)
    parser.add_argument("--patience", type=float, default=30, help="seconds to wait for quiet")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.backend:
        step, dtype = OPENERS[args.backend](args)
        answer(step, [row[: args.envs].astype(dtype) for row in ACTIONS], args.window)
    else:
        compare(args, dict(peer.split("=", 1) for peer in args.peer))


if __name__ == "__main__":
    main()
