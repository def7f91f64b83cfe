"""Checkpoints: whole or not at all, safe to load, and never taken for another's."""

import hashlib
import json
import os
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from pufferlib import checkpoint
from pufferlib.exceptions import CheckpointError

META = {"env_name": "breakout", "policy": "Default(hidden_size=4)", "update": 3}


def policy(inputs=3, outputs=2):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(inputs, 4), torch.nn.Linear(4, outputs))


def save(run_dir, step=100, env_name="breakout", network=None, trainer_state=None, **options):
    return checkpoint.save(
        run_dir,
        step=step,
        policy_state=(network or policy()).state_dict(),
        trainer_state=trainer_state or {"update": step // 100},
        meta={**META, "env_name": env_name},
        **options,
    )


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def plant(path, name, data):
    """Put `data` in the place of a file of the checkpoint, with a matching description."""
    (path / name).write_bytes(data)
    meta = json.loads((path / "meta.json").read_text())
    meta["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "meta.json").write_text(json.dumps(meta))


class Payload:
    """Creates the file `marker` when a pickle of it is read with code allowed."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


def test_all_that_was_saved_comes_back(tmp_path):
    network = policy()
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    generator = np.random.default_rng(1)
    state = {
        "optimizer": optimizer.state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": generator.bit_generator.state,
        "worlds": np.arange(5, dtype=np.uint8),
        "counts": (np.int64(3), 2**100, None, "text", True, 0.5),
    }
    loaded = checkpoint.load(save(tmp_path, network=network, trainer_state=state))
    assert (loaded.step, loaded.meta["env_name"], loaded.meta["update"]) == (100, "breakout", 3)
    assert loaded.meta["versions"]["torch"] == str(torch.__version__)
    assert all(torch.equal(v, loaded.policy_state[k]) for k, v in network.state_dict().items())
    moments, saved = loaded.trainer_state["optimizer"]["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(moments[i]["exp_avg"], saved[i]["exp_avg"]) for i in saved)
    assert torch.equal(loaded.trainer_state["torch"], state["torch"])
    assert loaded.trainer_state["numpy"] == generator.bit_generator.state
    assert loaded.trainer_state["worlds"].tolist() == [0, 1, 2, 3, 4]
    assert loaded.trainer_state["counts"] == state["counts"]
    assert type(loaded.trainer_state["counts"][0]) is int


def test_weights_that_are_shared_or_strided_are_saved(tmp_path):
    weight = torch.arange(6.0).reshape(2, 3)
    path = checkpoint.save(
        tmp_path,
        step=1,
        policy_state={"a": weight, "b": weight, "c": weight.T},
        trainer_state={},
        meta=META,
    )
    state = checkpoint.load(path).policy_state
    assert torch.equal(state["a"], state["b"]) and torch.equal(state["c"], weight.T)


def test_a_state_that_is_not_plain_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match=r"trainer_state\['a'\]\[1\] is a object; a checkp"):
        save(tmp_path, trainer_state={"a": [1, object()]})
    assert not list(tmp_path.rglob("*.pt"))


def test_the_newest_stay_and_the_others_go(tmp_path):
    for step in (100, 200, 300, 1000):
        save(tmp_path, step=step, keep=3)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["000000000200", "000000000300", "000000001000"]


def test_one_just_written_stays_even_if_it_is_not_the_newest(tmp_path):
    for step in (300, 400, 100):
        path = save(tmp_path, step=step, keep=1)
    assert path.name == "000000000100" and checkpoint.load(path).step == 100


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, trainer_state={"x": 1})
    path = save(tmp_path, trainer_state={"x": 2})
    assert checkpoint.load(path).trainer_state == {"x": 2}
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["000000000100"]


@pytest.mark.parametrize("name", ["fsync", "rename"])
@pytest.mark.parametrize("again", [True, False])
def test_a_failed_write_leaves_the_earlier_ones_as_they_were(tmp_path, monkeypatch, name, again):
    save(tmp_path)
    before = content(tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, name, full)
    with pytest.raises(
        CheckpointError, match=r"cannot write the checkpoint of step \d+ to .*: No space left"
    ):
        save(tmp_path, step=100 if again else 200, trainer_state={"x": 1})
    monkeypatch.undo()
    assert content(tmp_path) == before
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["000000000100"]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_what_a_killed_process_left_is_ignored_and_then_removed(tmp_path):
    path = save(tmp_path)
    shutil.copytree(path, path.with_name(".000000000900-new"))
    assert checkpoint.latest(tmp_path) == path
    newer = save(tmp_path, step=900)
    assert set(path.parent.iterdir()) == {path, newer}


def test_a_run_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint of step 100 to .*file"):
        save(tmp_path / "file")


def test_latest_goes_by_the_saved_step_alone(tmp_path):
    old, new = save(tmp_path, step=200), save(tmp_path, step=1000)
    os.utime(old, (2e9, 2e9))
    renamed = new.with_name("1")
    new.rename(renamed)
    assert checkpoint.latest(tmp_path) == renamed


def test_latest_ignores_what_is_incomplete(tmp_path):
    path, newer = save(tmp_path), save(tmp_path, step=200)
    (newer / "trainer.pt").unlink()
    assert checkpoint.latest(tmp_path) == path
    (path / "meta.json").unlink()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*checkpoints"):
        checkpoint.latest(tmp_path)


def test_latest_of_an_environment_is_never_that_of_another(tmp_path):
    own = save(tmp_path / "breakout" / "one", step=100)
    save(tmp_path / "pong" / "two", step=900, env_name="pong")
    save(tmp_path / "breakout" / "misplaced", step=900, env_name="pong")
    assert checkpoint.find_latest(tmp_path, "breakout") == own
    newest = save(tmp_path / "breakout" / "a", step=50)
    assert checkpoint.find_latest(tmp_path, "breakout") == newest
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of 'snake' in .*snake"):
        checkpoint.find_latest(tmp_path, "snake")


def test_a_checkpoint_of_another_environment_is_refused(tmp_path):
    path = save(tmp_path, env_name="pong")
    with pytest.raises(CheckpointError, match="of the environment 'pong', not of 'breakout'"):
        checkpoint.load(path, env_name="breakout")


@pytest.mark.parametrize("name", ["weights.safetensors", "trainer.pt"])
def test_a_damaged_file_is_named(tmp_path, name):
    path = save(tmp_path)
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[:-10])
    with pytest.raises(
        CheckpointError, match=rf"{name} is truncated .*{len(data) - 10} bytes, not"
    ):
        checkpoint.load(path)
    (path / name).write_bytes(data[:-10] + bytes(10))
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        checkpoint.load(path)
    plant(path, name, data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=f"{name} is (unsafe or )?damaged"):
        checkpoint.load(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"cannot read .*{name}: No such file"):
        checkpoint.load(path)


def test_a_description_that_is_damaged_or_newer_is_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"there is no checkpoint .*missing; expected a folder"
    ):
        checkpoint.load(tmp_path / "missing")
    path = save(tmp_path)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99; this version of pufferlib reads 1"):
        checkpoint.load(path)
    (path / "meta.json").write_text('{"format": 1')
    with pytest.raises(CheckpointError, match=r"meta.json is damaged"):
        checkpoint.load(path)
    (path / "meta.json").write_text("[]")
    with pytest.raises(CheckpointError, match="is not the description of a checkpoint"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "write", [partial(pickle.dump, protocol=2), torch.save], ids=["pickle", "torch"]
)
def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path, write):
    path, marker, planted = save(tmp_path), tmp_path / "marker", tmp_path / "planted"
    with open(planted, "wb") as file:
        write({"optimizer": Payload(marker)}, file)
    plant(path, "trainer.pt", planted.read_bytes())
    before = content(path)
    with pytest.raises(
        CheckpointError, match=r"trainer.pt is unsafe or damaged and was not loaded"
    ):
        checkpoint.load(path)
    assert not marker.exists()
    assert content(path) == before


def test_numpy_scalars_of_a_foreign_file_are_refused_with_the_reason(tmp_path):
    path, planted = save(tmp_path), tmp_path / "planted"
    torch.save({"step": np.float64(1.5)}, planted)
    plant(path, "trainer.pt", planted.read_bytes())
    with pytest.raises(CheckpointError, match="holds more than tensors and plain containers"):
        checkpoint.load(path)


def test_a_policy_of_another_size_is_refused_naming_layer_and_shapes(tmp_path):
    loaded = checkpoint.load(save(tmp_path))
    other = policy(inputs=5)
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(
        CheckpointError,
        match=r"0.weight is \(4, 3\) in the checkpoint and \(4, 5\) in this policy\. "
        r"Likely the environment's parameters .*\(policy Default\(hidden_size=4\)\)$",
    ):
        checkpoint.restore_policy(other, loaded)
    assert all(torch.equal(before[k], v) for k, v in other.state_dict().items())


def test_a_policy_with_other_layers_is_refused_naming_them(tmp_path):
    loaded = checkpoint.load(save(tmp_path))
    with pytest.raises(CheckpointError, match=r"1.bias is \(2,\) in the checkpoint and absent in"):
        checkpoint.restore_policy(torch.nn.Sequential(torch.nn.Linear(3, 4)), loaded)


def test_a_policy_that_fits_gets_the_weights(tmp_path):
    network = policy()
    loaded = checkpoint.load(save(tmp_path, network=network))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    checkpoint.restore_policy(other, loaded)
    assert torch.equal(other(torch.ones(1, 3)), network(torch.ones(1, 3)))
