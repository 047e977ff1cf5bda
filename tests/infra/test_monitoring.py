"""Alerts, scraping and the dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from calmem import metrics
from calmem.settings import Settings
from tests.infra.deployments import INFRA, ROOT, documents
from tests.infra.tools import run

DIRECTORY = INFRA / "monitoring"
# Prometheus's own series, and the labels it adds.
OWN_SERIES, OWN_LABELS = {"up", "ALERTS"}, {"job", "instance", "le", "alertname", "alertstate"}
WORDS = {"sum", "max", "min", "by", "rate", "increase", "min_over_time", "histogram_quantile", "absent", "and", "on"}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DIRECTORY / "alerts.yaml").read_text("utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of everything that is asked of Prometheus."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    dashboard = json.loads((DIRECTORY / "dashboard.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for one in dashboard["annotations"]["list"]:
        yield one["name"], one["expr"]
    for one in documents():
        if one["kind"] == "ScaledObject":
            yield "ScaledObject", one["spec"]["triggers"][0]["metadata"]["query"]


def series() -> dict[str, set[str]]:
    """Name -> labels of every series that calmem's processes serve."""
    found: dict[str, set[str]] = {}
    for metric in vars(metrics).values():
        if isinstance(metric, Counter | Gauge | Histogram):
            (described,) = metric.describe()
            endings = {Counter: ("_total",), Gauge: ("",), Histogram: ("_bucket", "_sum", "_count")}[type(metric)]
            for ending in endings:
                found[described.name + ending] = set(metric._labelnames)
    return found


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_series_and_label_exists(where: str, expression: str) -> None:
    known = series()
    bare = re.sub(r'"[^"]*"', "", expression)
    labels = {label.strip() for part in re.findall(r"\bby \(([^)]*)\)", bare) for label in part.split(",")}
    labels |= set(re.findall(r"(\w+)\s*(?:=~|!=|=)(?!=)", " ".join(re.findall(r"\{([^}]*)\}", bare))))
    asked = set(re.findall(r"\b[A-Za-z_]\w+\b", re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", "", bare))) - WORDS
    assert asked, where
    assert asked <= known.keys() | OWN_SERIES
    assert labels <= OWN_LABELS.union(*(known[name] for name in asked if name in known))


def test_promtool_accepts_the_alerts_and_they_fire_when_they_should() -> None:
    run("promtool", "check", "rules", DIRECTORY / "alerts.yaml")
    run("promtool", "test", "rules", DIRECTORY / "alerts_test.yaml")


def test_promtool_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"asked:{n}", "expr": expression} for n, (_, expression) in enumerate(expressions())]
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}), "utf-8")
    run("promtool", "check", "rules", path)


def test_promtool_accepts_the_scrape_configurations(tmp_path: Path) -> None:
    run("promtool", "check", "config", DIRECTORY / "prometheus.yaml")
    # Debian's Prometheus is built without Kubernetes; all the rest of the file is looked at.
    config = yaml.safe_load((DIRECTORY / "prometheus-kubernetes.yaml").read_text("utf-8"))
    (job,) = config["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": ["calmem"]}}]
    config["rule_files"] = [str(DIRECTORY / "alerts.yaml")]
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    run("promtool", "check", "config", path)


def test_every_alert_has_a_story_and_a_runbook() -> None:
    stories = (DIRECTORY / "alerts_test.yaml").read_text("utf-8")
    operating = (ROOT / "docs" / "operating.md").read_text("utf-8")
    for rule in alerts():
        assert f"alertname: {rule['alert']}\n" in stories, rule["alert"]
        assert f"### {rule['alert']}\n" in operating, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/operating.md#{rule['alert'].lower()}"


def test_alerts_compare_with_the_defaults() -> None:
    bounds = {rule["alert"]: float(rule["expr"].rpartition(">")[2]) for rule in alerts() if ">" in rule["expr"]}
    assert bounds["CalmemIndexingLate"] == Settings().degraded_after_seconds
    assert bounds["CalmemRecallSlow"] == Settings().recall_deadline_ms / 1_000
    assert bounds["CalmemRequestsWaiting"] == Settings().max_concurrent_requests
    # Else the quantile is a guess between two neighbours.
    assert bounds["CalmemRecallSlow"] in metrics.RECALL_SECONDS._upper_bounds


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    dashboard = json.loads((DIRECTORY / "dashboard.json").read_text("utf-8"))
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["source"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == "${source}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
