"""What every route answers when it is used well (spec 18)."""

from __future__ import annotations

import json
import subprocess
import sys
from urllib.parse import quote

from calmem import metrics
from tests.support.http import Services, assert_problem
from tests.support.processes import eventually


def test_a_new_message_is_201_and_the_same_again_200(calmem: Services) -> None:
    first = calmem.record(message_id="m1")
    again = calmem.record(message_id="m1")

    assert (first.status_code, first.json()) == (201, {"message_id": "m1", "seq": 1, "created": True})
    assert (again.status_code, again.json()) == (200, {"message_id": "m1", "seq": 1, "created": False})


def test_an_id_with_other_content_is_a_conflict(calmem: Services) -> None:
    calmem.record(message_id="m1")

    assert_problem(calmem.record(message_id="m1", content="something else"), 409)
    assert calmem.rows()["messages"] == 1


def test_null_for_an_optional_field_is_as_if_not_given(calmem: Services) -> None:
    recorded = calmem.record(message_id=None, name=None, created_at=None, metadata=None)

    assert recorded.status_code == 201
    assert calmem.recall(k=None, style=None, since=None, until=None, active_message_ids=None).status_code == 200


def test_a_batch_answers_in_its_order(calmem: Services) -> None:
    batch = [
        {"user_id": "ada", "session_id": "s1", "role": "user", "content": f"turn {n}", "message_id": f"m{n}"}
        for n in range(3)
    ]

    answer = calmem.ingest.post("/v1/messages:batch", json={"messages": batch})

    assert answer.status_code == 200
    assert [one["message_id"] for one in answer.json()["results"]] == ["m0", "m1", "m2"]
    assert [one["seq"] for one in answer.json()["results"]] == [1, 2, 3]


def test_one_bad_message_refuses_its_whole_batch_and_is_named(calmem: Services) -> None:
    good = {"user_id": "ada", "session_id": "s1", "role": "user", "content": "fine"}

    answer = calmem.ingest.post("/v1/messages:batch", json={"messages": [good, {**good, "role": "robot"}]})

    assert_problem(answer, 422, field="messages[1].role")
    assert set(calmem.rows().values()) == {0}


def test_what_was_recorded_is_recalled(calmem: Services) -> None:
    calmem.record(message_id="m1", name="Ada", created_at="2025-03-30T02:30:00+02:00")

    answer = calmem.recall()

    assert answer.status_code == 200
    body = answer.json()
    assert set(body) == {"block", "tokens", "tier", "fill_ratio", "items", "facts", "degraded", "timings_ms"}
    assert "Vaillant" in body["block"]
    assert (body["tier"], body["fill_ratio"]) == ("full", 0.0)
    (item,) = body["items"]
    assert item["message_ids"] == ["m1"]
    assert (item["session_id"], item["role"], item["name"]) == ("s1", "user", "Ada")
    assert item["created_at"] == "2025-03-30T00:30:00+00:00"
    assert item["text"] == "The boiler is a Vaillant."
    assert item["reasons"]
    assert "total" in body["timings_ms"]


def test_the_tier_follows_the_fill_ratio(calmem: Services) -> None:
    tiers = {599: "full", 600: "reduced", 700: "minimal", 800: "facts_only", 5000: "facts_only"}

    assert {tokens: calmem.recall(current_tokens=tokens).json()["tier"] for tokens in tiers} == tiers


def test_the_active_context_is_left_out(calmem: Services) -> None:
    calmem.record(message_id="m1")

    assert calmem.recall(session_id="s1", active_message_ids=["m1"]).json()["items"] == []
    assert calmem.recall(session_id="s1", active_from_seq=1).json()["items"] == []
    assert calmem.recall(session_id="s1", active_from_seq=2).json()["items"] != []


def test_search_ranks_without_a_budget_and_inside_a_session(calmem: Services) -> None:
    calmem.record(message_id="m1")
    calmem.record(message_id="m2", session_id="s2", content="The boiler was serviced.")

    def found(**fields: object) -> list[str]:
        answer = calmem.retrieval.post("/v1/search", json={"user_id": "ada", "query": "boiler", **fields})
        assert answer.status_code == 200
        return [item["message_ids"][0] for item in answer.json()["items"]]

    assert set(found()) == {"m1", "m2"}
    assert found(session_id="s2") == ["m2"]
    assert found(session_id="never seen") == []
    assert len(found(k=1)) == 1


