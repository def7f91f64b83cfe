"""Docker or Podman: which of them is there, whether it answers, and what it can do."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from puffertank import TankError

NAMES = ("docker", "podman")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


@dataclass(frozen=True)
class Engine:
    """A container engine whose command line is that of Docker."""

    kind: str
    command: str

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine and keep what it prints."""
        return subprocess.run([self.command, *words], capture_output=True, text=True)

    def has_image(self, tag: str) -> bool:
        return self.ask("image", "inspect", tag).returncode == 0

    @cached_property
    def info(self) -> dict:
        """What the engine tells about itself; {} where it does not answer in JSON."""
        try:
            return json.loads(self.ask("info", "--format", "{{json .}}").stdout)
        except json.JSONDecodeError:
            return {}

    @property
    def is_rootless(self) -> bool:
        """Whether the container's root is this user."""
        if self.kind == "podman":
            return os.getuid() != 0
        return any("rootless" in option for option in self.info.get("SecurityOptions") or [])

    @property
    def gpu_flags(self) -> list[str] | None:
        """What hands the GPUs to a container; None where the engine cannot."""
        if self.kind == "podman":
            described = any(any(folder.glob("nvidia*")) for folder in CDI_FOLDERS)
            return ["--device", "nvidia.com/gpu=all"] if described else None
        desktop = "Docker Desktop" in self.info.get("OperatingSystem", "")
        toolkit = shutil.which("nvidia-container-runtime-hook") or shutil.which("nvidia-ctk")
        able = desktop or toolkit or "nvidia" in (self.info.get("Runtimes") or {})
        return ["--gpus", "all"] if able else None


def find_engine(name: str | None = None) -> Engine:
    """The engine called `name`, or the first that is installed and answers.

    Raises TankError with the one command that mends it: the engine is missing, its service is
    stopped, or this user may not use it.
    """
    wanted = (name,) if name else NAMES
    installed = [word for word in wanted if shutil.which(word)]
    if not installed:
        raise TankError(_missing(name))
    complaints = []
    for word in installed:
        complaint = _complaint(word)
        if complaint is None:
            return Engine(_kind(word), word)
        complaints.append(complaint)
    raise TankError(complaints[0])


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU whose driver answers."""
    if not shutil.which("nvidia-smi"):
        return False
    try:
        seen = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return False
    return seen.returncode == 0 and "GPU" in seen.stdout


def _kind(word: str) -> str:
    """Podman may answer to the name of docker."""
    version = subprocess.run([word, "--version"], capture_output=True, text=True).stdout
    return "podman" if "podman" in version.lower() else "docker"


def _complaint(word: str) -> str | None:
    """Why the engine does not answer, and what mends it; None if it does."""
    asked = subprocess.run([word, "info"], capture_output=True, text=True)
    # `docker info` of some versions succeeds without a server and only prints the error.
    text = asked.stdout + asked.stderr
    stopped = "cannot connect to the docker daemon" in text.lower()
    if asked.returncode == 0 and not stopped and "permission denied while" not in text:
        return None
    if "permission denied" in text.lower():
        return f"this user may not use {word}; allow it and log in again:\n  {_allow(word)}"
    if stopped or "connection refused" in text.lower() or "is the docker daemon" in text.lower():
        return f"{word} is installed, but its service is not running; start it:\n  {_start()}"
    last = [line for line in asked.stderr.splitlines() if line.strip()][-1:] or ["(no message)"]
    return f"{word} does not work: {last[0]}\nSee for yourself:\n  {word} info"


def _missing(name: str | None) -> str:
    what = f"{name} is not installed" if name else "neither docker nor podman is installed"
    if platform.system() == "Darwin":
        package = {"podman": "podman"}.get(name or "", "--cask docker")
        return f"{what}; install it:\n  brew install {package}"
    package = {"podman": "podman"}.get(name or "", "docker.io")
    return (
        f"{what}; install it (Debian, Ubuntu):\n  {_sudo()}apt-get install {package}\n"
        "Everything but the pinned environments works without it: make train"
    )


def _start() -> str:
    if platform.system() == "Darwin":
        return "open -a Docker"
    if Path("/run/systemd/system").is_dir():
        return f"{_sudo()}systemctl start docker"
    return f"{_sudo()}service docker start"


def _allow(word: str) -> str:
    if word == "podman":
        return "podman system migrate"
    return "sudo usermod -aG docker $USER"


def _sudo() -> str:
    return "" if os.getuid() == 0 else "sudo "
