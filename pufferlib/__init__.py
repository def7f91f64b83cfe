"""High-throughput reinforcement learning: emulation, vectorization, native environments, PPO.

Importing this package imports nothing heavy and changes nothing in the process.
"""

from pufferlib.exceptions import (
    APIUsageError,
    CheckpointError,
    ConfigError,
    EnvironmentSetupError,
    InvalidAgentError,
    NonFiniteError,
    PufferError,
    WorkerError,
)

__all__ = [
    "APIUsageError",
    "CheckpointError",
    "ConfigError",
    "EnvironmentSetupError",
    "InvalidAgentError",
    "NonFiniteError",
    "PufferError",
    "WorkerError",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("pufferlib")
    raise AttributeError(f"module 'pufferlib' has no attribute {name!r}")
