"""For which languages a model is fit: pairs of sentences, and what their cosines say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calmem.embedding import Embedder
from calmem.errors import InvalidInput

Verdict = Literal["fit", "weak", "unfit"]

# So many pairs of unrelated sentences may pass the suggested threshold.
STRANGERS_PASS = 0.01
# Fit: both reached. Unfit: one of the second two not reached. Weak: all between.
FIT_AUC, FIT_FOUND = 0.95, 0.5
LEAST_AUC, LEAST_FOUND = 0.8, 0.25


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """A sentence; the same said otherwise; its words saying something else; its negation (not in every language)."""

    text: str
    paraphrase: str
    other: str
    negated: str | None


@dataclass(frozen=True, kw_only=True)
class Fitness:
    """What was measured in one language. Shares are between 0 and 1; an AUC of 0.5 is chance.

    `auc`: how often a paraphrase scores above a pair of unrelated sentences. `auc_same_words`, `auc_negation`: above a
    pair that shares its words but not its meaning, above a sentence and its negation; small models fail here, so the
    verdict leaves them out. `min_cosine`: what 1 % of the unrelated pairs pass. `found`: paraphrases that pass it.
    `unknown`: word pieces that the vocabulary lacks.
    """

    language: str
    pairs: int
    auc: float
    auc_same_words: float
    auc_negation: float | None
    unknown: float
    min_cosine: float
    found: float
    verdict: Verdict


def languages() -> list[str]:
    """The languages that there are pairs for, by ISO 639 code."""
    return sorted(file.name.removesuffix(".tsv") for file in _folder().iterdir() if file.name.endswith(".tsv"))


def sentences(language: str) -> list[Sentences]:
    """The sentences of one language. Raises InvalidInput when there are none."""
    if language not in languages():
        raise InvalidInput("--language", f"must be one of {', '.join(languages())}, not {language!r}")
    lines = (_folder() / f"{language}.tsv").read_text("utf-8").splitlines()
    rows = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
    return [
        Sentences(text=row["text"], paraphrase=row["paraphrase"], other=row["other"], negated=row.get("negated"))
        for row in rows
    ]


def check(embedder: Embedder, chosen: Sequence[str] = ()) -> list[Fitness]:
    """The model's fitness for each language (none named: for all). Raises InvalidInput for an unknown one."""
    named = list(dict.fromkeys(chosen)) or languages()
    read = {language: sentences(language) for language in named}
    return [_fitness(embedder, language, rows) for language, rows in read.items()]


def auc(higher: NDArray[np.float32], lower: NDArray[np.float32]) -> float:
    """Probability that one of `higher` is above one of `lower`, a tie counting half (Mann-Whitney U, normalised)."""
    above = higher[:, None] > lower[None, :]
    equal = higher[:, None] == lower[None, :]
    return float(np.mean(above + 0.5 * equal))


def verdict(auc: float, found: float) -> Verdict:
    if auc >= FIT_AUC and found >= FIT_FOUND:
        return "fit"
    return "unfit" if auc < LEAST_AUC or found < LEAST_FOUND else "weak"


def _fitness(embedder: Embedder, language: str, rows: Sequence[Sentences]) -> Fitness:
    # As questions, since a model may embed those otherwise than what they are compared with.
    texts = np.stack([embedder.embed_query(row.text) for row in rows])
    paraphrases = embedder.embed([row.paraphrase for row in rows])
    cosines = texts @ paraphrases.T
    same = np.diag(cosines)
    unrelated = cosines[~np.eye(len(rows), dtype=bool)]
    other = _by_row(texts, embedder.embed([row.other for row in rows]))
    negated = [row.negated for row in rows if row.negated]
    least = float(np.quantile(unrelated, 1 - STRANGERS_PASS))
    found = float(np.mean(same >= least))
    measured = auc(same, unrelated)
    return Fitness(
        language=language,
        pairs=2 * len(rows) + len(negated),
        auc=measured,
        auc_same_words=auc(same, other),
        auc_negation=auc(same, _by_row(texts, embedder.embed(negated))) if len(negated) == len(rows) else None,
        unknown=_unknown(embedder, [part for row in rows for part in (row.text, row.paraphrase, row.other)]),
        min_cosine=least,
        found=found,
        verdict=verdict(measured, found),
    )


def _by_row(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    cosines: NDArray[np.float32] = np.einsum("ij,ij->i", left, right)
    return cosines


def _unknown(embedder: Embedder, texts: Sequence[str]) -> float:
    # Its special pieces are no part of the text.
    special = embedder.count_pieces("")
    pieces = sum(max(1, embedder.count_pieces(text) - special) for text in texts)
    return sum(embedder.count_unknown(text) for text in texts) / pieces


def _folder() -> resources.abc.Traversable:
    return resources.files("calmem_services.evaluation") / "pairs"
