"""What a training looks like while it runs: a panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from statistics import fmean
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from pufferlib.config import Config

REFRESH_S = 0.25
PLAIN_S = 5.0
COLUMN_WIDTH = 22
BAR_WIDTH = 5
HISTORY = 64

ACCENT, VALUE, LABEL, FRAME, GOOD = "#4fd1c5", "bold #e6edf3", "#7d8b99", "#2b6777", "bold #7ee787"
TRACK = "#30363d"
SHADES = {
    "environment": "#4fd1c5", "inference": "#5aa9e6", "copy": "#b392f0",
    "advantage": "#f6c177", "update": "#eb6f92", "other": "#7d8b99",
}  # fmt: skip
THEME = TerminalTheme(
    (13, 17, 23), (230, 237, 243),
    [(13, 17, 23), (235, 111, 146), (126, 231, 135), (246, 193, 119),
     (90, 169, 230), (179, 146, 240), (79, 209, 197), (230, 237, 243)],
)  # fmt: skip

SHORT = {"gradient_norm": "gradient", "explained_variance": "explained"}
FORMATS: Mapping[str, Callable[[float], str]] = {
    "cpu": "{:.0f} %".format,
    "memory": lambda size: f"{size / 2**30:.2f} GB",
}


@dataclass(frozen=True)
class Sparkline:
    """Values as bars of eight heights, averaged down to the width there is."""

    values: Sequence[float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.text(options.max_width), ACCENT)

    def text(self, width: int) -> str:
        """At most `width` bars; the least value is the lowest bar and the largest the highest."""
        bins = min(width, len(self.values))
        edges = [len(self.values) * i // bins for i in range(bins + 1)] if bins > 0 else []
        means = [fmean(self.values[a:b]) for a, b in pairwise(edges)]
        if not means:
            return ""
        low, high = min(means), max(means)
        scale = 7 / (high - low) if high > low else 0.0
        return "".join("▁▂▃▄▅▆▇█"[round((mean - low) * scale)] for mean in means)


class Dashboard:
    """Shows snapshots of a training; a context manager that leaves the terminal as it was.

    A snapshot has `step`, `update`, `seconds` and flat numbers by name: `performance/sps`,
    `performance/cpu` (percent), `performance/memory` (bytes), `environment/<field>` (means over
    episodes), `losses/<name>` and `time/<phase>` (seconds).
    It is drawn at most four times a second, by the caller's thread. `force` True draws the panel
    and False writes plain lines, whatever the stream; None goes by `config.run.dashboard` and the
    stream.
    """

    def __init__(
        self,
        config: Config,
        *,
        stream: TextIO | None = None,
        force: bool | None = None,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        stream = stream or sys.stdout
        if force is None:
            wanted = config.run.dashboard
            force = wanted == "on" or (wanted == "auto" and stream.isatty())
        self.live = force
        self._config = config
        self._clock = clock
        self._history: list[float] = []
        self._stride = 1
        self._scores = 0
        self._best: float | None = None
        self._shown_at = float("-inf")
        self._pending: Mapping[str, Any] | None = None
        self._snapshot: Mapping[str, Any] = {"step": 0, "update": 0, "seconds": 0.0}
        self.console = Console(
            file=stream, width=width, force_terminal=True if force else None, highlight=False
        )
        self._live = Live(console=self.console, auto_refresh=False) if force else None

    def __enter__(self) -> Dashboard:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._draw()
        finally:
            if self._live is not None:
                self._live.stop()

    def update(self, snapshot: Mapping[str, Any]) -> None:
        """Take in a snapshot, and draw it if the last drawing is old enough."""
        # A field of the episodes stays in view until the next episode ends.
        kept = {k: v for k, v in self._snapshot.items() if k.startswith("environment/")}
        self._snapshot = self._pending = {**kept, **snapshot}
        score = snapshot.get(f"environment/{self._config.goal.metric}")
        if score is not None:
            self._remember(float(score))
        if self._clock() - self._shown_at >= (REFRESH_S if self.live else PLAIN_S):
            self._draw()

    def print(self, message: str) -> None:
        """One line above the panel."""
        self.console.print(message, markup=False, soft_wrap=True)

    def _remember(self, score: float) -> None:
        """Keep at most `HISTORY` scores, evenly spaced over the whole training."""
        self._best = score if self._best is None else max(self._best, score)
        if self._scores % self._stride == 0:
            self._history.append(score)
        self._scores += 1
        if len(self._history) > HISTORY:
            self._history = self._history[::2]
            self._stride *= 2

    def _draw(self) -> None:
        if self._pending is None:
            return
        self._pending = None
        self._shown_at = self._clock()
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
        else:
            self.print(self.line())

    def line(self) -> str:
        """The last snapshot as one plain line."""
        share, total = self._progress()
        score = self._score()
        parts = [
            f"{self._config.env_name}  {share:4.0%}",
            f"{count(self._snapshot['step'])} of {count(total)} steps",
            f"{count(self._speed())} steps/s",
            f"{self._config.goal.metric} {'-' if score is None else number(score)}",
            f"{duration(self._snapshot['seconds'])}, {self._remaining()} left",
        ]
        return "  ".join(parts)

    def render(self) -> RenderableType:
        """The last snapshot as a panel for the console's width."""
        config, width = self._config, self.console.width
        columns = max(1, min(4, (width - 4) // COLUMN_WIDTH))
        ranked = [self._episodes(), self._times(), self._losses(), self._machine()]
        shown = ranked[:columns]
        body = Table.grid(expand=True, padding=(0, 2))
        for _ in shown:
            body.add_column(ratio=1)
        body.add_row(*shown)
        policy, vec = config.policy, config.vec
        subtitle = (
            f"{policy.name} {policy.hidden_size} · {vec.num_envs} envs · seed {config.train.seed}"
        )
        return Panel(
            Group(self._head(), Text(), self._curve(), Text(), body),
            title=Text.assemble(" puffer ", (f"{config.env_name} ", f"bold {ACCENT}"), style=VALUE),
            title_align="left",
            subtitle=Text(f" {subtitle} ", LABEL) if width >= len(subtitle) + 10 else None,
            subtitle_align="right",
            border_style=FRAME,
            padding=(1, 2),
            width=width,
        )

    def _head(self) -> RenderableType:
        share, total = self._progress()
        bar = ProgressBar(
            total=1.0, completed=share, style=TRACK, complete_style=ACCENT, finished_style=GOOD
        )
        top = Table.grid(expand=True, padding=(0, 1))
        top.add_column(ratio=1)
        top.add_column(justify="right", no_wrap=True)
        top.add_row(bar, Text(f"{share:.0%}", VALUE))
        facts = Table.grid(expand=True, padding=(0, 1))
        cells = [
            Text.assemble(
                (count(self._snapshot["step"]), VALUE), (f" / {count(total)} steps", LABEL)
            ),
            Text.assemble((count(self._speed()), VALUE), (" steps/s", LABEL)),
            Text.assemble((duration(self._snapshot["seconds"]), VALUE), (" elapsed", LABEL)),
            Text.assemble((self._remaining(), VALUE), (" left", LABEL)),
        ]
        for justify in ("left", "center", "center", "right"):
            facts.add_column(justify=justify, no_wrap=True)
        facts.add_row(*cells)
        return Group(top, facts)

    def _curve(self) -> RenderableType:
        score, goal = self._score(), self._config.goal.score
        reached = score is not None and goal is not None and score >= goal
        row = Table.grid(expand=True, padding=(0, 2))
        row.add_column(no_wrap=True)
        row.add_column(ratio=1, no_wrap=True)
        row.add_column(justify="right", no_wrap=True)
        value = Text("-" if score is None else number(score), GOOD if reached else VALUE)
        notes = Text(style=LABEL)
        if self._best is not None:
            notes.append(f"best {number(self._best)}")
        if goal is not None:
            notes.append(f"  goal {goal:g}" + (" ✓" if reached else ""), GOOD if reached else "")
        label = Text(self._config.goal.metric.replace("_", " ") + " ", LABEL)
        row.add_row(label + value, Sparkline(self._history), notes)
        return row

    def _episodes(self) -> RenderableType:
        fields = _group(self._snapshot, "environment")
        return _column("episodes", [(name, number(value)) for name, value in fields.items()])

    def _losses(self) -> RenderableType:
        fields = _group(self._snapshot, "losses")
        return _column("losses", [(name, number(value)) for name, value in fields.items()])

    def _times(self) -> RenderableType:
        spent = _group(self._snapshot, "time")
        total = sum(spent.values()) or 1.0
        rows = []
        for phase, seconds in spent.items():
            share = seconds / total
            filled = max(1, round(BAR_WIDTH * share))
            bar = [("━" * filled, SHADES.get(phase, LABEL)), ("─" * (BAR_WIDTH - filled), TRACK)]
            rows.append((phase, Text.assemble(*bar, (f" {share:4.0%}", VALUE))))
        return _column("time", rows)

    def _machine(self) -> RenderableType:
        rows = [("update", count(self._snapshot["update"]))]
        for name, value in _group(self._snapshot, "performance").items():
            if name != "sps":
                rows.append((name, FORMATS.get(name, number)(value)))
        return _column("machine", rows)

    def _progress(self) -> tuple[float, int]:
        total = self._config.train.total_timesteps
        return min(1.0, self._snapshot["step"] / total), total

    def _speed(self) -> float:
        seconds = self._snapshot["seconds"]
        overall = self._snapshot["step"] / seconds if seconds else 0.0
        return self._snapshot.get("performance/sps", overall)

    def _remaining(self) -> str:
        left = self._config.train.total_timesteps - self._snapshot["step"]
        speed = self._speed()
        if left <= 0:
            return duration(0)
        return duration(left / speed) if speed else "?"

    def _score(self) -> float | None:
        return self._snapshot.get(f"environment/{self._config.goal.metric}")


def export_svg(dashboard: Dashboard, *, width: int = 100) -> str:
    """The dashboard's last snapshot as an SVG picture that needs no font from elsewhere."""
    live = dashboard.console
    dashboard.console = Console(
        record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    try:
        dashboard.console.print(dashboard.render())
        svg = dashboard.console.export_svg(title="puffer train", theme=THEME)
    finally:
        dashboard.console = live
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def count(value: float) -> str:
    """A large number in three digits: 950, 12.3k, 1.25M."""
    for power, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power * 0.9995:
            return f"{value / power:.3g}{unit}"
    return f"{value:.0f}"


def number(value: float) -> str:
    """A measured number in few characters."""
    if isinstance(value, int):
        return count(value)
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 42s, 3m 05s, 2h 07m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _group(snapshot: Mapping[str, Any], name: str) -> dict[str, float]:
    """The numbers of a snapshot below `name`/."""
    prefix = name + "/"
    return {k[len(prefix) :]: v for k, v in snapshot.items() if k.startswith(prefix)}


def _column(title: str, rows: list[tuple[str, Any]]) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style=LABEL, no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column(style=VALUE, justify="right", no_wrap=True)
    for name, value in rows[:8]:
        label = SHORT.get(name, name.removeprefix("episode_"))
        table.add_row(label.replace("_", " "), value)
    return Group(Text(title, f"bold {ACCENT}"), table)
