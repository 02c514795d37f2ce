# The two commands of the README, and what developers need. Nothing but Python 3.11+ and make.

PYTHON ?= python3
# tests at a time; each holds 1 to 2 GB
TEST_JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# one thread per process, one process per core; the tools of the environment come first
export OMP_NUM_THREADS := 1
# an image may forbid bytecode: each process would compile all that it imports again, torch's 10 s where pip did not
export PYTHONDONTWRITEBYTECODE :=
export PATH := $(CURDIR)/$(BIN):$(PATH)

# pyproject.toml names the command rlvr-debug, which the installation puts into .venv/bin
RUN_ENV := $(VENV)/.train-$(shell cat envs/train.txt pyproject.toml | cksum | tr -d ' ')
TEST_ENV := $(VENV)/.test-$(shell cat envs/train.txt envs/test.txt | cksum | tr -d ' ')
CLI := $(BIN)/rlvr-debug
OF := $(if $(OVERLAY),--overlay $(OVERLAY))
# CORES: as the profile says, which is all of this machine without one
HOW := $(if $(CORES),--cores $(CORES)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(VERBOSE),--verbose)
FAULTS := benchmarks/faults
FAULTS_WORK = $(if $(CASES),$(CASES)/work,$(FAULTS)/work$(if $(SUBSET),-subset))

.PHONY: install run plan track test test-heavy test-deep run-real smoke results model bench bench-faults bench-releases docs lint lock prune unlock clean help

help:  ## list the targets
	@grep -E '^(##|[a-z-]+:.*##)' Makefile | sed -E 's/^## (.*)/\n\1/; s/^([a-z-]+):[^#]*##/  \1\t/' | expand -t 18

## your studies

install: $(TEST_ENV)  ## make .venv with all that is pinned for studies and tests, and this package; nothing is run

run: $(RUN_ENV)  ## run the default study, or OVERLAY=file.yaml's; ALL=1 runs every phase; PROFILE=slurm, gpu or a path
	@$(CLI) run $(HOW) $(OF) $(if $(ALL),--all)

plan: $(RUN_ENV)  ## what the study, or the one of OVERLAY=file.yaml, will run and cost; nothing runs
	@$(CLI) plan $(if $(CORES),--cores $(CORES)) $(OF) $(if $(ALL),--all)
	@$(BIN)/python -m lab.scaling $(OF) $(if $(ALL),--all)

track: $(RUN_ENV)  ## put the study of OVERLAY=file.yaml under DVC, in its own folder; ALL=1 as with run
	@$(CLI) track --overlay $(or $(OVERLAY),$(error OVERLAY is missing, expected a study's overlay)) $(if $(ALL),--all)

prune: $(RUN_ENV)  ## remove runs and logs that params.yaml, or OVERLAY=, no longer names; DRY=1 only says which
	@$(CLI) prune $(OF) $(if $(DRY),--dry-run)

unlock: $(RUN_ENV)  ## remove the lock that a killed study, or that of OVERLAY=, left
	@$(CLI) unlock $(OF)

clean: $(RUN_ENV)  ## remove results and logs, or those of OVERLAY=; what git tracks and the environment stay
	@$(CLI) clean $(OF)

## shipped studies

smoke: $(RUN_ENV)  ## a study of a minute: the case and its controls, 2 seeds, 8 steps
	@$(CLI) run $(HOW) --overlay studies/smoke.yaml

run-real: $(RUN_ENV)  ## the environments on real rows of MuSiQue and GSM8K, which data/real has: a study of a minute
	@$(CLI) run $(HOW) --overlay studies/real.yaml

results: $(TEST_ENV)  ## make all committed results again, each by its study, for hours; ONLY='full original' some of them
	@$(BIN)/python -m lab.results $(ONLY) $(if $(CORES),--cores $(CORES))

## change the project

lint: $(TEST_ENV)  ## style, format and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/snakefmt --check workflow benchmarks \
	  && $(BIN)/snakemake --lint --snakefile workflow/Snakefile

test: $(TEST_ENV)  ## run the tests
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal $(PYTEST)

test-heavy: $(TEST_ENV)  ## run those tests that run whole studies: killed, under DVC, on Slurm, and those that build environments
	@$(BIN)/python -m pytest -m heavy -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST)

test-deep: $(TEST_ENV)  ## run those tests that take over five minutes each, one at a time; not in CI
	@$(BIN)/python -m pytest -m deep $(PYTEST)

docs: $(TEST_ENV)  ## build the pages of docs/ into site/, with all links checked
	@$(BIN)/mkdocs build

lock:  ## pin what pyproject.toml and envs/*.in ask for, without the address of any index
	@envs/lock.sh

model: $(RUN_ENV)  ## build the tiny base model again and compare it with the shipped one
	@$(BIN)/python -m lab.model.build --params params.yaml --out results/model --compare models/tiny

## how right and how fast it is

bench: $(TEST_ENV)  ## sampling and training steps beside Hugging Face generate and TRL
	@$(BIN)/python -m benchmarks.bench_sampling
	@$(BIN)/python -m benchmarks.bench_step

bench-faults: $(TEST_ENV)  ## studies of planted faults, 75 minutes or more on two cores; SUBSET=1: four of them; CASES=folder: yours
	@mkdir -p $(FAULTS_WORK)
	@$(BIN)/snakemake --snakefile $(FAULTS)/Snakefile --directory $(FAULTS_WORK) \
	  --configfile $(FAULTS)/$(if $(SUBSET),subset,config).yaml $(if $(CASES),--config folder=$(abspath $(CASES))) \
	  --cores $(or $(CORES),2) --rerun-incomplete --quiet rules

bench-releases: $(TEST_ENV)  ## check releases of verifiers and TRL, and other packages; ONLY='verifiers 0.1.3' some of them
	@$(BIN)/python -m benchmarks.bench_releases $(if $(ONLY),--only '$(ONLY)')
	@$(BIN)/python -m lab.pages

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $$($(PYTHON) --version), expected Python 3.11 or later (make PYTHON=...)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# a stamp is written last, so that an interrupted installation is taken up again
$(RUN_ENV): envs/train.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q "$$(grep '^uv==' envs/test.txt)" || echo "uv cannot be installed: pip takes its place"
	PYTHONPATH=src $(BIN)/python scripts/install.py train
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.train-*; touch $@

$(TEST_ENV): envs/test.txt $(RUN_ENV)
	PYTHONPATH=src $(BIN)/python scripts/install.py test
	@rm -f $(VENV)/.test-*; touch $@
