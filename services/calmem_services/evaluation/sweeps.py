"""Which settings a sweep tries, and at which values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

from calmem.errors import InvalidInput
from calmem.settings import Settings

# What `--sweep-threshold` tries: each setting that decides whether a hit is near enough to be an answer.
THRESHOLDS: Mapping[str, Sequence[float]] = {
    "min_cosine": (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7),
}
_NUMBERS: Mapping[str, type[int] | type[float]] = {
    field.name: float if isinstance(field.default, float) else int
    for field in fields(Settings)
    if isinstance(field.default, int | float) and not isinstance(field.default, bool)
}


def chosen(thresholds: bool, more: Sequence[str]) -> dict[str, Sequence[float]]:
    """Values by setting: those of THRESHOLDS if asked for, and each `NAME=VALUE,VALUE…`. Raises InvalidInput."""
    sweeps = dict(THRESHOLDS) if thresholds else {}
    for one in more:
        name, _, values = one.partition("=")
        name = name.strip().lower()
        if name not in _NUMBERS:
            raise InvalidInput("--sweep", f"{name!r} is no setting that holds a number; `calmem settings` lists them")
        sweeps[name] = [_number(name, value) for value in values.split(",")]
    return sweeps


def _number(name: str, value: str) -> float:
    try:
        number: float = _NUMBERS[name](value)
    except ValueError as exc:
        raise InvalidInput("--sweep", f"{name}: {value!r} is not a value of this setting") from exc
    if not 0 <= number < math.inf:
        raise InvalidInput("--sweep", f"{name}: {value!r} is not a number of 0 or more")
    return number
