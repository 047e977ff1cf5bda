"""The Kubernetes manifests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from calmem.settings import Settings
from calmem_services.http.health import PATHS
from tests.infra.deployments import INFRA, MANIFESTS, documents, pods
from tests.infra.tools import run

DIRECTORY = INFRA / "kubernetes"
DOCUMENTS = list(documents())
PODS = dict(pods())


def of(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in DOCUMENTS if one["kind"] == kind}


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_schemas_accept_every_object(version: str, tmp_path: Path) -> None:
    """All but KEDA's object, whose schema is in no package; its fields are looked at below."""
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump_all(one for one in DOCUMENTS if one["kind"] != "ScaledObject"), "utf-8")
    assert "WARN" not in run("kubernetes-validate", "--strict", "-k", version, path)


def test_kustomize_brings_every_file() -> None:
    kustomization = yaml.safe_load((DIRECTORY / "kustomization.yaml").read_text("utf-8"))
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    built = list(yaml.safe_load_all(run("kubectl", "kustomize", DIRECTORY)))
    assert len(built) == len(DOCUMENTS)
    for one in built:
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == kustomization["namespace"]


@pytest.mark.parametrize("name", PODS)
def test_every_pod_is_confined_and_bounded(name: str) -> None:
    pod = PODS[name]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", PODS)
def test_urls_come_from_the_secret(name: str) -> None:
    for container in PODS[name]["containers"]:
        for variable in container["env"]:
            if variable["name"].endswith(("_URL", "_KEY")):
                assert variable["valueFrom"]["secretKeyRef"]["name"] == "calmem-urls"
    assert "postgresql://" not in str(DOCUMENTS)


def test_probes_ask_what_is_served() -> None:
    for name, deployment in of("Deployment").items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (port,) = container["ports"]
        probes = {kind: container[kind]["httpGet"] for kind in container if kind.endswith("Probe")}
        assert {probe["port"] for probe in probes.values()} == {port["name"]}, name
        assert {probe["path"] for probe in probes.values()} <= set(PATHS), name
        if port["name"] == "http":
            assert probes["readinessProbe"]["path"] == "/readyz"
            assert probes["livenessProbe"]["path"] == "/healthz"  # not /readyz: an outage would restart everything
        else:
            given = {one["name"]: one.get("value") for one in container["env"]}
            assert given["CALMEM_METRICS_PORT"] == str(port["containerPort"]), name


def test_selectors_find_their_pods() -> None:
    labels = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in of("Deployment").items()}
    for name, one in of("Deployment").items():
        assert one["spec"]["selector"]["matchLabels"] == labels[name]
    for name, one in of("Service").items():
        assert one["spec"]["selector"] == labels[name]
    for name, one in of("PodDisruptionBudget").items():
        assert one["spec"]["selector"]["matchLabels"] == labels[name]
    assert set(of("PodDisruptionBudget")) >= {"calmem-ingest", "calmem-retrieval", "calmem-worker"}


def test_what_is_scaled_exists_and_has_no_number_of_its_own() -> None:
    deployments = of("Deployment")
    for kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        for one in of(kind).values():
            scaled = deployments[one["spec"]["scaleTargetRef"]["name"]]
            assert "replicas" not in scaled["spec"]
    (worker,) = of("ScaledObject").values()
    (trigger,) = worker["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert re.match(r"max\(calmem_oldest_pending_seconds\b", trigger["metadata"]["query"])
    assert float(trigger["metadata"]["threshold"]) < Settings().degraded_after_seconds
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_a_worker_may_take_its_lease_to_stop_and_a_service_its_requests() -> None:
    assert PODS["calmem-worker"]["terminationGracePeriodSeconds"] >= Settings().lease_seconds
    for name in ("calmem-ingest", "calmem-retrieval", "calmem-gateway", "calmem-console", "calmem-mcp"):
        # 5 s of preStop and uvicorn's 10 s.
        assert PODS[name]["terminationGracePeriodSeconds"] > 15
