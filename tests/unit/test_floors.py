"""A module imports only from lower floors, and torch enters at `models` only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pufferlib"

FLOORS = {
    "exceptions": 0,
    "native": 0,
    "seeding": 0,
    "machine": 0,
    "adapters": 0,
    "buffers": 1,
    "config": 1,
    "spaces": 1,
    "env": 2,
    "window": 2,
    "emulation": 3,
    "native_env": 3,
    "registry": 4,
    "vector": 5,
    "models": 5,
    "optimizers": 5,
    "threads": 5,
    "checkpoint": 6,
    "logging": 6,
    "clock": 0,
    "dashboard": 6,
    "fused": 6,
    "ppo": 7,
    "run": 8,
    "player": 8,
    "profile": 8,
    "cli": 9,
    "sweep": 9,
    "benchmark": 9,
    "frameworks": 9,
}
TORCH = {
    "models",
    "optimizers",
    "threads",
    "checkpoint",
    "logging",
    "fused",
    "ppo",
    "run",
    "profile",
    "cli",
    "sweep",
    "benchmark",
    "frameworks",
}


def imports(source: str) -> set[str]:
    """The dotted names that a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(module: str, source: str) -> list[str]:
    """What `module` (its name below pufferlib) imports against the rules."""
    found = []
    for name in sorted(imports(source)):
        package, *rest = name.split(".")
        if package == "torch" and module not in TORCH:
            found.append(f"{module} imports torch")
        if package != "pufferlib" or not rest or rest[0] in (module, "exceptions"):
            continue
        if FLOORS.get(rest[0], -1) >= FLOORS[module]:
            found.append(f"{module} (floor {FLOORS[module]}) imports {name}")
    return found


def modules() -> dict[Path, str]:
    """Each Python and Cython source of the library and the name that its floor goes by."""
    paths = [*PACKAGE.rglob("*.py")]
    return {p: p.relative_to(PACKAGE).with_suffix("").parts[0] for p in sorted(paths)}


def test_every_module_has_a_floor():
    unplaced = set(modules().values()) - set(FLOORS) - {"__init__", "__main__"}
    assert not unplaced, f"give {sorted(unplaced)} a floor here and in docs/architecture.md"


def test_the_architecture_page_shows_the_same_floors():
    page = (PACKAGE.parent / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (\d) \| (.*?) \|", page, re.MULTILINE)
    shown = {name: int(floor) for floor, names in rows for name in re.findall(r"`(\w+)`", names)}
    present = set(modules().values())
    assert shown == {name: floor for name, floor in FLOORS.items() if name in present}


def test_no_module_imports_from_a_higher_floor():
    found = []
    for path, module in modules().items():
        if module in FLOORS:
            found += violations(module, path.read_text())
    assert found == []


def test_the_package_itself_imports_exceptions_only():
    names = imports((PACKAGE / "__init__.py").read_text())
    ours = {name for name in names if name.startswith("pufferlib")}
    assert all(name.startswith("pufferlib.exceptions.") for name in ours), ours


@pytest.mark.parametrize(
    "module, source, found",
    [
        ("buffers", "import pufferlib.ppo", ["buffers (floor 1) imports pufferlib.ppo"]),
        (
            "env",
            "def f():\n    from pufferlib import vector",
            ["env (floor 2) imports pufferlib.vector"],
        ),
        ("vector", "import torch.nn", ["vector imports torch"]),
        ("models", "import pufferlib.vector", ["models (floor 5) imports pufferlib.vector"]),
        ("ppo", "import torch\nfrom pufferlib.buffers import view", []),
        ("spaces", "from pufferlib.exceptions import APIUsageError", []),
    ],
)
def test_a_planted_import_is_judged(module, source, found):
    assert violations(module, source) == found
