"""What the doctor prints for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

GOOD, DIFFERENT, MISSING = "ok", "other version", "not installed"


@dataclass
class Verdict:
    """What became of one case of one environment."""

    name: str
    source: str
    case: dict
    verdict: str = GOOD
    versions: dict = field(default_factory=dict)
    pins: dict = field(default_factory=dict)
    steps: int = 0
    agents: int | None = None
    start_s: float | None = None
    steps_per_s: float | None = None
    message: str = ""
    output: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    failed: bool = False

    @property
    def label(self) -> str:
        """The environment with its parameters, as a user would name it."""
        return brief(" ".join([self.name, *(f"{k}={brief(v)}" for k, v in self.case.items())]), 48)


def show_facts(facts: Mapping) -> str:
    """The machine and torch in five lines."""
    machine, torch = facts["machine"], facts["torch"].get("ok", {})
    limit = machine["memory_limit_bytes"]
    memory = _gib(machine["memory_bytes"]) + (f", limited to {_gib(limit)}" if limit else "")
    tank = f"{facts['tank']} flavour" if facts["tank"] else "not the tank"
    rows = {
        "tank": f"{tank}, Python {machine['python']}, uid {machine['uid']}, {machine['system']}",
        "machine": f"{machine['cores']} of {machine['cores_of_host']} cores, {memory}, "
        f"/dev/shm {_gib(machine['shared_memory_bytes'])}",
        "torch": "does not work",
        "GPU": "; ".join(machine["gpus"]) or "none",
    }
    if torch:
        rows["torch"] = f"{torch['version']}, " + (
            f"CUDA {torch['cuda']}, {torch['architectures']}" if torch["cuda"] else "CPU"
        )
        if "nvrtc" in torch:
            rows["NVRTC"] = torch["nvrtc"].get("ok") or torch["nvrtc"]["error"]
        if torch["devices"]:
            ran = [k for k in ("torch_kernel", "own_kernel") if "ok" in torch.get(k, {})]
            rows["GPU"] += f"; kernels that ran: {' and '.join(ran).replace('_', ' ') or 'none'}"
    return "\n".join(f"{name:<8} {text}" for name, text in rows.items()) + "\n"


class Table:
    """One line for each case, printed as soon as it is known."""

    def __init__(self, cases: list[Verdict], *, silent: bool = False):
        self._silent = silent
        self._color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._label = max((len(case.label) for case in cases), default=0)
        self._version = max((len(_versions(case)) for case in cases), default=0)
        self._print("environment", "version", "start", "steps/s", "verdict")

    def add(self, case: Verdict) -> None:
        """Print the line of a case."""
        speed = f"{case.steps_per_s:,.0f}" if case.steps_per_s else ""
        start = f"{case.start_s:.1f} s" if case.start_s is not None else ""
        notes = [case.verdict]
        if case.verdict == GOOD and case.output:
            notes.append("printed something")
        if case.left_behind:
            notes.append(f"left {', '.join(case.left_behind)} in the working folder")
        color = "31" if case.failed else "32" if case.verdict == GOOD else "33"
        self._print(case.label, _versions(case), start, speed, ", ".join(notes), color)

    def _print(self, label, version, start, speed, verdict, color=""):
        if self._silent:
            return
        if self._color and color:
            verdict = f"\033[{color}m{verdict}\033[0m"
        widths = f"{label:<{self._label}}  {version:<{self._version}}"
        print(f"{widths}  {start:>7}  {speed:>11}  {verdict}", flush=True)


def show_failures(cases: list[Verdict], faults: Mapping[str, str]) -> str:
    """What is wrong with the tank itself, and what each failing case said with its last lines."""
    lines = ["", *(f"{name}: {text}" for name, text in faults.items())]
    for case in cases:
        if case.failed:
            lines.append(f"{case.label}: {case.message or case.verdict}")
            lines += [f"    {line}" for line in case.output]
    return "\n".join(lines) + "\n"


def tell(answer: Mapping) -> str:
    """An answer that is an error, with the last lines that were printed."""
    return "\n".join([answer.get("error", ""), *answer["output"]])


def _versions(case: Verdict) -> str:
    return brief(", ".join(f"{name} {version or '-'}" for name, version in case.versions.items()))


def brief(value, longest: int = 28) -> str:
    """A value in at most so many letters."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
