"""The command `puffer`: verbs, exit codes, one line for each error, and runs that continue."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from pufferlib import checkpoint, registry, run
from pufferlib.cli import main, split_flags
from pufferlib.config import Config, load_config
from pufferlib.logging import read_metrics

STEPS = 128  # Of an update of the small run below: 8 environments and a horizon of 16.
SMALL = [
    "--vec.num-envs=8",
    "--train.horizon=16",
    "--train.minibatch-size=64",
    f"--train.total-timesteps={10 * STEPS}",
    "--train.checkpoint-interval=5",
    "--policy.hidden-size=16",
    "--train.threads=1",
    "--run.tensorboard=false",
]
BROKEN_REWARD = """
import gymnasium, numpy as np

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), self.outcome(), self.steps % 10 == 0, False, {}

    def outcome(self):
        if self.steps == 100:
            FAULT
        return 1.0

def make(**parameters):
    return Env(**parameters)
"""


@pytest.fixture
def puffer(capsys):
    """Runs the command in this process → (exit code, standard output, standard error)."""

    def call(*words):
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call


def refused(result, pattern):
    """Asserts that a command ended with one line on standard error that matches `pattern`."""
    code, _, text = result
    assert code == 1, text
    lines = [line for line in text.splitlines() if line.startswith("puffer: error:")]
    assert len(lines) == 1 and re.search(pattern, lines[0]), text
    assert "Traceback" not in text


def start(*words):
    command = [sys.executable, "-m", "pufferlib", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights(path):
    return checkpoint.load(path).policy_state


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished small run of squared."""
    folder = tmp_path_factory.mktemp("run") / "squared"
    assert main(["train", "squared", "--run.dir", str(folder), "--env.size", "7", *SMALL]) == 0
    return folder


# ---------------------------------------------------------------- words


def test_settings_are_told_from_words_wherever_they_stand():
    words = ["train", "--train.seed", "3", "pong", "--no-train.anneal-lr", "--run.dir=x", "--debug"]
    assert split_flags(words) == (
        ["train", "pong", "--debug"],
        ["--train.seed", "3", "--no-train.anneal-lr", "--run.dir=x"],
    )


def test_environments_are_listed(puffer):
    code, text, _ = puffer("envs")
    assert code == 0 and re.search(r"^squared +native +walk to the target", text, re.MULTILINE)
    code, text, _ = puffer("envs", "--json")
    rows = {row["name"]: row for row in json.loads(text)}
    assert code == 0 and rows["squared"]["kind"] == "native"
    assert all(row["about"] for row in rows.values())


def test_listing_environments_does_not_load_torch():
    code = (
        "import sys; from pufferlib.cli import main; main(['envs']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_an_unknown_environment_is_refused_with_near_names(puffer):
    refused(puffer("train", "squred"), "no environment 'squred'; did you mean squared")
    refused(puffer("eval", "squred"), "no environment 'squred'; did you mean squared")


@pytest.mark.parametrize("flag", ["--train.sed", "--sed", "--seed"])
def test_a_misspelt_setting_is_refused_with_the_nearest(puffer, flag):
    refused(puffer("train", "squared", flag, "3"), rf"from {flag}\) .*did you mean --train.seed\?")


def test_a_misspelt_parameter_is_refused_with_the_nearest(puffer, tmp_path):
    result = puffer("train", "squared", "--run.dir", tmp_path, "--env.siz", "3")
    refused(result, "squared has no parameter 'siz'; did you mean 'size'")


def test_numbers_that_do_not_divide_are_refused_before_anything_is_made(puffer, tmp_path):
    folder = tmp_path / "run"
    result = puffer("train", "squared", "--run.dir", folder, *SMALL, "--train.minibatch-size=48")
    refused(result, "minibatch_size 48 .* 128 rows .*8 agents x horizon 16.*fit: 32 and 64")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "arguments are required: VERB"),
        (["fly"], "invalid choice: 'fly'"),
        (["train"], "arguments are required: ENV"),
        (["envs", "--train.seed", "3"], "puffer envs takes no settings, got --train.seed"),
        (["train", "squared", "pong"], "unexpected: pong"),
    ],
)
def test_a_command_that_makes_no_sense_exits_with_2(puffer, words, message):
    code, _, text = puffer(*words)
    assert code == 2 and message in text


