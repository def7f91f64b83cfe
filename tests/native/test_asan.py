"""The sanitizer driver passes a sound environment and fails a broken one."""

from __future__ import annotations

import os
import subprocess

import pytest

SOUND = "row[s->target] = SQUARED_TARGET;"


def soak(root, folder):
    """Run the driver over one folder → the finished process."""
    return subprocess.run(
        [root / "tests/native/asan", folder],
        env=os.environ | {"STEPS": "2000"},
        capture_output=True,
        text=True,
    )


def test_a_sound_environment_passes(root):
    done = soak(root, root / "envs/squared")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("squared ")


@pytest.mark.parametrize(
    "planted, message",
    [
        ("row[p->size * p->size + 64] = 1;", "heap-buffer-overflow"),
        ("row[0] = (uint8_t)((2147483647 + s->tick) / 2147483647);", "signed integer overflow"),
        ("row[s->target] = 77;", "squared: an observation lies outside its bounds (77)"),
    ],
)
def test_a_planted_fault_is_detected(root, tmp_path, planted, message):
    source = (root / "envs/squared/squared.h").read_text()
    assert source.count(SOUND) == 1
    folder = tmp_path / "squared"
    folder.mkdir()
    (folder / "squared.h").write_text(source.replace(SOUND, f"{SOUND} {planted}"))
    done = soak(root, folder)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_folder_without_a_header_is_refused(root, tmp_path):
    done = soak(root, tmp_path)
    assert done.returncode == 1
    assert "none of the folders holds a native environment" in done.stderr
