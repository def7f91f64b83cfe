"""The verbs of `python3 -m puffertank`: build the image, run in it, check it, remove it."""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

from puffertank import ROOT, TankError, doctor, sources
from puffertank.engine import NAMES, Engine, find_engine, has_gpu

FLAVORS = ("cpu", "cuda")
IMAGE = "puffertank"
LABEL = "puffertank"
BASE_IMAGE, OWN_BASE = "debian:bookworm-slim", "puffertank-base:bookworm"
WORKSPACE = "/workspace"
TANK_PYTHON = "/opt/tank/bin/python"
PORTS = (6006, 8000)  # TensorBoard, the live page.
SHARED_MEMORY, OPEN_FILES = "8g", 65536
# Handed on where they are set. Values stay out of the command line, which others can read.
HANDED_ON = (
    "TERM", "COLORTERM", "NO_COLOR", "CI", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "WANDB_API_KEY", "WANDB_MODE",
)  # fmt: skip


def main(words: list[str] | None = None) -> int:
    """Run one verb → its exit code."""
    args = make_parser().parse_args(words)
    if "command" in args and args.command[:1] == ["--"]:
        del args.command[0]
    try:
        return args.do(args)
    except TankError as error:
        print(f"puffertank: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m puffertank",
        description="Build and use the container in which every pinned environment runs.",
    )
    verbs = parser.add_subparsers(metavar="verb", required=True)

    def verb(name, do, sentence, *, with_engine=True):
        new = verbs.add_parser(name, help=sentence, description=sentence)
        new.set_defaults(do=do)
        if with_engine:
            new.add_argument("--engine", choices=NAMES, help="default: the one that is there")
        return new

    def flavored(name, do, sentence, **options):
        new = verb(name, do, sentence, **options)
        new.add_argument("--flavor", choices=FLAVORS, help="default: cuda with an NVIDIA GPU")
        return new

    def running(name, do, sentence):
        new = flavored(name, do, sentence)
        new.add_argument("--no-gpu", action="store_true", help="leave the GPUs out")
        new.add_argument("--no-display", action="store_true", help="open no windows")
        new.add_argument(
            "--port", type=int, action="append", metavar="N",
            help=f"publish a port to this machine (default: the free ones of {PORTS})",
        )  # fmt: skip
        new.add_argument(
            "--volume", action="append", default=[], metavar="HERE:THERE", help="mount a folder"
        )
        new.add_argument(
            "--env", action="append", default=[], metavar="NAME[=VALUE]", help="set a variable"
        )
        new.add_argument(
            "--shm-size", default=SHARED_MEMORY, metavar="SIZE", help="default: %(default)s"
        )
        new.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
        return new

    new = flavored("build", build, "Build the image.")
    new.add_argument("--no-cache", action="store_true", help="build every layer anew")
    new.add_argument("--pull", action="store_true", help="look for a newer base image first")
    new.add_argument("--base-image", metavar="IMAGE", help=f"default: {BASE_IMAGE}")
    new.add_argument("--dry-run", action="store_true", help="print the command, run nothing")

    running("shell", shell, "Open a shell in the tank; this checkout is /workspace.")
    new = running("run", run, "Run a command in the tank: run make train ENV=nethack")
    new.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD ...")
    new = running("test", test, "Run the tests in the tank: test, or test -- -k nethack")
    new.add_argument("command", nargs=argparse.REMAINDER, metavar="-- ARGS", help="of pytest")

    new = flavored("doctor", check, "Step every pinned environment and say what works.")
    doctor.add_arguments(new)
    new = verb("clean", clean, "Remove the images and containers of the tank.")
    new.add_argument("--yes", action="store_true", help="do not ask")
    return parser


# ---- build ----


def build(args: argparse.Namespace) -> int:
    """Build the image of a flavour."""
    engine = find_engine(args.engine)
    flavor = args.flavor or ("cuda" if has_gpu() else "cpu")
    if not args.dry_run:
        taken = sources.collect_certificates(ROOT / "docker/certs")
        taken += sources.collect_wheels(ROOT / "docker/wheels", ROOT / "docker/locks")
        for path in taken:
            print(f"puffertank: handing to the build: {path}", file=sys.stderr)
    base = args.base_image or (BASE_IMAGE if args.dry_run else find_base(engine))
    command = [
        engine.command, "build", "--network", "host",
        "--file", str(ROOT / "docker/Dockerfile"), "--tag", f"{IMAGE}:{flavor}",
        "--build-arg", f"FLAVOR={flavor}", "--build-arg", f"BASE_IMAGE={base}",
        *pairs("--label", [f"org.opencontainers.image.{what}" for what in describe_checkout()]),
        *(["--no-cache"] if args.no_cache else []), *(["--pull"] if args.pull else []), str(ROOT),
    ]  # fmt: skip
    if args.dry_run:
        print(shlex.join(command))
        return 0
    return subprocess.run(command).returncode


