"""The launcher, with an engine that writes down what it is asked instead of doing it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from puffertank import ROOT, launcher, sources
from puffertank.launcher import main

ENGINE = """#!{python}
import json, os, signal, sys, time
from pathlib import Path

log, state = Path(LOG), json.loads(Path(STATE).read_text())
words = sys.argv[1:]
with log.open("a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, *words]) + "\\n")
match words:
    case ["--version"]:
        print(state["version"])
    case ["info", *format]:
        sys.stderr.write(state["complaint"])
        print(json.dumps(state["info"]) if format else "Server:")
        sys.exit(bool(state["complaint"]))
    case ["image", "inspect", tag]:
        sys.exit(tag not in state["images"])
    case ["ps", *_]:
        print(state["containers"])
    case ["pull", _]:
        sys.exit(1)
    case ["run", *rest] if state["waits"]:
        name = rest[rest.index("--name") + 1]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda n, frame: sys.exit(128 + n))
        (log.parent / name).write_text(str(os.getpid()))
        print("started", flush=True)
        while True:
            signal.pause()
    case ["kill", "--signal", word, name]:
        os.kill(int((log.parent / name).read_text()), signal.Signals["SIG" + word])
    case ["run", *_]:
        sys.exit(state["exit"])
"""
DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?\n"
DENIED = "permission denied while trying to connect to the Docker daemon socket\n"


class FakeEngine:
    """A `docker` or `podman` on PATH, and what it was asked."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._log, self._state = folder / "log", folder / "state.json"
        self.set(images=["puffertank:cpu"], complaint="", info={}, exit=0, containers="")
        self.set(version="Docker version 28", waits=False)

    def set(self, **state) -> None:
        before = json.loads(self._state.read_text()) if self._state.is_file() else {}
        self._state.write_text(json.dumps(before | state))

    def install(self, name: str = "docker") -> None:
        script = self.folder / "bin" / name
        script.parent.mkdir(exist_ok=True)
        head = f"#!{sys.executable}\nLOG, STATE = {str(self._log)!r}, {str(self._state)!r}\n"
        script.write_text(head + ENGINE)
        script.chmod(0o755)

    def asked(self, verb: str) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.is_file() else []
        return [words for words in map(json.loads, lines) if words[1] == verb]


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """The only engine on PATH; no GPU, no display, no terminal, not in the tank."""
    fake = FakeEngine(tmp_path)
    fake.install()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("PUFFERTANK", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launcher, "PORTS", ())
    return fake


def flags(words: list[str], flag: str) -> list[str]:
    """The values of a flag that may be repeated."""
    return [after for word, after in pairwise(words) if word == flag]


