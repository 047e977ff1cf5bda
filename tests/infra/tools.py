"""The linters and validators of infra/; a test whose tool cannot be had here is skipped and says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.deployments import ROOT

# Where each comes from. Those of PyPI come with `make setup` and are never missing.
_DEBIAN = {
    "promtool": "the Debian package prometheus; `make tools` gets it",
    "systemd-analyze": "the Debian package systemd",
    "systemd-sysusers": "the Debian package systemd",
    "kubectl": "Kubernetes' own client",
}


def tool(name: str) -> str:
    """The path of a tool: of `make setup`, of `make tools`, or the machine's own."""
    for directory in (Path(sys.executable).parent, ROOT / ".tools"):
        if (directory / name).is_file():
            return str(directory / name)
    found = shutil.which(name)
    if found is None:
        assert name in _DEBIAN, f"{name} is missing: make setup"
        pytest.skip(f"{name} is not installed ({_DEBIAN[name]})")
    return found


def run(name: str, *arguments: str | Path) -> str:
    """What the tool printed; fails the test when it found fault."""
    done = subprocess.run([tool(name), *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    return printed
