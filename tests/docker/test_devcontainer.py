"""The dev container: its file follows the specification and fits the Dockerfile."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from puffertank import ROOT, launcher

FILE = ROOT / ".devcontainer/devcontainer.json"

# The part of the dev container specification that this file uses (base schema, as of 2026), in our
# own short form: a type, a set of words, a pattern, [items], {"key": shape} for exactly those
# optional keys, or {...: shape} for any key.
COMMAND = (str, [str])
PORT = {
    "label": str,
    "onAutoForward": {
        "notify",
        "openBrowser",
        "openBrowserOnce",
        "openPreview",
        "silent",
        "ignore",
    },
    "protocol": {"http", "https"},
    "requireLocalPort": bool,
    "elevateIfNeeded": bool,
}
SHAPE = {
    "name": str,
    "build": {
        "dockerfile": str,
        "context": str,
        "target": str,
        "args": {...: str},
        "cacheFrom": (str, [str]),
        "options": [str],
    },
    "hostRequirements": {
        "cpus": int,
        "memory": re.compile(r"\d+([tgmk]b)?"),
        "storage": re.compile(r"\d+([tgmk]b)?"),
        "gpu": (bool, {"optional"}),
    },
    "init": bool,
    "runArgs": [str],
    "workspaceMount": str,
    "workspaceFolder": str,
    "containerUser": str,
    "remoteUser": str,
    "updateRemoteUserUID": bool,
    "containerEnv": {...: str},
    "remoteEnv": {...: (str, type(None))},
    "mounts": [str],
    "onCreateCommand": COMMAND,
    "postCreateCommand": COMMAND,
    "postStartCommand": COMMAND,
    "forwardPorts": [(int, re.compile(r"[a-z0-9-]+:\d{1,5}"))],
    "portsAttributes": {...: PORT},
    "customizations": {"vscode": {"extensions": [re.compile(r"[\w-]+\.[\w-]+")], "settings": dict}},
}


def mistakes(value: Any, shape: Any, where: str = "") -> list[str]:
    """Where `value` does not have the shape."""
    wrong = [f"{where or 'the file'}: {value!r}"]
    match shape:
        case tuple():
            tried = [mistakes(value, one, where) for one in shape]
            return [] if [] in tried else wrong
        case set():
            return [] if isinstance(value, str) and value in shape else wrong
        case re.Pattern():
            return [] if isinstance(value, str) and shape.fullmatch(value) else wrong
        case list():
            if not isinstance(value, list):
                return wrong
            return [m for n, v in enumerate(value) for m in mistakes(v, shape[0], f"{where}[{n}]")]
        case dict():
            if not isinstance(value, dict):
                return wrong
            found = []
            for key, inner in value.items():
                if key not in shape and ... not in shape:
                    found.append(f"{where}.{key} is unknown")
                else:
                    found += mistakes(inner, shape.get(key, shape.get(...)), f"{where}.{key}")
            return found
    return [] if type(value) is shape else wrong


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def dockerfile(config) -> str:
    return (FILE.parent / config["build"]["dockerfile"]).read_text()


def test_it_follows_the_specification(config):
    assert mistakes(config, SHAPE) == []


@pytest.mark.parametrize("change, mistake", [
    ({"remoteuser": "tank"}, ".remoteuser is unknown"),
    ({"init": "yes"}, ".init: 'yes'"),
    ({"hostRequirements": {"gpu": "maybe"}}, ".hostRequirements.gpu: 'maybe'"),
    ({"forwardPorts": [6006, True]}, ".forwardPorts[1]: True"),
    ({"build": {"dockerFile": "x"}}, ".build.dockerFile is unknown"),
])  # fmt: skip
def test_a_mistake_would_be_found(config, change, mistake):
    assert mistakes(config | change, SHAPE) == [mistake]


def test_its_paths_exist(config):
    assert (FILE.parent / config["build"]["dockerfile"]).is_file()
    assert (FILE.parent / config["build"]["context"]).resolve() == ROOT


def test_its_build_arguments_are_those_of_the_dockerfile(config, dockerfile):
    known = set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
    assert set(config["build"]["args"]) <= known
    default = re.search(r":(\w+)}$", config["build"]["args"]["FLAVOR"])
    assert default and default[1] in launcher.FLAVORS


def test_its_user_is_made_by_the_dockerfile(config, dockerfile):
    assert re.search(rf"useradd\b.*\b{config['remoteUser']}\b", dockerfile.replace("\\\n", " "))
    assert config["updateRemoteUserUID"] is True


def test_it_mounts_the_checkout_where_the_launcher_does(config, dockerfile):
    assert config["workspaceFolder"] == launcher.WORKSPACE
    mount = dict(part.split("=") for part in config["workspaceMount"].split(","))
    assert mount["target"] == launcher.WORKSPACE and mount["source"] == "${localWorkspaceFolder}"
    assert launcher.WORKSPACE in dockerfile


def test_its_limits_and_ports_are_those_of_the_launcher(config):
    assert f"--shm-size={launcher.SHARED_MEMORY}" in config["runArgs"]
    assert config["forwardPorts"] == list(launcher.PORTS)
    assert all(config["portsAttributes"][str(port)]["label"] for port in launcher.PORTS)


def test_its_interpreter_is_that_of_the_tank(config):
    settings = config["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"] == launcher.TANK_PYTHON


def test_what_it_runs_after_its_creation_is_a_verb_of_the_makefile(config):
    program, verb = config["postCreateCommand"].split()
    assert program == "make"
    assert re.search(rf"^{verb}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
