"""Finds pufferlib in the repository that is mounted at /workspace, its compiled modules fresh.

The image starts every interpreter with this module, so that whatever runs in the container, by
whatever entry, has modules that fit the sources. They are kept apart from those beside the sources,
which the host may have compiled for a C library of its own.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path("/workspace")
PYTHON = "/opt/tank/bin/python"  # Has Cython, which other interpreters of the image lack.
PACKAGES = {"pufferlib": ROOT / "pufferlib", "pufferlib.envs": ROOT / "envs"}
NATIVE = "pufferlib.native."
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class Workspace(DistributionFinder):
    """The finder of pufferlib, of its compiled modules and of its metadata."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.startswith(NATIVE):
            module = name.removeprefix(NATIVE)
            if (ROOT / f"pufferlib/native/{module}.pyx").is_file():
                return spec_from_file_location(name, compiled() / f"{module}{SUFFIX}")
        if name in PACKAGES and (PACKAGES[name] / "__init__.py").is_file():
            return spec_from_file_location(name, PACKAGES[name] / "__init__.py")
        if name == "pufferlib.envs" and PACKAGES[name].is_dir():  # A package without a module.
            return PathFinder.find_spec("envs", [str(ROOT)])
        return None

    @classmethod
    def find_distributions(cls, context):
        if context.name in (None, "pufferlib") and (ROOT / "pyproject.toml").is_file():
            yield Checkout()


class Checkout(Distribution):
    """What pyproject.toml says of pufferlib now."""

    def read_text(self, filename):
        if filename != "METADATA":
            return None
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        return f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"

    def locate_file(self, path):
        return ROOT / path


def compiled() -> Path:
    """The folder of the compiled modules, filled now if their sources changed."""
    native = ROOT / "pufferlib/native"
    sources = [ROOT / "setup.py", *sorted(p for p in native.iterdir() if is_source(p))]
    key = hashlib.sha256(SUFFIX.encode())
    for source in sources:
        key.update(source.name.encode() + source.read_bytes())
    builds = writable(ROOT / "build/tank", Path.home() / ".cache/puffertank")
    folder = builds / f"native-{key.hexdigest()[:16]}"
    if not folder.is_dir():
        with open(builds / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                fill(folder, sources)
    return folder


def is_source(path: Path) -> bool:
    return path.suffix in (".pyx", ".pxd", ".h")


def writable(*folders: Path) -> Path:
    """The first folder that can be made and written to."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise ImportError(f"none of {', '.join(map(str, folders))} can be written to")


def fill(folder: Path, sources: list[Path]) -> None:
    """Compile in a scratch folder, for the mounted one may be read-only."""
    print("tank: compiling the core", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        for source in sources:
            copy = Path(scratch) / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        command = [PYTHON, "setup.py", "--quiet", "build_ext", "--build-lib", "out"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        if done.returncode:
            raise ImportError(f"the core does not compile:\n{done.stdout}{done.stderr}")
        temporary = Path(tempfile.mkdtemp(dir=folder.parent))
        temporary.chmod(0o755)
        for built in Path(scratch, "out/pufferlib/native").glob("*.so"):
            shutil.copyfile(built, temporary / built.name)
        os.replace(temporary, folder)


sys.meta_path.insert(0, Workspace)
