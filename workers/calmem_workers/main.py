"""The worker process: the model first, then RQ jobs without a fork, and a look at the table now and then."""

from __future__ import annotations

import signal
import threading
import uuid
from types import FrameType

import redis
import structlog
from redis.client import Pipeline
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested

from calmem import metrics, queueing
from calmem.model import Lane
from calmem.models import Models
from calmem.queueing import WakeUps
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem_workers.index import Drainer

log = structlog.get_logger(__name__)

# While Redis answers, a wake-up starts indexing at once; this look at the table covers what it lost.
POLL_SECONDS = 3.0
_RETRY_SECONDS = 1.0
# One wait for a wake-up: short, so that a stop is noticed.
_WAIT_SECONDS = 1


def run_worker(settings: Settings, *, burst: bool = False, models: Models | None = None) -> int:
    """Index until SIGTERM or SIGINT; with `burst` until nothing is pending. Returns the number indexed by a burst.

    `models` (default: those of the settings) gives each index its embedder. Raises ModelUnavailable or PermanentError
    before any job is taken; with `burst` also TransientError.
    """
    with Database(settings) as database, metrics.exposed(settings):
        drainer = Drainer(database, settings, models or Models(settings), WakeUps(settings.redis_url))
        _stop_on_signals(drainer)
        if burst:
            with database.connection():  # a burst does not wait for a database that is away
                pass
        drainer.load_model()
        log.info("worker_ready", model=settings.model, burst=burst)
        if burst:
            return drainer.drain()
        poll = threading.Thread(target=_poll, args=(drainer,), name="poll", daemon=True)
        poll.start()
        _take_jobs(settings, drainer)
        poll.join()
        return 0


def _poll(drainer: Drainer) -> None:
    while not drainer.stop.wait(POLL_SECONDS):
        drainer.run()


def _take_jobs(settings: Settings, drainer: Drainer) -> None:
    drainer.serve_jobs()
    if not settings.redis_url:
        log.warning("no_redis_url", effect="indexing by looking at the table only")
        drainer.stop.wait()
    while not drainer.stop.is_set():
        try:
            silence = settings.network_timeout_seconds
            connection = queueing.connect(settings.redis_url, timeout_seconds=_WAIT_SECONDS + silence)
            queues = [Queue(queueing.queue_name(lane), connection=connection) for lane in Lane]  # in this order
            worker = _Worker(queues, name=f"calmem-{uuid.uuid4().hex}", connection=connection)
            worker.drainer = drainer
            worker.max_connection_wait_time = 2
            worker.log_job_description = False
            worker.work(logging_level="ERROR")
        except redis.RedisError as exc:
            log.warning("redis_away", error=type(exc).__name__)
        # RQ's loop also ends by itself when Redis answers strangely.
        drainer.stop.wait(_RETRY_SECONDS)


class _Worker(SimpleWorker):
    """RQ's worker that leaves the signals to the process, so that a stop also reaches the batch at work."""

    drainer: Drainer

    def _install_signal_handlers(self) -> None:
        pass

    @property
    def dequeue_timeout(self) -> int:
        return _WAIT_SECONDS

    def _set_connection(self, connection: redis.Redis) -> redis.Redis:
        # RQ would wait for minutes for a Redis that was cut off and cannot say so; ours has its timeout.
        return connection

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        # Called before every wait, also while Redis is away; this ends `work`.
        if pipeline is None and self.drainer.stop.is_set():
            raise StopRequested
        super().heartbeat(timeout, pipeline)


def _stop_on_signals(drainer: Drainer) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        drainer.stop.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
