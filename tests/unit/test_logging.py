"""Metrics: whole lines, a step axis that never goes back, and never the end of a training."""

import errno
import json
import os
import sys

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pufferlib.logging import RunLogger, read_metrics


@pytest.fixture
def reports():
    return []


def logger(run_dir, reports, **options):
    return RunLogger(run_dir, report=reports.append, **{"tensorboard": False, **options})


def test_each_line_is_one_object_and_is_there_at_once(tmp_path, reports):
    log = logger(tmp_path / "run", reports)
    log.log({"losses/policy": 0.5}, step=64, update=1, seconds=0.12345)
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"update": 1, "step": 64, "seconds": 0.123, "losses/policy": 0.5}
    log.close()
    log.close()


def test_numbers_of_numpy_and_torch_are_written_and_what_is_not_finite_is_null(tmp_path, reports):
    values = {
        "a": np.float32(0.5),
        "b": torch.tensor(2),
        "c": float("nan"),
        "d": np.float64("inf"),
        "e": torch.tensor(float("-inf")),
    }
    with logger(tmp_path, reports) as log:
        log.log(values, step=1, update=1, seconds=0)
    (line,) = read_metrics(tmp_path)
    assert [line[name] for name in "abcde"] == [0.5, 2, None, None, None]


def test_a_resumed_log_goes_on_and_its_steps_never_go_back(tmp_path, reports):
    with logger(tmp_path, reports) as log:
        for step in (10, 20, 30):
            log.log({"run": 1}, step=step, update=step // 10, seconds=0)
    with logger(tmp_path, reports) as log:
        for step in (20, 30, 40):
            log.log({"run": 2}, step=step, update=step // 10, seconds=0)
    lines = read_metrics(tmp_path)
    assert [(line["step"], line["run"]) for line in lines] == [(10, 1), (20, 1), (30, 1), (40, 2)]


def test_a_line_that_was_left_unfinished_is_cut_off(tmp_path, reports):
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}\n{"step": 2')
    with logger(tmp_path, reports) as log:
        log.log({}, step=20, update=2, seconds=0)
    assert [line["step"] for line in read_metrics(tmp_path)] == [10, 20]


def test_a_full_disk_is_reported_once_and_leaves_whole_lines(tmp_path, reports, monkeypatch):
    log = logger(tmp_path, reports)
    log.log({}, step=1, update=1, seconds=0)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    log.log({}, step=2, update=2, seconds=0)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.log({}, step=3, update=3, seconds=0)
    monkeypatch.undo()
    log.log({}, step=4, update=4, seconds=0)
    log.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 4]
    assert len(reports) == 1
    assert reports[0].endswith("metrics.jsonl: No space left on device; training goes on")


def test_a_folder_that_cannot_be_made_is_reported_and_training_goes_on(tmp_path, reports):
    (tmp_path / "file").write_text("")
    with logger(tmp_path / "file" / "run", reports) as log:
        log.log({}, step=1, update=1, seconds=0)
    assert len(reports) == 1
    assert reports[0].startswith("cannot continue ") and "training goes on" in reports[0]


def test_metrics_that_cannot_be_read_are_left_as_they_are(tmp_path, reports):
    (tmp_path / "metrics.jsonl").write_text("not json\n")
    with logger(tmp_path, reports) as log:
        log.log({}, step=1, update=1, seconds=0)
    assert (tmp_path / "metrics.jsonl").read_text() == "not json\n"
    assert len(reports) == 1 and "cannot continue" in reports[0]


def test_curves_hold_what_the_lines_hold(tmp_path, reports):
    with logger(tmp_path, reports, tensorboard=True) as log:
        log.log({"losses/value": 1.5, "x": float("nan")}, step=64, update=1, seconds=0)
        log.log({"losses/value": 2.5}, step=128, update=2, seconds=0)
    curves = EventAccumulator(str(tmp_path)).Reload()
    points = [(event.step, event.value) for event in curves.Scalars("losses/value")]
    assert points == [(64, 1.5), (128, 2.5)]
    assert curves.Tags()["scalars"] == ["losses/value"]
    assert reports == []


def test_without_tensorboard_one_line_says_so_and_the_metrics_go_on(tmp_path, reports, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with logger(tmp_path, reports, tensorboard=True) as log:
        log.log({}, step=1, update=1, seconds=0)
    assert len(reports) == 1
    assert 'pip install "pufferlib[tensorboard]"' in reports[0]
    assert len(read_metrics(tmp_path)) == 1
