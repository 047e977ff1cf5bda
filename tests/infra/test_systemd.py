"""The systemd units."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.infra.deployments import INFRA, UNITS
from tests.infra.tools import run

DIRECTORY = INFRA / "systemd"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units in a directory of their own, with this environment's calmem in place of /opt/calmem's."""
    program = Path(sys.executable).with_name("calmem")
    for path in (*UNITS, DIRECTORY / "calmem.target"):
        text = path.read_text("utf-8").replace("/opt/calmem/bin/calmem", str(program))
        (tmp_path / path.name).write_text(text, "utf-8")
    shutil.copyfile(tmp_path / "calmem-worker@.service", tmp_path / "calmem-worker@1.service")
    return tmp_path


def test_systemd_understands_every_line(installed: Path) -> None:
    assert run("systemd-analyze", "verify", "--man=no", *sorted(installed.iterdir())) == ""


def test_every_unit_is_confined(installed: Path) -> None:
    units = sorted(path for path in installed.glob("*.service"))
    # From 0, nothing is open to it, to 100.
    run("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", *units)


def test_every_process_belongs_to_the_target_and_comes_back() -> None:
    for path in UNITS:
        lines = path.read_text("utf-8").splitlines()
        for line in ("WantedBy=calmem.target", "EnvironmentFile=/etc/calmem/calmem.env", "User=calmem"):
            assert line in lines, path.name
        assert ("Restart=on-failure" if "Type=oneshot" in lines else "Restart=always") in lines, path.name


def test_the_user_can_be_made() -> None:
    assert "calmem" in run("systemd-sysusers", "--dry-run", DIRECTORY / "calmem.sysusers.conf")
