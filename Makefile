# make serve       install, fetch the default model, and serve it through two stages
# make test        everything that CI checks
# make browser     Chromium for the tests of the pages, if there is none and you are root (Debian)
# make test-full   every combination of the end-to-end tests
.PHONY: install serve test test-full lint browser clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard native/*) src/paceline/kernels/__init__.py

install: $(VENV)/.installed

# Rebuilt when the package's description or its native code changes; Python code is used where it lies.
$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch scikit-build-core ninja
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

serve: install
	$(BIN)/paceline serve --pipeline-parallel-size 2

lint: install
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

# Without a browser the tests of the pages are skipped, and say so; where PACELINE_TEST_NEEDS_BROWSER is set they fail.
browser:
	-if ! command -v chromium >/dev/null && test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	fi

test: lint browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not e2e and not full"
	PACELINE_KERNELS=scalar $(BIN)/python -m pytest tests/kernels
	if grep -qw avx2 /proc/cpuinfo; then PACELINE_KERNELS=avx2 $(BIN)/python -m pytest tests/kernels; fi
	$(BIN)/python -m pytest -m "e2e and not full"

test-full: lint browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not e2e"
	$(BIN)/python -m pytest -m e2e

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
