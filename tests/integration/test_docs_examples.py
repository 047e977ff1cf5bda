"""The Python examples of the README and the how-to pages, run as they stand but for the addresses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from calmem.settings import PREFIX, Settings
from tests.support.http import Services
from tests.support.rows import rows

ROOT = Path(__file__).parents[2]
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", ["<moim", "SQLite for the stock"]),
        ("docs/python.md", ["SQLite for the stock", "role - must be one of user, assistant, tool, system"]),
        ("docs/langchain.md", ["HumanMessage", "SQLite for the stock", "<moim"]),
    ],
)
@pytest.mark.parametrize("way", ["direct", "http"])
def test_examples_run(
    calmem: Services,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
    printed: list[str],
    way: str,
) -> None:
    ingest, retrieval = str(calmem.ingest.base_url), str(calmem.retrieval.base_url)
    urls = {"DATABASE_URL": settings.database_url, "REDIS_URL": settings.redis_url, "RECALL_DEADLINE_MS": "30000"}
    urls |= {"DATA_DIR": settings.data_dir, "RUNTIME": settings.runtime}
    for name, value in (urls if way == "direct" else {"INGEST_URL": ingest, "RETRIEVAL_URL": retrieval}).items():
        monkeypatch.setenv(f"{PREFIX}{name}", value)
    text = (ROOT / page).read_text("utf-8")
    text = text.replace("http://127.0.0.1:8101", ingest).replace("http://127.0.0.1:8102", retrieval)
    text = text.replace("postgresql://user:password@db/calmem", settings.database_url)
    text = text.replace("redis://queue:6379/0", settings.redis_url).replace("calmem_…", "")
    examples = _EXAMPLE.findall(text)
    names: dict[str, Any] = {"__name__": "example"}

    assert examples
    try:
        for number, example in enumerate(examples):
            exec(compile(example, f"{page}, example {number + 1}", "exec"), names)
            if number == 0 and "over_http" in names:
                names["memory"].close()
    finally:
        for name in ("memory", "over_http"):
            if name in names:
                names[name].close()

    shown = capsys.readouterr().out
    for expected in printed:
        assert expected in shown
    assert rows(settings)["messages"] > 0
