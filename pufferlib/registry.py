"""From a name or a folder to an environment: whatever lies under envs/ is registered."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from pufferlib.exceptions import APIUsageError, EnvironmentSetupError
from pufferlib.native.core import Library
from pufferlib.native_env import NativeEnv, load_library

PACKAGE = "pufferlib.envs"
VENVS = "/opt/venvs"


@dataclass(frozen=True)
class Entry:
    """One environment: a folder with a header `<name>.h` (native) or an `__init__.py` (Python).

    Calling an entry makes one environment: `entry(buf=None, **parameters)`. One that lives under
    an interpreter of its own (see `python`) is made by what lies in `pufferlib.vector` instead.
    """

    name: str
    folder: Path

    @property
    def is_native(self) -> bool:
        return (self.folder / f"{self.folder.name}.h").is_file()

    @property
    def config_path(self) -> Path:
        return self.folder / "config.toml"

    @property
    def library(self) -> Library:
        """The compiled library of a native environment."""
        return load_library(self.folder)

    @property
    def python(self) -> Path | None:
        """The interpreter that the environment lives in; None is the one that runs this.

        `venv = "name"` below [package] in its config.toml asks for `$PUFFER_VENVS/name`.
        Raises `EnvironmentSetupError` with the command that makes it if there is none.
        """
        name = self._package().get("venv")
        if name is None:
            return None
        venv = Path(os.environ.get("PUFFER_VENVS", VENVS)) / name
        if venv.resolve() == Path(sys.prefix).resolve():
            return None
        python = venv / "bin" / "python"
        if not python.is_file():
            requires = " ".join(f"'{r}'" for r in self._package().get("requires", ()))
            raise EnvironmentSetupError(
                f"environment {self.name!r} lives under an interpreter of its own, and there is "
                f"no {python}; make it with: {sys.executable} -m venv {venv} && {python} -m pip "
                f"install --no-deps {requires} (or set PUFFER_VENVS to the folder that holds "
                f"{name})"
            )
        return python

    def module(self):
        """The Python package of the environment's folder.

        Raises `EnvironmentSetupError` with the command that installs what is missing.
        """
        with self._naming_what_to_install():
            if self.folder.parent == envs_folder():
                return importlib.import_module(f"{PACKAGE}.{self.folder.name}")
            return _import_folder(self.folder)

    @contextmanager
    def _naming_what_to_install(self):
        try:
            yield
        except ModuleNotFoundError as error:
            command = self._install_command()
            if command is None:
                raise
            package = (error.name or "").partition(".")[0]
            raise EnvironmentSetupError(
                f"environment {self.name!r} needs the package {package!r}, which is not "
                f"installed; install it with: {command}"
            ) from error

    def check(self, *args, **parameters) -> None:
        """Let the environment refuse parameters, such as files that are missing, before it is made.

        A Python environment says so in a function `check` that takes what its `make` takes.
        """
        if not self.is_native:
            with self._naming_what_to_install():
                check = getattr(self.module(), "check", None)
                if check is not None:
                    check(*args, **parameters)

    def make_vector(self, num_envs: int, num_workers: int, **parameters):
        """The environment's own vector of `num_envs`, stepped by `num_workers` threads, or None.

        A Python environment that has one makes it in a function `make_vector` that takes these;
        the `gymnasium.vector.VectorEnv` says in its metadata how episodes restart.
        """
        with self._naming_what_to_install():
            make = None if self.is_native else getattr(self.module(), "make_vector", None)
            return None if make is None else make(num_envs, num_workers, **parameters)

    def _package(self) -> dict:
        """The section [package] of config.toml."""
        if not self.config_path.is_file():
            return {}
        return tomllib.loads(self.config_path.read_text()).get("package", {})

    def _install_command(self) -> str | None:
        package = self._package()
        if "install" in package:
            return package["install"]
        requires = package.get("requires")
        return "pip install " + " ".join(f"'{r}'" for r in requires) if requires else None

    def __call__(self, buf=None, **parameters):
        if self.is_native:
            return NativeEnv(self.library, buf=buf, **parameters)
        if (python := self.python) is not None:
            raise APIUsageError(
                f"environment {self.name!r} lives under {python}; make it with "
                f"pufferlib.vector.make({self.name!r})"
            )
        with self._naming_what_to_install():
            return self.module().make(**parameters)


def envs_folder() -> Path:
    """The folder whose subfolders are registered."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise EnvironmentSetupError(f"the package {PACKAGE} is not installed; run: make setup")
    return Path(next(iter(found.submodule_search_locations)))


def names() -> list[str]:
    """The names of all registered environments, sorted."""
    return sorted(
        folder.name
        for folder in envs_folder().iterdir()
        if (folder / f"{folder.name}.h").is_file() or (folder / "__init__.py").is_file()
    )


def find(name: str | Path) -> Entry:
    """The entry of a registered name or of a folder anywhere on disk.

    Raises `APIUsageError` naming near names if there is neither.
    """
    if str(name) in names():
        return Entry(str(name), envs_folder() / str(name))
    folder = Path(name).expanduser()
    if folder.is_dir():
        folder = folder.resolve()
        entry = Entry(folder.name, folder)
        if entry.is_native or (folder / "__init__.py").is_file():
            return entry
        raise APIUsageError(
            f"{folder} is no environment: it has neither {folder.name}.h nor __init__.py"
        )
    near = get_close_matches(str(name), names(), 3, 0.5)
    raise APIUsageError(
        f"no environment {str(name)!r}"
        + (f"; did you mean {' or '.join(near)}?" if near else "")
        + f" Registered: {', '.join(names())}. A folder's path works as well."
    )


@cache
def _import_folder(folder: Path):
    name = f"puffer_env_{folder.name}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
