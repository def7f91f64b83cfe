"""The process that steps a share of the environments of `Multiprocessing`.

It runs in a fresh interpreter (see bootstrap.py). Over its socket come the factories and the
shared block, and go infos and errors; orders and rows go through shared memory. It ends when its
parent does.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import pickle
import signal
import socket
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from pufferlib.env import PufferEnv
from pufferlib.native.exchange import bind_life
from pufferlib.vector.bootstrap import adopt
from pufferlib.vector.channel import (
    CLOSE,
    NOTIFY,
    REACH,
    RESET,
    STEP,
    Block,
    Channel,
    Plan,
    describe,
    unpack,
)
from pufferlib.vector.serial import Serial

IDLE_S = 1.0  # How often an idle worker looks whether its parent is still there.
CALLS = {NOTIFY: "notify", STEP: "step", RESET: "reset", CLOSE: "close", REACH: "call"}


def main(descriptor: int) -> None:
    """Serve the parent at the other end of the socket until it closes this worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    channel = Channel(socket.socket(fileno=descriptor))
    settings = channel.receive()
    bind_life(descriptor, settings["by_signal"])
    if os.getppid() != settings["parent"]:
        return
    if settings["replace_path"]:
        sys.path[:] = settings["path"]
    else:
        sys.path += [path for path in settings["path"] if path not in sys.path]
    if settings["envs_folder"] and importlib.util.find_spec("pufferlib.envs") is None:
        adopt("pufferlib.envs", Path(settings["envs_folder"]))
    worker = Worker(channel, settings["index"], settings["plan"])
    worker.build()
    while worker.obey(settings["parent"]):
        pass


class Worker:
    """Environments over this worker's share of the rows, and one order after another for them."""

    block: Block
    serial: Serial | None = None
    trouble: bytes | None = None  # An error in notify, which the next answer tells.

    def __init__(self, channel: Channel, index: int, plan: Plan):
        self.channel, self.index, self.plan = channel, index, plan
        self.building = plan.envs(index).start

    def build(self) -> None:
        """Make the environments and tell the parent; end the process where that fails."""
        try:
            factories = self._unpack(self.channel.receive_bytes())
            first = self.plan.envs(self.index).start
            tracked = [partial(self._make, k, f) for k, f in enumerate(factories, first)]
            self.serial = Serial(tracked, first_env=first, allocate=self._allocate)
        except BaseException as error:
            self.channel.send(self._explain(error, "its constructor"))
            sys.exit(1)
        envs = self.serial.envs
        self.tells_episodes = any(type(env).episodes is not PufferEnv.episodes for env in envs)
        self.channel.send(("ready",))

    def _unpack(self, factories: bytes) -> list:
        try:
            return unpack(factories)
        except ModuleNotFoundError as error:
            error.add_note(
                "A worker imports modules by the sys.path of its parent. Put the creator into a "
                "module that can be found there, into the script itself, or call "
                "cloudpickle.register_pickle_by_value(module)."
            )
            raise

    def _make(self, k: int, factory, buf=None) -> PufferEnv:
        self.building = k
        return factory(buf=buf)

    def _allocate(self, env: PufferEnv, num_agents: int):
        """Tell the parent what the environments are like → the rows that it made for them."""
        self.channel.send(("likeness", describe(env)))
        descriptor = self.channel.receive_descriptor()
        self.plan = self.channel.receive()
        self.block = Block(self.plan, env, descriptor)
        rows = self.plan.rows(self.index)
        return self.block.rows.rows(rows.start, rows.stop)

    def obey(self, parent: int) -> bool:
        """Wait for the next order and carry it out; False when there will be no other."""
        order = self.block.lanes.receive(self.index, IDLE_S)
        if order < 0:
            return os.getppid() == parent
        begun = self.block.ledger.begin()
        try:
            message = self.trouble or self._carry_out(order)
        except BaseException as error:
            message = _pack(self._explain(error, CALLS[order]))
        if order == NOTIFY:
            self.trouble = message
            return True
        self.block.ledger.end(self.index, begun)
        self.block.lanes.answer(self.index, message is not None)
        if message is not None:
            self.channel.send_bytes(message)
        return order != CLOSE

    def _carry_out(self, order: int) -> bytes | None:
        """Do what was ordered → the message that follows the answer, if there is one."""
        assert self.serial is not None
        if order == STEP:
            return self._tell(self.serial.advance())
        if order == RESET:
            self.serial.async_reset(self.block.seeds[self.plan.envs(self.index)])
            return self._tell(self.serial.recv()[4])
        if order == REACH:
            return self._reach(self.channel.receive_bytes())
        if order == NOTIFY:
            self.serial.notify()
        else:
            self.serial.close()
        return None

    def _reach(self, deeds: bytes) -> bytes:
        """The message with the results of deeds, or with the error of the one that failed."""
        assert self.serial is not None
        self.serial.current_env = self.serial.first_env
        try:
            results = self.serial._reach(unpack(deeds))
            try:
                return pickle.dumps(("reached", results), 5)
            except Exception as error:
                raise TypeError(f"the result cannot leave its process ({error})") from error
        except Exception as error:
            return _pack(("failed", self._explain(error, "call")[1]))

    def _tell(self, infos: list[dict]) -> bytes | None:
        """The message that follows an answer: infos and episodes, if there are any."""
        assert self.serial is not None
        records = []
        rows = self.serial.buf
        ended = self.tells_episodes and (rows.terminals.any() or rows.truncations.any())
        if infos or ended:
            records = self.serial.episodes()
        return _pack(("told", infos, records)) if infos or records else None

    def _explain(self, error: BaseException, call: str) -> tuple:
        """An error as plain values, whatever its class can or cannot do."""
        env = self.building if self.serial is None else self.serial.current_env
        try:
            text = str(error)
        except Exception as failure:
            text = f"(its text is not to be had: {type(failure).__name__})"
        trace = "".join(traceback.format_exception(error))
        return "error", {
            "env": env,
            "call": call,
            "type": type(error).__name__,
            "text": text,
            "trace": trace,
        }


def _pack(message: tuple) -> bytes:
    try:
        return pickle.dumps(message, 5)
    except Exception:  # Pickling runs anybody's code; what refuses is told as text.
        kind, infos, records = message
        plain = [{name: _plain(value) for name, value in info.items()} for info in infos]
        return pickle.dumps((kind, plain, records), 5)


def _plain(value: Any) -> Any:
    """`value`, or its text where it cannot travel."""
    try:
        pickle.dumps(value, 5)
    except Exception:  # As above.
        return repr(value)
    return value