def test_debug_shows_the_traceback(puffer):
    code, _, text = puffer("train", "squred", "--debug")
    assert code == 1
    assert "Traceback" in text and "puffer: error: no environment 'squred'" in text


def test_help_of_train_shows_settings_and_parameters_of_the_environment(puffer):
    code, text, _ = puffer("train", "squared", "--help")
    assert code == 0
    for words in ("--train.seed", "--env.size", "Cells along one side", "--resume [PATH]"):
        assert words in text


# ---------------------------------------------------------------- runs


def test_a_run_leaves_its_settings_metrics_and_checkpoints(trained):
    config = Config.from_toml((trained / "config.toml").read_text())
    assert (config.env_name, config.env, config.vec.num_envs) == ("squared", {"size": 7}, 8)
    assert config.run.dir == str(trained)
    line = read_metrics(trained)[-1]
    assert (line["step"], line["update"]) == (10 * STEPS, 10)
    for name in ("environment/episode_return", "losses/policy", "performance/sps", "time/update"):
        assert name in line
    names = sorted(path.name for path in (trained / "checkpoints").iterdir())
    assert names == [f"{5 * STEPS:012d}", f"{10 * STEPS:012d}"]


def test_the_end_of_a_run_is_told_in_one_line(puffer, tmp_path):
    code, text, _ = puffer("train", "squared", "--run.dir", tmp_path, *SMALL)
    pattern = r"squared: 1.28k steps in \d+s, score \S+, .*/checkpoints/000000001280"
    assert code == 0 and re.fullmatch(pattern, text.splitlines()[-1])


def test_the_end_of_a_run_can_be_drawn_from_its_folder(trained):
    svg = run.picture(trained)
    assert svg.startswith("<svg") and "squared" in svg and "1.28k" in svg


def test_without_a_folder_a_run_gets_its_own(puffer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert puffer("train", "squared", *SMALL, "--train.seed=4")[0] == 0
    folders = sorted(path.name for path in (tmp_path / "runs" / "squared").iterdir())
    assert len(folders) == 2 and all(re.match(r"\d{8}T\d{6}Z-4", name) for name in folders)
    code, text, _ = puffer("eval", "squared", "--episodes", "4", "--json")
    assert code == 0 and json.loads(text)["episode_return"]["count"] == 4


def test_the_same_seed_gives_the_same_weights_on_any_number_of_workers(puffer, tmp_path):
    for name, workers in (("a", 1), ("b", 1), ("c", 2)):
        words = [*SMALL, "--run.dir", tmp_path / name, "--vec.num-workers", workers]
        assert puffer("train", "squared", *words)[0] == 0
    a, b, c = (weights(checkpoint.latest(tmp_path / name)) for name in "abc")
    assert same(a, b) and same(a, c)
    assert puffer("train", "squared", *SMALL, "--run.dir", tmp_path / "d", "--train.seed=2")[0] == 0
    assert not same(a, weights(checkpoint.latest(tmp_path / "d")))


def test_a_run_that_continues_in_a_new_process_ends_with_the_same_bits(trained, tmp_path):
    half = trained / "checkpoints" / f"{5 * STEPS:012d}"
    process = start("train", "squared", "--resume", half, "--run.dir", tmp_path / "run")
    assert process.communicate() and process.returncode == 0
    straight = checkpoint.load(checkpoint.latest(trained))
    resumed = checkpoint.load(checkpoint.latest(tmp_path / "run"))
    assert resumed.step == straight.step == 10 * STEPS
    assert same(straight.policy_state, resumed.policy_state)
    moments = [x.trainer_state["optimizer"]["state"] for x in (straight, resumed)]
    assert all(same(moments[0][i], moments[1][i]) for i in moments[0])


def test_resume_continues_the_latest_of_the_folder(puffer, tmp_path):
    words = ["train", "squared", "--run.dir", tmp_path]
    assert puffer(*words, *SMALL)[0] == 0
    code, _, _ = puffer(*words, "--resume", "--train.total-timesteps", 15 * STEPS)
    assert code == 0
    meta = checkpoint.read_meta(checkpoint.latest(tmp_path))
    assert (meta["step"], meta["update"]) == (15 * STEPS, 15)
    steps = [line["step"] for line in read_metrics(tmp_path)]
    assert steps == sorted(set(steps)) and steps[-1] == 15 * STEPS
    config = Config.from_toml((tmp_path / "config.toml").read_text())
    assert config.vec.num_envs == 8 and config.train.total_timesteps == 15 * STEPS


def test_a_second_run_in_the_same_folder_is_refused(puffer, trained):
    refused(
        puffer("train", "squared", "--run.dir", trained, *SMALL), "already holds a run; --resume"
    )


def test_a_run_does_not_fork_inside_its_folder(puffer, trained):
    half = trained / "checkpoints" / f"{5 * STEPS:012d}"
    refused(puffer("train", "squared", "--resume", half), "goes on to 000000001280 behind step 640")


def test_nothing_to_resume_is_refused(puffer, tmp_path):
    result = puffer("train", "squared", "--run.dir", tmp_path, "--resume")
    refused(result, "there is no checkpoint in .*checkpoints")


def test_a_run_stops_at_the_score_or_the_time_asked_for(puffer, tmp_path):
    words = [*SMALL, "--train.total-timesteps=1e9"]
    score = puffer("train", "squared", "--run.dir", tmp_path / "a", *words, "--train.stop-score=-9")
    limit = puffer(
        "train", "squared", "--run.dir", tmp_path / "b", *words, "--train.time-limit-s=1"
    )
    assert score[0] == limit[0] == 0


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_with_one_line_and_a_checkpoint(tmp_path, signum, code):
    folder = tmp_path / "run"
    process = start("train", "squared", "--run.dir", folder, *SMALL, "--train.total-timesteps=1e9")
    while not (folder / "checkpoints").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signum)
    _, text = process.communicate(timeout=60)
    assert process.returncode == code
    path = checkpoint.latest(folder)
    assert text == f"puffer: stopped at step {int(path.name)}; --resume continues from {path}\n"
    assert checkpoint.load(path).step == int(path.name)


