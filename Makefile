# Everything a person does with this project. `make` alone lists it.
# PYTHON=/path/to/python3 chooses the interpreter of new environments.

BIN := .venv/bin
BED ?= postgres
KILLS ?= 100
MATRIX ?= 3.11 3.12 3.13 3.14
WORKERS ?= auto

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-storm test-matrix check format bench lock bed-up bed-down bed-status clean

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: ## Make .venv from dev.lock: the product with all extras, and the dev tools
	@sh tools/venv.sh .venv editable dev.lock

demo: ## Start a service of its own, run a real two-step job and show everything about it
	@if [ -x $(BIN)/python ]; then \
		sh tools/venv.sh .venv editable dev.lock && exec $(BIN)/python tools/demo.py; \
	else \
		sh tools/venv.sh .venv-demo plain requirements.lock build.lock && exec .venv-demo/bin/python tools/demo.py; \
	fi

serve: setup ## Run the service on http://127.0.0.1:8080 (ARGS="--port 9000 --data-dir DIR")
	@exec $(BIN)/nemo services run $(ARGS)

test: setup ## Run all tests (ARGS="-k name", WORKERS=0: one by one); as root on Debian install what they need
	@sh tools/test_needs.sh
	@sh tools/test_client.sh $(BIN)/python
	@$(BIN)/pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal $(ARGS)

test-storm: setup ## Kill the service 100 times under load, on SQLite, PostgreSQL, and containers (KILLS=n SEED=n)
	@sh tools/test_needs.sh
	@$(BIN)/python -m tests.storm --database sqlite --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.storm --database postgresql --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	@$(BIN)/python -m tests.storm --backend docker $(if $(SEED),--seed $(SEED))

test-matrix: ## Run the tests on each Python of 3.11 to 3.14 that this machine has (ARGS=…)
	@sh tools/test_needs.sh
	@sh tools/matrix.sh "$(MATRIX)" -n $(WORKERS) --maxprocesses 4 --dist worksteal $(ARGS)

check: setup ## Format, lint, types, layers, sizes, facts in the docs
	@sh tools/check.sh $(BIN)

format: setup ## Format the code and write the generated parts of the docs
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python tools/check_docs.py --write

bench: setup ## Measure against floors in the same run (ARGS="--only latency,throughput --quick")
	@sh tools/test_needs.sh task-spooler
	@$(BIN)/python -m bench.run $(ARGS)

lock: ## Write the lock files from pyproject.toml (UPGRADE=1: take the newest of everything)
	@sh tools/lock.sh $(if $(UPGRADE),--upgrade)

bed-up: setup ## Start a private PostgreSQL or Docker engine to play with (BED=postgres, BED=docker)
	@sh tools/test_needs.sh
	@$(BIN)/python -m tests.bed up $(BED)

bed-down: setup ## Stop it
	@$(BIN)/python -m tests.bed down $(BED)

bed-status: setup ## Say whether it runs, and its address
	@$(BIN)/python -m tests.bed status $(BED)

clean: ## Remove environments, caches and build results
	@rm -rf .venv .venv-demo build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests tools bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
