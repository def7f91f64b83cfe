"""Starts a worker in a fresh interpreter: `python -P bootstrap.py SOCKET NATIVE`.

The library is imported from where this file lies, whatever else the interpreter has installed, and
its compiled modules from there or else from NATIVE, the folder where the parent has its own.
"""

import importlib.util
import os
import sys
from pathlib import Path


def adopt(name: str, folder: Path) -> None:
    """Import the package in `folder` under `name`."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    descriptor, native = int(sys.argv[1]), sys.argv[2]
    os.set_inheritable(descriptor, False)
    sys.argv = [""]
    adopt("pufferlib", Path(__file__).resolve().parents[1])
    import pufferlib.native

    pufferlib.native.__path__.append(native)
    from pufferlib.vector.worker import main

    main(descriptor)
