"""The command `puffer`: train, eval, play, profile, envs, check, build."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pufferlib import __version__
from pufferlib.config import Config, describe, find, load_config
from pufferlib.exceptions import APIUsageError, PufferError, WorkerError

if TYPE_CHECKING:
    from pufferlib.registry import Entry

DESCRIPTION = "Fast reinforcement learning: train, evaluate and play environments."
ENV = "a registered name (see `puffer envs`) or the folder of an environment"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done, 1 an error told in one line, 2 a command that makes no sense, 130 after SIGINT and
    143 after SIGTERM.
    """
    # Intel's library then sums in an order that does not depend on the number of threads, so that
    # weights do not either; it reads this once, when torch is imported.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    own, flags = split_flags(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    if {"-h", "--help"} & set(own) and own[0] == "train":
        return help_train(parser, own)
    arguments, unknown = parser.parse_known_args(own)
    debug = arguments.debug
    try:
        for flag in unknown:
            if flag.startswith("--"):
                find(flag[2:].partition("=")[0].replace("-", "_"), source=flag)
        if unknown:
            parser.error(f"unexpected: {' '.join(unknown)}")
        if flags and not arguments.takes_settings:
            parser.error(f"puffer {arguments.verb} takes no settings, got {flags[0]}")
        arguments.flags = flags
        arguments.run(arguments)
        sys.stdout.flush()
        return 0
    except WorkerError as error:
        text = str(error).partition("\n\n")[0]  # Behind it stands the worker's traceback.
        hint = " (--debug shows where)" if error.remote_traceback else ""
        return fail(str(error) if debug else text + hint, debug=debug)
    except PufferError as error:
        return fail(str(error), debug=debug)
    except KeyboardInterrupt as stop:
        return leave(str(stop) or "interrupted", getattr(stop, "signum", signal.SIGINT))
    except BrokenPipeError:
        # Whoever read the output has gone; the interpreter must not try to flush it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return fail(text if debug else f"{text} (--debug shows where)", debug=debug)


def fail(message: str, *, debug: bool) -> int:
    """Say what went wrong, in one line unless it quotes a compiler; exit code 1."""
    if debug:
        traceback.print_exc()
    print(f"puffer: error: {message}", file=sys.stderr, flush=True)
    return 1


def leave(message: str, signum: int) -> int:
    """Say why the command ended early; the exit code of a signal."""
    print(f"puffer: {message}", file=sys.stderr, flush=True)
    return 128 + signum


