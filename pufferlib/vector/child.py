"""A worker process as its parent sees it: how it is started, heard, and found dead."""

from __future__ import annotations

import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle

from pufferlib import registry
from pufferlib.exceptions import APIUsageError, EnvironmentSetupError
from pufferlib.native import core
from pufferlib.vector import bootstrap
from pufferlib.vector.channel import Channel, Plan

WATCH_S = 0.1  # How often a waiting parent looks whether its workers live.
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
NATIVE = str(Path(core.__file__).parent)
NEEDS = ("numpy", "gymnasium", "cloudpickle")
HINTS: dict[int, str] = {
    signal.SIGKILL: "; the machine or its container may have run out of memory",
    signal.SIGSEGV: "; native code of an environment crashed, where is on stderr",
    signal.SIGABRT: "; native code of an environment gave up, where is on stderr",
    signal.SIGBUS: "; the machine may have run out of shared memory",
}


class Child:
    """One worker process in a process group of its own, and the channel to it."""

    def __init__(self, index: int, python: str | None):
        self.index, self.same_python = index, python is None
        ours, theirs = socket.socketpair()
        one_thread = {name: "1" for name in ONE_THREAD if name not in os.environ}
        try:
            self.process = subprocess.Popen(
                [python or sys.executable, "-P", bootstrap.__file__, str(theirs.fileno()), NATIVE],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | one_thread,
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.channel = Channel(ours)

    def introduce(self, plan: Plan, factories: bytes) -> None:
        """Tell the worker who it is and what to build."""
        path = sys.path
        if not self.same_python:
            installed = (sys.prefix, sys.base_prefix)
            path = [entry for entry in path if not entry.startswith(installed)]
        settings = {
            "index": self.index,
            "plan": plan,
            "parent": os.getpid(),
            "by_signal": threading.current_thread() is threading.main_thread(),
            "path": [entry if entry else os.getcwd() for entry in path],
            "replace_path": self.same_python,
            "envs_folder": _envs_folder(),
        }
        self.channel.send(settings)
        self.channel.send_bytes(factories)

    def receive(self, limit_s: float) -> Any:
        """The next message. Raises EOFError if the worker is dead, TimeoutError if it is late."""
        stream = self.channel.stream
        poll = select.poll()
        poll.register(stream, select.POLLIN)
        deadline = time.monotonic() + limit_s
        while not poll.poll(1000 * WATCH_S):
            if self.process.poll() is not None and not poll.poll(0):
                raise EOFError("the worker is dead")
            if time.monotonic() > deadline:
                raise TimeoutError("the worker is late")
        stream.settimeout(max(WATCH_S, deadline - time.monotonic()))
        try:
            return self.channel.receive()
        except ConnectionError as error:
            raise EOFError(str(error)) from error

    def is_dead(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> str:
        """How the process ended, in words."""
        try:
            code = self.process.wait(WATCH_S)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}{HINTS.get(-code, '')}"

    def kill(self) -> None:
        """End the process, if it lives, and free what belongs to it. May be called again."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.channel.stream.close()


def check_python(python: str | os.PathLike) -> str:
    """The path of an interpreter that workers can run under.

    Raises EnvironmentSetupError where it cannot be run, is of another version of Python than this
    one, or lacks a package.
    """
    path = shutil.which(python)
    if path is None:
        raise EnvironmentSetupError(f"python={str(python)!r} is no program that can be run")
    question = (
        "import importlib.util, json, sys; print(json.dumps([list(sys.version_info[:2]), "
        f"[n for n in {NEEDS} if importlib.util.find_spec(n) is None]]))"
    )
    done = subprocess.run([path, "-P", "-c", question], capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentSetupError(f"python={path!r} does not work: {done.stderr.strip()}")
    version, missing = json.loads(done.stdout)
    if tuple(version) != sys.version_info[:2]:
        ours = ".".join(map(str, sys.version_info[:2]))
        raise EnvironmentSetupError(
            f"python={path!r} is Python {'.'.join(map(str, version))}; expected Python {ours}, "
            "which the compiled core was built for"
        )
    if missing:
        raise EnvironmentSetupError(
            f"python={path!r} lacks {', '.join(missing)}; run: {path} -m pip install "
            + " ".join(missing)
        )
    return path


def pack_factories(factories, first_env: int) -> bytes:
    """The factories of one worker as bytes; raises APIUsageError for one that cannot travel."""
    with suppress(Exception):  # Pickling runs anybody's code; which part refuses is found below.
        return pack(factories)
    for k, factory in enumerate(factories, first_env):
        parts = {"creator": factory.creator, "env_args": factory.args, "env_kwargs": factory.kwargs}
        for name, part in parts.items():
            try:
                pack(part)
            except Exception as error:
                raise APIUsageError(
                    f"the {name} of environment {k} cannot be sent to a worker process "
                    f"({type(error).__name__}: {error}); make such objects inside the creator, or "
                    "use backend='Serial'"
                ) from error
    raise AssertionError("factories cannot be pickled, though each of their parts can")


class _Pickler(cloudpickle.Pickler):
    """cloudpickle that lets code keep the name of its file, for tracebacks that show lines."""

    NAMELESS = "<dynamic-code>"

    def reducer_override(self, obj):
        if isinstance(obj, CodeType) and obj.co_filename != self.NAMELESS:
            return name_code, (obj.replace(co_filename=self.NAMELESS), obj.co_filename)
        return super().reducer_override(obj)


def name_code(code: CodeType, filename: str) -> CodeType:
    """`code` as if it came from the file; called where a pickle is read."""
    return code.replace(co_filename=filename)


def pack(thing: Any) -> bytes:
    """`thing` as bytes that a worker can read; raises whatever refuses to travel."""
    with io.BytesIO() as file:
        _Pickler(file).dump(thing)
        return file.getvalue()


def _envs_folder() -> str | None:
    try:
        return str(registry.envs_folder())
    except EnvironmentSetupError:
        return None
