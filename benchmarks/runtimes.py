"""The embedding runtimes side by side: stock fastembed, the default, OpenVINO; one thread each, the same texts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import texts
from benchmarks.indexing import chunks_of, stock
from benchmarks.report import Row, asked_quick, p50, publish, seconds
from benchmarks.running import Bench, bench
from calmem import embedding
from calmem.embedding import Embedder, openvino_adapter
from calmem.embedding.openvino_adapter import OpenvinoEmbedder
from calmem.settings import Settings

QUERIES = ("Which database did we choose?", "When does Priya's train to Lyon leave, and from which platform?")


def main() -> None:
    quick = asked_quick("Embedding runtimes.")
    with bench() as servers:
        publish("runtimes", measure(servers, quick=quick), quick=quick)


def measure(servers: Bench, *, quick: bool) -> list[Row]:
    """The two runtimes take turns, and the best round of each counts, for queries by its median.

    Targets are for processors with AMX; elsewhere the figures are only printed.
    """
    if not openvino_adapter.installed():
        return [Row(what="openvino", value=0, unit="", note="not installed: pip install 'calmem[openvino]'")]
    rounds, count, queries = (3, 160, 20) if quick else (5, 1_000, 50)
    settings = servers.fresh()
    default = embedding.load(replace(settings, runtime="fastembed"))
    faster = embedding.load(replace(settings, runtime="openvino"))
    assert isinstance(faster, OpenvinoEmbedder)
    whole = chunks_of(texts.turns(count, seed=1), settings)
    cosines = np.sum(default.embed(whole) * faster.embed(whole), axis=1)
    rates: dict[Embedder, list[float]] = {default: [], faster: []}
    waits: dict[Embedder, list[float]] = {default: [], faster: []}
    for _ in range(rounds):
        for embedder in (default, faster):
            rates[embedder].append(count / seconds(partial(embedder.embed, whole)))
            asked = [QUERIES[number % len(QUERIES)] for number in range(queries)]
            waits[embedder].append(p50([1_000 * seconds(partial(embedder.embed_query, query)) for query in asked]))
    rate, rate_faster = max(rates[default]), max(rates[faster])
    wait, wait_faster = min(waits[default]), min(waits[faster])
    stock_rate = count / seconds(lambda: list(stock(settings).embed(whole)))
    amx = "amx_bf16" in Path("/proc/cpuinfo").read_text("utf-8")
    has = f"{faster.precision}, {'with' if amx else 'without'} AMX"
    return [
        Row(what="stock fastembed", value=stock_rate, unit="msg/s", note=f"{len(whole)} chunks, {count} messages"),
        Row(what="default, by length", value=rate, unit="msg/s"),
        Row(what="OpenVINO, by length", value=rate_faster, unit="msg/s", note=has),
        Row(
            what="OpenVINO / stock",
            value=rate_faster / stock_rate,
            unit="x",
            target=8 if amx else None,
        ),
        Row(what="OpenVINO / default", value=rate_faster / rate, unit="x"),
        Row(what="query, default", value=wait, unit="ms"),
        Row(what="query, OpenVINO", value=wait_faster, unit="ms"),
        Row(
            what="query, OpenVINO / default",
            value=wait_faster / wait,
            unit="x",
            target=0.65 if amx else None,
            better="lower",
        ),
        Row(what="least cosine x 10,000", value=10_000 * float(np.min(cosines)), unit="", target=9_999),
        Row(what="load, default", value=_load_seconds(settings, "fastembed"), unit="s"),
        Row(what="load, OpenVINO", value=_load_seconds(settings, "openvino"), unit="s"),
    ]


def _load_seconds(settings: Settings, runtime: str) -> float:
    """From settings to an embedder, in this process: all is imported already."""
    return seconds(lambda: embedding.load(replace(settings, runtime=runtime)))


if __name__ == "__main__":
    main()
