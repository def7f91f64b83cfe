"""Field report O-30: the compiled core sees the same rows under NumPy 1.26 and under 2.x."""

import os
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import numpy, sys
import pufferlib.vector as vector
assert numpy.__version__.startswith(sys.argv[1]), numpy.__version__
with vector.make("cartpole", num_envs=4, seed=3) as made:
    made.async_reset()
    received = made.recv()
    assert received[5].tolist() == [0, 1, 2, 3]
    assert len(numpy.unique(received[0], axis=0)) == 4
    for _ in range(50):
        made.send(numpy.array([0, 1, 1, 0]))
        received = made.recv()
print(received[0].tobytes().hex())
import gymnasium
with vector.make(lambda: gymnasium.make("CartPole-v1"), num_envs=2, seed=3) as made:
    made.reset()
    print(made.step(made.action_space.sample())[0].shape)
assert "torch" not in sys.modules
"""


def run(line, **environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, line],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_rows_are_the_same_under_both_numpy_lines(tmp_path):
    assert np.__version__.startswith("2.")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    subprocess.run([*pip, "numpy==1.26.4"], check=True)
    assert run("1.26", PYTHONPATH=str(tmp_path)) == run("2.")