def describe_checkout() -> list[str]:
    """Version and revision of this checkout, as `version=0.1.0`; what is unknown is left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = [f"version={project['version']}"]
    if shutil.which("git"):
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        asked = subprocess.run(command, capture_output=True, text=True)
        known += [f"revision={asked.stdout.strip()}"] if asked.returncode == 0 else []
    return known


def find_base(engine: Engine) -> str:
    """The base image's name: Debian's, or one made here where that cannot be pulled."""
    if engine.has_image(BASE_IMAGE):
        return BASE_IMAGE
    if engine.has_image(OWN_BASE):
        return OWN_BASE
    if engine.ask("pull", BASE_IMAGE).returncode == 0:
        return BASE_IMAGE
    print(f"puffertank: {BASE_IMAGE} cannot be pulled; making a base here", file=sys.stderr)
    if subprocess.run([ROOT / "docker/bootstrap", engine.command, OWN_BASE]).returncode:
        raise TankError(
            f"there is no base image: {BASE_IMAGE} cannot be pulled and docker/bootstrap failed; "
            "name one that you have:\n  python3 -m puffertank build --base-image IMAGE"
        )
    return OWN_BASE


# ---- run ----


def shell(args: argparse.Namespace) -> int:
    """An interactive shell."""
    return run_in_tank(args, ["bash"])


def run(args: argparse.Namespace) -> int:
    """Any command."""
    if not args.command:
        raise TankError("there is no command; as in: python3 -m puffertank run make train")
    return run_in_tank(args, args.command)


def test(args: argparse.Namespace) -> int:
    """`make test`."""
    more = [f"ARGS={shlex.join(args.command)}"] if args.command else []
    return run_in_tank(args, ["make", "test", *more])


def check(args: argparse.Namespace) -> int:
    """The doctor, in the tank unless this is the tank or `--local` says otherwise."""
    if args.local or "PUFFERTANK" in os.environ:
        return doctor.run(args)
    options = {"no_gpu": False, "no_display": True, "port": [], "volume": [], "env": []}
    options |= {"shm_size": SHARED_MEMORY, "dry_run": False, "flavor": args.flavor}
    there = argparse.Namespace(**options, engine=args.engine)
    words = [TANK_PYTHON, "-m", "puffertank", "doctor", *doctor.to_words(args)]
    return run_in_tank(there, words)


def run_in_tank(args: argparse.Namespace, command: list[str]) -> int:
    """Run `command` in a container of its own → its exit code.

    SIGINT, SIGTERM and SIGHUP are handed on to the command, each once; the third one kills it.
    """
    if "PUFFERTANK" in os.environ:
        raise TankError("this is the tank already; run the command as it is: " + command[0])
    engine = find_engine(args.engine)
    flavor = find_flavor(engine, args.flavor)
    name = f"{IMAGE}-{flavor}-{secrets.token_hex(4)}"
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    words = [
        engine.command, "run", "--rm", "--init", "--pull", "never", "--name", name,
        "--label", f"{LABEL}={flavor}", "--no-healthcheck",
        "--interactive", *(["--tty"] if terminal else []),
        "--volume", f"{ROOT}:{WORKSPACE}", "--workdir", WORKSPACE, *user_flags(engine),
        *limit_flags(engine, args.shm_size), *gpu_flags(engine, flavor, wanted=not args.no_gpu),
        *([] if args.no_display else display_flags()), *port_flags(args.port),
        *pairs("--env", [n for n in HANDED_ON if n in os.environ] + args.env),
        *pairs("--volume", args.volume), f"{IMAGE}:{flavor}", *command,
    ]  # fmt: skip
    if args.dry_run:
        print(shlex.join(words))
        return 0
    return wait_for(engine, name, words, terminal=terminal)


def find_flavor(engine: Engine, wanted: str | None) -> str:
    """The flavour to run: the one asked for, else the one that suits and was built."""
    suits = ("cuda", "cpu") if has_gpu() else ("cpu", "cuda")
    for flavor in (wanted,) if wanted else suits:
        if engine.has_image(f"{IMAGE}:{flavor}"):
            return flavor
    flavor = wanted or suits[0]
    raise TankError(
        f"there is no image {IMAGE}:{flavor} yet; build it:\n"
        f"  python3 -m puffertank build --flavor {flavor}"
    )


def user_flags(engine: Engine) -> list[str]:
    """Files that the container leaves belong to the caller."""
    caller = f"{os.getuid()}:{os.getgid()}"
    if engine.kind == "podman":
        # Without label=disable, SELinux forbids the mount; relabelling would change the checkout.
        mapped = ["--userns", "keep-id"] if engine.is_rootless else []
        return [*mapped, "--user", caller, "--security-opt", "label=disable"]
    return ["--user", "0:0" if engine.is_rootless else caller]


def limit_flags(engine: Engine, shared_memory: str) -> list[str]:
    """Shared memory for frameworks that want it, open files for many workers."""
    flags = ["--shm-size", shared_memory]
    if engine.is_rootless or engine.kind == "podman":  # Podman's own limit is high.
        return flags
    # A daemon in a container may not go above its own limit, which is ours as well.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    return [*flags, "--ulimit", f"nofile={files}:{files}"]


def gpu_flags(engine: Engine, flavor: str, *, wanted: bool) -> list[str]:
    """GPUs for the cuda flavour, if there are any; a line where they cannot be handed over."""
    if flavor != "cuda" or not wanted or not has_gpu():
        return []
    flags = engine.gpu_flags
    if flags is None:
        print(
            f"puffertank: this machine has a GPU, but {engine.command} cannot hand it over; "
            "install NVIDIA's container toolkit: apt-get install nvidia-container-toolkit",
            file=sys.stderr,
        )
        return []
    # Pinned memory is wanted where there is a GPU only; a daemon in a container may not raise it.
    return flags if engine.is_rootless else [*flags, "--ulimit", "memlock=-1:-1"]


def display_flags() -> list[str]:
    """Windows of the container on this machine's screen, X11 or Wayland, if there is one."""
    flags = []
    display = os.environ.get("DISPLAY")
    if display:
        flags += ["--env", "DISPLAY"]
        if display.startswith(":") and Path("/tmp/.X11-unix").is_dir():
            flags += ["--volume", "/tmp/.X11-unix:/tmp/.X11-unix"]
        elif not display.startswith("/"):
            flags += ["--network", "host"]  # A display forwarded by ssh listens on localhost.
        key = Path(os.environ.get("XAUTHORITY") or Path.home() / ".Xauthority")
        if key.is_file():
            flags += [
                "--volume",
                f"{key}:/tmp/.Xauthority:ro",
                "--env",
                "XAUTHORITY=/tmp/.Xauthority",
            ]
    name, folder = os.environ.get("WAYLAND_DISPLAY"), os.environ.get("XDG_RUNTIME_DIR")
    if name and folder and (Path(folder) / name).is_socket():
        flags += ["--volume", f"{Path(folder) / name}:/tmp/wayland-0"]
        flags += ["--env", "WAYLAND_DISPLAY=wayland-0", "--env", "XDG_RUNTIME_DIR=/tmp"]
    return flags


