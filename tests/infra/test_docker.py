"""The image and the compose file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from calmem.settings import Settings
from calmem_services.local.stack import environment
from tests.infra.deployments import INFRA, ROOT, compose
from tests.infra.tools import run

DOCKERFILE = INFRA / "docker" / "Dockerfile"


def test_hadolint_finds_no_fault() -> None:
    assert run("hadolint", DOCKERFILE) == ""


def test_the_image_runs_as_nobody_in_particular_and_names_no_package_index() -> None:
    text = DOCKERFILE.read_text("utf-8")
    final = text.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.+)$", final, re.MULTILINE) == ["10001:10001"]
    assert "index-url" not in text
    assert "://" not in text


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    kept = (INFRA / "docker" / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    assert copied
    for sources in copied:
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in kept, source


def test_the_model_is_written_as_the_image_writes_it(settings: Settings, tmp_path: Path) -> None:
    """The step's own Python, with directories of ours: the packages that it needs are in this environment."""
    found = re.search(r"python -c '(.+prepare.+)'", DOCKERFILE.read_text("utf-8"))
    assert found is not None
    code = found.group(1).replace("/models", str(tmp_path / "models")).replace("/opt/calmem/model", str(tmp_path / "m"))
    subprocess.run([sys.executable, "-c", code], env=environment(settings), check=True)
    assert {"model.onnx", "tokenizer.json", "config.json"} <= set(os.listdir(tmp_path / "m"))


def test_compose_follows_the_specification() -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", INFRA / "docker" / "compose.yaml")


def test_compose_publishes_on_loopback_only_and_waits_for_what_exists() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for other in service.get("depends_on", ()):
            assert other in services
    for name, service in services.items():
        if service["image"] != "calmem":
            continue
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert name == "migrate" or "healthcheck" in service, name