def split_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command that are its own, and those that are settings (`--section.key`)."""
    own: list[str] = []
    flags: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            own.append(word)
            continue
        flags.append(word)
        if not equals and not name.startswith("--no-") and rest and not rest[0].startswith("--"):
            flags.append(rest.pop(0))
    return own, flags


def make_parser() -> argparse.ArgumentParser:
    """The verbs and their options; settings are taken out before by `split_flags`."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument("--config", action="append", default=[], metavar="FILE", help="settings")
    settings.set_defaults(takes_settings=True)

    parser = argparse.ArgumentParser(prog="puffer", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"puffer {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(function, sentence: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        name = function.__name__.removesuffix("_verb")
        made = verbs.add_parser(
            name, help=sentence, description=sentence, parents=[common, *parents],
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        made.set_defaults(run=function)
        if not parents:
            made.set_defaults(takes_settings=False)
        return made

    train = verb(train_verb, "Train a policy and keep all of it in a run's folder.", settings)
    train.add_argument("env", metavar="ENV", help=ENV)
    train.add_argument(
        "--resume", nargs="?", const="latest", metavar="PATH", help="continue a run or a checkpoint"
    )

    evaluate = verb(eval_verb, "Play whole episodes with a trained policy.", settings)
    evaluate.add_argument("env", metavar="ENV", help=ENV)
    evaluate.add_argument(
        "--checkpoint", default="latest", metavar="PATH", help="a checkpoint, a run, or latest"
    )
    evaluate.add_argument("--random", action="store_true", help="take random actions instead")
    evaluate.add_argument("--greedy", action="store_true", help="take the likeliest actions")
    evaluate.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (100)")
    evaluate.add_argument("--seed", type=int, default=0, help="of environments and actions (0)")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    evaluate.add_argument("--gif", metavar="FILE", help="write an episode as a picture as well")

    play = verb(play_verb, "Play an environment by keyboard; q or escape ends.", settings)
    play.add_argument("env", metavar="ENV", help=ENV)
    play.add_argument("--ansi", action="store_true", help="in the terminal instead of a window")
    play.add_argument("--seed", type=int, help="of the environment (really random)")

    profile = verb(profile_verb, "Show where the time of a training goes.", settings)
    profile.add_argument("env", metavar="ENV", help=ENV)
    profile.add_argument("--updates", type=int, default=10, metavar="N", help="measured (10)")
    profile.add_argument("--warmup", type=int, default=2, metavar="N", help="run before (2)")
    profile.add_argument("--json", action="store_true", help="print JSON")
    profile.add_argument(
        "--trace", metavar="FILE", help="write a trace for ui.perfetto.dev as well"
    )

    envs = verb(envs_verb, "List the registered environments.")
    envs.add_argument("--json", action="store_true", help="print JSON")

    check = verb(check_verb, "Hold an environment to the contract.", settings)
    check.add_argument("env", metavar="ENV", help=ENV)

    build = verb(build_verb, "Compile native environments; all registered ones by default.")
    build.add_argument("envs", metavar="ENV", nargs="*", help=ENV)
    return parser


# ---------------------------------------------------------------- verbs; each imports what it uses


def train_verb(arguments: argparse.Namespace) -> None:
    from pufferlib import checkpoint, registry, run

    entry = registry.find(arguments.env)
    config, path = settings_of(entry, arguments), None
    resume = arguments.resume or config.run.resume
    if resume:
        path = run.find_checkpoint(resume, run_dir=config.run.dir, env_name=entry.name)
        meta = checkpoint.load(path, env_name=entry.name).meta
        config = saved_config(meta, path, arguments, keep_dir=False)
    result = run.train(entry, config, resume=path)
    print(run.summarize(result, config))


def eval_verb(arguments: argparse.Namespace) -> None:
    from pufferlib import checkpoint, registry, run

    entry = registry.find(arguments.env)
    config, loaded = settings_of(entry, arguments), None
    if not arguments.random:
        path = run.find_checkpoint(
            arguments.checkpoint, run_dir=config.run.dir, env_name=entry.name
        )
        loaded = checkpoint.load(path, env_name=entry.name)
        config = saved_config(loaded.meta, path, arguments, keep_dir=True)
    options: dict[str, Any] = {"loaded": loaded, "seed": arguments.seed, "greedy": arguments.greedy}
    summary = run.evaluate(entry, config, episodes=arguments.episodes, **options)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        for name, figures in summary.items():
            print("{:<20} {mean:12.3f} ± {std:<12.3f} ({count})".format(name, **figures))
    if arguments.gif:
        run.record_gif(entry, config, arguments.gif, **options)


def play_verb(arguments: argparse.Namespace) -> None:
    from pufferlib import player, registry

    entry = registry.find(arguments.env)
    config = settings_of(entry, arguments)
    with player.open_screen(entry, ansi=arguments.ansi) as screen:
        options = {"screen": screen, "ansi": arguments.ansi, "seed": arguments.seed}
        returns = player.play(entry, config.env, **options)
    for index, value in enumerate(returns):
        print(f"episode {index + 1}: return {value:g}")


def profile_verb(arguments: argparse.Namespace) -> None:
    from pufferlib import ppo, profile, registry, run

    entry = registry.find(arguments.env)
    config = settings_of(entry, arguments)
    vecenv = run.make_vecenv(entry, config)
    try:
        trainer = ppo.create(config, vecenv, run.make_policy(entry, config, vecenv))
        result = profile.measure(trainer, updates=arguments.updates, warmup=arguments.warmup)
    finally:
        vecenv.close()
    if arguments.trace:
        result.write_trace(arguments.trace)
    print(json.dumps(result.to_dict(), indent=2) if arguments.json else result.table())


def envs_verb(arguments: argparse.Namespace) -> None:
    from pufferlib import registry

    rows = []
    for entry in map(registry.find, registry.names()):
        kind = "native" if entry.is_native else "python"
        rows.append({"name": entry.name, "kind": kind, "about": about(entry.folder)})
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("{name:<16} {kind:<8} {about}".format(**row))


def check_verb(arguments: argparse.Namespace) -> None:
    from pufferlib import registry, vector
    from pufferlib.env import check_env
    from pufferlib.vector.conformance import check_backend
    from pufferlib.vector.creation import list_factories

    entry = registry.find(arguments.env)
    config = settings_of(entry, arguments)
    (creator,) = list_factories(entry, None, dict(config.env), 1)
    report = check_env(creator)
    print(f"{entry.name}: one environment keeps the contract ({report.steps} steps)")
    for rule in report.untried:
        print(f"  not tried: {rule}")
    if not entry.is_native and getattr(entry.module(), "ONE_PER_PROCESS", False):
        print("  not tried: backends, as a process can hold only one of these environments")
        return
    alone = "Serial" if entry.python is None else "Multiprocessing"
    for backend in ("Serial", "Native") if entry.is_native else (alone,):
        make = partial(vector.make, backend=backend, overwork=True)
        check_backend(make, creator=entry, env_kwargs=config.env)
        print(f"{entry.name}: {backend} keeps the contract")


def build_verb(arguments: argparse.Namespace) -> None:
    from pufferlib import registry
    from pufferlib.native.build import compile_env

    entries = [registry.find(name) for name in arguments.envs or registry.names()]
    for entry in entries:
        if entry.is_native:
            print(f"{entry.name:<16} {compile_env(entry.folder)}")
        elif arguments.envs:
            raise APIUsageError(f"{entry.name} is not native: there is nothing to compile")


# ---------------------------------------------------------------- what verbs share


def settings_of(entry: Entry, arguments: argparse.Namespace) -> Config:
    """The environment's own settings, under the files and flags of this command."""
    path = entry.config_path
    return load_config(
        entry.name,
        env_config_path=path if path.is_file() else None,
        files=arguments.config,
        overrides=arguments.flags,
    )


def saved_config(
    meta: Mapping[str, Any], path: Path, arguments: argparse.Namespace, *, keep_dir: bool
) -> Config:
    """The settings a checkpoint was trained with, under the files and flags of this command."""
    config = Config.from_toml(meta["config"], source=f"{path.name}/meta.json")
    if not keep_dir:
        config = config.override({"run.dir": "", "run.resume": str(path)}, source="--resume")
    for file in arguments.config:
        config = config.overlay(file)
    return config.override(arguments.flags)


def help_train(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Help of `train` with every setting; with those of the environment if one is named."""
    from pufferlib import registry

    named = [word for word in words[1:] if not word.startswith("-")]
    config, parameters = Config(), ""
    if named:
        entry = registry.find(named[0])
        config = settings_of(entry, argparse.Namespace(config=[], flags=[]))
        for name, kind, initial, low, high, sentence in (
            entry.library.params if entry.is_native else ()
        ):
            value = config.env.get(name, initial)
            parameters += f"\n  {'--env.' + name.replace('_', '-'):<30} {sentence}"
            parameters += f"\n  {'':<30} {kind} from {low:g} to {high:g}; default {value}"
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    train = verbs.choices["train"]
    train.epilog = f"settings, as --section.key value:\n\n{describe(config)}{parameters}"
    train.print_help()
    return 0


def about(folder: Path) -> str:
    """What an environment is, from the first line of its header or of its Python module."""
    header = folder / f"{folder.name}.h"
    if header.is_file():
        found = re.match(r"/\*\s*\w+\s*-\s*(.+)", header.read_text(encoding="utf-8"))
        return found[1].strip(" */") if found else ""
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
