"""What the adapters of other people's environments share."""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from difflib import get_close_matches

from pufferlib.exceptions import APIUsageError


@contextmanager
def silenced() -> Iterator[None]:
    """Hold back what anyone, C code included, writes to stdout and stderr.

    If the block raises, all of it is shown on stderr. For the short while of an import or a
    construction only: other threads are held back as well.
    """
    with tempfile.TemporaryFile("w+", buffering=1, errors="replace") as held:
        try:
            with ExitStack() as stack:
                for descriptor in (1, 2):
                    stack.callback(_restore, descriptor, os.dup(descriptor))
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                    stack.callback(stream.flush)  # What it buffered goes where it belongs.
                for descriptor in (1, 2):
                    os.dup2(held.fileno(), descriptor)
                stack.enter_context(redirect_stdout(held))
                stack.enter_context(redirect_stderr(held))
                yield
        except BaseException:
            held.seek(0)
            sys.stderr.write(held.read())
            raise


def refuse_unknown(what: str, given: Iterable[object], known: Iterable[object]) -> None:
    """Raise `APIUsageError` with the nearest known name if one of those `given` is not known.

    `what` says what they name: "task", "parameter of CartPole-v1".
    """
    names = {name: str(name) for name in known}
    for name in given:
        if name not in names:
            near = get_close_matches(str(name), names.values(), 1)
            expected = ", ".join(sorted(names.values()))
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {expected}"
            raise APIUsageError(f"there is no {what} {name!r}; {hint}")


def parameters_of(create: Callable) -> set[str]:
    """The names of the parameters that a function, or a class and those it inherits from, takes."""
    makers: list[Callable] = [create]
    if isinstance(create, type):
        makers = [vars(c)["__init__"] for c in inspect.getmro(create) if "__init__" in vars(c)]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name
        for make in makers
        for name, parameter in inspect.signature(make).parameters.items()
        if name != "self" and parameter.kind not in variable
    }


def _restore(descriptor: int, saved: int) -> None:
    os.dup2(saved, descriptor)
    os.close(saved)
