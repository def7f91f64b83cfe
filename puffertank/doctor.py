"""The doctor: steps every registered environment in a process of its own and says what works."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from puffertank import ROOT, TankError
from puffertank.processes import Processes
from puffertank.report import DIFFERENT, MISSING, Table, Verdict, show_facts, show_failures, tell
from puffertank.sources import PIN, normalize

TIMEOUT_S, QUICK_TIMEOUT_S = 600.0, 60.0  # Craftax compiles for minutes on a busy machine.
FIRST_TIMEOUT_S = 900.0  # The first import in the tank compiles the core.
QUICK_STEPS, QUICK_PACKS = 20, ("nethack",)
TANK_CUDA = "12.1"
LOCKS = ROOT / "docker/locks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The doctor's part of the command line."""
    parser.add_argument("names", nargs="*", metavar="ENV", help="a name or a folder; default: all")
    parser.add_argument("--quick", action="store_true", help="native ones and nethack, a few steps")
    parser.add_argument("--local", action="store_true", help="check this machine, not the tank")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--steps", type=int, metavar="N", help="default: 200, or the config's")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help=f"of each case; default: {TIMEOUT_S:.0f}"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="cases at once; default: the cores")
    parser.add_argument("--python", metavar="PATH", help="with --local: the interpreter to check")


def to_words(args: argparse.Namespace) -> list[str]:
    """`args` as the words of a command line that runs inside the tank."""
    words = list(args.names)
    words += [f"--{flag}" for flag in ("quick", "json") if getattr(args, flag)]
    for option in ("steps", "timeout", "jobs"):
        if getattr(args, option) is not None:
            words += [f"--{option}", str(getattr(args, option))]
    return words


def run(args: argparse.Namespace) -> int:
    """Examine this machine → 0, or 1 if anything failed."""
    processes = Processes(args.python or find_python())
    # Terminated, it ends like an interrupted one: what it started sits in sessions of its own.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chosen = choose(args, processes)
        facts: dict[str, Any] = {"tank": os.environ.get("PUFFERTANK"), "machine": examine_machine()}
        facts["torch"] = processes.ask("torch", timeout=TIMEOUT_S)
        facts["faults"] = judge_torch(facts)
        if not args.json:
            print(show_facts(facts), flush=True)
        cases = list(make_cases(chosen, args, processes))
        table = Table(cases, silent=args.json)
        with ThreadPoolExecutor(args.jobs or facts["machine"]["cores"]) as pool:
            steps = [pool.submit(step, case, args, processes) for case in cases]
            try:
                for done in steps:
                    table.add(done.result())
            finally:
                processes.end()
    finally:
        processes.end()
        signal.signal(signal.SIGTERM, before)
    failed = [*facts["faults"], *dict.fromkeys(case.name for case in cases if case.failed)]
    if args.json:
        rows = [asdict(case) for case in cases]
        print(json.dumps(facts | {"environments": rows, "failed": failed}, indent=1))
    else:
        print(show_failures(cases, facts["faults"]), end="")
        print(f"FAILED: {', '.join(failed)}" if failed else "everything that was checked works")
    return 1 if failed else 0


def find_python() -> str:
    """The interpreter to examine: the tank's, else the checkout's .venv, else this one."""
    candidates = [Path(os.environ.get("VENV", "/nonexistent")), ROOT / ".venv"]
    if "PUFFERTANK" not in os.environ:
        candidates.pop(0)
    for folder in candidates:
        if (folder / "bin/python").is_file():
            return str(folder / "bin/python")
    return sys.executable


def choose(args: argparse.Namespace, processes: Processes) -> list[dict]:
    """The environments that `args` ask for. Raises TankError if they cannot be found."""
    names = [str(Path(name).resolve()) if "/" in name else name for name in args.names]
    answer = processes.ask("list", *names, timeout=FIRST_TIMEOUT_S)
    if answer.get("missing"):
        raise TankError(
            f"{processes.python} has no pufferlib ({answer['error']}); make it:\n  make setup"
        )
    if "ok" not in answer:
        raise TankError(answer["error"] if names else tell(answer))
    listed = answer["ok"]
    if args.quick and not names:
        return [e for e in listed if e["native"] or e["name"] in QUICK_PACKS]
    return listed


# ---- one environment ----


def make_cases(
    chosen: list[dict], args: argparse.Namespace, processes: Processes
) -> Iterable[Verdict]:
    """The cases of the chosen environments, with versions and pins filled in."""
    versions: dict[str | None, dict] = {}
    for venv in {entry["venv"] for entry in chosen}:
        wanted = {_distribution(r) for e in chosen if e["venv"] == venv for r in e["requires"]}
        python = str(venv_python(venv)) if venv else processes.python
        answer = processes.ask("versions", *sorted(wanted), timeout=TIMEOUT_S, python=python)
        versions[venv] = answer.get("ok", {})
    for entry in chosen:
        names = [_distribution(requirement) for requirement in entry["requires"]]
        pins = read_pins(entry["venv"])
        steps = args.steps or (QUICK_STEPS if args.quick else entry["steps"])
        for case in entry["cases"][: 1 if args.quick else None]:
            yield Verdict(
                name=entry["name"],
                source=entry["source"],
                case=case,
                steps=steps,
                versions={name: versions[entry["venv"]].get(name) for name in names},
                pins={name: pins.get(normalize(name)) for name in names},
            )


