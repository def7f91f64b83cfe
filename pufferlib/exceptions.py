"""The library's own errors. Each message says what was given, what was expected and what to do."""


class PufferError(Exception):
    """Base of every error that the library raises on purpose."""


class APIUsageError(PufferError, RuntimeError):
    """A call that breaks the contract: wrong order, wrong size, wrong type, unknown name."""


class EnvironmentSetupError(PufferError, RuntimeError):
    """An environment cannot be built, imported or compiled on this machine."""


class InvalidAgentError(PufferError, ValueError):
    """An agent that the environment does not have."""


class WorkerError(PufferError, RuntimeError):
    """A worker process raised, died or froze.

    Attributes: `env_index` (int or None), `exit_code` (int or None; negative is a signal) and
    `remote_traceback` (str, may be empty).
    """

    def __init__(self, message, *, env_index=None, exit_code=None, remote_traceback=""):
        super().__init__(message)
        self.env_index = env_index
        self.exit_code = exit_code
        self.remote_traceback = remote_traceback


class NonFiniteError(PufferError, ArithmeticError):
    """A reward, observation, loss or gradient that is NaN or infinite."""


class CheckpointError(PufferError, RuntimeError):
    """A checkpoint that is missing, damaged, unsafe or made for something else."""


class ConfigError(PufferError, ValueError):
    """A setting that does not exist or does not have the right type or range."""
