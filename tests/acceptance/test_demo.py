"""`calmem demo`, as a new user runs it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from calmem.settings import Settings
from calmem_services.local.stack import environment

SECONDS = 240


def test_the_demo_ends_well_and_leaves_nothing_running(model_dir: Path, tmp_path: Path) -> None:
    env = environment(replace(Settings(), data_dir=str(model_dir), log_level="warning"))
    env["TMPDIR"] = str(tmp_path)
    env["HTTP_PROXY"] = "http://127.0.0.1:9"  # of the world outside: what runs here is never asked through it

    demo = subprocess.run(
        [sys.executable, "-m", "calmem_services.cli.main", "demo"],
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    for shown in (
        *("tier full", "tier reduced", "tier minimal", "tier facts_only"),
        "SQLite with a movements table",
        "SF123456789",
        "周建国",
        "shop_address = Harbour Street 12",
        "Nothing is remembered of this user yet",
        "Done.",
    ):
        assert shown in demo.stdout
    assert _processes_of(tmp_path) == []
    assert list(tmp_path.glob("calmem-demo-*")) == []


def _processes_of(directory: Path) -> list[str]:
    """Command lines of the processes that were started with this directory in an argument or in the environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            started_with = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:  # ended meanwhile
            continue
        if str(directory).encode() in started_with:
            found.append((process / "cmdline").read_text("utf-8", "replace"))
    return found