def step(verdict: Verdict, args: argparse.Namespace, processes: Processes) -> Verdict:
    """Run one case and fill in what became of it.

    In the tank what is missing or of another version than the pin is a failure, as is what is
    missing but was asked for by name; elsewhere both are only said.
    """
    strict = "PUFFERTANK" in os.environ
    timeout = args.timeout or (QUICK_TIMEOUT_S if args.quick else TIMEOUT_S)
    words = (verdict.source, json.dumps(verdict.case), str(verdict.steps))
    answer = processes.ask("case", *words, timeout=timeout)
    verdict.output, verdict.left_behind = answer["output"], answer["left_behind"]
    if "ok" in answer:
        verdict.agents = answer["ok"]["agents"]
        verdict.start_s = round(answer["ok"]["start_s"], 3)
        verdict.steps_per_s = round(answer["ok"]["steps_per_s"], 1)
        others = {
            name: pin
            for name, pin in verdict.pins.items()
            if pin and not _same(verdict.versions[name], pin)
        }
        if others:
            verdict.verdict, verdict.failed = DIFFERENT, strict
            verdict.message = "; ".join(
                f"{name} {verdict.versions[name] or 'is missing'}, the pin is {pin}"
                for name, pin in others.items()
            )
    elif answer.get("missing") or (verdict.versions and not any(verdict.versions.values())):
        verdict.verdict, verdict.message = MISSING, answer["error"]
        verdict.failed, verdict.output = strict or bool(args.names), []
    else:
        verdict.verdict, verdict.failed = answer.get("end", "failed"), True
        verdict.message = answer.get("error", "")
    return verdict


def venv_python(venv: str) -> Path:
    """The interpreter of an environment that lives apart."""
    return Path(os.environ.get("PUFFER_VENVS", "/opt/venvs")) / venv / "bin/python"


def read_pins(venv: str | None) -> dict[str, str]:
    """Version of each distribution pinned for the tank, or for the interpreter `venv`."""
    locks = [LOCKS / f"{prefix}{venv or 'tank'}.txt" for prefix in ("", "alone-")]
    text = "\n".join(lock.read_text() for lock in locks if lock.is_file())
    return {normalize(name): version for name, version in PIN.findall(text)}


def _distribution(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return match.group() if match else requirement


def _same(version: str | None, pin: str) -> bool:
    """A local suffix, as in 2.1.1+puffer, is no other version unless both have one."""
    if version is None:
        return False
    if "+" in version and "+" in pin:
        return version == pin
    return version.partition("+")[0] == pin.partition("+")[0]


# ---- the machine ----


def examine_machine() -> dict:
    """Cores, memory, limits, shared memory, GPUs and who we are."""
    from pufferlib.machine import usable_cores

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shared = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "uid": os.getuid(),
        "cores": usable_cores(),
        "cores_of_host": os.cpu_count(),
        "memory_bytes": memory,
        "memory_limit_bytes": _limit("memory.max", "memory/memory.limit_in_bytes", memory),
        "processes_limit": _limit("pids.max", "pids/pids.max", 1 << 62),
        "shared_memory_bytes": shared.f_frsize * shared.f_blocks if shared else 0,
        "gpus": _nvidia_smi(),
    }


def judge_torch(facts: Mapping) -> dict[str, str]:
    """What is wrong with torch for the flavour of this tank, by what it concerns."""
    answer, tank = facts["torch"], facts["tank"]
    if "ok" not in answer:
        return {"torch": tell(answer)}
    faults = {}
    torch, gpus = answer["ok"], facts["machine"]["gpus"]
    if tank == "cuda" and torch["cuda"] != TANK_CUDA:
        built = f"CUDA {torch['cuda']}" if torch["cuda"] else "the CPU alone"
        faults["torch"] = f"torch {torch['version']} is built for {built}, not CUDA {TANK_CUDA}"
    if "error" in torch.get("nvrtc", {}) and tank == "cuda":
        faults["nvrtc"] = torch["nvrtc"]["error"]
    if tank == "cuda" and gpus and not torch["available"]:
        faults["gpu"] = f"the driver shows {gpus[0]}, but torch cannot use it"
    for kernel in ("torch_kernel", "own_kernel"):
        if "error" in torch.get(kernel, {}):
            faults[kernel.replace("_", " ")] = torch[kernel]["error"]
    return faults


def _limit(v2: str, v1: str, most: int) -> int | None:
    """The cgroup's limit, None without one."""
    for path in (Path("/sys/fs/cgroup") / v2, Path("/sys/fs/cgroup") / v1):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < most:
            return int(text)
    return None


def _nvidia_smi() -> list[str]:
    """Name, memory and driver of each GPU."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        asked = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return []
    return asked.stdout.splitlines() if asked.returncode == 0 else []
