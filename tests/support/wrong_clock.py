"""Runs a module whose calendar clock is wrong: `python -m tests.support.wrong_clock SECONDS MODULE …`.

`time.time` and `datetime.now` are replaced before anything of calmem is imported, which is all that Python code can
read the date by; what measures durations stays right. (libfaketime makes Python's waits hang.)
"""

from __future__ import annotations

import datetime
import runpy
import sys
import time
from typing import Any

_right = time.time


class WrongDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(time.time(), tz)


def main() -> None:
    offset, module = float(sys.argv[1]), sys.argv[2]
    time.time = lambda: _right() + offset
    datetime.datetime = WrongDatetime  # type: ignore[misc]
    now = datetime.datetime.now(datetime.UTC)
    print(f"clock says {now.isoformat()}", file=sys.stderr, flush=True)
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
