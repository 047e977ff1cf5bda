"""How many requests a key may make, counted in Redis for all processes together."""

from __future__ import annotations

import math
import time

import redis
import structlog

from calmem import metrics
from calmem.queueing import connect

log = structlog.get_logger(__name__)

WINDOW_SECONDS = 60
# After an error requests pass uncounted for that long, so that no one of them waits for an absent Redis.
PAUSE_SECONDS = 5.0

# One step in Redis: count, and start the window with its first request. Answers the count and the milliseconds left.
_COUNT = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return {count, redis.call('PTTL', KEYS[1])}
"""


class RateLimiter:
    """At most `per_minute` requests of one key in a window of a minute. Safe to share between threads."""

    def __init__(self, redis_url: str, *, per_minute: int) -> None:
        self._redis = connect(redis_url)
        self._per_minute = per_minute
        self._paused_until = 0.0

    def __call__(self, prefix: str) -> int | None:
        """Count one request of the key. None: go on; else the whole seconds until it may come again.

        Never raises: without Redis the request passes, with a log event and a metric.
        """
        if time.monotonic() < self._paused_until:
            metrics.RATE_UNCHECKED.inc()
            return None
        try:
            count, left_ms = self._redis.eval(_COUNT, 1, f"calmem:rate:{prefix}", WINDOW_SECONDS)
        except redis.RedisError as exc:
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            # The text of the error names the server; its class says enough.
            log.warning("rate_limit_unavailable", error=type(exc).__name__)
            metrics.RATE_UNCHECKED.inc()
            return None
        return None if count <= self._per_minute else max(1, math.ceil(left_ms / 1_000))
