"""What a build takes from this machine: certificates of a local authority, wheels of local pins."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
LOCAL_AUTHORITIES = Path("/usr/local/share/ca-certificates")
MARK = "host-"  # Begins the names of files that we put there; the user's own are left alone.
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def collect_certificates(
    target: Path, *, environ: Mapping[str, str] = os.environ, local: Path = LOCAL_AUTHORITIES
) -> list[Path]:
    """Copy what this machine trusts beyond the usual into `target` → where it came from."""
    options = pip_options(environ)
    named = [environ.get(variable) for variable in CERTIFICATE_VARIABLES]
    found = [Path(path) for path in [*named, options.get("cert")] if path]
    found += sorted(local.glob("**/*.crt")) if local.is_dir() else []
    fresh: dict[bytes, Path] = {}
    for path in found:
        if path.is_file():
            fresh.setdefault(path.read_bytes(), path)
    _replace(target, {f"{MARK}{n}.crt": text for n, text in enumerate(fresh)})
    return list(fresh.values())


def collect_wheels(
    target: Path, locks: Path, *, environ: Mapping[str, str] = os.environ
) -> list[Path]:
    """Copy the wheels of pip's find-links folders that a lock pins into `target` → their paths."""
    pins = {
        (normalize(name), version.partition("+")[0])
        for lock in locks.glob("*.txt")
        for name, version in PIN.findall(lock.read_text())
    }
    folders = environ.get("PIP_FIND_LINKS", "") + " " + pip_options(environ).get("find-links", "")
    found: dict[str, Path] = {}
    for folder in folders.split():
        for wheel in sorted(Path(folder.removeprefix("file://")).expanduser().glob("*.whl")):
            name, version, *_ = wheel.name.split("-")
            if (normalize(name), version.partition("+")[0]) in pins:
                found.setdefault(wheel.name, wheel)
    if found:
        target.mkdir(parents=True, exist_ok=True)
    for name, wheel in found.items():
        copy = target / name
        if not copy.is_file() or copy.stat().st_size != wheel.stat().st_size:
            shutil.copyfile(wheel, copy)
    return list(found.values())


def pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The [global] options of pip's configuration files, the user's above the machine's."""
    options: dict[str, str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will complain about it.
        if parser.has_section("global"):
            options |= dict(parser.items("global"))
    return options


def normalize(name: str) -> str:
    """A distribution's name as package indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("PIP_CONFIG_FILE") == os.devnull:  # pip's own way to say: none.
        return
    yield Path("/etc/pip.conf")
    for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"):
        yield Path(folder) / "pip/pip.conf"
    home = Path(environ.get("HOME", "/nonexistent"))
    yield home / ".pip/pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME", home / ".config")) / "pip/pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if environ.get("PIP_CONFIG_FILE"):
        yield Path(environ["PIP_CONFIG_FILE"])


def _replace(target: Path, files: Mapping[str, bytes]) -> None:
    """Make `files` the only ones of ours in `target`; equal ones keep their time stamps."""
    for old in target.glob(MARK + "*"):
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        path = target / name
        if not path.is_file() or path.read_bytes() != content:
            target.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