def port_flags(asked: list[int] | None) -> list[str]:
    """Ports published for this machine only: those asked for, else the usual ones that are free."""
    ports = [port for port in PORTS if is_free(port)] if asked is None else asked
    return pairs("--publish", [f"127.0.0.1:{port}:{port}" for port in ports])


def is_free(port: int) -> bool:
    """Whether a server may listen on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(engine: Engine, name: str, words: list[str], *, terminal: bool) -> int:
    """Run the engine's client → the command's exit code; signals go to the container itself."""
    # Without a terminal the client gets no signal of its own, so each arrives once. With one it
    # must stay in the foreground, and Ctrl-C is a byte that the container's terminal turns into
    # a signal.
    client = subprocess.Popen(words, start_new_session=not terminal)
    received = []

    def hand_on(number, frame):
        received.append(number)
        word = "KILL" if len(received) > 2 else signal.Signals(number).name.removeprefix("SIG")
        if engine.ask("kill", "--signal", word, name).returncode:
            client.send_signal(number)  # It has not started yet.

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, hand_on) for number in caught}
    try:
        code = client.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def pairs(flag: str, values: list[str]) -> list[str]:
    """The flag before each value."""
    return [word for value in values for word in (flag, value)]


# ---- clean ----


def clean(args: argparse.Namespace) -> int:
    """Remove the containers and images that these verbs made."""
    engine = find_engine(args.engine)
    containers = engine.ask("ps", "--all", "--quiet", "--filter", f"label={LABEL}").stdout.split()
    tags = [f"{IMAGE}:{flavor}" for flavor in FLAVORS] + [OWN_BASE]
    images = [tag for tag in tags if engine.has_image(tag)]
    if not containers and not images:
        print("puffertank: there is nothing to remove")
        return 0
    what = ", ".join([*(f"container {c}" for c in containers), *(f"image {i}" for i in images)])
    if not args.yes:
        if not sys.stdin.isatty():
            raise TankError(
                f"this would remove {what}; say so:\n  python3 -m puffertank clean --yes"
            )
        if input(f"Remove {what}? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    done = [engine.ask("rm", "--force", *containers)] if containers else []
    done += [engine.ask("image", "rm", *images)] if images else []
    for result in done:
        if result.returncode:
            raise TankError(f"not everything could be removed: {result.stderr.strip()}")
    print(f"puffertank: removed {what}")
    return 0
