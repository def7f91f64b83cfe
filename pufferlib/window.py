"""A window for pictures and keys, by pygame-ce (the extra `human`)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from pufferlib.exceptions import APIUsageError, EnvironmentSetupError


class Window:
    """Shows pixels [height, width, 3] uint8 and tells which keys are held.

    Raises `EnvironmentSetupError` if pygame-ce is missing or there is no display.
    """

    def __init__(self, title: str):
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            raise EnvironmentSetupError(
                "a window needs pygame-ce; install it with: pip install 'pufferlib[human]'"
            ) from error
        self._pygame: Any = pygame
        self._title = title
        self._surface: Any = None
        self._closed = False
        try:
            pygame.display.init()
        except pygame.error as error:
            raise EnvironmentSetupError(
                f"no window can be opened ({error}); use render_mode 'ansi' or 'rgb_array'"
            ) from error

    def show(self, frame: Any) -> None:
        """Replace what the window shows; it takes the size of the first frame."""
        if not isinstance(frame, np.ndarray) or frame.ndim != 3:
            raise APIUsageError("a window shows pixels [height, width, 3]; got no such array")
        size = (frame.shape[1], frame.shape[0])
        if self._surface is None:
            self._surface = self._pygame.display.set_mode(size, self._pygame.SCALED)
            self._pygame.display.set_caption(self._title)
        picture = self._pygame.image.frombuffer(np.ascontiguousarray(frame), size, "RGB")
        self._surface.blit(picture, (0, 0))
        self._pygame.display.flip()
        self._take_events()

    def pressed(self) -> set[str]:
        """Names of the keys that are held down; "escape" once the window was closed."""
        self._take_events()
        if self._closed:
            return {"escape"}
        held = self._pygame.key.get_pressed()
        names = ("left", "right", "up", "down", "space", "return", "tab", "backspace", "escape")
        letters = "abcdefghijklmnopqrstuvwxyz0123456789"
        return {name for name in (*names, *letters) if held[self._pygame.key.key_code(name)]}

    def close(self) -> None:
        """Close the window. May be called again."""
        self._pygame.display.quit()

    def _take_events(self) -> None:
        if self._surface is None:
            return
        for event in self._pygame.event.get():
            self._closed |= event.type == self._pygame.QUIT
