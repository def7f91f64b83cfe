"""Compiles an environment's header into a library, once for each state of its sources."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from pufferlib.exceptions import EnvironmentSetupError

SOURCES = Path(__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
FLAGS = ["-std=c11", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fno-trapping-math", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS]


def cache_folder() -> Path:
    """Where compiled environments are kept: $PUFFERLIB_CACHE, else the user's cache folder."""
    chosen = os.environ.get("PUFFERLIB_CACHE")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "pufferlib"


def find_compiler() -> str:
    """$CC, else the first of cc, gcc and clang. Raises `EnvironmentSetupError` if there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise EnvironmentSetupError(
        "no C compiler found (looked for $CC, cc, gcc, clang); native environments are compiled "
        "on first use. On Debian or Ubuntu: apt-get install gcc"
    )


def defines(header: Path) -> list[str]:
    """The -D flags by which library.c finds the names of an environment."""
    name = header.stem
    title = "".join(part.capitalize() for part in name.split("_"))
    names = {"HEADER": f'"{header}"', "env": name, "Env": title, "ENV": name.upper()}
    return [f"-DPUFFER_{key}={value}" for key, value in names.items()]


def compile_env(folder: str | Path, *, force: bool = False) -> Path:
    """The library of the environment in `folder`, compiled now if its sources changed.

    The folder's name is the environment's: `squared/squared.h`. Raises `EnvironmentSetupError`
    with what the compiler said if the header does not compile.
    """
    folder = Path(folder).resolve()
    header = folder / f"{folder.name}.h"
    if not header.is_file():
        raise EnvironmentSetupError(
            f"{folder} holds no {folder.name}.h; a native environment is a folder with a header "
            "of the same name"
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", folder.name):
        raise EnvironmentSetupError(
            f"{folder.name!r} cannot name an environment: expected lower-case letters, digits and _"
        )
    compiler = find_compiler()
    command = [compiler, *FLAGS, f"-I{SOURCES}", f"-I{folder}", *defines(header)]
    key = hashlib.sha256(repr((command, _identity(compiler))).encode())
    for source in sorted([*folder.glob("*.h"), *SOURCES.glob("*.h"), *SOURCES.glob("library.c")]):
        key.update(source.read_bytes())
    library = cache_folder() / "envs" / f"{folder.name}-{key.hexdigest()[:16]}.so"
    if force or not library.exists():
        _compile(command, header, library)
    return library


def _compile(command: list[str], header: Path, library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
    except OSError as error:
        raise EnvironmentSetupError(
            f"cannot write to {library.parent} ({error.strerror}); set PUFFERLIB_CACHE to a folder "
            "that can be written"
        ) from error
    os.close(descriptor)
    try:
        done = subprocess.run(
            [*command, str(SOURCES / "library.c"), "-o", temporary], capture_output=True, text=True
        )
        if done.returncode:
            raise EnvironmentSetupError(f"{header} does not compile:\n{done.stderr.strip()}")
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _identity(compiler: str) -> tuple[str, ...]:
    """What decides the machine code beside sources and flags: compiler release and processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    try:
        info = Path("/proc/cpuinfo").read_text()
        lines = {line for line in info.splitlines() if line.startswith(("model name", "flags"))}
    except OSError:
        lines = {platform.processor()}
    return version, *sorted(lines), platform.machine()