def test_a_fact_is_written_listed_by_glob_and_removed_once(calmem: Services) -> None:
    path = "/v1/sessions/s1/facts/home.city"

    stored = calmem.retrieval.put(path, json={"user_id": "ada", "value": "Turin", "category": "home"})
    listed = calmem.retrieval.get("/v1/facts", params={"user_id": "ada", "pattern": "home.*", "category": "home"})
    unmatched = calmem.retrieval.get("/v1/facts", params={"user_id": "ada", "pattern": "home"})
    removed = calmem.retrieval.delete(path, params={"user_id": "ada"})

    assert (stored.status_code, stored.json()["stored"]) == (200, True)
    assert [(fact["key"], fact["value"]) for fact in listed.json()["facts"]] == [("home.city", "Turin")]
    assert unmatched.json() == {"facts": []}
    assert (removed.status_code, removed.json()) == (200, {"removed": 1})
    assert_problem(calmem.retrieval.delete(path, params={"user_id": "ada"}), 404)


def test_slashes_in_ids_and_keys_come_through_escaped(calmem: Services) -> None:
    calmem.record(user_id="org/ada", session_id="chat/7", message_id="m/1")
    fact = "/v1/sessions/chat%2F7/facts/app%2Ftheme"

    assert calmem.retrieval.put(fact, json={"user_id": "org/ada", "value": "dark"}).json()["key"] == "app/theme"
    page = calmem.retrieval.get("/v1/sessions/chat%2F7/messages", params={"user_id": "org/ada"})
    assert [one["message_id"] for one in page.json()["messages"]] == ["m/1"]
    assert calmem.retrieval.delete(fact, params={"user_id": "org/ada"}).status_code == 200
    assert calmem.ingest.delete("/v1/messages/m%2F1", params={"user_id": "org/ada"}).status_code == 200
    assert calmem.ingest.delete("/v1/sessions/chat%2F7", params={"user_id": "org/ada"}).status_code == 200
    assert calmem.ingest.get("/v1/users/org%2Fada").status_code == 200
    assert calmem.ingest.delete("/v1/users/org%2Fada").status_code == 200
    assert set(calmem.rows().values()) == {0}


def test_a_user_is_created_changed_read_and_removed(calmem: Services) -> None:
    put = calmem.ingest.put("/v1/users/ada", json={"time_zone": "Asia/Shanghai"})
    calmem.ingest.put("/v1/users/ada", json={"memory": "off"})

    assert put.json() == {"user_id": "ada", "memory": "on", "time_zone": "Asia/Shanghai"}
    assert calmem.ingest.get("/v1/users/ada").json() == {
        "user_id": "ada",
        "memory": "off",
        "time_zone": "Asia/Shanghai",
    }
    assert calmem.ingest.delete("/v1/users/ada").json()["removed"]["users"] == 1
    assert_problem(calmem.ingest.get("/v1/users/ada"), 404)
    assert_problem(calmem.ingest.delete("/v1/users/ada"), 404)


def test_memory_off_stores_nothing_and_recalls_nothing(calmem: Services) -> None:
    calmem.record()
    calmem.ingest.put("/v1/users/ada", json={"memory": "off"})
    before = calmem.rows()

    recorded = calmem.record(message_id="m2")
    fact = calmem.retrieval.put("/v1/sessions/s1/facts/k", json={"user_id": "ada", "value": "v"})
    recalled = calmem.recall().json()

    assert recorded.status_code == 200
    assert recorded.json() == {"message_id": "m2", "seq": None, "created": False, "stored": False}
    assert fact.json() == {"stored": False}
    assert (recalled["block"], recalled["tokens"], recalled["tier"]) == ("", 0, "off")
    assert calmem.rows() == before


def test_deleting_answers_counts_and_then_404(calmem: Services) -> None:
    calmem.record(message_id="m1")
    calmem.record(message_id="m2")

    message = calmem.ingest.delete("/v1/messages/m1", params={"user_id": "ada"})
    session = calmem.ingest.delete("/v1/sessions/s1", params={"user_id": "ada"})

    assert message.json()["removed"]["messages"] == 1
    assert session.json()["removed"]["messages"] == 1
    assert_problem(calmem.ingest.delete("/v1/messages/m1", params={"user_id": "ada"}), 404)
    assert_problem(calmem.ingest.delete("/v1/sessions/s1", params={"user_id": "ada"}), 404)
    assert calmem.rows() == {**dict.fromkeys(calmem.rows(), 0), "users": 1}


