"""Every command line and every setting below infra/ and in the Procfile is a real one."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import click
import pytest
import yaml

from calmem.settings import PREFIX, Settings
from calmem_services.cli.main import cli
from tests.infra.deployments import INFRA, ROOT, Start, compose, documents, pods, starts

STARTS = list(starts())
SETTINGS = {PREFIX + field.name.upper() for field in fields(Settings)}


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.where)
def test_every_command_is_one_of_the_command_line(start: Start) -> None:
    command: click.Command = cli
    arguments = list(start.arguments)
    while isinstance(command, click.Group):
        assert arguments[0] in command.commands, f"calmem {' '.join(start.arguments)}"
        command = command.commands[arguments.pop(0)]
    command.make_context(" ".join(start.arguments), arguments)  # raises for an option that is none


def test_every_way_to_deploy_starts_the_same_processes() -> None:
    by_way: dict[str, set[tuple[str, ...]]] = {}
    for start in STARTS:
        by_way.setdefault(start.where.split()[0], set()).add(start.arguments)
    assert set(by_way) == {"compose", "systemd", "kubernetes", "Procfile"}
    for way, commands in by_way.items():
        assert commands == by_way["Procfile"], way


def test_every_setting_is_a_real_one() -> None:
    named: dict[str, str] = {}
    for path in sorted(path for path in INFRA.rglob("*") if path.is_file()):
        named |= dict.fromkeys(re.findall(r"\bCALMEM_[A-Z_]+\b", path.read_text("utf-8")), path.name)
    for page in ("deploying.md", "backup.md", "operating.md"):
        text = (ROOT / "docs" / page).read_text("utf-8")
        named |= dict.fromkeys(re.findall(r"\bCALMEM_[A-Z_]+\b", text), page)
    assert named, "nothing was read"
    assert {name: where for name, where in named.items() if name not in SETTINGS} == {}


def test_services_listen_where_ports_say() -> None:
    settings = Settings()
    ports = {
        "ingest": settings.ingest_port,
        "retrieval": settings.retrieval_port,
        "gateway": settings.gateway_port,
        "console": settings.console_port,
        "mcp": settings.mcp_port,
    }
    for name, port in ports.items():
        service: dict[str, Any] = compose()["services"][name]
        assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert f"127.0.0.1:{port}/readyz" in service["healthcheck"]["test"][-1]
    inside = {name: pod["containers"][0] for name, pod in pods()}
    outside = {one["metadata"]["name"]: one["spec"]["ports"][0] for one in documents() if one["kind"] == "Service"}
    assert set(outside) == {f"calmem-{name}" for name in ports}
    for name, port in ports.items():
        assert inside[f"calmem-{name}"]["ports"][0]["containerPort"] == port
        assert outside[f"calmem-{name}"]["port"] == port


def test_prometheus_asks_the_ports_that_are_served() -> None:
    config = yaml.safe_load((INFRA / "monitoring" / "prometheus.yaml").read_text("utf-8"))
    asked = {}
    for job in config["scrape_configs"]:
        for one in job.get("static_configs", ()):
            asked[job["job_name"]] = int(one["targets"][0].rpartition(":")[2])
        for one in job.get("dns_sd_configs", ()):
            asked[job["job_name"]] = one["port"]
    served = {}
    for name, service in compose()["services"].items():
        if service["image"] == "calmem" and name != "migrate":
            port = service["environment"].get("CALMEM_METRICS_PORT") or service["ports"][0].rpartition(":")[2]
            served[f"calmem-{name}"] = int(port)
    assert asked == served
