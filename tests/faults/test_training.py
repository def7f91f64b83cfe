"""A training run outlives its workers."""

import pytest

from pufferlib import run
from pufferlib.config import load_config
from pufferlib.logging import read_metrics
from pufferlib.registry import Entry

ENVIRONMENT = '''
import os, signal
from pathlib import Path
import gymnasium, numpy as np

class Doomed(gymnasium.Env):
    """Kills its process at its 100th step, once: a file remembers."""
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0
    def __init__(self, memory):
        self.memory = Path(memory)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.steps += 1
        if self.steps == 100 and not self.memory.exists():
            self.memory.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(2, np.float32), 1.0, self.steps % 10 == 0, False, {}

def make(memory):
    return Doomed(memory)
'''


def test_a_killed_worker_is_replaced_and_the_run_goes_on(tmp_path):
    folder = tmp_path / "doomed"
    folder.mkdir()
    (folder / "__init__.py").write_text(ENVIRONMENT)
    entry = Entry("doomed", folder)
    config = load_config(
        "doomed",
        overrides={
            "env.memory": str(tmp_path / "killed"),
            "vec.backend": "Multiprocessing",
            "vec.num_envs": 2,
            "vec.num_workers": 1,
            "vec.restart_workers": 1,
            "train.horizon": 32,
            "train.minibatch_size": 64,
            "train.total_timesteps": 640,
            "train.threads": 1,
            "run.dir": str(tmp_path / "run"),
            "run.tensorboard": False,
        },
    )
    with pytest.warns(RuntimeWarning, match=r"was killed by SIGKILL.*replaced, 1 of 1 times"):
        result = run.train(entry, config)
    assert result["reason"] == "done" and result["step"] == 640
    assert read_metrics(tmp_path / "run")[-1]["environment/restarts"] == 1
