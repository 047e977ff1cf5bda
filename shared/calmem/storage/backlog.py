"""What waits to be indexed, and for how long. Reads only."""

from __future__ import annotations

from calmem.model import RECALL_LANES, Backlog, Lane, QueueState
from calmem.storage.pool import Connection

# Nobody waits for what a reindex still has to do: it is a lane of its own.
_STATE = """
SELECT CASE WHEN i.state = 'active' THEN t.lane ELSE 'reindex' END AS lane,
       count(*) FILTER (WHERE failed_at IS NULL), count(*) FILTER (WHERE lease_until >= clock_timestamp()),
       count(*) FILTER (WHERE failed_at IS NOT NULL),
       coalesce(extract(epoch FROM clock_timestamp() - min(t.created_at) FILTER (WHERE failed_at IS NULL)), 0)::float8
FROM index_tasks t JOIN search_indexes i USING (index_no) WHERE i.state <> 'retired' GROUP BY 1
"""


def queue_state(conn: Connection) -> QueueState:
    """What waits, by lane, and for how long."""
    rows = {Lane(row[0]): row[1:] for row in conn.execute(_STATE)}
    pending = {lane: int(rows[lane][0]) if lane in rows else 0 for lane in Lane}
    return QueueState(
        pending=sum(pending[lane] for lane in RECALL_LANES),
        pending_by_lane=pending,
        leased=sum(row[1] for row in rows.values()),
        failed=sum(row[2] for row in rows.values()),
        age_by_lane={lane: float(rows[lane][3]) if lane in rows else 0.0 for lane in RECALL_LANES},
    )


# Index-only but for the counts, which end at `most`.
_BACKLOG = """
SELECT lane, (
    SELECT count(*) FROM (
        SELECT FROM index_tasks t WHERE t.index_no = i.index_no AND t.lane = l.lane AND t.failed_at IS NULL LIMIT %(most)s
    ) AS counted
), coalesce((
    SELECT extract(epoch FROM clock_timestamp() - min(t.created_at))
    FROM index_tasks t WHERE t.index_no = i.index_no AND t.lane = l.lane AND t.failed_at IS NULL
), 0)::float8, (
    SELECT count(*) FROM (
        SELECT FROM index_tasks t JOIN search_indexes s USING (index_no)
        WHERE t.failed_at IS NOT NULL AND s.state <> 'retired' LIMIT %(most)s
    ) AS counted
)
FROM unnest(%(lanes)s::text[]) AS l(lane) LEFT JOIN search_indexes i ON i.state = 'active'
"""
MOST_COUNTED = 10_000


def read(conn: Connection) -> Backlog:
    """What recall waits for, at a cost that does not grow with it: of each lane, and of what failed, MOST_COUNTED are counted."""
    values = {"most": MOST_COUNTED, "lanes": [lane.value for lane in RECALL_LANES]}
    rows = {Lane(row[0]): row[1:] for row in conn.execute(_BACKLOG.encode(), values)}
    return Backlog(
        pending=sum(count for count, _, _ in rows.values()),
        failed=max(failed for _, _, failed in rows.values()),
        age_by_lane={lane: age for lane, (_, age, _) in rows.items()},
    )
