"""Finds pufferlib in the repository that is mounted at /workspace, and compiles its core there.

The image starts every interpreter with this module, so that whatever runs in the container, by
whatever entry, has a fresh core. It is kept apart from the one beside the sources, which the host
may have compiled for a C library of its own.
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
CORE = "pufferlib.native.core"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class Workspace(DistributionFinder):
    """The finder of pufferlib, of its compiled core and of its metadata."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == CORE and (ROOT / "setup.py").is_file():
            return spec_from_file_location(name, compiled_core())
        if name in PACKAGES and (PACKAGES[name] / "__init__.py").is_file():
            return spec_from_file_location(name, PACKAGES[name] / "__init__.py")
        if name == "pufferlib.envs" and PACKAGES[name].is_dir():  # A package without a module.
            return PathFinder.find_spec("envs", [str(ROOT)])
        return None

    @classmethod
    def find_distributions(cls, context=DistributionFinder.Context()):
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


def compiled_core() -> Path:
    """The core's library, compiled now if its sources changed."""
    native = ROOT / "pufferlib/native"
    sources = [ROOT / "setup.py", *sorted(p for p in native.iterdir() if is_source(p))]
    key = hashlib.sha256(SUFFIX.encode())
    for source in sources:
        key.update(source.read_bytes())
    folder = writable(ROOT / "build/tank", Path.home() / ".cache/puffertank")
    library = folder / f"core-{key.hexdigest()[:16]}{SUFFIX}"
    if not library.exists():
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                compile_core(sources, library)
    return library


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


def compile_core(sources: list[Path], library: Path) -> None:
    """Compile in a scratch folder: the mounted one may be read-only."""
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
        (built,) = Path(scratch).glob(f"out/pufferlib/native/*{SUFFIX}")
        temporary = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, temporary)
        os.replace(temporary, library)


sys.meta_path.insert(0, Workspace)
