"""Snake's own policy, for `puffer train`; the game itself is snake.h."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # The policy needs torch, which a process that only steps the game never imports.
    if name == "SnakePolicy":
        return importlib.import_module(".policy", __name__).SnakePolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
