"""The wake-up calls: RQ jobs that say "there is work in this lane" (docs/decisions/0003-wake-ups.md)."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue, Worker
from rq.worker import BaseWorker

from calmem import metrics
from calmem.errors import InvalidInput
from calmem.model import Lane

log = structlog.get_logger(__name__)

DRAIN = "calmem_workers.index.drain"
# A wake-up that got lost is replaced after that time by the next record, and by the sweeper anyway.
OUTSTANDING_SECONDS = 10
# Recording waits no longer than this for Redis; the message is already safe.
_TIMEOUT_SECONDS = 0.5
# After an error one push in that time tries again; the others go without, so that recording is no slower for it.
_PAUSE_SECONDS = 1.0


def queue_name(lane: Lane) -> str:
    return f"calmem-{lane}"


def connect(redis_url: str, *, timeout_seconds: float = _TIMEOUT_SECONDS) -> redis.Redis:
    """A client that connects at its first command and waits `timeout_seconds` for each answer.

    Raises InvalidInput for what is no address of a Redis.
    """
    try:
        return redis.Redis.from_url(
            redis_url,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=timeout_seconds,
            # A connection that Redis closed meanwhile is made anew; one that is silent is not waited for twice.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
    except ValueError as exc:
        raise InvalidInput("CALMEM_REDIS_URL", "must be an address such as redis://host:6379/0") from exc


@dataclass(frozen=True, kw_only=True)
class QueueHealth:
    """What Redis says of itself and of the workers. `heard_seconds`: since the last sign of life of any of them."""

    version: str
    policy: str
    jobs: int
    workers: int
    heard_seconds: float

    @property
    def evicts(self) -> bool:
        """Whether it drops keys when its memory is full, wake-ups among them."""
        return self.policy != "noeviction"


def examine(redis_url: str) -> QueueHealth | None:
    """The state of the queue; None when Redis cannot be reached. Raises InvalidInput for a wrong address."""
    connection = connect(redis_url)
    try:
        about = connection.info()
        workers = [worker for worker in Worker.all(connection=connection) if _ours(worker)]
        now = datetime.now(UTC)
        return QueueHealth(
            version=str(about["redis_version"]),
            policy=str(about.get("maxmemory_policy", "noeviction")),
            jobs=sum(Queue(queue_name(lane), connection=connection).count for lane in Lane),
            workers=len(workers),
            heard_seconds=min(
                ((now - worker.last_heartbeat).total_seconds() for worker in workers if worker.last_heartbeat),
                default=0.0,
            ),
        )
    except redis.RedisError:
        return None


def _ours(worker: BaseWorker) -> bool:
    return queue_name(Lane.LIVE) in worker.queue_names()


class WakeUps:
    """Pushes wake-ups; at most one per lane is outstanding. Safe to share between threads."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect(redis_url) if redis_url else None
        self._lock = threading.Lock()
        self._paused_until: float | None = None  # None: the last push arrived

    def push(self, lane: Lane) -> bool:
        """Wake a worker. Never raises: False, a log event and a metric when Redis cannot be reached.

        For a second after that False and the metric at once: the sweeper and the workers' own look make up for it.
        """
        if self._redis is None:
            return False
        if not self._may_try():
            metrics.WAKEUPS_LOST.inc()
            return False
        try:
            if self._redis.set(_flag(lane), 1, nx=True, ex=OUTSTANDING_SECONDS):
                queue = Queue(queue_name(lane), connection=self._redis)
                queue.enqueue(
                    DRAIN, lane.value, result_ttl=0, failure_ttl=3_600, job_timeout=-1, description=f"drain {lane}"
                )
        except redis.RedisError as exc:
            # The text of the error names the server; its class says enough.
            log.warning("wakeup_lost", lane=lane.value, error=type(exc).__name__)
            metrics.WAKEUPS_LOST.inc()
            with self._lock:
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
            return False
        self._paused_until = None
        return True

    def _may_try(self) -> bool:
        if self._paused_until is None:
            return True
        now = time.monotonic()
        with self._lock:
            if self._paused_until is not None and now < self._paused_until:
                return False
            self._paused_until = now + _PAUSE_SECONDS  # this one tries
        return True

    def reachable(self) -> bool:
        """Whether Redis answers; True where none is configured. Never raises."""
        if self._redis is None:
            return True
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    def clear(self, lane: Lane) -> None:
        """The wake-up has arrived: whatever is recorded from now on needs a new one."""
        if self._redis is None:
            return
        try:
            self._redis.delete(_flag(lane))
        except redis.RedisError as exc:
            log.warning("wakeup_not_cleared", lane=lane.value, error=type(exc).__name__)


def _flag(lane: Lane) -> str:
    return f"calmem:outstanding:{lane}"