# ---------------------------------------------------------------- evaluation


def test_eval_prints_mean_deviation_and_count_of_each_number(puffer, trained):
    code, text, _ = puffer(
        "eval",
        "squared",
        "--run.dir",
        trained,
        "--checkpoint",
        "latest",
        "--episodes",
        20,
        "--json",
    )
    summary = json.loads(text)
    assert code == 0 and {"episode_return", "episode_length", "score"} <= summary.keys()
    assert all(set(figures) == {"mean", "std", "count"} for figures in summary.values())
    assert summary["episode_return"]["count"] == 20
    code, text, _ = puffer("eval", "squared", "--checkpoint", trained, "--episodes", 5, "--greedy")
    assert code == 0 and re.search(r"episode_return +-?\d\.\d+ ± .*\(5\)", text)


def test_short_lives_of_a_world_of_many_agents_do_not_crowd_out_long_ones():
    entry = registry.find("snake")
    config = load_config("snake", overrides={"vec.num_envs": 20, "env.snakes": 8})
    few = run.evaluate(entry, config, loaded=None, episodes=160, seed=3)["episode_length"]
    many = run.evaluate(entry, config, loaded=None, episodes=1600, seed=3)["episode_length"]
    assert (few["count"], many["count"]) == (160, 1600)
    # Every snake's first life; the first 160 deaths of the twenty worlds would be half as long.
    assert few["mean"] > 0.75 * many["mean"]


def test_eval_repeats_itself_for_a_seed(puffer, trained):
    words = ["eval", "squared", "--checkpoint", trained, "--episodes", 20, "--json", "--seed"]
    first, again, other = (puffer(*words, seed)[1] for seed in (3, 3, 4))
    assert first == again != other


def test_random_actions_can_be_judged_without_a_checkpoint(puffer):
    code, text, _ = puffer("eval", "squared", "--random", "--episodes", 50, "--json")
    assert code == 0 and json.loads(text)["episode_return"]["mean"] < 0


