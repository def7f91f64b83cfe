"""Trained weights do not depend on how many threads did the work."""

import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from pufferlib.checkpoint import latest

FLAGS = [
    "--train.total-timesteps", str(20 * 128 * 32), "--train.horizon", "32", "--vec.num-envs", "128",
    "--train.minibatch-size", "1024", "--run.tensorboard", "false",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breakout", "cartpole"])
def test_weights_after_20_updates_are_the_same_for_1_and_2_threads(name, tmp_path):
    weights = []
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        command = [
            sys.executable,
            "-m",
            "pufferlib",
            "train",
            name,
            "--run.dir",
            str(folder),
            *FLAGS,
        ]
        command += ["--train.threads", str(threads), "--vec.num-workers", str(threads)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
        weights.append(load_file(latest(folder) / "weights.safetensors"))
    assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])
