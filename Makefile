# The verbs: demo, test, lint, bench, torture, docs, clean.
VENV ?= .venv
PY := $(VENV)/bin/python
WORKERS ?= 2
# PhysioNet 2012: `make bench ARCHIVE=set-a.tar.gz`.
ARCHIVE ?=
export OPENBLAS_NUM_THREADS ?= 1

# Tests wait for the disk at every commit of a ledger: a folder in memory is quicker.
SCRATCH := $(if $(wildcard /dev/shm/.),--basetemp=$(shell mktemp -u /dev/shm/cipherbayes-XXXXXX))

.PHONY: demo test lint bench torture docs clean

# One stamp per set of extras, renewed when the pins, the package or its C code change.
INSTALLED := pyproject.toml research/pyproject.toml constraints.txt setup.py src/cipherbayes/_kernels.c

$(VENV)/.demo: $(INSTALLED)
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -e "./research[examples]"
	touch $@

$(VENV)/.dev: $(INSTALLED)
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[flare,dev]" -e "./research[examples,peers]"
	touch $@

demo: $(VENV)/.demo
	rm -rf demo examples/data
	$(PY) -m cipherbayes data flchain --sites 5 --out examples/data
	$(PY) -m cipherbayes run examples/flchain.toml --out demo
	@echo "open in a browser: $(CURDIR)/demo/report.html"

test: lint
	$(PY) -m pytest $(SCRATCH) -n $(WORKERS) --dist loadfile

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/.dev
	$(PY) research/benchmarks/accuracy.py $(ARCHIVE)
	$(if $(ARCHIVE),$(PY) research/benchmarks/encrypted_update.py $(ARCHIVE))
	$(PY) research/benchmarks/gradient_pass.py
	$(PY) -m cipherbayes bench

# Attacks, bad bytes, kills and full disks, the long versions; then the load table.
torture: $(VENV)/.dev
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fuzz]"
	$(PY) -m pytest $(SCRATCH) -m torture tests/adversary tests/faults tests/flare tests/fuzz
	$(PY) tests/fuzz/coverage_guided.py --runs 1000000
	$(PY) research/benchmarks/load.py

docs: $(VENV)/.dev
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist site demo examples/data
