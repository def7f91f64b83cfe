"""Makes the pictures of the README.

python docs/pictures.py games docs/pictures/games.png
python docs/pictures.py dashboard RUN_FOLDER docs/pictures/dashboard.svg
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import pufferlib.vector
from pufferlib import run

GAMES = ("breakout", "pong", "snake", "cartpole", "squared")
HEIGHT, GAP, STEPS = 240, 12, 150


def draw_games() -> Image.Image:
    """One frame of each native game after some random steps, side by side."""
    frames = []
    for name in GAMES:
        with pufferlib.vector.make(name, num_envs=1, seed=3) as vecenv:
            vecenv.reset()
            vecenv.action_space.seed(3)
            for _ in range(STEPS):
                vecenv.step(vecenv.action_space.sample())
            frame = Image.fromarray(np.asarray(vecenv.render()))
        frames.append(frame.resize((round(frame.width * HEIGHT / frame.height), HEIGHT)))
    width = sum(frame.width + GAP for frame in frames) - GAP
    picture, left = Image.new("RGB", (width, HEIGHT), "white"), 0
    for frame in frames:
        picture.paste(frame, (left, 0))
        left += frame.width + GAP
    return picture


if __name__ == "__main__":
    if sys.argv[1] == "games":
        draw_games().save(sys.argv[2], optimize=True)
    else:
        Path(sys.argv[3]).write_text(run.picture(sys.argv[2]))
