"""Every benchmark that needs no other store (those are `cache` and `peers`), one after the other, on the same servers."""

from __future__ import annotations

import time

from benchmarks import gateway, indexing, load, recall, recording, runtimes, scale, tenants
from benchmarks.report import asked_quick, publish
from benchmarks.running import bench


def main() -> None:
    quick = asked_quick("All benchmarks.")
    began = time.monotonic()
    with bench() as servers:
        for part in (recording, gateway, indexing, runtimes, recall, tenants, scale, load):
            publish(part.__name__.rpartition(".")[2], part.measure(servers, quick=quick), quick=quick)
    print(f"\n{time.monotonic() - began:.0f} s in all; JSON in bench-results/")


if __name__ == "__main__":
    main()
