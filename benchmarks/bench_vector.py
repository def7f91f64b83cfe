"""Environment steps per second of vector backends, in turns with other libraries.

The environment spins for a fixed CPU time and returns a new observation. Each backend lives in a
process of its own; all take turns, a short window each, and what counts is the ratio of medians.
Rounds in which other processes took more than `--foreign` of the processor are thrown away; where
too few are left, all are taken and marked as loaded. Rates per CPU second suffer less from load.

    python benchmarks/bench_vector.py --peer async=PYTHON --peer puffer3=PYTHON
    python benchmarks/bench_vector.py --uneven

`apart` is as many single processes side by side as there are workers, which wait for nobody: what
the machine has to give at that time. PYTHON is an interpreter that has the library: Gymnasium for
`async` (AsyncVectorEnv), pufferlib 3.0 for `puffer3` (Multiprocessing). Prints a table, and with
--json one line for each cell. `--uneven` shows what one slow worker among eight costs, if they
wait instead of computing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def serve(args) -> None:
    step, rows, dtype = OPENERS[args.backend](lambda: make_env(args.cost, args.bytes), args)
    answer(step, [row[:rows].astype(dtype) for row in ACTIONS], args.window)


def answer(step, actions: list[np.ndarray], window: float) -> None:
    """Measure one window for each line on stdin; print steps per second and CPU seconds."""
    rows = len(actions[0])
    for batch in actions:
        step(batch)
    print("ready", flush=True)
    for _ in sys.stdin:
        calls, cpu, start = 0, own_cpu(), time.perf_counter()
        while (now := time.perf_counter()) < start + window:
            for batch in actions[:4]:
                step(batch)
            calls += 4
        print(calls * rows / (now - start), own_cpu() - cpu, flush=True)


def own_cpu() -> float:
    """CPU seconds that the threads of this process and of its children have used."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if os.getpid() in (int(folder.name), parent):
                for thread in folder.glob("task/*/schedstat"):
                    total += int(thread.read_text().split()[0])
        except OSError:
            continue
    return total * 1e-9


def busy_cpu() -> float:
    """CPU seconds that all processes of the machine have used."""
    user, nice, system, _, _, *interrupts = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A backend in processes of its own, each started by a command that calls `answer`."""

    def __init__(self, commands: list[list[str]]):
        self.processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            for command in commands
        ]
        for process in self.processes:
            if process.stdout.readline() != "ready\n":
                raise SystemExit(f"{' '.join(process.args)} does not work")
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Send a signal to the processes and to their children."""
        for process in self.processes:
            os.killpg(process.pid, number)

    def measure(self) -> tuple[float, float, float]:
        """Steps per second, steps per CPU second, and CPU seconds of other processes."""
        self.signal(signal.SIGCONT)
        before = busy_cpu()
        start = time.perf_counter()
        for process in self.processes:
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [map(float, process.stdout.readline().split()) for process in self.processes]
        rate, cpu = map(sum, zip(*answers, strict=True))
        wall, foreign = time.perf_counter() - start, busy_cpu() - before - cpu
        # Processes of some libraries spin on for a while.
        self.signal(signal.SIGSTOP)
        return rate, rate * wall / max(cpu, 1e-3), foreign

    def close(self) -> None:
        # Children of some libraries survive their parent.
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()


def compare(args, peers: dict[str, str]) -> None:
    names = ["Multiprocessing", "Serial", "apart", *peers]
    print(f"{args.envs} environments, {args.workers} workers; steps per second (per CPU second)")
    print("!: other processes were at work as well")
    print(f"{'step':>8} {'bytes':>6} " + " ".join(f"{n:>18}" for n in names) + "  windows  ratios")
    for size, cost in itertools.product(args.sizes, args.costs):
        cell = argparse.Namespace(**vars(args) | {"bytes": size, "cost": cost})
        servers = [Server(write_commands(name, peers, cell)) for name in names]
        rounds, quiet = take_turns(servers, cell)
        for server in servers:
            server.close()
        report(names, rounds, quiet, cell)


