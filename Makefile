# Every target makes its own virtual environment. PYTHON chooses the interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
COMPILED := build/compiled

.PHONY: setup demo test slow check bench compiled fuzz clean

setup: $(READY)

$(READY): pyproject.toml setup.py tests/peers/package.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pairbus needs Python 3.11 or newer; try: make PYTHON=python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@for extra in proton fuzz; do \
	    $(BIN)/python -m pip install --quiet --editable ".[$$extra]" >$(VENV)/$$extra.log 2>&1 \
	    || echo "not installed: the extra '$$extra' (see $(VENV)/$$extra.log); what needs it is skipped"; done
	@npm install --silent --no-fund --no-audit --no-package-lock --prefix tests/peers >$(VENV)/npm.log 2>&1 \
	    || echo "not installed: rhea, by npm (see $(VENV)/npm.log); what needs it is skipped"
	@touch $@

demo: $(READY)
	@$(BIN)/python -m pairbus.cli.demo

# On a laptop the slow tests are left out; `make slow` runs them, and so does `make test` when CI=true.
test: $(READY)
	$(BIN)/pytest $(if $(filter true,$(CI)),,-m "not slow")

slow: $(READY)
	$(BIN)/pytest -m slow

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compiled: $(COMPILED)/.ready

$(COMPILED)/.ready: $(READY) setup.py $(wildcard src/pairbus/wire/*.py)
	@echo "compiling with mypyc …"
	@rm -rf $(COMPILED)
	@PAIRBUS_COMPILE=1 $(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --target $(COMPILED) .
	@touch $@

bench: $(READY) compiled
	@$(BIN)/python -m benchmarks

fuzz: $(READY)
	$(BIN)/python tests/fuzz/fuzz_wire.py -runs=$(or $(RUNS),1000000)

clean:
	rm -rf $(VENV) build dist tests/peers/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis
