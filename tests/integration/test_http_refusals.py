"""Bad input at every route: a problem document that names the field, and nothing stored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http import Services, assert_problem

MESSAGE = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "hello"}
RECALL = {"user_id": "ada", "session_id": "s1", "query": "q", "current_tokens": 1, "context_window_capacity": 10}
SEARCH = {"user_id": "ada", "query": "q"}
FACT = {"user_id": "ada", "value": "v"}
BODIES: dict[tuple[str, str, str], dict[str, Any]] = {
    ("ingest", "POST", "/v1/messages"): MESSAGE,
    ("retrieval", "POST", "/v1/recall"): RECALL,
    ("retrieval", "POST", "/v1/search"): SEARCH,
    ("retrieval", "PUT", "/v1/sessions/s1/facts/key"): FACT,
}
# With `user_id` as a query parameter.
QUERIES = [
    ("ingest", "DELETE", "/v1/sessions/s1"),
    ("ingest", "DELETE", "/v1/messages/m1"),
    ("retrieval", "GET", "/v1/facts"),
    ("retrieval", "DELETE", "/v1/sessions/s1/facts/key"),
    ("retrieval", "GET", "/v1/sessions"),
    ("retrieval", "GET", "/v1/sessions/s1/messages"),
]
NOBODY: list[Any] = ["", "  ", None, "*", "%", ["ada"], ["ada", "bob"], {}, 7, True, "a\u0000b", "x" * 257]


@pytest.fixture
def peopled(calmem: Services) -> Services:
    """Two users with a session, a message and a fact each: ada's are s1, m1, key; bob's s2, m2, key."""
    for user, n in (("ada", 1), ("bob", 2)):
        calmem.record(user_id=user, session_id=f"s{n}", message_id=f"m{n}")
        calmem.retrieval.put(f"/v1/sessions/s{n}/facts/key", json={"user_id": user, "value": user})
    return calmem


def send(calmem: Services, route: tuple[str, str, str], **request: Any) -> Any:
    service, method, path = route
    return getattr(calmem, service).request(method, path, **request)


def test_a_body_without_a_user_or_with_a_strange_one_reaches_nobody(peopled: Services) -> None:
    before = peopled.rows()
    for route, body in BODIES.items():
        without = {name: value for name, value in body.items() if name != "user_id"}
        assert_problem(send(peopled, route, json=without), 422, field="user_id")
        for user_id in NOBODY:
            assert_problem(send(peopled, route, json={**body, "user_id": user_id}), 422, field="user_id")
    batch = {"messages": [{**MESSAGE, "user_id": "*"}]}
    assert_problem(peopled.ingest.post("/v1/messages:batch", json=batch), 422, field="messages[0].user_id")
    assert peopled.rows() == before


def test_a_query_without_a_user_or_with_a_strange_one_reaches_nobody(peopled: Services) -> None:
    before = peopled.rows()
    for route in QUERIES:
        assert_problem(send(peopled, route), 422, field="user_id")
        for user_id in ["", "  ", "*", "%", ["ada", "bob"], "a\u0000b", "x" * 257]:
            assert_problem(send(peopled, route, params={"user_id": user_id}), 422, field="user_id")
        assert_problem(send(peopled, route, params={"user_id[]": "ada"}), 422)
    for user_id in ["%2A", "%25", "%20", "a%00b", "x" * 257]:
        for method in ("GET", "DELETE"):
            assert_problem(peopled.ingest.request(method, f"/v1/users/{user_id}"), 422, field="user_id")
        assert_problem(peopled.ingest.put(f"/v1/users/{user_id}", json={}), 422, field="user_id")
    assert peopled.rows() == before


def test_nothing_of_another_user_is_seen_changed_or_removed(peopled: Services) -> None:
    before = peopled.rows()
    for route, body in BODIES.items():
        if "session_id" in body or "sessions" in route[2]:
            assert_problem(send(peopled, route, json={**body, "user_id": "bob"}), 403)
    assert_problem(peopled.recall(user_id="bob", session_id="s1"), 403)
    assert_problem(peopled.retrieval.post("/v1/search", json={**SEARCH, "user_id": "bob", "session_id": "s1"}), 403)
    for route in QUERIES:
        if route[2] in ("/v1/facts", "/v1/sessions"):
            continue
        answer = send(peopled, route, params={"user_id": "bob"})
        assert_problem(answer, 404 if route[2] == "/v1/messages/m1" else 403)
        assert "Vaillant" not in answer.text
    assert_problem(peopled.retrieval.get("/v1/facts", params={"user_id": "bob", "session_id": "s1"}), 403)
    assert [f["value"] for f in peopled.retrieval.get("/v1/facts", params={"user_id": "bob"}).json()["facts"]] == [
        "bob"
    ]
    assert peopled.rows() == before


def test_an_unknown_session_or_user_is_404_or_empty_and_creates_nothing(calmem: Services) -> None:
    for route in QUERIES:
        if route[2] == "/v1/facts":
            assert send(calmem, route, params={"user_id": "nobody"}).json() == {"facts": []}
        else:
            assert_problem(send(calmem, route, params={"user_id": "nobody"}), 404)
    assert_problem(calmem.ingest.get("/v1/users/nobody"), 404)
    recalled = calmem.recall(user_id="nobody")
    assert recalled.status_code == 200
    assert recalled.json()["items"] == []
    assert calmem.retrieval.post("/v1/search", json={**SEARCH, "user_id": "nobody"}).json() == {"items": []}
    assert set(calmem.rows().values()) == {0}


BAD_MESSAGES: list[tuple[str, Any]] = [
    ("session_id", ""),
    ("session_id", None),
    ("session_id", ["s1"]),
    ("session_id", "s" * 257),
    ("session_id", "a\u0000"),
    ("role", "robot"),
    ("role", None),
    ("role", ["user"]),
    ("content", 5),
    ("content", {"text": "a"}),
    ("content", "x" * 1_048_577),
    ("content", "汉" * 400_000),
    ("message_id", ""),
    ("message_id", 5),
    ("name", 5),
    ("name", "n" * 201),
    ("created_at", "yesterday"),
    ("created_at", "2025-03-30T02:30:00"),
    ("created_at", 1_700_000_000),
    ("metadata", []),
    ("metadata", "text"),
    ("metadata", {"a": "x" * 70_000}),
]


def test_a_bad_message_is_named_and_nothing_is_stored(calmem: Services) -> None:
    for field, value in BAD_MESSAGES:
        document = assert_problem(calmem.record(**{field: value}), 422)

        assert document["field"].startswith(field)
        assert set(calmem.rows().values()) == {0}


BAD_RECALLS: list[tuple[str, Any]] = [
    ("session_id", None),
    ("session_id", ["s1"]),
    ("query", None),
    ("query", ["q"]),
    ("query", "x" * 70_000),
    ("current_tokens", -1),
    ("current_tokens", "1"),
    ("current_tokens", 1.5),
    ("current_tokens", True),
    ("current_tokens", None),
    ("current_tokens", 10**400),
    ("context_window_capacity", 0),
    ("context_window_capacity", -5),
    ("context_window_capacity", None),
    ("context_window_capacity", 10**400),
    ("active_message_ids", "m1"),
    ("active_message_ids", [1]),
    ("active_from_seq", -1),
    ("active_from_seq", "1"),
    ("active_from_seq", 2**63),
    ("since", "2025-01-01T00:00:00"),
    ("until", "soon"),
    ("k", 0),
    ("k", 1001),
    ("k", "5"),
    ("style", "verse"),
    ("style", ["list"]),
]


def test_a_bad_recall_is_named(calmem: Services) -> None:
    for field, value in BAD_RECALLS:
        assert_problem(calmem.recall(**{field: value}), 422, field=field)


BAD_SEARCHES: list[tuple[str, Any]] = [
    ("query", None),
    ("query", 1),
    ("k", 0),
    ("k", "1"),
    ("k", True),
    ("since", "x"),
    ("session_id", ""),
    ("session_id", ["s1"]),
]


def test_a_bad_search_is_named(calmem: Services) -> None:
    for field, value in BAD_SEARCHES:
        assert_problem(calmem.retrieval.post("/v1/search", json={**SEARCH, field: value}), 422, field=field)


BAD_FACTS: list[tuple[str, Any]] = [
    ("value", None),
    ("value", " "),
    ("value", 5),
    ("value", "x" * 16_385),
    ("category", 5),
    ("category", "c" * 201),
    ("expires_at", "2025-01-01T00:00:00"),
    ("expires_at", 5),
]


def test_a_bad_fact_is_named_and_nothing_is_stored(calmem: Services) -> None:
    for field, value in BAD_FACTS:
        answer = calmem.retrieval.put("/v1/sessions/s1/facts/key", json={**FACT, field: value})

        assert_problem(answer, 422, field=field)
        assert calmem.rows()["facts"] == 0


def test_a_bad_key_of_a_fact_is_named(calmem: Services) -> None:
    for key in ("%20", "k" * 201):
        answer = calmem.retrieval.put(f"/v1/sessions/s1/facts/{key}", json=FACT)
        assert_problem(answer, 422, field="key")


BAD_USERS: list[tuple[str, Any]] = [
    ("memory", "maybe"),
    ("memory", True),
    ("memory", ["on"]),
    ("time_zone", "Mars/Base"),
    ("time_zone", ""),
    ("time_zone", 5),
    ("time_zone", ["UTC"]),
    ("time_zone", {}),
    ("time_zone", "../../etc/passwd"),
    ("time_zone", "a\u0000b"),
    ("time_zone", "x" * 300),
    ("time_zone", "Europe"),
]


def test_a_bad_user_is_named_and_not_created(calmem: Services) -> None:
    for field, value in BAD_USERS:
        assert_problem(calmem.ingest.put("/v1/users/ada", json={field: value}), 422, field=field)
        assert calmem.rows()["users"] == 0


def test_every_missing_or_unknown_field_is_named(calmem: Services) -> None:
    for route, body in BODIES.items():
        for name in body:
            without = {other: value for other, value in body.items() if other != name}
            assert_problem(send(calmem, route, json=without), 422, field=name)
        assert_problem(send(calmem, route, json={**body, "usr_id": "x"}), 422, field="usr_id")
    assert_problem(calmem.ingest.post("/v1/messages:batch", json={}), 422, field="messages")
    assert_problem(calmem.ingest.put("/v1/users/ada", json={"colour": "red"}), 422, field="colour")
    assert set(calmem.rows().values()) == {0}


def test_an_unknown_field_is_named_even_if_it_is_half_a_character(calmem: Services) -> None:
    half = b'{"\\ud83c": 1, "user_id": "ada", "session_id": "s1", "role": "user", "content": "x"}'
    headers = {"content-type": "application/json"}

    assert_problem(calmem.ingest.post("/v1/messages", content=half, headers=headers), 422)
    batch = b'{"messages": [' + half + b"]}"
    assert_problem(calmem.ingest.post("/v1/messages:batch", content=batch, headers=headers), 422)


def test_a_bad_batch_is_refused(calmem: Services) -> None:
    batches: list[Any] = [None, [], {}, "text", 5, [5], [None], [MESSAGE] * 1001]
    for messages in batches:
        assert_problem(calmem.ingest.post("/v1/messages:batch", json={"messages": messages}), 422)
    assert set(calmem.rows().values()) == {0}


def test_a_body_that_is_not_a_json_object(calmem: Services) -> None:
    for service, method, path in [*BODIES, ("ingest", "POST", "/v1/messages:batch"), ("ingest", "PUT", "/v1/users/a")]:
        client = getattr(calmem, service)
        headers = {"content-type": "application/json"}
        for content in (b"", b"{", b"\xff\xfe\xfd", b'{"a": NaN}', b"[" * 50_000, b'{"a": ' + b"1" * 5_000 + b"}"):
            assert_problem(client.request(method, path, content=content, headers=headers), 400)
        for content in (b"[]", b"5", b'"text"', b"null"):
            assert_problem(client.request(method, path, content=content, headers=headers), 422)
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert_problem(client.request(method, path, content=b"a=1", headers=form), 415)
    assert set(calmem.rows().values()) == {0}


def test_a_body_over_the_limit_is_413(calmem: Services) -> None:
    assert_problem(calmem.record(content="x" * 9_000_000), 413)
    assert_problem(calmem.recall(query="x" * 5_000_000), 413)
    assert set(calmem.rows().values()) == {0}


def test_unknown_paths_and_methods(calmem: Services) -> None:
    for client in (calmem.ingest, calmem.retrieval):
        assert_problem(client.get("/v1/nothing"), 404)
        answer = client.delete("/healthz")
        assert_problem(answer, 405)
        assert "GET" in answer.headers["allow"]


def test_parameters_that_are_misspelt_doubled_or_out_of_range(peopled: Services) -> None:
    get = peopled.retrieval.get
    assert_problem(get("/v1/facts", params={"user_id": "ada", "categroy": "x"}), 422, field="categroy")
    assert_problem(get("/v1/facts", params={"user_id": "ada", "pattern": ["a", "b"]}), 422, field="pattern")
    for limit in ("0", "1001", "many", "", "1.5"):
        assert_problem(get("/v1/sessions", params={"user_id": "ada", "limit": limit}), 422, field="limit")
    for cursor in ("", "zz", "FFFFFFFFFFFFFFFF", "5", "é", "0" * 64 + "F" * 18):
        for path in ("/v1/sessions", "/v1/sessions/s1/messages"):
            answer = get(path, params={"user_id": "ada", "cursor": cursor})
            assert answer.status_code in (200, 422)
            if answer.status_code == 422:
                assert_problem(answer, 422, field="cursor")


def test_lone_surrogates_are_replaced_and_the_session_goes_on(calmem: Services) -> None:
    body = b'{"user_id": "ada", "session_id": "s1", "role": "user", "content": "cheers \\ud83c and \\udf78"}'

    answer = calmem.ingest.post("/v1/messages", content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 201
    assert calmem.record(content="next \U0001f378").json()["seq"] == 2
    page = calmem.retrieval.get("/v1/sessions/s1/messages", params={"user_id": "ada"}).json()
    assert [one["content"] for one in page["messages"]] == ["cheers \ufffd and \ufffd", "next \U0001f378"]


def test_surrogates_in_every_other_text_too(calmem: Services) -> None:
    headers = {"content-type": "application/json"}
    message = (
        b'{"user_id": "ada", "session_id": "s1", "role": "user", "content": ["a", {"type": "text", "text": "\\udf78"}],'
        b' "name": "\\ud83c", "metadata": {"\\ud83c": ["\\udf78"]}}'
    )
    recall = (
        b'{"user_id": "ada", "session_id": "s1", "query": "cheers \\ud83c", "current_tokens": 0,'
        b' "context_window_capacity": 10}'
    )
    fact = b'{"user_id": "ada", "value": "\\ud83c"}'

    assert calmem.ingest.post("/v1/messages", content=message, headers=headers).status_code == 201
    assert calmem.retrieval.post("/v1/recall", content=recall, headers=headers).status_code == 200
    assert calmem.retrieval.put("/v1/sessions/s1/facts/k", content=fact, headers=headers).status_code == 200
    zone = calmem.ingest.put("/v1/users/ada", content=b'{"time_zone": "\\ud83c"}', headers=headers)
    assert_problem(zone, 422, field="time_zone")


def test_nul_is_removed_from_text(calmem: Services) -> None:
    calmem.record(content="a\u0000b")

    page = calmem.retrieval.get("/v1/sessions/s1/messages", params={"user_id": "ada"}).json()
    assert page["messages"][0]["content"] == "ab"
    assert calmem.recall(query="a\u0000b").status_code == 200


def test_the_ends_of_time_can_be_recorded_and_recalled(calmem: Services) -> None:
    calmem.ingest.put("/v1/users/ada", json={"time_zone": "Asia/Shanghai"})
    calmem.record(created_at="9999-12-31T23:59:59Z")
    calmem.record(created_at="0001-01-01T00:00:00Z")

    assert calmem.recall().status_code == 200
    calmem.ingest.put("/v1/users/ada", json={"time_zone": "America/New_York"})
    assert calmem.recall().status_code == 200