def test_eval_writes_a_picture(puffer, trained, tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "episode.gif"
    words = ["eval", "squared", "--checkpoint", trained, "--episodes", 1]
    assert puffer(*words, "--gif", path)[0] == 0
    with image.open(path) as picture:
        assert picture.format == "GIF" and picture.n_frames >= 1
    refused(puffer(*words, "--gif", tmp_path / "none" / "x.gif"), "cannot write .*x.gif")


def test_a_checkpoint_of_another_environment_or_size_is_refused(puffer, trained):
    result = puffer("eval", "cartpole", "--checkpoint", trained)
    refused(result, "a checkpoint of the environment 'squared', not of 'cartpole'")
    result = puffer("eval", "squared", "--checkpoint", trained, "--env.size", "9")
    refused(result, r"\(16, 49\) in the checkpoint and \(16, 81\) in this policy")


def test_no_episodes_cannot_be_judged(puffer):
    refused(
        puffer("eval", "squared", "--random", "--episodes", 0), "episodes is 0; expected at least 1"
    )


def test_a_truncated_checkpoint_is_refused_and_left_alone(puffer, tmp_path):
    assert puffer("train", "squared", "--run.dir", tmp_path, *SMALL)[0] == 0
    path = checkpoint.latest(tmp_path) / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    refused(puffer("eval", "squared", "--run.dir", tmp_path), "weights.safetensors is truncated")
    refused(
        puffer("train", "squared", "--run.dir", tmp_path, "--resume"), "safetensors is truncated"
    )
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


# ---------------------------------------------------------------- what goes wrong


def test_a_folder_that_cannot_be_written_is_refused(puffer, tmp_path):
    (tmp_path / "file").write_text("")
    result = puffer("train", "squared", "--run.dir", tmp_path / "file" / "run", *SMALL)
    refused(result, "cannot write the run folder .*; name another with --run.dir")


def test_a_full_disk_ends_a_run_and_keeps_the_earlier_checkpoint(puffer, tmp_path, monkeypatch):
    words = ["train", "squared", "--run.dir", tmp_path]
    assert puffer(*words, *SMALL)[0] == 0
    path = checkpoint.latest(tmp_path)
    before = weights(path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = puffer(*words, "--resume", "--train.total-timesteps", 12 * STEPS)
    refused(result, "cannot write the checkpoint of step 1536 .*No space left on device")
    assert checkpoint.latest(tmp_path) == path and same(weights(path), before)


def write_env(folder, fault):
    folder.mkdir()
    (folder / "__init__.py").write_text(BROKEN_REWARD.replace("FAULT", fault))
    return folder


@pytest.mark.parametrize("backend", ["Serial", "Multiprocessing"])
def test_a_bad_reward_ends_a_run_and_keeps_the_earlier_checkpoint(puffer, tmp_path, backend):
    env = write_env(tmp_path / "broken", "return float('nan')")
    result = puffer("train", env, "--run.dir", tmp_path / "run", "--vec.backend", backend, *SMALL)
    refused(result, "reward is nan at step 10 of the episode")
    path = checkpoint.latest(tmp_path / "run")
    assert checkpoint.load(path).step == 5 * STEPS


def test_training_tells_which_backend_was_chosen_and_why(puffer, tmp_path):
    env = write_env(tmp_path / "sound", "return 1.0")
    code, *said = puffer(
        "train", env, "--run.dir", tmp_path / "run", "--vec.num-workers", 1, *SMALL
    )
    assert code == 0 and "Serial: one worker would only add the way to it" in "".join(said)


def test_an_error_of_an_environment_is_told_in_one_line(puffer, tmp_path):
    env = write_env(tmp_path / "broken", "raise ValueError('the lamp is out')")
    told = {"Serial": "ValueError: the", "Multiprocessing": "raised ValueError in step: the"}
    for backend, text in told.items():
        flags = ["--run.dir", tmp_path / backend, "--vec.backend", backend, *SMALL]
        refused(puffer("train", env, *flags), rf"{text} lamp is out \(--debug shows where\)")


def test_a_header_that_does_not_compile_is_told_with_what_the_compiler_said(puffer, tmp_path):
    folder = tmp_path / "crooked"
    folder.mkdir()
    (folder / "crooked.h").write_text('#include "puffer.h"\nint crooked(\n')
    refused(puffer("train", folder), "crooked.h does not compile")
    refused(puffer("build", folder), "crooked.h does not compile")
    assert "error:" in puffer("build", folder)[2]


# ---------------------------------------------------------------- check and build


def test_check_holds_an_environment_to_the_contract(puffer):
    code, text, _ = puffer("check", "squared")
    assert code == 0
    for words in ("one environment keeps", "Serial keeps", "Native keeps"):
        assert words in text


def test_check_refuses_an_environment_that_breaks_the_contract(puffer, tmp_path):
    env = write_env(tmp_path / "broken", "return float('nan')")
    refused(puffer("check", env), "reward")


def test_build_compiles_what_is_named(puffer):
    code, text, _ = puffer("build", "squared")
    assert code == 0 and re.fullmatch(r"squared +/.*\.so\n", text)
