# Needs python3 with venv, and make. Everything else goes into $(VENV).
#   make demo    what hostgap says about two of the bundled traces
#   make test    lint, types, tests (what CI runs)
#   make lint    lint and types only
#   make bench   the benchmarks
#   make docs    writes docs/rules.md and the JSON schema from the code
#   make rule    begins a new rule: make rule CODE=HG113 NAME=slow-thing
#   make clean   remove what these make
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

# Two installs share one environment. A stamp per install says when it was last made, so a second
# `make` is instant, and `make demo` after `make test` finds the package there already.
RUN    := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench docs rule clean
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

demo: $(RUN)
	@mkdir -p demo
	@echo "== an eager decode loop that reads a scalar every step (H200)"
	@$(BIN)/hostgap analyze sample_traces/eager_item.json.gz --format text --force -o demo/eager_item.json
	@echo
	@echo "== the same model replayed as a CUDA graph"
	@$(BIN)/hostgap analyze sample_traces/cuda_graph.json.gz
	@$(BIN)/hostgap analyze sample_traces/cuda_graph.json.gz --force -o demo/cuda_graph.json
	@echo
	@echo "The figures as JSON: demo/eager_item.json, demo/cuda_graph.json"

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

rule: $(RUN)
	@$(BIN)/python -m hostgap.diagnosis.scaffold "$(CODE)" "$(NAME)"

clean:
	rm -rf $(VENV) build dist demo *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
