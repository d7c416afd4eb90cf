# Everything happens inside this folder: packages go to .venv, and the command is then .venv/bin/holdfast.
# Needs Python 3.10 or newer, make and a C compiler. Another Python: make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PRODUCT := $(VENV)/.installed-product
INSTALLED := $(VENV)/.installed-tools
TRACKERS := $(VENV)-trackers/.installed
STRANGERS := $(VENV)-strangers/.installed
RAY := $(VENV)-ray/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell expr $(CORES) + 1)
CHECKED := setup.py src tests benchmarks examples docs
COST := $(filter-out benchmarks/scale.py benchmarks/heal.py benchmarks/healthy.py benchmarks/diagnose.py benchmarks/survive.py benchmarks/survive_training.py benchmarks/drills.py benchmarks/peers.py benchmarks/first_call.py benchmarks/fuzz.py benchmarks/machine.py benchmarks/strangers_healthy.py benchmarks/train_detect.py benchmarks/train_segment.py benchmarks/train_sensors.py benchmarks/collapse.py benchmarks/train_kills.py,$(wildcard benchmarks/*.py))

unexport PYTHONDONTWRITEBYTECODE  # the tests start hundreds of processes, and each would compile all of Holdfast again

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint format pytest test-slow test-gpu test-cluster test-trackers test-ray bench bench-train bench-heal bench-healthy bench-diagnose bench-survive fuzz drills strangers strangers-healthy peers docs clean

help:  ## list what can be made
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(INSTALLED)  ## make .venv and install Holdfast and the test tools into it

demo: $(PRODUCT)  ## train a small real model under Holdfast and look at it
	$(BIN)/holdfast demo

test: lint pytest  ## style, types and all tests

lint: $(INSTALLED)  ## style and types only
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy

format: $(INSTALLED)  ## put the code into the project's format
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

pytest: $(INSTALLED)  ## the tests without style and types; ARGS="tests/unit -k name" narrows them
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(INSTALLED)  ## the tests that take too long for every day
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m slow $(ARGS)

test-gpu: $(INSTALLED)  ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-cluster: $(INSTALLED)  ## trainings on a real Slurm of two nodes on this machine, and torchrun on two network namespaces (minutes; root)
	$(BIN)/python -m pytest -m cluster tests/cluster $(ARGS)

test-trackers: $(TRACKERS)  ## real MLflow, W&B and Trackio, in an environment of their own: they want other versions
	HOLDFAST_TRACKERS_PYTHON=$(CURDIR)/$(VENV)-trackers/bin/python $(BIN)/python -m pytest -m slow tests/faults/test_trackers.py $(ARGS)

test-ray: $(RAY)  ## real Ray and torchft on this machine, in an environment of their own: a worker and a replica are killed (minutes)
	HOLDFAST_RAY_PYTHON=$(CURDIR)/$(VENV)-ray/bin/python $(BIN)/python -m pytest -m cluster tests/cluster/test_ray.py tests/cluster/test_torchft.py $(ARGS)

bench: $(INSTALLED)  ## measure what Holdfast costs, and fail where a bar is missed
	@set -e; for script in $(COST); do echo "== $$script"; $(BIN)/python "$$script"; done

bench-train: $(INSTALLED)  ## holdfast train: killed at random 50 times, and against the Hugging Face Trainer (half an hour; a GPU)
	$(BIN)/python benchmarks/train_kills.py
	$(BIN)/python benchmarks/train_detect.py $(ARGS)

bench-heal: $(INSTALLED)  ## trainings with a fault put in: without Holdfast they break, with it they heal (half an hour)
	$(BIN)/python benchmarks/heal.py $(ARGS)

bench-healthy: $(INSTALLED)  ## healthy trainings of many kinds: Holdfast must leave them alone (ten minutes)
	$(BIN)/python benchmarks/healthy.py $(ARGS)

bench-diagnose: $(INSTALLED)  ## trainings with a fault put in: is it found, with the right cause (minutes)
	$(BIN)/python benchmarks/diagnose.py $(ARGS)

bench-survive: $(INSTALLED)  ## 200 random faults (hang, kill, worker kill, stop, exception, full disk) under heal: all survive (half an hour)
	$(BIN)/python benchmarks/survive.py $(ARGS)

fuzz: $(INSTALLED)  ## 10,000 damaged checkpoints and data sets: no crash, no hang, little memory, nothing executed (minutes)
	$(BIN)/python benchmarks/fuzz.py $(ARGS)

drills: $(INSTALLED)  ## the drill suite: every fault in every training, and healthy runs; writes docs/scoreboard.md (hours)
	$(BIN)/python benchmarks/drills.py $(ARGS)

strangers: $(INSTALLED)  ## drills in the loops of public packages, as far as they are installed
	$(BIN)/python benchmarks/strangers.py $(ARGS)

strangers-healthy: $(STRANGERS)  ## trainings of public packages, in an environment of their own: recorded, bit-equal, left alone (half an hour)
	$(VENV)-strangers/bin/python benchmarks/strangers_healthy.py $(ARGS)

peers: $(INSTALLED)  ## the same faults under other tools; writes docs/scoreboard.md (half an hour)
	$(BIN)/python benchmarks/peers.py $(ARGS)

docs: $(INSTALLED)  ## write the generated pages again
	$(BIN)/python -m holdfast.signals.describe docs/recording.md
	$(BIN)/python -m holdfast.inside.taps.registry docs/capture.md
	$(BIN)/python -m holdfast.diagnosis.describe docs/failures

clean:  ## remove .venv and everything else that was made here, but no runs
	rm -rf $(VENV) $(VENV)-trackers $(VENV)-strangers $(VENV)-ray build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache lightning_logs
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Two sets: what a user needs, and what the tests need on top. Each is made again whenever the dependencies change. The marks
# are set last: an interrupted install is not taken for one.
$(PRODUCT): pyproject.toml setup.py constraints.txt src/holdfast/inside/gradients/_by_address.c src/holdfast/probe/attach/_enter.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: Holdfast needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "  fix: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[demo]'
	@touch $@

$(INSTALLED): $(PRODUCT)
	$(INSTALL) -e '.[test]'
	@touch $@

# What is not found there is taken from .venv, torch above all.
$(TRACKERS): $(INSTALLED)
	$(PYTHON) -m venv $(VENV)-trackers
	$(BIN)/python -c 'import holdfast, pathlib, torch; [print(pathlib.Path(m.__file__).parents[1]) for m in (holdfast, torch)]' \
	  > $$($(VENV)-trackers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	$(VENV)-trackers/bin/python -m pip install --quiet --disable-pip-version-check mlflow trackio wandb
	@touch $@

$(STRANGERS): benchmarks/strangers/requirements.txt pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-strangers
	$(VENV)-strangers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -r $<
	@touch $@

$(RAY): $(INSTALLED)
	$(PYTHON) -m venv $(VENV)-ray
	$(BIN)/python -c 'import holdfast, pathlib, torch; [print(pathlib.Path(m.__file__).parents[1]) for m in (holdfast, torch)]' \
	  > $$($(VENV)-ray/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	$(VENV)-ray/bin/python -m pip install --quiet --disable-pip-version-check 'ray[train]' opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
	$(VENV)-ray/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchft-nightly
	@touch $@
