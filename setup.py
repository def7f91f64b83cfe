"""Builds the compiled modules and maps the folders under envs/ to the package pufferlib.envs."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
COMPILED = ["core", "exchange", "packing"]
LIBRARY = ["pufferlib", "pufferlib.native", "pufferlib.vector"]
LIBRARY += [f"pufferlib.{p.parent.name}" for p in ROOT.glob("pufferlib/*/__init__.py")]
ENVS = [p.parent.relative_to(ROOT / "envs") for p in ROOT.glob("envs/**/__init__.py")]

setup(
    packages=sorted(set(LIBRARY)) + [".".join(("pufferlib.envs", *p.parts)) for p in ENVS],
    package_dir={"pufferlib.envs": "envs"},
    package_data={
        "pufferlib": ["*.toml", "py.typed"],
        "pufferlib.native": ["*.h", "*.c", "*.pxd"],
        "pufferlib.envs": ["*/*.h", "*/*.toml", "*/*.md", "*/*.png", "*/*.gif"],
    },
    exclude_package_data={"pufferlib.native": [f"{name}.c" for name in COMPILED]},
    ext_modules=cythonize(
        [
            Extension(
                f"pufferlib.native.{name}",
                [f"pufferlib/native/{name}.pyx"],
                depends=[str(p.relative_to(ROOT)) for p in ROOT.glob("pufferlib/native/*.h")],
                extra_compile_args=[
                    "-O3",
                    "-std=gnu11",
                    "-ffp-contract=off",
                    "-fno-math-errno",
                    "-fno-trapping-math",
                    "-pthread",
                ],
                extra_link_args=["-pthread"],
                libraries=["dl"],
            )
            for name in COMPILED
        ],
        language_level=3,
    ),
)
