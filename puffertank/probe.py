"""What the doctor runs in processes of their own, each under the interpreter that it examines.

`python probe.py RESULT VERB WORD ...` writes JSON to the file RESULT, with what the function of
the verb returns or why it could not; whatever it prints is for the doctor to show if it fails.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
import tomllib
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

STEPS = 200
KERNEL = b'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }'
THREADS = 32


def list_environments(*names: str) -> list[dict]:
    """The environments, by default all that are registered, with what their configs tell us."""
    from pufferlib import registry

    found = []
    for name in names or registry.names():
        entry = registry.find(name)
        text = entry.config_path.read_text() if entry.config_path.is_file() else ""
        tables = tomllib.loads(text)
        package, doctor = tables.get("package", {}), tables.get("doctor", {})
        found.append(
            {
                "name": entry.name,
                "source": name,
                "native": entry.is_native,
                "requires": package.get("requires", []),
                "venv": package.get("venv"),
                "cases": doctor.get("cases", [{}]),
                "steps": doctor.get("steps", STEPS),
            }
        )
    return found


def find_versions(*names: str) -> dict[str, str | None]:
    """The installed version of each distribution, None where it is missing."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def step_case(name: str, parameters: str, steps: str) -> dict:
    """Make, reset, step at random, close."""
    from pufferlib import vector

    begun = time.perf_counter()
    with vector.make(name, env_kwargs=json.loads(parameters), num_envs=1, seed=1) as vecenv:
        vecenv.action_space.seed(1)
        vecenv.reset(seed=1)
        start = time.perf_counter()
        for _ in range(int(steps)):
            vecenv.step(vecenv.action_space.sample())
        took = time.perf_counter() - start
        agents = vecenv.num_agents
    return {"start_s": start - begun, "steps_per_s": int(steps) / took, "agents": agents}


def examine_torch() -> dict:
    """Version, CUDA, architectures, compiler; with a GPU, what it is and whether it computes."""
    import torch

    facts: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "architectures": torch._C._cuda_getArchFlags() if torch.version.cuda else None,
        "available": torch.cuda.is_available(),
        "devices": [],
    }
    if torch.version.cuda:
        facts["nvrtc"] = _try(_compile, b"compute_80")
    if facts["available"]:
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            memory = torch.cuda.get_device_properties(index).total_memory
            name = torch.cuda.get_device_name(index)
            facts["devices"].append(
                {"name": name, "capability": f"{major}.{minor}", "memory_bytes": memory}
            )
        facts["torch_kernel"] = _try(_run_torch)
        facts["own_kernel"] = _try(_run_own)
    return facts


def _try(examine, *args) -> dict:
    """{"ok": what `examine` returns} or {"error": why it could not}."""
    try:
        return {"ok": examine(*args)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _run_torch() -> float:
    import torch

    return float((torch.ones(1000, device="cuda") * 2).sum().cpu())


def _run_own() -> str:
    """Compile a kernel of our own for this card and run it on memory of torch."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    code = _build(b"sm_%d%d" % (major, minor))
    numbers = torch.arange(THREADS, dtype=torch.float32, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    argument = ctypes.c_void_p(numbers.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p))
    _check("cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), code))
    _check("cuModuleGetFunction",
           driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"twice"))  # fmt: skip
    torch.cuda.synchronize()
    sizes = (1, 1, 1, THREADS, 1, 1, 0)
    _check("cuLaunchKernel", driver.cuLaunchKernel(kernel, *sizes, None, arguments, None))
    torch.cuda.synchronize()
    if numbers.tolist() != [2.0 * n for n in range(THREADS)]:
        raise RuntimeError(f"the kernel doubled to {numbers.tolist()}")
    return f"sm_{major}{minor}"


def _compile(architecture: bytes) -> str:
    """NVRTC's version, after it has compiled a kernel; needs no GPU."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check("nvrtcVersion", _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    _build(architecture)
    return f"{major.value}.{minor.value}"


def _build(architecture: bytes) -> bytes:
    """The kernel compiled: machine code for sm_NN, PTX for compute_NN."""
    nvrtc, program, size = _nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), KERNEL, b"twice.cu", 0, None, None)
    _check("nvrtcCreateProgram", made)
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=" + architecture)
    _check("nvrtcCompileProgram", nvrtc.nvrtcCompileProgram(program, 1, options))
    kind = "CUBIN" if architecture.startswith(b"sm_") else "PTX"
    _check(f"nvrtcGet{kind}Size", nvrtc[f"nvrtcGet{kind}Size"](program, ctypes.byref(size)))
    code = ctypes.create_string_buffer(size.value)
    _check(f"nvrtcGet{kind}", nvrtc[f"nvrtcGet{kind}"](program, code))
    return code.raw


def _nvrtc() -> ctypes.CDLL:
    """NVRTC as torch's own packages bring it, else the machine's."""
    import torch

    site = Path(torch.__file__).parents[1]
    found = sorted(site.glob("nvidia/*/lib/libnvrtc.so.*"))
    libraries = [path for path in found if "builtins" not in path.name and "alt" not in path.name]
    return ctypes.CDLL(str(libraries[0]) if libraries else "libnvrtc.so")


def _check(what: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{what} answered {code}")


VERBS: dict[str, Callable] = {
    "list": list_environments,
    "versions": find_versions,
    "torch": examine_torch,
    "case": step_case,
}


def main(path: str, verb: str, *words: str) -> int:
    """Run one verb and write what it returns, or its error, to `path`."""
    try:
        code, result = 0, {"ok": VERBS[verb](*words)}
    except Exception as error:
        missing = isinstance(error.__cause__ or error, ModuleNotFoundError)
        # Errors of the library are sentences already.
        ours = type(error).__module__.startswith("pufferlib")
        text = str(error) if ours else f"{type(error).__name__}: {error}"
        trace = traceback.format_exc().splitlines()
        code, result = 1, {"error": text, "missing": missing, "traceback": trace}
    Path(path).write_text(json.dumps(result))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
