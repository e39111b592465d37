# Needs python3 with venv, and make. Everything else goes into $(VENV).
#   make demo    what hostgap says: of the built-in decoder where there is a GPU, else of two traces
#   make test    lint, types, tests (what CI runs)
#   make lint    lint and types only
#   make bench   the benchmarks
#   make docs    writes docs/rules.md and the JSON schema from the code
#   make rule    begins a new rule: make rule CODE=HG113 NAME=slow-thing
#   make clean   remove what these make
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
GPU    := .venv-gpu
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# Two installs share one environment. A stamp per install says when it was last made, so a second
# `make` is instant, and `make demo` after `make test` finds the package there already.
RUN    := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo demo-traces demo-gpu test lint bench docs rule clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

# pip is the last thing venv puts there: without it a half-made environment would pass for a whole one.
$(BIN)/pip:
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(RUN): $(INPUTS) | $(BIN)/pip
	@echo "installing hostgap into $(VENV)"
	@$(PIP) install --quiet --editable . --constraint constraints.txt
	@touch $@

$(DEV): $(INPUTS) | $(BIN)/pip
	@echo "installing hostgap and its development tools into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev]' --constraint constraints.txt
	@touch $(RUN) $@

# Where there is a GPU the built-in decoder is measured on it, by the torch that python3 has, or else
# by one that is installed (some gigabytes); where there is none, two traces of an H200 are read.
demo:
	@if nvidia-smi -L >/dev/null 2>&1; then $(MAKE) --no-print-directory demo-gpu; \
	    else $(MAKE) --no-print-directory demo-traces; fi

demo-traces: $(RUN)
	@mkdir -p demo
	@echo "== an eager decode loop that reads a scalar every step (H200)"
	@$(BIN)/hostgap analyze sample_traces/eager_item.json.gz --format text --force \
	    -o demo/eager_item.json -o demo/eager_item.html
	@echo
	@echo "== the same model replayed as a CUDA graph"
	@$(BIN)/hostgap analyze sample_traces/cuda_graph.json.gz --format text --force \
	    -o demo/cuda_graph.json -o demo/cuda_graph.html
	@echo
	@echo "Open demo/eager_item.html in a browser; the figures as JSON lie beside it."

demo-gpu:
	@test -x $(GPU)/bin/pip || $(PYTHON) -m venv --system-site-packages $(GPU)
	@echo "installing hostgap with torch into $(GPU)"
	@$(GPU)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[torch]'
	@mkdir -p demo
	@$(GPU)/bin/hostgap profile --force -o demo/run
	@$(GPU)/bin/hostgap report demo/run --force -o demo/run.html
	@echo "Open demo/run.html in a browser. What makes it faster: $(GPU)/bin/hostgap fix"

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: lint
	@$(BIN)/python -m pytest

bench: $(DEV)
	@set -e; found=; for script in benchmarks/bench_*.py; do \
	    [ -e "$$script" ] || continue; found=1; echo "== $$script"; $(BIN)/python "$$script"; \
	done; [ -n "$$found" ] || echo "no benchmarks/bench_*.py yet"

docs: $(RUN)
	@$(BIN)/python -m hostgap.diagnosis.explain > docs/rules.md
	@$(BIN)/python -m hostgap.output.json > hostgap/output/diagnosis.schema.json
	@$(BIN)/python -m hostgap.ranks.render > hostgap/ranks/diagnosis-set.schema.json

rule: $(RUN)
	@$(BIN)/python -m hostgap.diagnosis.scaffold "$(CODE)" "$(NAME)"

clean:
	rm -rf $(VENV) $(GPU) build dist demo *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
