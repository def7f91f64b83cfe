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

__version__ = "0.1.0"
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
