"""The dashboard: it fits its width, redraws seldom enough and restores the terminal."""

import re
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from pufferlib.config import load_config
from pufferlib.dashboard import HISTORY, Dashboard, Sparkline, count, duration, export_svg, number

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
CONFIG = load_config("breakout", overrides={"goal.score": 400, "train.total_timesteps": 1000})


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(StringIO):
    def isatty(self):
        return True


def snapshot(step=500, score=413.1, **more):
    return {
        "step": step,
        "update": 7,
        "seconds": 10.0,
        "performance/sps": 50.0,
        "performance/cpu": 94.4,
        "performance/memory": 2**29,
        "environment/episode_return": score,
        "environment/a_field_with_a_very_long_name_that_does_not_fit": 1.0,
        "losses/policy": -0.0123,
        "time/environment": 1.0,
        "time/update": 3.0,
        **more,
    }


def dashboard(config=CONFIG, stream=None, **options):
    return Dashboard(config, stream=stream or StringIO(), clock=Clock(), **options)


def drawn(board, width):
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(board.render())
    return stream.getvalue()


@pytest.mark.parametrize(
    ("width", "shown", "dropped"),
    [
        (60, ["episodes", "time"], ["losses", "machine"]),
        (80, ["episodes", "time", "losses"], ["machine"]),
        (100, ["episodes", "time", "losses", "machine"], []),
        (140, ["episodes", "time", "losses", "machine"], []),
    ],
)
def test_the_panel_drops_columns_to_fit_its_width(width, shown, dropped):
    board = dashboard(force=True, width=width)
    board.update(snapshot())
    text = drawn(board, width)
    assert all(cell_len(line) == width for line in text.splitlines())
    assert all(f" {title} " in text for title in shown)
    assert not any(f" {title} " in text for title in dropped)
    for fact in ("breakout", "50%", "500 / 1k steps", "50 steps/s", "10s elapsed", "10s left"):
        assert fact in text
    assert "413.1" in text and "goal 400 ✓" in text


@pytest.mark.parametrize("width", [20, 40, 250])
def test_the_panel_fits_extreme_widths(width):
    board = dashboard(force=True, width=width)
    board.update(snapshot())
    assert all(cell_len(line) <= width for line in drawn(board, width).splitlines())


def test_time_is_shown_as_shares():
    board = dashboard(force=True, width=100)
    board.update(snapshot())
    text = drawn(board, 100)
    assert re.search(r"environment +━─{4}  25%", text) and re.search(r"update +━{4}─  75%", text)


def test_the_machine_is_shown_in_its_units():
    board = dashboard(force=True, width=100)
    board.update(snapshot())
    text = drawn(board, 100)
    assert re.search(r"cpu +94 % ", text) and re.search(r"memory +0.50 GB ", text)


def test_a_snapshot_without_episodes_or_speed_is_drawn():
    board = dashboard(force=True, width=80)
    board.update({"step": 0, "update": 0, "seconds": 0.0})
    assert "? left" in drawn(board, 80) and "episode return -" in drawn(board, 80)
    assert "episode_return -" in board.line()


def test_the_score_stays_in_view_until_another_episode_ends():
    board = dashboard(force=True, width=80)
    board.update(snapshot())
    board.update({"step": 600, "update": 8, "seconds": 12.0})
    assert "413.1" in drawn(board, 80) and "60%" in drawn(board, 80)


def test_it_is_redrawn_at_most_four_times_a_second():
    stream = Terminal()
    clock = Clock()
    with Dashboard(CONFIG, stream=stream, width=80, clock=clock) as board:
        drawings = []
        for tick in range(16):
            clock.now = tick / 16
            before = len(stream.getvalue())
            board.update(snapshot(step=tick))
            drawings.append(len(stream.getvalue()) > before)
    assert sum(drawings) == 4


def test_a_terminal_is_restored_after_an_error():
    stream = Terminal()
    with (  # noqa: PT012 The error is raised inside the board's own block.
        pytest.raises(KeyboardInterrupt),
        Dashboard(CONFIG, stream=stream, width=80, clock=Clock()) as board,
    ):
        board.update(snapshot())
        raise KeyboardInterrupt
    assert stream.getvalue().count(HIDE) == stream.getvalue().count(SHOW) == 1
    assert stream.getvalue().rfind(SHOW) > stream.getvalue().rfind(HIDE)


def test_elsewhere_than_on_a_terminal_there_are_plain_lines_every_few_seconds():
    stream, clock = StringIO(), Clock()
    with Dashboard(CONFIG, stream=stream, clock=clock) as board:
        for second in range(12):
            clock.now = second
            board.update(snapshot(step=second))
    lines = stream.getvalue().splitlines()
    assert [re.findall(r"\d+ of 1k steps", line)[0] for line in lines] == [
        f"{s} of 1k steps" for s in (0, 5, 10, 11)
    ]
    assert "\x1b" not in stream.getvalue()
    assert lines[-1].startswith("breakout    1%  11 of 1k steps  50 steps/s  episode_return 413.1")


@pytest.mark.parametrize(
    ("wanted", "stream", "live"),
    [
        ("auto", Terminal, True),
        ("auto", StringIO, False),
        ("on", StringIO, True),
        ("off", Terminal, False),
    ],
)
def test_the_setting_and_the_stream_decide_between_panel_and_lines(wanted, stream, live):
    config = CONFIG.override({"run.dashboard": wanted})
    assert Dashboard(config, stream=stream()).live is live


def test_the_history_of_scores_spans_the_training_in_bounded_memory():
    board = dashboard(force=True, width=80)
    for score in range(1000):
        board.update(snapshot(score=float(score)))
    history = board._history
    assert HISTORY / 2 <= len(history) <= HISTORY
    assert history[0] == 0 and history[-1] > 900


def test_a_sparkline_averages_its_values_to_the_width():
    assert Sparkline([0, 0, 7, 7]).text(2) == "▁█"
    assert Sparkline([3, 3]).text(10) == "▁▁"
    assert Sparkline(range(8)).text(8) == "▁▂▃▄▅▆▇█"
    assert Sparkline([]).text(5) == ""


def test_the_picture_names_no_font_from_elsewhere():
    board = dashboard(force=True, width=100)
    board.update(snapshot())
    svg = export_svg(board)
    assert svg.startswith("<svg") and "breakout" in svg
    assert "font-face" not in svg and "url(http" not in svg


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (count, 950, "950"),
        (count, 12_345, "12.3k"),
        (count, 999_900, "1M"),
        (count, 1_250_000, "1.25M"),
        (number, 0.0000123, "1.2e-05"),
        (number, -0.0123, "-0.012"),
        (number, 413.12, "413.1"),
        (number, 12_345.6, "12346"),
        (number, 0.0, "0.000"),
        (number, float("nan"), "nan"),
        (number, 132, "132"),
        (duration, 42.4, "42s"),
        (duration, 185, "3m 05s"),
        (duration, 7620, "2h 07m"),
    ],
)
def test_numbers_are_short(function, value, text):
    assert function(value) == text