def launch(*command: str) -> subprocess.Popen[str]:
    """The launcher in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "puffertank", "run", *command],
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def refused(capsys, *words: str) -> str:
    assert main(list(words)) == 1
    text = capsys.readouterr().err
    assert text.startswith("puffertank: ") and "Traceback" not in text
    return text


def test_a_missing_engine_is_answered_with_the_command_that_installs_it(engine, capsys):
    (engine.folder / "bin/docker").unlink()
    text = refused(capsys, "run", "true")
    assert "neither docker nor podman is installed" in text
    assert "install docker" in text or "brew install" in text
    assert "podman is not installed" in refused(capsys, "run", "--engine", "podman", "true")


def test_a_stopped_daemon_is_answered_with_the_command_that_starts_it(engine, capsys):
    engine.set(complaint=DAEMON)
    text = refused(capsys, "run", "true")
    assert "its service is not running" in text and "start" in text.splitlines()[1]


def test_a_user_who_may_not_is_answered_with_the_command_that_allows_it(engine, capsys):
    engine.set(complaint=DENIED)
    text = refused(capsys, "run", "true")
    assert "this user may not use docker" in text
    assert text.splitlines()[1].strip() == "sudo usermod -aG docker $USER"


def test_any_other_complaint_is_shown(engine, capsys):
    engine.set(complaint="the moon is full\n")
    assert "docker does not work: the moon is full" in refused(capsys, "run", "true")


def test_the_second_engine_is_taken_where_the_first_does_not_answer(engine, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    podman = FakeEngine(other)
    podman.install("podman")
    (other / "bin/podman").rename(tmp_path / "bin/podman")
    engine.set(complaint=DAEMON)
    assert main(["run", "true"]) == 0
    assert podman.asked("run") and not engine.asked("run")


def test_a_missing_image_is_answered_with_the_command_that_builds_it(engine, capsys):
    text = refused(capsys, "run", "--flavor", "cuda", "true")
    assert "there is no image puffertank:cuda yet" in text
    assert text.splitlines()[1].strip() == "python3 -m puffertank build --flavor cuda"


def test_the_flavour_that_was_built_is_taken(engine):
    engine.set(images=["puffertank:cuda"])
    assert main(["run", "true"]) == 0
    assert engine.asked("run")[0][-2:] == ["puffertank:cuda", "true"]


@pytest.mark.parametrize("code", [0, 1, 3, 125])
def test_the_exit_code_is_that_of_the_command(engine, code):
    engine.set(exit=code)
    assert main(["run", "anything"]) == code


def test_the_command_is_handed_on_as_it_is(engine):
    assert main(["run", "make", "train", "ENV=nethack", "ARGS=--train.seed 3"]) == 0
    words = engine.asked("run")[0]
    assert words[words.index("puffertank:cpu") + 1 :] == [
        "make", "train", "ENV=nethack", "ARGS=--train.seed 3",
    ]  # fmt: skip
    assert main(["run", "--", "ls", "--all"]) == 0
    assert engine.asked("run")[1][-2:] == ["ls", "--all"]


def test_without_a_command_there_is_nothing_to_run(engine, capsys):
    assert "there is no command" in refused(capsys, "run")


def test_the_checkout_is_mounted_and_files_belong_to_the_caller(engine):
    assert main(["run", "true"]) == 0
    words = engine.asked("run")[0]
    assert flags(words, "--volume") == [f"{ROOT}:/workspace"]
    assert flags(words, "--workdir") == ["/workspace"]
    assert flags(words, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert flags(words, "--shm-size") == ["8g"]
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert flags(words, "--ulimit") == [f"nofile={files}:{files}"]
    assert {"--rm", "--init", "--interactive"} <= set(words) and "--tty" not in words
    assert flags(words, "--pull") == ["never"]


def test_rootless_docker_maps_its_root_to_the_caller(engine):
    engine.set(info={"SecurityOptions": ["name=seccomp", "name=rootless"]})
    assert main(["run", "true"]) == 0
    words = engine.asked("run")[0]
    assert flags(words, "--user") == ["0:0"] and "--ulimit" not in words


@pytest.mark.parametrize("uid, mapped", [(0, []), (1234, ["keep-id"])])
def test_podman_keeps_the_id_of_the_caller(engine, monkeypatch, uid, mapped):
    engine.set(version="podman version 4.3.1")
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert main(["run", "true"]) == 0
    words = engine.asked("run")[0]
    assert flags(words, "--userns") == mapped
    assert flags(words, "--user") == [f"{uid}:{os.getgid()}"]
    assert flags(words, "--security-opt") == ["label=disable"]
    assert "--ulimit" not in words


def test_gpus_are_handed_over_only_where_there_are_some(engine, monkeypatch, capsys):
    engine.set(images=["puffertank:cuda", "puffertank:cpu"])
    assert main(["run", "--flavor", "cuda", "true"]) == 0
    assert "--gpus" not in engine.asked("run")[-1]
    smi = engine.folder / "bin/nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    smi.chmod(0o755)
    assert main(["run", "true"]) == 0
    assert "puffertank:cuda" in engine.asked("run")[-1]
    assert "--gpus" not in engine.asked("run")[-1]
    assert "cannot hand it over" in capsys.readouterr().err
    engine.set(info={"Runtimes": {"runc": {}, "nvidia": {}}})
    assert main(["run", "true"]) == 0
    assert flags(engine.asked("run")[-1], "--gpus") == ["all"]
    assert "memlock=-1:-1" in flags(engine.asked("run")[-1], "--ulimit")
    for words in (["--no-gpu"], ["--flavor", "cpu"]):
        assert main(["run", *words, "true"]) == 0
        assert "--gpus" not in engine.asked("run")[-1]


def test_a_broken_driver_is_no_gpu(engine):
    engine.set(images=["puffertank:cuda"], info={"Runtimes": {"nvidia": {}}})
    smi = engine.folder / "bin/nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    smi.chmod(0o755)
    assert main(["run", "true"]) == 0
    assert "--gpus" not in engine.asked("run")[-1]


def test_windows_open_where_there_is_a_display(engine, monkeypatch, tmp_path):
    key = tmp_path / "key"
    key.write_text("")
    monkeypatch.setenv("DISPLAY", "localhost:10.0")
    monkeypatch.setenv("XAUTHORITY", str(key))
    assert main(["run", "true"]) == 0
    words = engine.asked("run")[-1]
    assert "DISPLAY" in flags(words, "--env")
    assert flags(words, "--network") == ["host"]
    assert f"{key}:/tmp/.Xauthority:ro" in flags(words, "--volume")
    assert main(["run", "--no-display", "true"]) == 0
    assert "DISPLAY" not in engine.asked("run")[-1]


def test_a_wayland_socket_is_mounted(engine, monkeypatch, tmp_path):
    monkeypatch.setenv("WAYLAND_DISPLAY", "w")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # The path of a socket must be short.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("w")
        assert main(["run", "true"]) == 0
    words = engine.asked("run")[-1]
    assert f"{tmp_path / 'w'}:/tmp/wayland-0" in flags(words, "--volume")
    assert "WAYLAND_DISPLAY=wayland-0" in flags(words, "--env")


def test_only_free_ports_are_published_and_only_to_this_machine(engine, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(launcher, "PORTS", (port,))
        assert main(["run", "true"]) == 0
        assert "--publish" not in engine.asked("run")[-1]
    assert main(["run", "true"]) == 0
    assert flags(engine.asked("run")[-1], "--publish") == [f"127.0.0.1:{port}:{port}"]
    assert main(["run", "--port", "7007", "true"]) == 0
    assert flags(engine.asked("run")[-1], "--publish") == ["127.0.0.1:7007:7007"]


def test_values_of_variables_stay_out_of_the_command_line(engine, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert main(["run", "--env", "A=b", "true"]) == 0
    words = engine.asked("run")[-1]
    assert {"WANDB_API_KEY", "A=b"} <= set(flags(words, "--env"))
    assert not any("secret" in word for word in words)


def test_a_dry_run_runs_nothing(engine, capsys):
    assert main(["run", "--dry-run", "echo", "two words"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("puffertank:cpu echo 'two words'")
    assert not engine.asked("run")


def test_the_tests_are_make_test(engine):
    assert main(["test", "--", "-k", "two words"]) == 0
    assert engine.asked("run")[-1][-3:] == ["make", "test", "ARGS=-k 'two words'"]


def test_the_doctor_runs_in_the_tank(engine):
    assert main(["doctor", "nethack", "--quick", "--json", "--timeout", "9"]) == 0
    words = engine.asked("run")[-1]
    assert words[words.index("puffertank:cpu") + 1 :] == [
        "/opt/tank/bin/python", "-m", "puffertank", "doctor", "nethack", "--quick", "--json",
        "--timeout", "9.0",
    ]  # fmt: skip


def test_the_tank_starts_no_tank(engine, monkeypatch, capsys):
    monkeypatch.setenv("PUFFERTANK", "cpu")
    assert "this is the tank already" in refused(capsys, "run", "true")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command_once_and_its_exit_code_comes_back(engine, number):
    engine.set(waits=True)
    with launch("sleep", "1000") as launched:
        assert launched.stdout.readline() == "started\n"
        launched.send_signal(number)
        assert launched.communicate(timeout=60) == ("", "")
    assert launched.returncode == 128 + number
    name = flags(engine.asked("run")[0], "--name")[0]
    assert [words[2:] for words in engine.asked("kill")] == [
        ["--signal", number.name.removeprefix("SIG"), name]
    ]


def test_a_build_names_its_flavour_base_and_context(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(sources, "collect_certificates", lambda target: [])
    monkeypatch.setattr(sources, "collect_wheels", lambda target, locks: [])
    engine.set(images=["debian:bookworm-slim"])
    assert main(["build"]) == 0
    words = engine.asked("build")[0]
    assert flags(words, "--build-arg") == ["FLAVOR=cpu", "BASE_IMAGE=debian:bookworm-slim"]
    assert flags(words, "--tag") == ["puffertank:cpu"]
    assert flags(words, "--network") == ["host"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"org.opencontainers.image.version={version}" in flags(words, "--label")
    assert words[-1] == str(ROOT)
    assert main(["build", "--flavor", "cuda", "--base-image", "mine:1"]) == 0
    assert flags(engine.asked("build")[1], "--build-arg") == ["FLAVOR=cuda", "BASE_IMAGE=mine:1"]


def test_a_base_that_was_made_here_is_taken_where_none_can_be_pulled(engine, monkeypatch):
    monkeypatch.setattr(sources, "collect_certificates", lambda target: [])
    monkeypatch.setattr(sources, "collect_wheels", lambda target, locks: [])
    engine.set(images=[launcher.OWN_BASE])
    assert main(["build"]) == 0
    assert f"BASE_IMAGE={launcher.OWN_BASE}" in flags(engine.asked("build")[0], "--build-arg")


def test_clean_removes_what_was_made_and_asks_before(engine, capsys):
    engine.set(containers="abc\n")
    assert "say so" in refused(capsys, "clean")
    assert not engine.asked("rm")
    assert main(["clean", "--yes"]) == 0
    assert engine.asked("rm")[0][2:] == ["--force", "abc"]
    assert [words[2:] for words in engine.asked("image") if words[2] == "rm"] == [
        ["rm", "puffertank:cpu"]
    ]
    engine.set(containers="", images=[])
    assert main(["clean"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["build", "shell", "run", "test", "doctor", "clean"])
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0 and f"puffertank {verb}" in capsys.readouterr().out


# ---- what a build takes from this machine ----


def test_local_certificates_are_copied_once_and_stale_ones_removed(tmp_path):
    target, local = tmp_path / "certs", tmp_path / "local"
    target.mkdir()
    local.mkdir()
    (target / "host-7.crt").write_text("old")
    (target / "mine.crt").write_text("mine")
    (local / "a.crt").write_text("A")
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("B")
    environ = {"PIP_CERT": str(bundle), "SSL_CERT_FILE": str(bundle), "CURL_CA_BUNDLE": "/none"}
    environ["PIP_CONFIG_FILE"] = os.devnull
    taken = sources.collect_certificates(target, environ=environ, local=local)
    assert taken == [bundle, local / "a.crt"]
    assert {p.name: p.read_text() for p in target.iterdir()} == {
        "host-0.crt": "B",
        "host-1.crt": "A",
        "mine.crt": "mine",
    }


def test_only_wheels_that_a_lock_pins_are_copied(tmp_path):
    wheels, locks = tmp_path / "wheels", tmp_path / "locks"
    wheels.mkdir()
    locks.mkdir()
    (locks / "torch-cpu.txt").write_text("torch==2.13.0\nfoo-bar==1.0 \\\n    --hash=sha256:0\n")
    for name in ("torch-2.13.0+cpu", "torch-2.12.0+cpu", "foo_bar-1.0", "other-1"):
        (wheels / f"{name}-py3-none-any.whl").write_text(name)
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nfind-links = {wheels}\n")
    taken = sources.collect_wheels(
        tmp_path / "target", locks, environ={"PIP_CONFIG_FILE": str(config)}
    )
    names = ["foo_bar-1.0-py3-none-any.whl", "torch-2.13.0+cpu-py3-none-any.whl"]
    assert [path.name for path in taken] == names
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == names


# ---- a real engine ----


def real(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "puffertank", *words],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tank():
    """Skips where there is no engine or no image, as in the tank itself."""
    if "PUFFERTANK" in os.environ:
        pytest.skip("this is the tank itself")
    done = real("run", "true")
    if done.returncode and done.stderr.startswith("puffertank: "):
        pytest.skip(done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stderr


def test_in_the_tank_files_belong_to_the_caller(tank, tmp_path):
    done = real("run", "--volume", f"{tmp_path}:/mnt", "sh", "-c", "touch /mnt/x && touch ~/y")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x").stat().st_uid == os.getuid()


def test_in_the_tank_the_exit_code_comes_back(tank):
    assert real("run", "sh", "-c", "exit 37").returncode == 37


def test_in_the_tank_an_interrupt_ends_the_container(tank):
    script = "trap 'echo ended; exit 9' INT; echo started; while :; do sleep 0.1; done"
    with launch("bash", "-c", script) as launched:
        assert launched.stdout.readline() == "started\n"
        launched.send_signal(signal.SIGINT)
        assert launched.communicate(timeout=60) == ("ended\n", "")
    assert launched.returncode == 9
