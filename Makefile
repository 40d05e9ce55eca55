# Every target creates the virtual environment that it needs. PYTHON selects the interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PACKAGE := $(VENV)/.package
READY  := $(VENV)/.ready
COMPILED := build/compiled
# With a C compiler, the demo and the benchmarks run the compiled build.
COMPILER := $(shell command -v cc || command -v gcc || command -v clang)
CLASSES := build/spark-classes.jsa
# The build of Mermaid without dependencies; docs/diagrams.py reads it from here.
MERMAID := build/mermaid/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js
# Many tests wait for a server or a client, so more of them run in parallel than there are processors.
WORKERS := --numprocesses 4 --dist worksteal
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# LOCKED=1 installs exactly the versions of requirements-dev.txt.
LOCK   := $(if $(LOCKED),--constraint requirements-dev.txt)

# Bytecode is cached: otherwise each of the many processes of a test run compiles every module again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup lock demo test slow compiled-tests check docs bench compiled fuzz model simulate clean

help:
	@echo "make demo      run the demo"
	@echo "make test      run the tests; with CI=true also the slow ones"
	@echo "make slow      run the slow tests"
	@echo "make compiled-tests  run the tests of what is compiled on the compiled build"
	@echo "make check     run ruff, mypy --strict, import-linter and an audit of the dependencies"
	@echo "make docs      build the documentation site, build/site/index.html"
	@echo "make bench     measure speed and memory, also of RabbitMQ, NATS and the Azure SDK"
	@echo "make fuzz      fuzz the AMQP engine; RUNS=… sets the number of inputs"
	@echo "make model     compare the broker with its model; RUNS=… sets the number of runs"
	@echo "make simulate  simulate outages of pairs; SEEDS=… sets the number of runs, SEED=… repeats one of them"
	@echo "make setup     create the virtual environment only; LOCKED=1 installs the versions of requirements-dev.txt"
	@echo "make lock      update requirements-dev.txt"
	@echo "make clean     remove all generated files and the virtual environment"

setup: $(READY)

$(PACKAGE): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pairbus needs Python 3.11 or newer; try: make PYTHON=python3.12 …"; exit 1; }
	@echo "setting up $(VENV): a minute or two, some 1 GB, most of it Spark …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install $(LOCK) --editable '.[server,spark]'
	@touch $@

$(READY): $(PACKAGE) tests/peers/package.json
	@echo "installing the tools for checks and tests: about a minute, some 300 MB …"
	@$(PIP) install --upgrade pip
	@$(PIP) install $(LOCK) --editable '.[server,spark,dev]'
	@for extra in proton fuzz; do \
	    $(PIP) install --editable ".[$$extra]" >$(VENV)/$$extra.log 2>&1 \
	    || echo "not installed: the extra '$$extra' (see $(VENV)/$$extra.log); tests that need it are skipped"; done
	@npm install --silent --no-fund --no-audit --no-package-lock --prefix tests/peers >$(VENV)/npm.log 2>&1 \
	    || echo "not installed: rhea, by npm (see $(VENV)/npm.log); tests that need it are skipped"
	@touch $@

lock: $(READY)
	@$(PIP) install pip-tools
	@{ echo "# Versions of all packages that checks and tests use. LOCKED=1 installs these; \`make lock\` updates this file."; \
	    $(BIN)/pip-compile --quiet --upgrade --extra server --extra ledger --extra spark --extra dev --strip-extras --no-header \
	    --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file - pyproject.toml 2>$(VENV)/lock.log; } \
	    >requirements-dev.txt

demo: $(PACKAGE)
	@$(if $(COMPILER),$(MAKE) --no-print-directory $(COMPILED)/.ready TOOLS=$(PACKAGE) \
	    || echo "not compiled (see above): the demo runs in plain Python")
	@export PYTHONPATH=$$(test -e $(COMPILED)/.ready && echo $(CURDIR)/$(COMPILED)); \
	    $(BIN)/pairbus --version && $(BIN)/pairbus demo $(ARGS)

# On a laptop the slow tests do not run; `make slow` runs them, and so does `make test` when CI=true.
test: $(READY) $(MERMAID) $(if $(filter true,$(CI)),$(CLASSES) $(COMPILED)/.ready)
	$(BIN)/pytest $(WORKERS) $(if $(filter true,$(CI)),--durations 40,-m "not slow")

slow: $(READY) $(MERMAID) $(CLASSES)
	$(BIN)/pytest $(WORKERS) -m slow

# The suites that exercise compiled modules. The plain build is tested with many more examples, which find the same.
COMPILED_SUITES := $(addprefix tests/,broker client compatibility dialect durability faults formats fuzz ledger pairing peers server \
    simulation store wire)

# WHOLE=1 runs all tests on the compiled build, the slow ones too.
compiled-tests: $(READY) $(COMPILED)/.ready
	CI=$(if $(WHOLE),true) PYTHONPATH=$(CURDIR)/$(COMPILED) PAIRBUS_EXPECT_COMPILED=1 $(BIN)/pytest $(WORKERS) \
	    $(if $(WHOLE),,-m "not slow" $(COMPILED_SUITES))

# Most of the slow tests start Spark.
$(CLASSES): $(READY) tests/spark/class_archive.py
	@echo "creating an archive of the classes of Spark for its tests: half a minute, some 200 MB …"
	@$(BIN)/python -m tests.spark.class_archive

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/audit.py

docs: $(READY) $(MERMAID)
	$(BIN)/mkdocs build --strict

$(MERMAID): | $(READY)
	@npm install --silent --no-fund --no-audit --no-package-lock --prefix build/mermaid @mermaid-js/tiny@11.17.2 \
	    >$(VENV)/mermaid.log 2>&1 || echo "not installed: Mermaid, by npm (see $(VENV)/mermaid.log); diagrams are shown as text"

compiled: $(COMPILED)/.ready

# The demo has not installed mypy, which is then installed for this build alone.
TOOLS := $(READY)
$(COMPILED)/.ready: $(TOOLS) setup.py $(shell find src -name '*.py')
	@echo "compiling with mypyc: a few minutes …"
	@rm -rf $(COMPILED) build/lib.*
	@PAIRBUS_COMPILE=1 $(PIP) install $$(test -x $(BIN)/mypyc && echo --no-build-isolation) --no-deps --target $(COMPILED) .
	@touch $@

bench: $(READY)
	@$(if $(COMPILER),$(MAKE) --no-print-directory compiled || echo "not compiled (see above): the benchmarks run in plain Python")
	@$(PIP) install --editable '.[bench]' >$(VENV)/bench.log 2>&1 \
	    || echo "not installed: the extra 'bench' (see $(VENV)/bench.log); the brokers that need it are not measured"
	@echo "benchmarks of: plain Python$$(test -e $(COMPILED)/.ready && echo ' and the compiled build')"
	@$(BIN)/python -m benchmarks

fuzz: $(READY)
	$(BIN)/python tests/fuzz/fuzz_wire.py -runs=$(or $(RUNS),1000000)

model: $(READY)
	PAIRBUS_MODEL_RUNS=$(or $(RUNS),20000) $(BIN)/pytest $(WORKERS) tests/broker/test_model.py

simulate: $(READY)
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))$(if $(TRACE), --trace)

clean:
	rm -rf $(VENV) build dist tests/peers/node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis
