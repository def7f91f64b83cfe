"""The tank: builds and runs the container image of this repository, and checks what is in it.

Only the standard library is used, so that `python3 -m puffertank` works in a fresh checkout.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class TankError(Exception):
    """What went wrong and the command that mends it, for the user to read."""
