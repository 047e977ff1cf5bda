"""API keys: what each opens, for whom, how long (issue 4.4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from calmem.keys import Keys, hash_secret
from calmem.model import KeyScope
from calmem.settings import Settings
from tests.support.http import Services, assert_problem
from tests.support.keys import ADA, MESSAGE, bearer, make
from tests.support.processes import eventually
from tests.support.serving import serving

# "Within seconds": far above what is documented, far below what anybody would call that.
SECONDS = 20.0
RECALL = {"user_id": "ada", "session_id": "s2", "query": "boiler", "current_tokens": 0, "context_window_capacity": 1000}
FACT = {"user_id": "ada", "value": "Turin"}
# Service, method, path, what is sent, and the one scope that opens it. In an order in which each can do its work.
ROUTES: list[tuple[str, str, str, dict[str, Any], KeyScope]] = [
    ("ingest", "POST", "/v1/messages", {"json": MESSAGE}, KeyScope.RECORD),
    ("ingest", "POST", "/v1/messages:batch", {"json": {"messages": [MESSAGE]}}, KeyScope.RECORD),
    ("ingest", "GET", "/v1/users/ada", {}, KeyScope.RECORD),
    ("ingest", "PUT", "/v1/users/ada", {"json": {"memory": "on"}}, KeyScope.ADMIN),
    ("retrieval", "PUT", "/v1/sessions/s1/facts/home.city", {"json": FACT}, KeyScope.FACTS),
    ("retrieval", "GET", "/v1/facts", {"params": ADA}, KeyScope.FACTS),
    (
        *("retrieval", "GET", "/v1/facts/history"),
        {"params": {**ADA, "session_id": "s1", "key": "home.city"}},
        KeyScope.FACTS,
    ),
    ("retrieval", "POST", "/v1/recall", {"json": RECALL}, KeyScope.RECALL),
    ("retrieval", "POST", "/v1/search", {"json": {"user_id": "ada", "query": "boiler"}}, KeyScope.RECALL),
    ("retrieval", "GET", "/v1/sessions", {"params": ADA}, KeyScope.RECALL),
    ("retrieval", "GET", "/v1/sessions/s1/messages", {"params": ADA}, KeyScope.RECALL),
    ("retrieval", "DELETE", "/v1/sessions/s1/facts/home.city", {"params": ADA}, KeyScope.FACTS),
    ("ingest", "DELETE", "/v1/messages/m1", {"params": ADA}, KeyScope.ADMIN),
    ("ingest", "DELETE", "/v1/sessions/s1", {"params": ADA}, KeyScope.ADMIN),
    ("ingest", "DELETE", "/v1/users/ada", {}, KeyScope.ADMIN),
]
OPEN = ("/healthz", "/readyz", "/metrics", "/openapi.json")


def send(calmem: Services, service: str, method: str, path: str, **request: Any) -> httpx.Response:
    one: httpx.Client = getattr(calmem, service)
    return one.request(method, path, **request)


def test_every_route_is_listed_here() -> None:
    listed = {(service, method) for service, method, *_ in ROUTES}
    assert len(ROUTES) == 15
    assert listed == {
        (service, method) for service in ("ingest", "retrieval") for method in ("GET", "PUT", "POST", "DELETE")
    }


def test_each_scope_opens_its_routes_and_no_other(calmem: Services, keys: Keys) -> None:
    by_scope = {scope: make(keys, scope) for scope in KeyScope}
    for service, method, path, sent, needed in ROUTES:
        for scope in KeyScope:
            if scope is not needed:
                answer = send(calmem, service, method, path, headers=bearer(by_scope[scope]), **sent)
                assert needed in assert_problem(answer, 403)["detail"]
    assert set(calmem.rows().values()) == {0}
    for service, method, path, sent, needed in ROUTES:
        if path == "/v1/messages/m1":
            calmem.ingest.post(
                "/v1/messages", json={**MESSAGE, "message_id": "m1"}, headers=bearer(by_scope[KeyScope.RECORD])
            )
        answer = send(calmem, service, method, path, headers=bearer(by_scope[needed]), **sent)
        assert answer.status_code in (200, 201), (method, path, answer.text)


def test_a_key_of_several_scopes_opens_all_of_theirs(calmem: Services, keys: Keys) -> None:
    key = make(keys, *KeyScope)

    for service, method, path, sent, _ in ROUTES:
        answer = send(calmem, service, method, path, headers={"X-API-Key": key.secret}, **sent)
        assert answer.status_code in (200, 201, 404), (method, path, answer.text)
        assert (answer.status_code == 404) == (path == "/v1/messages/m1")


def test_without_a_good_key_nothing_is_read_or_written(calmem: Services, keys: Keys) -> None:
    key = make(keys, *KeyScope)
    other = make(keys, *KeyScope)
    wrong = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {key.secret}"},
        {"Authorization": key.secret},
        {"Authorization": f"Bearer {key.secret[:-1]}"},
        {"Authorization": f"Bearer {key.secret}x"},
        {"Authorization": f"Bearer {key.secret[:-1]}{'A' if key.secret[-1] != 'A' else 'B'}"},
        {"Authorization": f"Bearer {key.secret[:20]}{other.secret[20:]}"},
        {"Authorization": f"Bearer calmem_{'0' * 12}_{key.secret[20:]}"},
        {"X-API-Key": ""},
        {"X-API-Key": key.key.prefix},
        {"X-API-Key": hash_secret(key.secret).hex()},
        {"X-API-Key": "null"},
        {"X-API-Key": "sk-" + "x" * 5_000},
        # The header of calmem's own name goes first: one that is wrong is not made up for by another.
        {"X-API-Key": other.secret[:-2], "Authorization": f"Bearer {key.secret}"},
    ]
    for service, method, path, sent, _ in ROUTES:
        for headers in wrong:
            answer = send(calmem, service, method, path, headers=headers, **sent)
            assert_problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert key.secret[20:-1] not in answer.text
    odd = calmem.ingest.post("/v1/messages", json=MESSAGE, headers=[(b"x-api-key", "schlüssel".encode())])
    assert_problem(odd, 401)
    assert set(calmem.rows().values()) == {0}
    for path in OPEN:
        for one in (calmem.ingest, calmem.retrieval):
            if path != "/readyz":  # 503 while the model is being loaded
                assert one.get(path).status_code == 200
            assert one.get(path).status_code != 401


def test_a_bound_key_speaks_for_its_user_only(calmem: Services, keys: Keys) -> None:
    of_bob = bearer(make(keys, *KeyScope, user_id="bob"))
    of_ada = bearer(make(keys, *KeyScope, user_id="ada"))
    for service, method, path, sent, _ in ROUTES:
        assert_problem(send(calmem, service, method, path, headers=of_bob, **sent), 403)
    mixed = {"messages": [{**MESSAGE, "user_id": "bob", "session_id": "s9"}, MESSAGE]}
    assert_problem(calmem.ingest.post("/v1/messages:batch", json=mixed, headers=of_bob), 403)
    twice = calmem.retrieval.get("/v1/facts", params={"user_id": ["bob", "ada"]}, headers=of_bob)
    assert twice.status_code in (403, 422)
    doubled = b'{"user_id": "bob", "user_id": "ada", "query": "boiler"}'
    kind = {"content-type": "application/json"}
    assert_problem(calmem.retrieval.post("/v1/search", content=doubled, headers={**of_bob, **kind}), 403)
    assert set(calmem.rows().values()) == {0}

    for service, method, path, sent, _ in ROUTES:
        answer = send(calmem, service, method, path, headers=of_ada, **sent)
        assert answer.status_code in (200, 201, 404), (method, path, answer.text)


def test_a_bound_key_is_compared_with_the_id_that_is_used(calmem: Services, keys: Keys) -> None:
    composed, decomposed = "jos\u00e9", "jose\u0301"
    key = bearer(make(keys, *KeyScope, user_id=decomposed))

    for user_id in (composed, decomposed):
        assert calmem.ingest.post("/v1/messages", json={**MESSAGE, "user_id": user_id}, headers=key).status_code == 201
    assert_problem(calmem.ingest.post("/v1/messages", json={**MESSAGE, "user_id": "jose"}, headers=key), 403)
    for odd in (None, 7, ["ada"], "", "*"):
        refused = calmem.ingest.post("/v1/messages", json={**MESSAGE, "user_id": odd}, headers=key)
        assert_problem(refused, 422, field="user_id")
    assert calmem.rows()["users"] == 1


def test_a_revoked_key_is_refused_within_seconds_everywhere(calmem: Services, keys: Keys) -> None:
    key, other = make(keys, *KeyScope), make(keys, *KeyScope)
    for one in (key, other):
        assert calmem.ingest.post("/v1/messages", json=MESSAGE, headers=bearer(one)).status_code == 201
        assert calmem.retrieval.get("/v1/facts", params=ADA, headers=bearer(one)).status_code == 200

    revoked = keys.revoke(key.key.prefix)

    def refused() -> bool:
        answers = [
            calmem.ingest.get("/v1/users/ada", headers=bearer(key)),
            calmem.retrieval.get("/v1/facts", params=ADA, headers=bearer(key)),
        ]
        return {answer.status_code for answer in answers} == {401}

    eventually(refused, "the revoked key is refused by both services", seconds=SECONDS)
    assert calmem.ingest.get("/v1/users/ada", headers=bearer(other)).status_code == 200
    assert keys.revoke(key.key.prefix).revoked_at == revoked.revoked_at
    keys.revoke(other.key.prefix)
    # With every key revoked the services are closed, not open.
    eventually(lambda: calmem.ingest.get("/v1/users/ada").status_code == 401, "nobody is let in without a key")


def test_the_first_key_closes_running_services(calmem: Services, keys: Keys) -> None:
    assert calmem.record().status_code == 201
    assert calmem.recall().status_code == 200
    open_document = calmem.ingest.get("/openapi.json").json()
    assert {} in open_document["paths"]["/v1/messages"]["post"]["security"]

    make(keys, KeyScope.RECORD)

    eventually(
        lambda: calmem.record().status_code == 401 and calmem.recall().status_code == 401,
        "both services ask for a key",
        seconds=SECONDS,
    )
    for one in (calmem.ingest, calmem.retrieval):
        document = one.get("/openapi.json").json()
        assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                if path.startswith("/v1/"):
                    assert [set(way) for way in operation["security"]] == [{"bearer"}, {"header"}]
                    assert {"401", "403", "429"} <= set(operation["responses"])
                else:
                    assert "security" not in operation
    needed = {
        (method.upper(), path): operation["security"][0]["bearer"]
        for one in (calmem.ingest, calmem.retrieval)
        for path, operations in one.get("/openapi.json").json()["paths"].items()
        for method, operation in operations.items()
        if path.startswith("/v1/")
    }
    assert len(needed) == len(ROUTES)
    for _, method, path, _, scope in ROUTES:
        template = path.replace("/ada", "/{user_id}").replace("/s1", "/{session_id}").replace("/m1", "/{message_id}")
        assert needed[method, template.replace("home.city", "{key}")] == [scope.value]


def test_deleting_a_user_revokes_the_keys_bound_to_them(calmem: Services, keys: Keys) -> None:
    admin, of_ada = make(keys, KeyScope.ADMIN, KeyScope.RECORD), make(keys, KeyScope.RECORD, user_id="ada")
    of_bob = make(keys, KeyScope.RECORD, user_id="bob")
    assert calmem.ingest.post("/v1/messages", json=MESSAGE, headers=bearer(of_ada)).status_code == 201

    assert calmem.ingest.delete("/v1/users/ada", headers=bearer(admin)).status_code == 200

    by_prefix = {key.prefix: key for key in keys.list()}
    gone = by_prefix[of_ada.key.prefix]
    assert gone.revoked_at is not None
    assert gone.user_id is None
    assert by_prefix[of_bob.key.prefix].revoked_at is None
    eventually(
        lambda: calmem.ingest.post("/v1/messages", json=MESSAGE, headers=bearer(of_ada)).status_code == 401,
        "the key of the deleted user is refused",
    )


def test_no_key_reaches_the_logs_of_real_processes(settings: Settings, keys: Keys, tmp_path: Path) -> None:
    key = make(keys, *KeyScope, user_id="ada")
    wrong = key.secret[:-3] + "abc"
    with serving(replace(settings, log_level="debug", rate_limit_per_minute=1_000), tmp_path) as calmem:
        for secret, status in ((key.secret, 201), (wrong, 401)):
            for headers in ({"Authorization": f"Bearer {secret}"}, {"X-API-Key": secret}):
                assert calmem.ingest.post("/v1/messages", json=MESSAGE, headers=headers).status_code == status
        for one, path in ((calmem.ingest, "/v1/users/ada"), (calmem.retrieval, "/v1/facts")):
            # In the wrong places, where people put them by mistake.
            one.get(path, params={"api_key": key.secret}, headers=bearer(key))
            one.get(path, params={"user_id": key.secret}, headers=bearer(key))
            one.get(f"/v1/{key.secret}")
        calmem.ingest.post("/v1/messages", json={**MESSAGE, key.secret: 1}, headers=bearer(key))
        calmem.ingest.post("/v1/messages", json={**MESSAGE, "user_id": "bob"}, headers=bearer(key))
        logged = calmem.logs()

    assert f'"key_prefix": "{key.key.prefix}"' in logged
    assert '"status": 401' in logged
    assert key.secret[20:40] not in logged
    assert hash_secret(key.secret).hex() not in logged
