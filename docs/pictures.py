"""Makes the pictures of the README.

python docs/pictures.py games docs/pictures/games.png
python docs/pictures.py dashboard RUN_FOLDER docs/pictures/dashboard.svg
"""

import json
import sys
from io import StringIO
from pathlib import Path

import numpy as np
from PIL import Image

import pufferlib.vector
from pufferlib.config import Config
from pufferlib.dashboard import Dashboard, export_svg

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


def draw_dashboard(run: Path, *, share: float = 0.9) -> str:
    """The panel as it was when `share` of the metrics of `run` had come in → SVG."""
    config = Config.from_toml((run / "config.toml").read_text(), source=str(run))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    dashboard = Dashboard(config, stream=StringIO(), force=False)
    for line in lines[: max(1, int(share * len(lines)))]:
        dashboard.update(json.loads(line))
    # At 80 columns the panel leaves out the machine, which here would be the one that draws.
    return export_svg(dashboard, width=80)


if __name__ == "__main__":
    if sys.argv[1] == "games":
        draw_games().save(sys.argv[2], optimize=True)
    else:
        Path(sys.argv[3]).write_text(draw_dashboard(Path(sys.argv[2])))
