"""`calmem model check`: its measures by hand, its sentences, and what it says of two real models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calmem import embedding
from calmem.embedding import use_adapter
from calmem.settings import Settings
from calmem_services.evaluation import model_check
from tests.support.tiny_model import write_tiny_model


def calmem(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "calmem_services.cli.main", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    # 3 beats both, 1 loses to 2 and ties with 1.
    assert model_check.auc(np.array([3, 1], np.float32), np.array([2, 1], np.float32)) == 2.5 / 4


@pytest.mark.parametrize(
    ("auc", "found", "verdict"),
    [
        (0.95, 0.5, "fit"),
        (0.94, 0.5, "weak"),
        (0.95, 0.49, "weak"),
        (0.8, 0.25, "weak"),
        (0.79, 1.0, "unfit"),
        (1.0, 0.24, "unfit"),
    ],
)
def test_the_verdict_needs_order_and_a_threshold_that_paraphrases_pass(auc: float, found: float, verdict: str) -> None:
    assert model_check.verdict(auc, found) == verdict


@pytest.mark.parametrize("language", model_check.languages())
def test_the_sentences_of_a_language(language: str) -> None:
    rows = model_check.sentences(language)
    cells = [cell for row in rows for cell in (row.text, row.paraphrase, row.other, row.negated) if cell is not None]
    assert all(cell == cell.strip() != "" for cell in cells)
    assert len(set(cells)) == len(cells)
    paraphrases, others = len(rows), len(rows)
    assert paraphrases + others >= (100 if language in ("en", "zh") else 20)
    assert all(row.negated for row in rows) == (language in ("en", "zh"))


def test_the_default_model_knows_english_and_not_chinese(model_dir: Path) -> None:
    found = model_check.check(embedding.load(Settings(data_dir=str(model_dir))), ["en", "zh", "en"])
    assert [one.language for one in found] == ["en", "zh"]
    english, chinese = found
    assert english.verdict == "fit"
    assert chinese.verdict in ("weak", "unfit")
    assert english.unknown is not None
    assert chinese.unknown is not None
    assert english.unknown < 0.01 < 0.5 < chinese.unknown < 1
    assert english.min_cosine < chinese.min_cosine


def test_the_second_model_knows_every_language_there_are_sentences_for() -> None:
    found = model_check.check(embedding.load(Settings(model=use_adapter.MODEL)))
    assert [one.language for one in found] == model_check.languages()
    assert {one.language: one.verdict for one in found} == dict.fromkeys(model_check.languages(), "fit")


def test_a_model_is_judged_by_what_it_computes_not_by_its_name(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "tiny", 64, 1)
    impostor = embedding.load(Settings(model_path=str(directory)))
    assert impostor.name == Settings().model
    assert [one.verdict for one in model_check.check(impostor, ["en"])] != ["fit"]


def test_the_command_prints_a_table_and_json(model_dir: Path) -> None:
    table = calmem("model", "check", "--language", "zh", CALMEM_MODEL=use_adapter.MODEL)
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[2].split()[:3] == ["zh", "fit", "159"]
    printed = calmem("model", "check", "--language", "en", "--json", CALMEM_DATA_DIR=str(model_dir))
    assert printed.returncode == 0, printed.stderr
    report = json.loads(printed.stdout)
    assert (report["model"], report["dimension"]) == (Settings().model, 384)
    assert report["languages"][0]["language"] == "en"
    assert report["languages"][0]["verdict"] == "fit"


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    unknown = calmem("model", "check", "--language", "tlh", CALMEM_MODEL=use_adapter.MODEL)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.startswith("calmem: --language: must be one of ar, de, en")
    nowhere = calmem("model", "check", CALMEM_MODEL_PATH=str(tmp_path / "nothing"))
    assert (nowhere.returncode, nowhere.stdout) == (1, "")
    assert "CALMEM_MODEL_PATH" in nowhere.stderr
