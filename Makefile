# The verbs of this repository; `make help` lists them, and continuous integration calls the same.
#
#   make train ENV=pong ARGS="--train.total-timesteps 1e6"
#
# The first verb that needs it makes .venv: exact pins from docker/locks, then this package,
# editable. It is made again when a pin, the package's metadata or the compiled core changes.
# Inside the tank, where PUFFERTANK is set, all of that is in the image already.

PYTHON ?= python3
VENV ?= .venv
ENV ?= breakout
ARGS ?=
CMD ?= make test
FLAVOR ?=
TORCH ?= $(if $(shell command -v nvidia-smi),cuda,cpu)

BIN := $(VENV)/bin
LOCKS := docker/locks/base.txt docker/locks/torch-$(TORCH).txt
PINS := $(VENV)/.pins-$(TORCH)
READY := $(if $(PUFFERTANK),,$(VENV)/.ready)
TANK := $(PYTHON) -m puffertank
CORE := pyproject.toml setup.py $(wildcard pufferlib/native/*.pyx pufferlib/native/*.pxd pufferlib/native/*.h)

.DEFAULT_GOAL := help
.PHONY: help setup build train eval play test test-fast test-slow asan lint lock bench image shell \
	tank doctor clean

help: ## List the verbs.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with the exact pins and this package in it; at once if it is there.
	@:

build: $(READY) ## Compile the core and every native environment.
	@$(BIN)/puffer build

train: $(READY) ## Train: make train ENV=breakout ARGS="--train.total-timesteps 1e6"
	@$(BIN)/puffer train $(ENV) $(ARGS)

eval: $(READY) ## Evaluate the latest checkpoint of ENV.
	@$(BIN)/puffer eval $(ENV) $(ARGS)

play: $(READY) ## Play ENV by keyboard.
	@$(BIN)/puffer play $(ENV) $(ARGS)

test: $(READY) ## Every test but the slow ones.
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-fast: $(READY) ## The unit and contract tests that take seconds.
	@$(BIN)/python -m pytest -m "not slow" $(wildcard tests/unit tests/contract) $(ARGS)

test-slow: $(READY) ## The slow tests: learning, packaging, long runs.
	@$(BIN)/python -m pytest -m slow $(ARGS)

asan: ## Step every native environment under the address and undefined-behaviour sanitizers.
	@tests/native/asan $(wildcard envs/*/)

lint: $(READY) ## Lint, formatting, types.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

lock: $(READY) ## Resolve the pins of docker/locks anew, with the hashes of every file.
	@docker/locks/update $(BIN)

bench: $(READY) ## Measure the environments and the trainer.
	@$(BIN)/python benchmarks/bench_env.py $(ARGS)
	@$(BIN)/python benchmarks/bench_train.py $(ARGS)

image: ## Build the tank's image: make image FLAVOR=cpu
	@$(TANK) build $(if $(FLAVOR),--flavor $(FLAVOR)) $(ARGS)

shell: ## Open a shell in the tank.
	@$(TANK) shell $(if $(FLAVOR),--flavor $(FLAVOR)) $(ARGS)

tank: ## Run a command in the tank: make tank CMD="make train ENV=nethack"
	@$(TANK) run $(if $(FLAVOR),--flavor $(FLAVOR)) $(ARGS) $(CMD)

doctor: ## Step every pinned environment in the tank and say what works.
	@$(TANK) doctor $(if $(FLAVOR),--flavor $(FLAVOR)) $(ARGS)

clean: ## Remove what was built; .venv and runs stay.
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis $(READY)
	@rm -f pufferlib/native/core.c pufferlib/native/exchange.c pufferlib/native/packing.c pufferlib/native/*.so
	@find pufferlib envs tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(PINS): $(LOCKS) docker/locks/machine
	@PYTHON=$(PYTHON) docker/locks/machine
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the pins of $(LOCKS)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--require-hashes -r docker/locks/base.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docker/locks/torch-$(TORCH).txt
	@rm -f $(VENV)/.pins-* && touch $@

$(READY): $(PINS) $(CORE)
	@echo "building the package"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	@touch $@
