"""Makes the pictures of the READMEs.

python docs/pictures.py games docs/pictures/games.png
python docs/pictures.py dashboard RUN_FOLDER docs/pictures/dashboard.svg
python docs/pictures.py curve RUN_FOLDER envs/ENV/curve.png
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

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


def draw_curve(folder: Path) -> Image.Image:
    """The goal's metric over the steps of the run in `folder`, and the goal as a dashed line."""
    goal = run.Config.from_toml((folder / "config.toml").read_text()).goal
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    key = f"environment/{goal.metric}"
    points = np.array([(row["step"], row[key]) for row in rows if key in row], np.float64)
    lowest, highest = (f([*points[:, 1].tolist(), 0.0, goal.score or 0.0]) for f in (min, max))
    ticks = np.linspace(lowest, highest, 5)
    left, right, top, bottom, scale = 58, 700, 24, 256, 2  # Drawn twice as large, then shrunk.
    picture = Image.new("RGB", (720 * scale, 300 * scale), "#10191f")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(13 * scale)

    def place(step: float, value: float) -> tuple[float, float]:
        across = left + (right - left) * step / points[-1, 0]
        up = (value - lowest) / (highest - lowest or 1.0)
        return scale * across, scale * (bottom - (bottom - top) * up)

    def write(at: tuple[float, float], text: str, anchor: str, colour: str) -> None:
        draw.text(at, text, colour, font, anchor)

    for value in ticks:
        x, y = place(0, value)
        draw.line([(x, y), place(points[-1, 0], value)], "#22313b", scale)
        write((x - 8 * scale, y), f"{value:.3g}", "rm", "#6b7f8c")
    for share in (0.0, 0.5, 1.0):
        x, y = place(share * points[-1, 0], lowest)
        label = f"{share * points[-1, 0] / 1e6:.2g}M"
        write((x, y + 16 * scale), label, "rm" if share == 1 else "mm", "#6b7f8c")
    write((right * scale, 290 * scale), "agent steps", "rm", "#6b7f8c")
    write((left * scale, 12 * scale), f"{goal.metric}, mean of ended episodes", "lm", "#e8eef2")
    if goal.score is not None:
        for dash in range(left, right, 12):
            y = place(0, goal.score)[1]
            draw.line([(dash * scale, y), ((dash + 7) * scale, y)], "#e9c46a", scale)
        write((scale * (left + 6), y - 9 * scale), f"goal {goal.score:g}", "lm", "#e9c46a")
    draw.line([place(*point) for point in points], "#17bebb", 3 * scale, joint="curve")
    return picture.resize((720, 300), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    if sys.argv[1] == "games":
        draw_games().save(sys.argv[2], optimize=True)
    elif sys.argv[1] == "curve":
        draw_curve(Path(sys.argv[2])).save(sys.argv[3], optimize=True)
    else:
        Path(sys.argv[3]).write_text(run.picture(sys.argv[2]))
