# Everything a person runs: `make demo`, `make test`, `make lint`, `make bench`, `make up`, `make clean`.
# Needs make and Python 3.11 or later; the rest is installed into .venv.
#
#   PYTHON=python3.12           the interpreter that .venv is made with
#   TORCH_INDEX=<index url>     an index of CPU wheels of torch; without it pip takes what its own index offers,
#                               which on Linux is the CUDA build (about 3 GB)
PYTHON ?= python3
TORCH_INDEX ?=
GRAMMAR ?= 2

BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
EXTRAS := grammar,worker,demo,test
# Before Python starts: sums do not depend on the batch a row is in.
export MKL_CBWR := AVX2,STRICT

.PHONY: help install demo test lint bench up down clean
.DEFAULT_GOAL := help

help:
	@sed -n '1,/^PYTHON/p' Makefile | sed -n 's/^# \{0,1\}//p'

install: $(STAMP)

$(BIN)/python:
	@echo "install: making .venv with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maskstream needs Python 3.11 or later, not " + sys.version)'
	@$(PYTHON) -m venv .venv

$(STAMP): pyproject.toml requirements/no-deps.txt | $(BIN)/python
	@echo "install: maskstream[$(EXTRAS)] and what it needs (minutes at first, torch is the largest)"
	@$(PIP) -e '.[$(EXTRAS)]'
	@echo "install: packages whose own lists of needs are not followed"
	@$(PIP) -q --no-deps -r requirements/no-deps.txt
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m gpu_worker.models.prepare
	@$(BIN)/maskstream demo

test: $(STAMP)
	@$(BIN)/python -m gpu_worker.models.prepare
	$(BIN)/python -m pytest -m "not gpu and not soak and not compose" $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

up:
	docker compose up --build --wait --scale grammar=$(GRAMMAR)

down:
	docker compose down

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
