"""Steps per second of a third-party environment on every backend, in turns.

Each way lives in a process of its own; all take turns, a short window each, as in bench_vector.py,
and what counts is the ratio of medians.

    python benchmarks/bench_pack.py nethack --batch 8
    python benchmarks/bench_pack.py gameboy --envs 2 --single 1 --batch 1
    python benchmarks/bench_pack.py atari --auto --peer envpool=PYTHON

`Serial` is one process, `apart` one for each worker, side by side and waiting for nobody,
`Multiprocessing` our workers, of which with `--batch` the first that is ready is served while the
others go on; `--auto` adds what `vector.make` chooses by itself, which for Atari
are ale-py's threads behind our contract. PYTHON is an interpreter that has the package envpool,
which plays Pong as our `atari` does: 84 x 84 grey, four frames a step, stacks of four.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

import numpy as np
from bench_vector import Server, add_turns, answer, take_turns


def open_ours(args):
    from pufferlib import vector

    options = {"num_workers": args.workers, "batch_size": args.batch or args.envs}
    if args.backend != "Multiprocessing":
        options = {}
    vecenv = vector.make(args.env, num_envs=args.envs, backend=args.backend, **options)
    vecenv.reset(0)
    vecenv.action_space.seed(0)
    return vecenv.step, [vecenv.action_space.sample() for _ in range(64)]


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
    actions = np.random.default_rng(0).integers(0, 6, (64, args.envs), np.int32)
    return games.step, list(actions)


OPENERS = {
    "Multiprocessing": open_ours,
    "Serial": open_ours,
    "auto": open_ours,
    "envpool": open_envpool,
}


def write_commands(name: str, peers: dict[str, str], args) -> list[list[str]]:
    """What starts one way of stepping the environment."""
    backend = "Serial" if name == "apart" else name
    envs = (args.single or args.envs) if backend == "Serial" else args.envs
    if name == "apart" and not args.single:
        envs //= args.workers
    command = [peers.get(name, sys.executable), __file__, args.env, "--serve", backend]
    command += ["--envs", str(envs), "--workers", str(args.workers), "--window", str(args.window)]
    command += ["--batch", str(args.batch)]
    return [command] * (args.workers if name == "apart" else 1)


def compare(args, peers: dict[str, str]) -> None:
    """Let all ways take turns; print medians and how the first two relate to the others."""
    names = ["Multiprocessing", "Serial", "apart", *["auto"] * args.auto, *peers]
    servers = [Server(write_commands(name, peers, args)) for name in names]
    rounds, quiet = take_turns(servers, args)
    for server in servers:
        server.close()
    load = "quiet" if quiet else "other processes were at work as well"
    print(f"{args.envs} environments of {args.env}, {args.workers} threads or workers; {load}")
    print(f"{'':>16} {'steps/s':>9} {'a CPU s':>9}   of Serial   of apart")
    rates, efficiencies = (
        [statistics.median(r[i][k] for r in rounds) for i in range(len(names))] for k in (0, 1)
    )
    for name, rate, efficiency in zip(names, rates, efficiencies, strict=True):
        ratios = f"{rate / rates[1]:>9.2f}   {rate / rates[2]:>8.2f}"
        print(f"{name:>16} {rate:>9,.0f} {efficiency:>9,.0f}   {ratios}")
    if args.json:
        row = {"env": args.env, "envs": args.envs, "workers": args.workers, "names": names}
        print(json.dumps(row | {"quiet": quiet, "rounds": rounds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("env", help="a registered environment")
    parser.add_argument("--serve", dest="backend", choices=OPENERS, help="measure, when told")
    parser.add_argument("--auto", action="store_true", help="also the backend chosen by itself")
    parser.add_argument("--single", type=int, default=0, help="environments of a single process")
    add_turns(parser)
    args = parser.parse_args()
    if args.backend:
        answer(*OPENERS[args.backend](args), args.window)
    else:
        compare(args, dict(peer.split("=", 1) for peer in args.peer))


if __name__ == "__main__":
    main()
