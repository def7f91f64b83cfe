#!/bin/sh
# What the CUDA path does and how fast, in about five minutes: benchmarks/gpu_check.sh [PYTHON] > FILE
#
# PYTHON has torch with CUDA, Cython and the dependencies of pyproject.toml; by default it is that
# of .venv (make setup TORCH=cuda). This package is installed into it, from here and offline.
set -eu
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$python" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_arch_list())'
"$python" -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
"$python" -m pytest --quiet tests/numerics
for size in "1024 8192" "4096 32768" "8192 65536"; do
    set -- $size
    for device in cpu cuda; do
        "$python" benchmarks/bench_train.py breakout --json --rounds 3 --train.device "$device" \
            --vec.num-envs "$1" --train.horizon 64 --train.minibatch-size "$2"
    done
done
"$python" -m pufferlib train breakout --train.device cuda --run.dir "$(mktemp -d)/run"
