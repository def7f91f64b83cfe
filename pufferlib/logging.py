"""Metrics of a run: one JSON object a line, and TensorBoard curves where it is installed."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def warn(message: str) -> None:
    """One plain line on the standard error."""
    print(f"puffer: {message}", file=sys.stderr, flush=True)


class RunLogger:
    """Appends metrics to `<run_dir>/metrics.jsonl` and to TensorBoard events beside it.

    A log never ends a training: what goes wrong with a file is reported once through `report`.
    Lines of a run that is resumed go on behind the last one; steps that were written before the
    interruption are not written again, so the axis never goes back.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        tensorboard: bool = True,
        report: Callable[[str], None] = warn,
    ):
        self.path = Path(run_dir) / "metrics.jsonl"
        self._report = report
        self._reported: set[str] = set()
        self._last_step = -1
        self._file: int | None = None
        self._curves: Any = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._last_step = self._end_last_line()
        except (OSError, ValueError, KeyError) as error:
            self._fail("metrics", f"cannot continue {self.path}: {error}; training goes on")
            self.close()
        if tensorboard:
            self._open_curves()

    def log(self, metrics: Mapping[str, Any], *, step: int, update: int, seconds: float) -> None:
        """Write one line: flat keys such as "losses/policy", numbers that are not finite as null.

        `step` counts agent steps, `seconds` training time since the run began.
        """
        if step <= self._last_step:
            return
        self._last_step = step
        numbers = {name: _number(value) for name, value in metrics.items()}
        line = {"update": int(update), "step": int(step), "seconds": round(seconds, 3), **numbers}
        whole = self._file is None or self._append(json.dumps(line).encode() + b"\n")
        # TensorBoard writes from a thread whose failure would print a traceback, so it is left
        # alone while the disk is full.
        if self._curves is not None and whole:
            try:
                for name, value in numbers.items():
                    if value is not None:
                        self._curves.add_scalar(name, value, step)
                self._curves.flush()
            except (OSError, ValueError) as error:
                self._curves = None
                self._fail("curves", f"TensorBoard curves end here: {error}")

    def close(self) -> None:
        """Close the files. May be called more than once."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._curves is not None:
            curves, self._curves = self._curves, None
            try:
                curves.close()
            except (OSError, ValueError) as error:
                self._fail("curves", f"TensorBoard curves end here: {error}")

    def __enter__(self) -> RunLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: bytes) -> bool:
        """Write a whole line or nothing, so that every line of the file can be read."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return True
        except OSError as error:
            os.ftruncate(self._file, size)
            self._fail("metrics", f"cannot write {self.path}: {error.strerror}; training goes on")
            return False

    def _end_last_line(self) -> int:
        """Cut off a line that a killed process left unfinished; the last step written, or -1."""
        assert self._file is not None
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        lines = text[:whole].splitlines()
        return int(json.loads(lines[-1])["step"]) if lines else -1

    def _open_curves(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._fail(
                "curves",
                "TensorBoard is not installed, so no curves are written; "
                'pip install "pufferlib[tensorboard]" brings them, --run.tensorboard false hides '
                "this line",
            )
            return
        try:
            self._curves = SummaryWriter(str(self.path.parent))
        except OSError as error:
            self._fail("curves", f"cannot write TensorBoard curves: {error.strerror}")

    def _fail(self, kind: str, message: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(message)


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Every line of the run's metrics, oldest first."""
    text = (Path(run_dir) / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _number(value: Any) -> float | int | str | None:
    """`value` as JSON holds it; what is not finite becomes None."""
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
