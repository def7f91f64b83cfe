"""A Game Boy without window, sound, clock and files: PyBoy as a training wants it."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pufferlib.adapters import silenced
from pufferlib.envs.gameboy.rom import header_checksum
from pufferlib.exceptions import APIUsageError

BUTTONS = ("a", "b", "start", "select", "right", "left", "up", "down")
HEIGHT, WIDTH = 144, 160
FRAMES_PER_SECOND = 60
BOOT_FRAMES = 600  # At most; the boot program shows its logo for about a second.
SETUP_FRAMES = 60  # What a game takes to set itself up after that.
GAME_BEGINS = 0x100  # Addresses below are the boot program's, while it runs.


class Console:
    """One machine with a cartridge in it, switched on or brought to `state`.

    `memory` reads its RAM and `view` [144, 160, 4] uint8 is the screen, which later frames
    overwrite. Nothing is written beside the ROM, whatever battery the cartridge has.
    Raises: APIUsageError for a state that this version of PyBoy did not make.
    """

    def __init__(self, rom: bytes, state: bytes | None = None, *, name: str = "state"):
        self._machine = _start(rom)
        self.memory = Memory(self._machine.memory)
        self.view: np.ndarray = self._machine.screen.ndarray
        for _ in range(BOOT_FRAMES):
            self._machine.tick(1, False, False)
            if self._machine.register_file.PC >= GAME_BEGINS:
                break
        self.run(SETUP_FRAMES)
        if state is not None:
            self._check(state, name)
            self.load(state)

    def run(self, frames: int) -> None:
        """Let frames pass; only the last is drawn."""
        self._machine.tick(frames, True, False)

    def press(self, button: str | None, frames: int, hold: int) -> None:
        """Let frames pass, with a button held down during the first `hold` of them."""
        if button is None:
            return self.run(frames)
        self._machine.button_press(button)
        self._machine.tick(hold, hold == frames, False)
        self._machine.button_release(button)
        if frames > hold:
            self.run(frames - hold)

    def picture(self) -> np.ndarray:
        """The screen [144, 160, 3] uint8, a copy."""
        return self.view[:, :, :3].copy()

    def save(self) -> bytes:
        """The whole state of the machine, the screen included."""
        with io.BytesIO() as file:
            self._machine.save_state(file)
            return file.getvalue()

    def load(self, state: bytes) -> None:
        """Go back to a saved state."""
        self._machine.load_state(io.BytesIO(state))

    def close(self) -> None:
        """Switch it off; may be called more than once."""
        self._machine.stop(save=False)

    def _check(self, state: bytes, name: str) -> None:
        ours = self.save()
        if state[:1] != ours[:1]:
            which = f"has version {state[0]}" if state else "is empty"
            reason = f"{which}, the installed PyBoy reads and writes version {ours[0]}"
        elif len(state) != len(ours):
            reason = f"has {len(state)} bytes, one of this ROM's cartridge has {len(ours)}"
        else:
            return
        raise APIUsageError(
            f"the {name} cannot be loaded: it {reason}. States do not cross versions of PyBoy, "
            "emulators or cartridges; save it anew with this PyBoy (python -m pyboy ROM, key Z)"
        )


class Memory:
    """Reads what a program keeps at an address, 0 … 0xFFFF."""

    def __init__(self, view):
        self._view = view

    def __getitem__(self, address):
        """A byte, or the list of bytes of a slice."""
        return self._view[address]

    def read(self, addresses: Sequence[int]) -> np.ndarray:
        """The bytes at some addresses, uint8."""
        return np.array([self._view[address] for address in addresses], np.uint8)

    def word(self, address: int) -> int:
        """Two bytes as a number, the higher one first."""
        return self._view[address] << 8 | self._view[address + 1]

    def bcd(self, address: int, size: int) -> int:
        """Bytes with two decimal digits each as a number, the highest first."""
        value = 0
        for byte in self._view[address : address + size]:
            value = 100 * value + 10 * (byte >> 4) + (byte & 15)
        return value

    def bits(self, start: int, stop: int) -> int:
        """How many bits are set from one address up to another, which is not included."""
        return int.from_bytes(bytes(self._view[start:stop]), "big").bit_count()


def read_rom(path: str) -> bytes:
    """A ROM from a file. Raises: APIUsageError if there is none."""
    rom = read_file("ROM", path)
    if len(rom) < 0x150 or header_checksum(rom) != rom[0x14D]:
        kind = "an archive; unpack it" if rom.startswith((b"PK", b"7z", b"\x1f\x8b")) else None
        raise APIUsageError(
            f"the ROM {path} is {kind or 'no Game Boy ROM: its header does not add up'}"
        )
    return rom


def read_file(kind: str, path: str) -> bytes:
    """The bytes of a file that the user named. Raises: APIUsageError."""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        where = Path(path).expanduser().absolute()
        reason = (error.strerror or str(error)).lower()
        raise APIUsageError(
            f"the {kind} {where} cannot be read: {reason}; --env.{kind.lower()} names a file"
        ) from error


def _start(rom: bytes):
    """A PyBoy for these bytes, without what it says and sets on being imported."""
    dll_path = os.environ.get("PYSDL2_DLL_PATH")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyboy import PyBoy
    if dll_path is None:
        os.environ.pop("PYSDL2_DLL_PATH", None)
    with silenced():
        # From memory: given a path, PyBoy would look for a saved game beside the ROM.
        machine = PyBoy(io.BytesIO(rom), window="null", sound_emulated=False, log_level="CRITICAL")
    machine.set_emulation_speed(0)
    return machine
