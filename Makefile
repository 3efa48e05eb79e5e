# Every target sets up what it needs: `make report` and `make test` work in a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=
PAIR ?= cogvideox

.PHONY: setup report baseline test test-slow docs docs-figures bench bench-gpu tpu-aot lint format clean

setup: $(STAMP)

# torch first and pinned: an open range would fetch a build for accelerators. No build isolation:
# what builds this package is pinned too.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make: Python 3.11 or newer is needed; say PYTHON=/path/to/python")'
	@test -x $(BIN)/python || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing the pinned packages (constraints.txt); minutes the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch hatchling editables
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation -e '.[dev]'
	@touch $@

report: setup
	$(BIN)/parity run $(PAIR) $(ARGS)

# What `pytest -m parity` holds the ladder to: made anew, and committed, where it may change.
baseline: setup
	$(BIN)/parity run cogvideox --config small --out reports/baseline --quiet
	$(BIN)/parity run kl --config small --out reports/baseline/kl --quiet
	$(BIN)/parity run wan --config small2.2 --size 32x48 --out reports/baseline/wan --quiet

# A process for each core, a file after the other in each: what the tests of a file share is made once.
test: setup
	$(BIN)/python -m pytest -m "not slow" --numprocesses logical --maxprocesses 8 --dist loadfile $(ARGS)

test-slow: setup
	XLA_FLAGS= $(BIN)/python -m pytest -m slow $(ARGS)

# The site, in site/: every link is checked.
docs: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build $(ARGS)

# The measured tables of the documents, or those with a word of ARGS in their command. Minutes, about, on
# 2 cores with nothing beside it: claims 2, measure_r 10, reliability 10, ladder 4, measure_cost 10,
# measure_compiling 5, measure_convolutions 5, bench.cpu 30.
docs-figures: setup
	$(BIN)/python -m tools.tables $(ARGS)

# Alone on the machine: it takes what is running beside it for its own.
bench: setup
	$(BIN)/python -m bench.cpu $(ARGS)

# On a machine with a CUDA build of JAX, of PyTorch, or of both: see `bench/gpu.py`.
bench-gpu: setup
	$(BIN)/python -m bench.gpu $(ARGS)

# The TPU's compiler is a package like others: no TPU is needed. Three minutes on 2 cores.
tpu-aot: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'jax[tpu]'
	$(BIN)/python -m bench.tpu_aot $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv
