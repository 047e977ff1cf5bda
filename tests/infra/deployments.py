"""What the files below infra/ start: every command line of calmem in them, with the settings it is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
MANIFESTS = sorted(path for path in (INFRA / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml")
UNITS = sorted((INFRA / "systemd").glob("*.service"))


@dataclass(frozen=True, kw_only=True)
class Start:
    """One process that a file starts. `where`: the file and the name in it; `names`: the variables it is given."""

    where: str
    arguments: tuple[str, ...]
    names: frozenset[str]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((INFRA / "docker" / "compose.yaml").read_text("utf-8"))
    return found


def documents() -> Iterator[dict[str, Any]]:
    """Every Kubernetes object."""
    for path in MANIFESTS:
        yield from yaml.safe_load_all(path.read_text("utf-8"))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, pod spec) of every Deployment and Job."""
    for one in documents():
        if one["kind"] in ("Deployment", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def starts() -> Iterator[Start]:
    yield from _of_compose()
    yield from _of_units()
    for name, pod in pods():
        for container in pod["containers"]:
            names = frozenset(one["name"] for one in container["env"])
            yield Start(where=f"kubernetes {name}", arguments=tuple(container["args"]), names=names)
    for line in (ROOT / "Procfile").read_text("utf-8").splitlines():
        name, _, command = line.partition(": ")
        yield Start(where=f"Procfile {name}", arguments=tuple(shlex.split(command)[1:]), names=frozenset())


def _of_compose() -> Iterator[Start]:
    for name, service in compose()["services"].items():
        if service["image"] == "calmem":
            names = frozenset(service["environment"])
            yield Start(where=f"compose {name}", arguments=tuple(service["command"]), names=names)


def _of_units() -> Iterator[Start]:
    for path in UNITS:
        text = path.read_text("utf-8")
        names = frozenset(re.findall(r"^Environment=(\w+)=", text, re.MULTILINE))
        for command in re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE):
            program, *arguments = shlex.split(command)
            assert program == "/opt/calmem/bin/calmem", path
            yield Start(where=f"systemd {path.name}", arguments=tuple(arguments), names=names)
