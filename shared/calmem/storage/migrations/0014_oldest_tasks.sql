-- How long each lane has waited, told without reading what else waits: readiness is asked every few seconds by every
-- balancer, and an import leaves millions of tasks.
DROP INDEX index_tasks_oldest;
CREATE INDEX index_tasks_oldest ON index_tasks (index_no, lane, created_at) WHERE failed_at IS NULL;
