"""Pictures: pixels, text, a window, and what is said where there is none."""

import os
import subprocess
import sys

import numpy as np
import pytest

from pufferlib import registry
from pufferlib.exceptions import APIUsageError
from pufferlib.native_env import picture_to_text

NATIVE = [name for name in registry.names() if registry.find(name).is_native]


@pytest.mark.parametrize("name", NATIVE)
def test_every_native_environment_paints_all_of_its_canvas(name):
    env = registry.find(name)(render_mode="rgb_array")
    env.reset(seed=0)
    pixels = env.render()
    assert pixels.shape == env.params.canvas_shape and pixels.dtype == np.uint8
    colours = np.unique(pixels.reshape(-1, 3), axis=0)
    assert len(colours) >= 3
    env.close()


def test_text_keeps_thin_lines():
    pixels = np.zeros((40, 200, 3), np.uint8)
    pixels[:, 101] = 255
    text = picture_to_text(pixels, columns=20)
    lines = text.splitlines()
    assert len(lines) == 2 and all(line.count("▀") == 20 for line in lines)
    assert all("255;255;255" in line for line in lines)


def test_an_unknown_render_mode_is_refused():
    with pytest.raises(APIUsageError, match="'rgb' *; expected None or one of rgb_array, ansi"):
        registry.find("squared")(render_mode="rgb")


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_a_window_shows_the_picture_and_reports_keys():
    pytest.importorskip("pygame", reason="the extra `human` is not installed")
    code = """
import pygame
from pufferlib import registry
env = registry.find("squared")(render_mode="human")
env.reset(seed=0)
env.render()
window = env._window
assert pygame.display.get_surface().get_size() == (363, 363)
assert pygame.surfarray.array3d(pygame.display.get_surface()).std() > 0
assert window.pressed() == set()
pygame.event.post(pygame.event.Event(pygame.QUIT))
assert window.pressed() == {"escape"}
env.close()
env.close()
"""
    done = run(code, SDL_VIDEODRIVER="dummy")
    assert done.returncode == 0, done.stderr


def test_without_a_display_the_message_says_what_to_do():
    pytest.importorskip("pygame", reason="the extra `human` is not installed")
    code = """
from pufferlib import registry
env = registry.find("squared")(render_mode="human")
env.reset(seed=0)
env.render()
"""
    done = run(code, SDL_VIDEODRIVER="x11", DISPLAY="")
    assert done.returncode != 0
    assert "no window can be opened" in done.stderr and "rgb_array" in done.stderr
