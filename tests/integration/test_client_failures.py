"""What a client over HTTP does when the service, the way to it, or the key fails. The breaking servers are error paths."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from calmem import Memory
from calmem.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    PermanentError,
    RateLimited,
    TransientError,
    Unauthorized,
)
from calmem.keys import Keys
from calmem.model import KeyScope, Recorded
from calmem.ratelimit import RateLimiter
from calmem.settings import Settings
from calmem_services.ingest.app import create_app as create_ingest
from tests.support.breaking import answering, hand_on, hang_up, lose_the_reply_of, reply
from tests.support.doors import over_http
from tests.support.http import Services, services
from tests.support.http import client as served
from tests.support.keys import MESSAGE, make
from tests.support.rows import rows

PASSWORD = "sesame-7315"


def client(url: str, **changes: Any) -> Memory:
    settings = Settings(ingest_url=url, retrieval_url=url, **{"client_timeout_seconds": 60.0, **changes})
    return Memory(settings=settings)


def test_a_lost_reply_and_the_second_try_make_one_message(calmem: Services) -> None:
    ways = (lose_the_reply_of(calmem.ingest), hand_on(calmem.ingest))
    with answering(*ways) as (url, requests), client(url) as memory:
        stored = memory.record(**MESSAGE)
    with answering(*ways) as (url, more), client(url) as memory:
        both = memory.record_many([MESSAGE, {**MESSAGE, "message_id": "mine"}])

    assert (len(requests), len(more)) == (2, 2)
    # `created` is what the second try found; the ids are those of the first.
    assert stored == Recorded(message_id=stored.message_id, seq=1, created=False)
    assert [(one.seq, one.created) for one in both] == [(2, False), (3, False)]
    assert both[1].message_id == "mine"
    assert calmem.rows()["messages"] == 3


def test_what_may_not_be_done_twice_is_not_tried_twice(calmem: Services) -> None:
    calmem.record(message_id="m1")
    ways = (lose_the_reply_of(calmem.ingest), hand_on(calmem.ingest))
    with answering(*ways) as (url, requests), client(url) as memory:
        with pytest.raises(TransientError, match="CALMEM_INGEST_URL"):
            memory.delete_message("ada", "m1")
        assert len(requests) == 1
        with pytest.raises(NotFound):
            memory.delete_message("ada", "m1")

    with answering(hang_up) as (url, requests), client(url) as memory:
        with pytest.raises(TransientError):
            memory.remember_fact(user_id="ada", session_id="s1", key="k", value="v")
        assert len(requests) == 1
        with pytest.raises(TransientError):
            memory.get_user("ada")
        assert len(requests) == 3


def test_nobody_there_is_worth_another_try_and_tells_no_password() -> None:
    with client(f"http://ada:{PASSWORD}@127.0.0.1:1") as memory:
        for call in (lambda: memory.record(**MESSAGE), lambda: memory.recall_facts(user_id="ada"), memory.warm):
            with pytest.raises(TransientError, match=r"CALMEM_(INGEST|RETRIEVAL)_URL") as refused:
                call()
            assert PASSWORD not in str(refused.value)


def test_a_service_that_never_answers_is_left_after_the_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        client(f"http://127.0.0.1:{silent.getsockname()[1]}", client_timeout_seconds=0.2) as memory,
        pytest.raises(TransientError, match=r"ingest did not answer in 0\.2 s"),
    ):
        memory.record(**MESSAGE)


def test_a_closed_memory_says_so(settings: Settings, calmem: Services) -> None:
    for chosen in (settings, over_http(calmem)):
        with Memory(settings=chosen) as memory:
            memory.record(**MESSAGE)
        with pytest.raises(TransientError, match="closed"):
            memory.record(**MESSAGE)


def test_a_key_goes_beside_the_password_of_a_proxy(settings: Settings, keys: Keys) -> None:
    key = make(keys, KeyScope.RECORD).secret
    with services(settings) as opened:
        url = str(opened.ingest.base_url).replace("http://", f"http://proxy:{PASSWORD}@")
        with client(url, api_key=key) as memory:
            assert memory.record(**MESSAGE).seq == 1


def test_only_one_of_the_two_addresses_is_enough_for_its_calls(calmem: Services) -> None:
    with Memory(settings=replace(over_http(calmem), ingest_url="")) as memory:
        assert memory.recall_facts(user_id="ada") == []
        with pytest.raises(PermanentError, match="CALMEM_INGEST_URL"):
            memory.record(**MESSAGE)


def test_a_service_without_its_database_is_worth_another_try(settings: Settings) -> None:
    away = replace(settings, database_url="postgresql://127.0.0.1:1/calmem", pool_wait_seconds=0.2)
    with services(away) as opened, Memory(settings=over_http(opened, client_timeout_seconds=5.0)) as memory:
        with pytest.raises(TransientError, match="database"):
            memory.record(**MESSAGE)
        with pytest.raises(TransientError, match="database"):
            memory.recall_facts(user_id="ada")
    with (
        services(away) as opened,
        Memory(settings=over_http(opened, client_timeout_seconds=0.5)) as memory,
        pytest.raises(TransientError, match="retrieval"),
    ):
        memory.warm()


def test_the_wrong_service_is_told_from_an_unknown_user(calmem: Services) -> None:
    swapped = Settings(ingest_url=str(calmem.retrieval.base_url), retrieval_url=str(calmem.ingest.base_url))
    with Memory(settings=swapped) as memory:
        for call in (lambda: memory.get_user("ada"), lambda: memory.recall_facts(user_id="ada")):
            with pytest.raises(PermanentError, match="refused the request: status 404") as refused:
                call()
            assert not isinstance(refused.value, NotFound)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (reply("200 OK", "<html>Welcome</html>"), PermanentError, "not calmem"),
        (reply("200 OK", json.dumps({"hello": "world"})), PermanentError, "not calmem"),
        (reply("200 OK", json.dumps([1])), PermanentError, "not calmem"),
        (reply("302 Found", "", "Location: https://elsewhere.invalid/"), PermanentError, "status 302"),
        (reply("404 Not Found", json.dumps({"detail": "no route"})), PermanentError, "status 404: no route"),
        (reply("500 Oops", "trouble"), PermanentError, "status 500"),
        (reply("502 Bad Gateway", "<html>"), TransientError, "status 502"),
        (reply("503 Away", json.dumps({"detail": 5, "error": "NotFound"})), TransientError, "status 503"),
        (reply("504 Gateway Timeout"), TransientError, "status 504"),
    ],
)
def test_what_is_not_calmem_is_never_taken_for_an_answer(answer: Any, error: type, words: str) -> None:
    with answering(answer) as (url, _), client(url) as memory, pytest.raises(error, match=words) as refused:
        memory.get_user("ada")
    assert refused.type is error


def test_keys_open_what_they_are_for(settings: Settings, keys: Keys) -> None:
    recording = make(keys, KeyScope.RECORD, user_id="ada")
    with services(settings) as opened:
        url = over_http(opened)
        with Memory(settings=url) as memory, pytest.raises(Unauthorized, match="a key is needed"):
            memory.record(**MESSAGE)
        with Memory(api_key="calmem_wrong", settings=url) as memory, pytest.raises(Unauthorized, match="not known"):
            memory.record(**MESSAGE)
        with Memory(api_key=recording.secret, settings=url) as memory:
            assert memory.record(**MESSAGE).seq == 1
            with pytest.raises(Forbidden, match="user_id"):
                memory.record(**{**MESSAGE, "user_id": "bob"})
            with pytest.raises(Forbidden, match="recall"):
                memory.search(user_id="ada", query="boiler")
    assert rows(settings)["messages"] == 1


def test_too_many_requests_say_when_to_come_again(settings: Settings, keys: Keys) -> None:
    app = create_ingest(settings)
    app.state.access.limiter = RateLimiter(settings.redis_url, per_minute=1)
    with served(app) as http, client(str(http.base_url), api_key=make(keys, KeyScope.RECORD).secret) as memory:
        memory.record(**MESSAGE)
        with pytest.raises(RateLimited) as refused:
            memory.record(**MESSAGE)
    assert 0 < refused.value.retry_after_seconds <= 60


def test_a_body_over_every_limit_is_refused_as_the_callers_mistake(calmem: Services) -> None:
    huge = {**MESSAGE, "content": "x" * (8 * 1_048_576)}
    with Memory(settings=over_http(calmem)) as memory:
        for _ in range(10):
            with pytest.raises(InvalidInput, match="body"):
                memory.record(**huge)
    assert calmem.rows()["messages"] == 0
