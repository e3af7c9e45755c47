# The only commands to know. Each creates .venv and installs the project first if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(wildcard CMakeLists.txt */CMakeLists.txt */*/CMakeLists.txt */*/*/CMakeLists.txt) \
          $(wildcard scale_layouts/src/* backends/*/src/* backends/*/*/src/* backends/*/*/include/*)
INSTALLED := $(VENV)/installed
PYTEST := $(BIN)/pytest -q -n auto --maxprocesses 4 --require-backends cpu,reference,ascend
TYPECHECK := build/typecheck

.PHONY: demo test test-all lint bench docs clean

$(INSTALLED): pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,report,ascend,lint]'
	touch $@

demo: $(INSTALLED)  ## run the example model and the parity table; writes demo_output/
	mkdir -p demo_output
	$(BIN)/python examples/deepseek_block/run.py
	$(BIN)/unikernels parity --html demo_output/parity.html --json demo_output/parity.json --picture demo_output/parity.png

test: $(INSTALLED)  ## run the default tests
	$(PYTEST)

test-all: $(INSTALLED)  ## run all tests, the slow ones included
	$(PYTEST) --slow

lint: $(INSTALLED)  ## ruff, then mypy on an installed copy (the folder mapping is invisible to mypy in place)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(TYPECHECK)
	UNIKERNELS_PURE=1 $(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
	    --target $(TYPECHECK) .
	cd $(TYPECHECK) && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p unikernels

bench: $(INSTALLED)  ## measure on this machine; see docs/benchmarks.md
	$(BIN)/unikernels bench
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

docs: $(INSTALLED)  ## regenerate generated documents and tables
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build demo_output
