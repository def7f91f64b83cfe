"""Checkpoints: folders that appear whole or not at all, and load without running code.

A checkpoint is `<run>/checkpoints/<step>/` with `weights.safetensors` (the policy), `trainer.pt`
(optimizer moments, random states, counters, environments; tensors and plain containers only) and
`meta.json` (what it is of, and the size and SHA-256 of the two others).
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

from pufferlib.exceptions import CheckpointError

FORMAT = 1
WEIGHTS, TRAINER, META = "weights.safetensors", "trainer.pt", "meta.json"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded checkpoint: where it lay, its meta data and the two states, on the CPU."""

    path: Path
    meta: Mapping[str, Any]
    policy_state: Mapping[str, torch.Tensor]
    trainer_state: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Agent steps trained when it was saved."""
        return self.meta["step"]


def save(
    run_dir: str | Path,
    *,
    step: int,
    policy_state: Mapping[str, torch.Tensor],
    trainer_state: Mapping[str, Any],
    meta: Mapping[str, Any],
    keep: int = 3,
) -> Path:
    """Write the checkpoint of `step` and return its folder; the `keep` newest ones stay.

    `trainer_state` holds tensors, arrays, numbers, text and None in dicts, lists and tuples;
    `meta` (JSON) says at least `env_name`. All is written beside its place, flushed to the disk
    and renamed. Raises: CheckpointError, after which the earlier checkpoints are as they were.
    """
    root = Path(run_dir) / "checkpoints"
    final, temporary = root / f"{step:012d}", root / f".{step:012d}-new"
    weights = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in policy_state.items()}
    buffer = io.BytesIO()
    torch.save(_plain(trainer_state, "trainer_state"), buffer)
    files = {WEIGHTS: safetensors.torch.save(weights), TRAINER: buffer.getvalue()}
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    now = datetime.datetime.now(datetime.UTC).isoformat()
    described = {"format": FORMAT, **meta, "step": step, "saved_at": now, "versions": versions}
    described["files"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    files[META] = json.dumps(described, indent=2).encode()
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, data in files.items():
            _write(temporary / name, data)
        _flush_folder(temporary)
        _replace(temporary, final)
        _flush_folder(root)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint of step {step} to {root}: {error.strerror or error}; "
            "the earlier checkpoints are untouched"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    older = [path for path in sorted(_complete(root), key=_step) if path != final]
    for path in [*older[: len(older) + 1 - keep], *root.glob(".*")]:
        shutil.rmtree(path, ignore_errors=True)
    return final


def load(path: str | Path, *, env_name: str = "") -> Checkpoint:
    """The checkpoint in folder `path`, of environment `env_name` unless that is empty.

    No code of the files is run, and nothing on disk changes.
    Raises: CheckpointError for a file that is missing, damaged or unsafe, and for another
    environment.
    """
    path = Path(path)
    meta = read_meta(path)
    if env_name and meta.get("env_name") != env_name:
        raise CheckpointError(
            f"{path} is a checkpoint of the environment {meta.get('env_name')!r}, "
            f"not of {env_name!r}; give one of {env_name!r}"
        )
    weights = _read(path / WEIGHTS, meta["files"])
    trainer = _read(path / TRAINER, meta["files"])
    try:
        policy_state = safetensors.torch.load(weights)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path / WEIGHTS} is damaged: {error}") from error
    try:
        trainer_state = torch.load(io.BytesIO(trainer), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path / TRAINER} is unsafe or damaged and was not loaded: it holds more than tensors "
            "and plain containers, so reading it could run code; use a checkpoint that "
            "pufferlib saved"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path / TRAINER} is damaged: {error}") from error
    return Checkpoint(path, meta, policy_state, trainer_state)


def read_meta(path: str | Path) -> dict[str, Any]:
    """`meta.json` of the checkpoint in folder `path`. Raises: CheckpointError."""
    file = Path(path) / META
    if not Path(path).is_dir():
        raise CheckpointError(f"there is no checkpoint {path}; expected a folder with {META}")
    try:
        meta = json.loads(file.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    if not isinstance(meta, dict) or not {"format", "step", "files"} <= meta.keys():
        raise CheckpointError(f"{file} is not the description of a checkpoint")
    if meta["format"] != FORMAT:
        raise CheckpointError(
            f"{file} has format {meta['format']}; this version of pufferlib reads {FORMAT}"
        )
    return meta


def restore_policy(policy: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's weights into `policy`, all or none.

    Raises: CheckpointError naming each layer that differs with both shapes and the likely cause.
    """
    saved, expected = checkpoint.policy_state, policy.state_dict()
    differences = [
        f"{name} is {_shape(saved.get(name))} in the checkpoint and {_shape(expected.get(name))} "
        "in this policy"
        for name in sorted(saved.keys() | expected.keys())
        if _shape(saved.get(name)) != _shape(expected.get(name))
    ]
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        of = ", ".join(
            f"{k} {checkpoint.meta[k]}" for k in ("policy", "spaces") if k in checkpoint.meta
        )
        raise CheckpointError(
            f"{checkpoint.path} does not fit this policy: {'; '.join(differences[:3])}{more}. "
            "Likely the environment's parameters (observation or action size) or the policy's "
            f"settings differ from those it was trained with{f' ({of})' if of else ''}"
        )
    policy.load_state_dict(saved)


def latest(run_dir: str | Path) -> Path:
    """The folder of the run's checkpoint with the largest saved step. Raises: CheckpointError."""
    root = Path(run_dir) / "checkpoints"
    complete = _complete(root)
    if not complete:
        raise CheckpointError(f"there is no checkpoint in {root}")
    return max(complete, key=_step)


def find_latest(runs_root: str | Path, env_name: str) -> Path:
    """The latest checkpoint of the newest run of `env_name` below `runs_root`/`env_name`.

    Which run is newest is decided by the time saved in its latest checkpoint.
    Raises: CheckpointError where there is none.
    """
    found = []
    for root in (Path(runs_root) / env_name).glob("*/checkpoints"):
        if _complete(root):
            path = latest(root.parent)
            meta = read_meta(path)
            if meta.get("env_name") == env_name:
                found.append((meta.get("saved_at", ""), path))
    if not found:
        raise CheckpointError(
            f"there is no checkpoint of {env_name!r} in {Path(runs_root) / env_name}; "
            "train it first, or give the folder of a checkpoint"
        )
    return max(found)[1]


def _complete(root: Path) -> list[Path]:
    """Checkpoint folders with all their files; those being written or removed are not."""
    folders = [path for path in root.glob("[0-9]*") if (path / META).is_file()]
    return [path for path in folders if (path / WEIGHTS).is_file() and (path / TRAINER).is_file()]


def _step(path: Path) -> int:
    return read_meta(path)["step"]


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(temporary: Path, final: Path) -> None:
    """Rename `temporary` to `final`, out of whose way an older folder moves first."""
    if not final.exists():
        temporary.rename(final)
        return
    aside = final.with_name(f".{final.name}-old")
    final.rename(aside)
    try:
        temporary.rename(final)
    except OSError:
        aside.rename(final)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _read(path: Path, files: Mapping[str, Any]) -> bytes:
    """The bytes of a file that must be as it was written."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    expected = files[path.name]
    if len(data) != expected["bytes"]:
        raise CheckpointError(
            f"{path} is truncated or overwritten: it has {len(data)} bytes, "
            f"not {expected['bytes']}; use an earlier checkpoint"
        )
    if hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise CheckpointError(
            f"{path} is damaged: its bytes are not those that were saved; use an earlier checkpoint"
        )
    return data


def _plain(value: Any, where: str) -> Any:
    """`value` made of tensors and plain Python only, which loads without running code."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_plain(k, where): _plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    if isinstance(value, list | tuple):
        plain = [_plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
        return tuple(plain) if isinstance(value, tuple) else plain
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise CheckpointError(
        f"{where} is a {type(value).__name__}; a checkpoint holds tensors, arrays, numbers, text "
        "and None in dicts, lists and tuples"
    )


def _shape(tensor: torch.Tensor | None) -> str:
    return "absent" if tensor is None else str(tuple(tensor.shape))
