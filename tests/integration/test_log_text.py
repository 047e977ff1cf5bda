"""What the services' logs hold: no text, unless it is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from calmem.settings import Settings
from tests.support.serving import serving

TOLD, ASKED = "The spare key lies under the blue flowerpot.", "Where does the spare key lie?"


@pytest.mark.parametrize("wanted", [False, True])
def test_message_text_is_logged_only_where_it_is_asked_for(settings: Settings, tmp_path: Path, wanted: bool) -> None:
    with serving(replace(settings, log_text=wanted), tmp_path) as calmem:
        assert calmem.record(TOLD, message_id="m1").status_code == 201
        assert calmem.record(TOLD, message_id="m1").status_code == 200  # the same again is logged once
        assert calmem.ingest.put("/v1/users/eve", json={"memory": "off"}).status_code == 200
        assert calmem.record("Nobody keeps this.", user_id="eve", session_id="e1").json()["created"] is False
        block = calmem.recall(ASKED).json()["block"]
        assert TOLD in block
        calmem.recall("Nobody asks this.", user_id="eve", session_id="e1")
    logs = calmem.logs()
    texts = [line for line in map(json.loads, logs.splitlines()) if line["event"] in ("message_text", "recall_text")]
    for line in texts:
        del line["timestamp"], line["level"]
    told = {"user_id": "ada", "session_id": "s1", "message_id": "m1", "role": "user", "text": TOLD}
    asked = {"user_id": "ada", "session_id": "s2", "query": ASKED, "block": block}
    assert texts == ([told | {"event": "message_text"}, asked | {"event": "recall_text"}] if wanted else [])
    assert (TOLD in logs) == wanted
    assert "Nobody" not in logs
