"""`calmem gateway` as a real process, with a real worker and the real model, before a scripted upstream."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import psycopg

from calmem.settings import Settings
from calmem_services.local.ports import free_ports
from calmem_services.local.postgres import EmbeddedPostgres
from tests.support.gateway import assistant, system, user
from tests.support.processes import Process, eventually, running
from tests.support.serving import ready
from tests.support.upstream import Asked, is_summary, scripted_upstream, words

WINDOW = 8_000
TURNS = 300
DETAIL = "Before I forget: the safe in the cabin at the lake opens with 7731-DELTA."
QUESTION = "Tell me again, with which number does the safe in the cabin open?"
SUBJECTS = (
    "The gardener",
    "My neighbour",
    "Our printer",
    "The night train",
    "A colleague",
    "The new baker",
    "Her choir",
)
DEEDS = (
    "came late on account of the roadworks near the station",
    "asked for a longer lead and two more lamps",
    "has changed the plan for the coming weekend once more",
    "wants the blue folder back before the meeting starts",
    "lost the receipt for the second pair of shoes",
    "was praised for the soup with leek and potatoes",
    "needs a new timetable because of the holidays",
)
REPLIES = ("I have noted that", "That sounds manageable", "Let us look at it later", "Good to know")


def chatter(number: int) -> tuple[str, str]:
    """A question and an answer of about 110 tokens together, the same for the same number."""
    chance = random.Random(number)
    said = ". ".join(f"{chance.choice(SUBJECTS)} {chance.choice(DEEDS)}" for _ in range(4))
    replied = ". ".join(f"{chance.choice(REPLIES)}: {chance.choice(DEEDS)}" for _ in range(3))
    return f"Turn {number}. {said}.", f"{replied}."


@contextmanager
def gateway(settings: Settings, directory: Path) -> Iterator[Process]:
    """`calmem gateway`, ready, its model loaded."""
    with (
        running(["gateway"], settings, directory / "gateway.log") as process,
        httpx.Client(base_url=f"http://127.0.0.1:{settings.gateway_port}", timeout=60) as http,
    ):

        def is_ready() -> bool:
            return not process.running or (ready(http) and http.get("/readyz").json()["status"] == "ready")

        eventually(is_ready, "the gateway is ready")
        assert process.running, process.text()
        yield process


def chosen(settings: Settings, upstream_url: str) -> Settings:
    [port] = free_ports(1)
    return replace(
        settings,
        gateway_port=port,
        gateway_upstream_url=upstream_url,
        gateway_window_tokens=WINDOW,
        gateway_deadline_ms=30_000,
    )


def client(settings: Settings) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{settings.gateway_port}/v1",
        api_key="sk-client",
        default_headers={"X-Calmem-User": "ada", "X-Calmem-Session": "long"},
        max_retries=0,
    )


def test_300_turns_through_a_window_of_8000_tokens(settings: Settings, tmp_path: Path) -> None:
    with scripted_upstream() as upstream:
        answers: dict[str, str] = {}
        upstream.answer = lambda asked: words(answers.get(str(asked.texts[-1]), "Fine."))
        settings = chosen(settings, upstream.url)
        with (
            running(["worker"], settings, tmp_path / "worker.log", ready="worker_ready"),
            gateway(settings, tmp_path),
            client(settings) as opened,
        ):
            history: list[Any] = [system("You are a patient secretary.")]
            for number in range(1, TURNS + 1):
                said, replied = chatter(number)
                said = DETAIL if number == 3 else QUESTION if number == TURNS else said
                answers[said] = replied
                history.append(user(said))
                if number == TURNS:
                    eventually(lambda: indexed(settings, 2 * (TURNS - 1)), "every turn before is indexed")
                stream = opened.chat.completions.create(model="scripted", messages=history, stream=True)
                got = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
                assert got.strip() == replied
                history.append(assistant(got))
            eventually(lambda: indexed(settings, 2 * TURNS), "the last turn is indexed too")

        assert asked_tokens(history) > 3 * WINDOW
        assert len(upstream.chats) == TURNS
        assert max(asked_tokens(asked.body["messages"]) for asked in upstream.asked) <= WINDOW
        last = upstream.chats[-1]
        block = last.texts[0].partition("<moim")[2]
        assert "7731-DELTA" in block
        # It came from memory: neither the turn itself nor a summary has it.
        assert "7731-DELTA" not in last.texts[0].partition("<moim")[0]
        assert not [text for text in last.texts[1:] if "7731-DELTA" in text]
        assert last.texts[-1] == QUESTION
        assert_prefixes_last(upstream.chats)
        with psycopg.connect(settings.database_url) as conn:
            rows = conn.execute("SELECT role, content FROM messages ORDER BY seq").fetchall()
        assert rows == [(one["role"], one["content"].strip()) for one in history[1:]]
        assert [one for one in upstream.asked if is_summary(one)]


def asked_tokens(messages: list[Any]) -> int:
    """As the brief counts: a token for every four characters begun, and four for a message's frame."""
    return sum(4 + -(-len(message["content"]) // 4) for message in messages)


def assert_prefixes_last(chats: list[Asked]) -> None:
    """Between two compactions each request begins with the turns of the one before."""
    changes = 0
    for before, after in itertools.pairwise(chats):
        kept = before.texts[1:]
        if after.texts[1 : len(kept) + 1] != kept:
            changes += 1
    # From half to eight tenths of 8,000 tokens are 2,400: about 20 exchanges of 110 tokens and more.
    assert 5 <= changes <= 20


def indexed(settings: Settings, messages: int) -> bool:
    with psycopg.connect(settings.database_url) as conn:
        row = conn.execute("SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM index_tasks)").fetchone()
    return row == (messages, 0)


def test_a_long_history_that_comes_at_once(settings: Settings, tmp_path: Path) -> None:
    """A host that moves to the gateway in the middle of a conversation: what is dropped is in memory before."""
    with scripted_upstream() as upstream:
        settings = chosen(settings, upstream.url)
        history: list[Any] = []
        for number in range(1, TURNS):
            said, replied = chatter(number)
            history += [user(DETAIL if number == 3 else said), assistant(replied)]
        with gateway(settings, tmp_path), client(settings) as opened:
            opened.chat.completions.create(model="scripted", messages=[*history, user(QUESTION)])
        [asked] = upstream.chats
        assert "7731-DELTA" in asked.texts[0].partition("<moim")[2]
        assert asked_tokens(asked.body["messages"]) <= WINDOW


def test_a_gateway_killed_and_started_again_makes_no_doubles(settings: Settings, tmp_path: Path) -> None:
    with scripted_upstream() as upstream:
        settings = chosen(settings, upstream.url)
        history: list[Any] = []
        for number in range(3):
            with gateway(settings, tmp_path) as process, client(settings) as opened:
                history.append(user(f"Message {number}."))
                opened.chat.completions.create(model="scripted", messages=history)
                history.append(assistant("Noted. "))
                process.kill()
        with gateway(settings, tmp_path) as process, client(settings) as opened:
            upstream.answer = lambda _asked: words("Noted.")
            opened.chat.completions.create(model="scripted", messages=[*history, user("The end.")], stream=True).close()
            process.stop()
        with psycopg.connect(settings.database_url) as conn:
            rows = [row[0] for row in conn.execute("SELECT content FROM messages WHERE role = 'user'")]
        assert sorted(rows) == ["Message 0.", "Message 1.", "Message 2.", "The end."]


def test_it_serves_from_a_start_without_a_database(
    settings: Settings, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Started while Postgres is away it passes chats on, and has memory when Postgres comes."""
    with scripted_upstream() as upstream:
        settings = replace(chosen(settings, upstream.url), recall_deadline_ms=1_000, pool_wait_seconds=1.0)
        postgres.pause()
        try:
            with (
                running(["gateway"], settings, tmp_path / "gateway.log", ready='"listening"') as process,
                client(settings) as opened,
                httpx.Client(base_url=f"http://127.0.0.1:{settings.gateway_port}") as http,
            ):
                eventually(lambda: ready(http), "the gateway answers")
                said: list[Any] = [user("The gate code is 9090.")]
                opened.chat.completions.create(model="scripted", messages=said)
                assert upstream.last.body["messages"] == said
                postgres.resume()

                def remembered() -> bool:
                    opened.chat.completions.create(model="scripted", messages=said)
                    return "<moim" in upstream.last.prompt

                eventually(remembered, "memory is back")
                assert process.running
        finally:
            postgres.resume()
