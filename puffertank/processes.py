"""Processes of the doctor: apart, timed, and gone afterwards with all that they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock

from puffertank import ROOT

LAST_LINES = 12


class Processes:
    """Starts probes, each in a process group and a scratch folder of its own."""

    def __init__(self, python: str):
        self.python = python
        self._running: set[subprocess.Popen] = set()
        self._lock = Lock()
        self._ended = False

    def ask(self, *words: str, timeout: float, python: str | None = None) -> dict:
        """Run `probe.py` and wait for its answer.

        The answer has "ok", or "error" and perhaps "missing"; one that ended without an answer
        has "end" in words. `output` holds the last lines that it printed and of its traceback,
        `left_behind` the files in its working folder. Everything that it started is killed.
        """
        with tempfile.TemporaryDirectory(prefix="doctor-") as scratch:
            folder = Path(scratch)
            for name in ("work", "tmp"):
                (folder / name).mkdir()
            log, result = folder / "log", folder / "result"
            command = [python or self.python, "-P", ROOT / "puffertank/probe.py", result, *words]
            environment = os.environ | {
                "TMPDIR": str(folder / "tmp"),
                "OMP_NUM_THREADS": "1",  # The other cores have cases of their own.
                "PYTHONFAULTHANDLER": "1",
                "PYTHONUNBUFFERED": "1",
            }
            try:
                with open(log, "wb") as file:
                    end = self._run(command, timeout, folder / "work", environment, file)
            except OSError as error:
                return {"error": str(error), "output": [], "left_behind": []}
            answer = json.loads(result.read_text()) if result.is_file() else {}
            if end:
                answer = {"error": f"it {end}"} | answer | {"end": end}
                answer.pop("ok", None)
            lines = log.read_text(errors="replace").splitlines()
            answer["output"] = [line for line in lines if line.strip()][-LAST_LINES:]
            answer["output"] += answer.pop("traceback", [])[-LAST_LINES:]
            answer["left_behind"] = sorted(path.name for path in (folder / "work").iterdir())
        return answer

    def end(self) -> None:
        """Kill whatever still runs, and start nothing more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _kill_group(process)

    def _run(self, command, timeout, folder, environment, log) -> str:
        """→ how it ended: "" for an exit code of 0 or 1, else in words."""
        with self._lock:
            if self._ended:
                return "was not started"
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return f"timed out after {timeout:g} s"
        finally:
            _kill_group(process)
            process.wait()
            with self._lock:
                self._running.discard(process)
        if code < 0:
            return f"crashed with {signal.Signals(-code).name}"
        return "" if code in (0, 1) else f"ended with exit code {code}"


def _kill_group(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
