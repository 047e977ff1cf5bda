"""`calmem model`."""

from __future__ import annotations

from dataclasses import asdict

import click

from calmem import embedding
from calmem_services.cli import output
from calmem_services.evaluation import model_check


@click.group()
def model() -> None:
    """The embedding model."""


@model.command()
@click.option(
    "--language",
    "languages",
    multiple=True,
    help="One language of the table, such as en or zh; may be repeated (default: all).",
)
@output.as_json
def check(languages: tuple[str, ...], as_json: bool) -> None:
    """Say for which languages the model is fit.

    The configured one (CALMEM_MODEL), not the one a database was made with. Columns: auc, how often a paraphrase
    scores above unrelated sentences; min_cosine, the threshold that 1 % of unrelated pairs pass, a value for
    CALMEM_MIN_COSINE; found, paraphrases that pass it; unknown, pieces of text that the model's vocabulary lacks; same
    words and negation, how often a paraphrase scores above a pair that shares words but not meaning, and above a
    negation.

    fit: a paraphrase scores above unrelated sentences in 95 % of cases or more, and half of the paraphrases or more pass
    that threshold. unfit: fewer than 80 %, or fewer than a quarter pass. weak: between. Same words and negation, where
    small models fail, do not count.
    """
    embedder = embedding.load(output.settings())
    found = model_check.check(embedder, languages)
    if as_json:
        rows = [{name: _rounded(value) for name, value in asdict(one).items()} for one in found]
        output.print_json({"model": embedder.name, "dimension": embedder.dimension, "languages": rows})
        return
    click.echo(f"{embedder.name}, {embedder.dimension} dimensions")
    table = [
        [one.language, one.verdict, one.pairs]
        + [_shown(n) for n in (one.auc, one.found, one.min_cosine, one.unknown, one.auc_same_words, one.auc_negation)]
        for one in found
    ]
    names = ["language", "verdict", "pairs", "auc", "found", "min_cosine", "unknown", "same words", "negation"]
    output.print_table(table, names)


def _rounded(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