def write_commands(backend: str, peers: dict[str, str], args) -> list[list[str]]:
    """What starts a backend; `apart` is one Serial for each worker, of its share."""
    if backend == "apart":
        share = argparse.Namespace(**vars(args) | {"envs": args.envs // args.workers})
        return write_commands("Serial", peers, share) * args.workers
    command = [peers.get(backend, sys.executable), __file__, "--serve", backend]
    for name in ("envs", "workers", "batch", "cost", "bytes", "window"):
        command += [f"--{name}", str(getattr(args, name))]
    return [command]


def take_turns(servers: list[Server], args) -> tuple[list[list[tuple[float, float]]], bool]:
    """Rounds of (rate, rate per CPU) of each server, and if they are free of foreign load."""
    clean, loaded = [], []
    deadline = time.monotonic() + args.patience
    while len(clean) < args.rounds and (time.monotonic() < deadline or not loaded + clean):
        windows = [server.measure() for server in servers]
        limit = args.foreign * args.window * (os.cpu_count() or 1)
        rounds = clean if all(foreign <= limit for *_, foreign in windows) else loaded
        rounds.append([(rate, efficiency) for rate, efficiency, _ in windows])
    quiet = len(clean) >= min(3, args.rounds)
    return (clean if quiet else loaded + clean), quiet


def report(names: list[str], rounds, quiet: bool, args) -> None:
    rates, efficiencies = (
        [statistics.median(r[i][k] for r in rounds) for i in range(len(names))] for k in (0, 1)
    )
    figures = " ".join(f"{r:>9,.0f} ({e:>6,.0f})" for r, e in zip(rates, efficiencies, strict=True))
    ratios = ", ".join(
        f"{rates[0] / rates[i]:.2f} ({efficiencies[0] / efficiencies[i]:.2f}) {names[i]}"
        for i in range(1, len(names))
    )
    count = f"{len(rounds)}{' ' if quiet else '!'}"
    print(f"{args.cost:>5g} µs {args.bytes:>6} {figures}  {count:>7}  {ratios}", flush=True)
    if args.json:
        row = {"envs": args.envs, "workers": args.workers, "batch": args.batch}
        row |= {
            "cost_us": args.cost,
            "observation_bytes": args.bytes,
            "names": names,
            "quiet": quiet,
        }
        print(json.dumps(row | {"rounds": rounds}), flush=True)


def compare_modes(args) -> None:
    """Steps per second of eight workers whose environments sleep, one 20 times as long."""
    from pufferlib import vector

    def creator(sleep_s):
        env = make_env(0, args.bytes)
        step = env.step
        env.step = lambda action: (time.sleep(sleep_s), step(action))[1]
        return env

    sleeps = [(0.1 if k == 0 else 0.005,) for k in range(8)]
    alone = 7 / 0.005
    print(
        f"8 workers, steps of 5 ms, one of 100 ms; the seven alone: {alone:,.0f} steps per second"
    )
    for mode, options in {"first ready": {}, "in order": {"sync_traj": True}}.items():
        vecenv = vector.make(
            creator,
            env_args=sleeps,
            num_envs=8,
            num_workers=8,
            batch_size=1,
            overwork=True,
            backend="Multiprocessing",
            **options,
        )
        vecenv.async_reset(0)
        actions, calls = ACTIONS[0, :1], 0
        deadline = time.perf_counter() + 10 * args.window
        while time.perf_counter() < deadline:
            vecenv.recv()
            vecenv.send(actions)
            calls += 1
        vecenv.close()
        rate = calls / (10 * args.window)
        print(f"{mode:>12} {rate:>8,.0f}   {rate / alone:.2f} of the seven", flush=True)


def add_turns(parser: argparse.ArgumentParser) -> None:
    """What every comparison in turns is told."""
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=0, help="environments a call; 0: all")
    parser.add_argument("--window", type=float, default=0.3, help="seconds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--foreign", type=float, default=0.05, help="of the processor's time")
    parser.add_argument("--patience", type=float, default=30, help="seconds to wait for quiet")
    parser.add_argument("--json", action="store_true")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--serve", dest="backend", choices=OPENERS, help="measure, when told")
    parser.add_argument("--cost", type=float, default=0.0)
    parser.add_argument("--bytes", type=int, default=4)
    parser.add_argument("--costs", type=float, nargs="+", default=[0.0, 20.0, 100.0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 28224])
    parser.add_argument("--uneven", action="store_true")
    add_turns(parser)
    args = parser.parse_args()
    if args.backend:
        serve(args)
    elif args.uneven:
        compare_modes(args)
    else:
        compare(args, dict(peer.split("=", 1) for peer in args.peer))


if __name__ == "__main__":
    main()
