"""Both OpenAPI documents, and the services held against them by schemathesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from calmem.settings import Settings
from calmem_services.ingest.app import create_app as create_ingest
from calmem_services.retrieval.app import create_app as create_retrieval
from tests.support.http import client, until_ready

EXAMPLES = 15
OPERATIONAL = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")}
INGEST = OPERATIONAL | {
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages:batch"),
    ("GET", "/v1/users/{user_id}"),
    ("PUT", "/v1/users/{user_id}"),
    ("DELETE", "/v1/users/{user_id}"),
    ("DELETE", "/v1/sessions/{session_id}"),
    ("DELETE", "/v1/messages/{message_id}"),
}
RETRIEVAL = OPERATIONAL | {
    ("POST", "/v1/recall"),
    ("POST", "/v1/search"),
    ("PUT", "/v1/sessions/{session_id}/facts/{key}"),
    ("DELETE", "/v1/sessions/{session_id}/facts/{key}"),
    ("GET", "/v1/facts"),
    ("GET", "/v1/facts/history"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/sessions/{session_id}/messages"),
}
both = pytest.mark.parametrize(
    ("create_app", "operations"),
    [(create_ingest, INGEST), (create_retrieval, RETRIEVAL)],
    ids=["ingest", "retrieval"],
)


@both
def test_the_document_has_every_route_with_its_errors(
    settings: Settings, create_app: Callable[[Settings], FastAPI], operations: set[tuple[str, str]]
) -> None:
    with client(create_app(settings)) as service:
        document = service.get("/openapi.json").json()

    found = {(method.upper(), path): op for path, ops in document["paths"].items() for method, op in ops.items()}
    assert set(found) == operations
    for (method, path), operation in found.items():
        assert operation.get("description") or operation.get("summary")
        if not path.startswith("/v1/"):
            continue
        answers = operation["responses"]
        assert {"422", "503"} <= set(answers)
        if method in ("POST", "PUT"):
            assert {"400", "413", "415"} <= set(answers)
            assert operation["requestBody"]["content"]["application/json"]["schema"]["additionalProperties"] is False
        for status, answer in answers.items():
            kind = "application/json" if status.startswith("2") else "application/problem+json"
            assert set(answer["content"]) == {kind}, (path, status)
            assert answer["content"][kind]["schema"]["properties"]


@both
def test_the_service_keeps_to_its_document(
    settings: Settings, create_app: Callable[[Settings], FastAPI], operations: set[tuple[str, str]]
) -> None:
    app = create_app(settings)
    schema = schemathesis.openapi.from_dict(app.openapi())
    with client(app) as service:
        until_ready(service)
        tried = set()
        for result in schema.get_all_operations():
            operation = result.ok()
            tried.add((operation.method.upper(), operation.path))
            for mode in schemathesis.GenerationMode:
                if mode.is_negative and not operation.path.startswith("/v1/"):
                    continue  # nothing to get wrong: no parameters
                _hold(operation, mode, str(service.base_url))
        assert tried == operations


# A schema cannot say that a time zone exists, or that `since` comes before `until`: valid data may be refused.
def _hold(operation: Any, mode: Any, base_url: str) -> None:
    @hypothesis_settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def hold(case: Any) -> None:
        case.call_and_validate(base_url=base_url, excluded_checks=[positive_data_acceptance])

    hold()
