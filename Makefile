# The verbs: demo, check, test, coverage, lint, bench, torture, docs, release, clean.
VENV ?= .venv
PY := $(VENV)/bin/python
WORKERS ?= 2
# PhysioNet 2012: `make bench ARCHIVE=set-a.tar.gz`.
ARCHIVE ?=
export OPENBLAS_NUM_THREADS ?= 1
# Tests start many processes: what Python compiles is kept, whatever is set outside.
export PYTHONDONTWRITEBYTECODE :=

# Tests wait for the disk at every commit of a ledger: a folder in memory is quicker.
SHM := $(if $(wildcard /dev/shm/.),$(shell mktemp -u /dev/shm/cipherbayes-XXXXXX))
SCRATCH := $(if $(SHM),--basetemp=$(SHM))
# What failed tests left stays there to be looked at.
TIDY := $(if $(SHM),rm -rf $(SHM))

.PHONY: demo check check-run test test-run coverage lint style layers types bench torture docs release clean

# One stamp per set of extras, renewed when the pins, the package or its C code change.
INSTALLED := pyproject.toml research/pyproject.toml research/setup.py constraints.txt setup.py src/cipherbayes/_kernels.c src/cipherbayes/_kernels.h $(wildcard src/cipherbayes/inference/noise_aware/loops/*)

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

# Modules stay whole; those with slow tests come first (tests/conftest.py).
PYTEST = $(PY) -m pytest $(SCRATCH) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Types and layers are checked beside the tests: each has use for one core only.
check: style
	@$(MAKE) --no-print-directory --jobs=3 types layers check-run

test: style
	@$(MAKE) --no-print-directory --jobs=3 types layers test-run

# Before a commit: what is not slow, with fewer examples of each property.
check-run: $(VENV)/.dev
	$(PYTEST) --hypothesis-profile=quick -m "not slow and not realdata and not torture"
	@$(TIDY)

# One worker more than cores: some tests wait for other programs, without computing.
test-run coverage: WORKERS = 3

# The pages of the docs are looked at in a browser by `make docs`.
ALL := --ignore=tests/test_docs_browser.py

test-run: $(VENV)/.dev
	$(PYTEST) $(ALL)
	@$(TIDY)

# Processes that tests start are not measured.
coverage: $(VENV)/.dev
	$(PYTEST) $(ALL) --cov --cov-report=
	$(PY) tests/coverage_by_room.py
	@$(TIDY)

lint: style layers types

style: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

layers: $(VENV)/.dev
	$(VENV)/bin/lint-imports

types: $(VENV)/.dev
	$(VENV)/bin/mypy

bench: $(VENV)/.dev
	$(PY) research/benchmarks/accuracy.py $(ARCHIVE)
	$(if $(ARCHIVE),$(PY) research/benchmarks/encrypted_update.py $(ARCHIVE))
	$(PY) research/benchmarks/gradient_pass.py
	$(PY) -m cipherbayes bench

# Attacks, bad bytes, kills and full disks, the long versions; then the load table.
torture: $(VENV)/.dev
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fuzz]"
	$(PY) -m pytest $(SCRATCH) -m torture
	@$(TIDY)
	$(PY) tests/fuzz/coverage_guided.py --runs 1000000
	$(PY) research/benchmarks/load.py

docs: $(VENV)/.dev
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	NO_MKDOCS_2_WARNING=1 $(PY) -m pytest -q $(SCRATCH) tests/test_docs_browser.py
	@$(TIDY)

# What the version, the changelog and the wheels say; then the distributions themselves.
release: lint
	$(PY) -m pytest $(SCRATCH) -q tests/test_packaging.py
	@$(TIDY)
	VENV=$(VENV) .ci/release

clean:
	rm -rf $(VENV) build dist site demo examples/data .coverage