def test_pages_of_messages_are_whole_and_stable_while_others_arrive(calmem: Services) -> None:
    for n in range(5):
        calmem.record(message_id=f"m{n}")
    url, seen, cursor = "/v1/sessions/s1/messages", [], None
    for _ in range(4):
        params = {"user_id": "ada", "limit": "2"} | ({} if cursor is None else {"cursor": cursor})
        page = calmem.retrieval.get(url, params=params).json()
        seen += [one["message_id"] for one in page["messages"]]
        cursor = page["next_cursor"]
        if not seen[2:]:
            calmem.ingest.delete("/v1/messages/m0", params={"user_id": "ada"})
            calmem.record(message_id="m5")
        if cursor is None:
            break

    assert seen == ["m0", "m1", "m2", "m3", "m4", "m5"]
    assert cursor is None


def test_pages_of_sessions(calmem: Services) -> None:
    for n in range(3):
        calmem.record(session_id=f"s{n}")

    first = calmem.retrieval.get("/v1/sessions", params={"user_id": "ada", "limit": 2}).json()
    rest = calmem.retrieval.get(
        "/v1/sessions", params={"user_id": "ada", "limit": 2, "cursor": first["next_cursor"]}
    ).json()

    assert [one["session_id"] for one in first["sessions"] + rest["sessions"]] == ["s0", "s1", "s2"]
    assert rest["next_cursor"] is None
    assert first["sessions"][0]["messages"] == 1


def test_metrics_count_what_happened(calmem: Services) -> None:
    calmem.record()
    calmem.recall()

    text = calmem.retrieval.get("/metrics").text

    for name in (
        'calmem_messages_recorded_total{lane="live"}',
        'calmem_pending_messages{lane="live"} 1.0',
        'calmem_oldest_pending_seconds{lane="live"}',
        "calmem_failed_messages 0.0",
        "calmem_chunks",
        'calmem_recall_seconds_bucket{le="0.3",stage="total"}',
        'calmem_recall_tier_total{tier="full"}',
        "calmem_wakeups_lost_total",
        "calmem_recall_degraded_total",
        "calmem_leased_messages 0.0",
        "calmem_database_up 1.0",
    ):
        assert name in text, name


def test_requests_are_counted_by_status_and_looks_at_the_service_are_not(calmem: Services) -> None:
    def counted() -> dict[str, float]:
        (metric,) = metrics.HTTP.collect()
        return {one.labels["status"]: one.value for one in metric.samples if one.name.endswith("_total")}

    def added() -> dict[str, float]:
        now = counted()
        return {status: now[status] - before.get(status, 0) for status in now if now[status] != before.get(status, 0)}

    before = counted()
    for path in ("/healthz", "/readyz", "/metrics"):
        calmem.ingest.get(path)
    for _ in range(2):
        calmem.record()
        calmem.retrieval.get("/v1/nowhere")

    # A request is counted after its answer was sent.
    eventually(lambda: sum(added().values()) >= 4, "four requests are counted")
    assert added() == {"201": 2, "404": 2}


def test_retrieval_loads_neither_rq_nor_redis() -> None:
    program = (
        "import sys, json, calmem_services.retrieval.app\n"
        "print(json.dumps([name for name in ('rq', 'redis') if name in sys.modules]))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert json.loads(loaded) == []


def test_an_escaped_slash_never_moves_the_border_between_session_and_key(calmem: Services) -> None:
    """`facts` and `messages` inside of an id or a key are not the route's."""
    for session, key in (("chat", "a/facts/b"), ("chat/facts/a", "b"), ("x/messages", "y/messages")):
        path = f"/v1/sessions/{quote(session, safe='')}/facts/{quote(key, safe='')}"
        stored = calmem.retrieval.put(path, json={"user_id": "ada", "value": "v"}).json()
        assert (stored["session_id"], stored["key"]) == (session, key)
        assert calmem.retrieval.delete(path, params={"user_id": "ada"}).json() == {"removed": 1}


def test_a_line_end_in_an_id_is_refused_by_name(calmem: Services) -> None:
    problem = assert_problem(calmem.ingest.get("/v1/users/a%0Ab"), 422)
    assert problem["field"] == "user_id"
