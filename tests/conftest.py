"""What every test shares: a cache of compiled environments, and hypothesis without a clock."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parents[1]

# The machine is shared: a slow example is no failure. Print the blob that repeats a failure.
hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.load_profile("here")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return ROOT


@pytest.fixture
def away(tmp_path, monkeypatch) -> Path:
    """A fresh working folder, so that a test that writes relative paths leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pytest_configure(config):
    """Tests compile into a cache of the checkout, never into the user's own."""
    os.environ.setdefault("PUFFERLIB_CACHE", str(ROOT / "build" / "cache"))
