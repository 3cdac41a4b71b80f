-- Statements of the content store, PostgreSQL 13 and later. `{schema}` is the quoted schema;
-- arrays are bytea[] and bigint[]. Each statement is one round trip and, unless it is run
-- inside a transaction, one commit. Where an array is read through `(SELECT array)`, its length
-- is hidden from the planner, which would otherwise plan the statement anew at every call.

-- name: read_thread
-- The row of a thread, by its ids.
SELECT key, incarnation, head_seq, head_epoch, head_digest, updated_us
FROM {schema}.surefoot_thread
WHERE sha256(sha256(tenant) || sha256(thread)) = sha256(sha256(%(tenant)s) || sha256(%(thread)s))
  AND tenant = %(tenant)s AND thread = %(thread)s;

-- name: read_newest
-- The row of a thread and its newest frames below a seq, all of one snapshot. WITH TIES: frames
-- of equal last_seq are siblings and never split. A thread without such frames gives one row.
SELECT t.key, t.incarnation, t.head_seq, t.head_epoch, t.head_digest, t.updated_us,
       f.last_seq, f.epoch, f.head, f.body
FROM {schema}.surefoot_thread AS t
LEFT JOIN LATERAL (
    SELECT last_seq, epoch, head, body
    FROM {schema}.surefoot_frame
    WHERE thread_key = t.key AND last_seq < %(below_seq)s
    ORDER BY last_seq DESC
    FETCH FIRST (%(limit)s) ROWS WITH TIES
) AS f ON true
WHERE sha256(sha256(t.tenant) || sha256(t.thread))
      = sha256(sha256(%(tenant)s) || sha256(%(thread)s))
  AND t.tenant = %(tenant)s AND t.thread = %(thread)s
ORDER BY f.last_seq DESC, f.epoch DESC;

-- name: find_checkpoint
-- Frames that may hold a checkpoint, newest first.
SELECT last_seq, epoch
FROM {schema}.surefoot_frame
WHERE thread_key = %(key)s AND checkpoint_hash = %(checkpoint_hash)s
ORDER BY last_seq DESC, epoch DESC;

-- name: read_heads
-- Heads of frames in a range of seqs, newest first. Bodies are not touched.
SELECT last_seq, epoch, head
FROM {schema}.surefoot_frame
WHERE thread_key = %(key)s AND last_seq BETWEEN %(from_seq)s AND %(to_seq)s
ORDER BY last_seq DESC, epoch DESC;

-- name: read_frames
-- The named frames with bodies, newest first.
SELECT f.last_seq, f.epoch, f.head, f.body
FROM unnest((SELECT %(keys_first)s), (SELECT %(keys_second)s)) AS k (last_seq, epoch)
JOIN {schema}.surefoot_frame AS f
  ON f.thread_key = %(key)s AND f.last_seq = k.last_seq AND f.epoch = k.epoch
ORDER BY f.last_seq DESC, f.epoch DESC;

-- name: read_values
-- Values (part 0), the first chunks of logs (part 1) and each log's whole length (part 2).
SELECT 0 AS part, NULL::bigint AS log_id, NULL::bigint AS ordinal, v.digest, v.body
FROM {schema}.surefoot_value AS v
WHERE v.thread_key = %(key)s AND v.digest = ANY ((SELECT %(digests)s)::bytea[])
UNION ALL
SELECT 1, c.log_id, c.ordinal, NULL, c.body
FROM unnest((SELECT %(logs_first)s), (SELECT %(logs_second)s)) AS l (log_id, count)
JOIN {schema}.surefoot_chunk AS c
  ON c.thread_key = %(key)s AND c.log_id = l.log_id AND c.ordinal < l.count
UNION ALL
SELECT 2, l.log_id, c.ordinal + 1, NULL, NULL
FROM unnest((SELECT %(logs_first)s)) AS l (log_id)
CROSS JOIN LATERAL (
    SELECT ordinal
    FROM {schema}.surefoot_chunk
    WHERE thread_key = %(key)s AND log_id = l.log_id
    ORDER BY ordinal DESC
    LIMIT 1
) AS c;

-- An append is one statement of these parts, in this order: one of the two gates, the frame,
-- what else there is to store, and the answer. (A part that stores nothing costs as much as one
-- that does, so it is left out.) Everything hangs on the gate's row: without it nothing is
-- stored and no row is given.

-- name: append_next
-- Part of an append: moves the head row from exactly the expected position (step P3).
WITH gate AS (
    UPDATE {schema}.surefoot_thread
    SET head_seq = %(head_seq)s,
        head_epoch = %(head_epoch)s,
        head_digest = %(head_digest)s,
        updated_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        has_open = %(has_open)s
    WHERE sha256(sha256(tenant) || sha256(thread))
          = sha256(sha256(%(tenant)s) || sha256(%(thread)s))
      AND tenant = %(tenant)s AND thread = %(thread)s
      AND head_seq = %(expected_seq)s
      AND head_epoch = %(expected_epoch)s
      AND head_digest = %(expected_digest)s
    RETURNING key
)

-- name: append_first
-- Part of an append: creates the head row of a thread that must have none yet.
WITH gate AS (
    INSERT INTO {schema}.surefoot_thread
        (tenant, thread, incarnation, head_seq, head_epoch, head_digest, created_us, updated_us,
         has_open)
    SELECT %(tenant)s, %(thread)s, %(incarnation)s, %(head_seq)s, %(head_epoch)s, %(head_digest)s,
           now.us, now.us, %(has_open)s
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now (us)
    ON CONFLICT DO NOTHING
    RETURNING key
)

-- name: append_frame
-- Part of an append: the frame.
, frame AS (
    INSERT INTO {schema}.surefoot_frame
        (thread_key, last_seq, epoch, checkpoint_hash, head, body)
    SELECT key, %(last_seq)s, %(epoch)s, %(checkpoint_hash)s::bigint, %(frame_head)s, %(frame_body)s
    FROM gate
)

-- name: append_values
-- Part of an append: values; one that exists is left alone.
, stored_values AS (
    INSERT INTO {schema}.surefoot_value (thread_key, digest, body)
    SELECT gate.key, v.digest, v.body
    FROM gate,
         unnest((SELECT %(value_digests)s), (SELECT %(value_bodies)s)) AS v (digest, body)
    ON CONFLICT DO NOTHING
)

-- name: append_chunks
-- Part of an append: list chunks; one that exists is an error.
, chunks AS (
    INSERT INTO {schema}.surefoot_chunk (thread_key, log_id, ordinal, body)
    SELECT gate.key, c.log_id, c.ordinal, c.body
    FROM gate,
         unnest((SELECT %(chunks_first)s), (SELECT %(chunks_second)s), (SELECT %(chunk_bodies)s))
             AS c (log_id, ordinal, body)
)

-- name: append_runs
-- Part of an append: runs that write to the thread; a known pair is left alone.
, runs AS (
    INSERT INTO {schema}.surefoot_run (run_digest, thread_key)
    SELECT r.digest, gate.key
    FROM gate, unnest((SELECT %(run_digests)s)) AS r (digest)
    ON CONFLICT DO NOTHING
)

-- name: append_answer
-- Part of an append: gives the thread's key. The commit waits for the disk whatever the session,
-- the role or a pooler says, but a stronger setting is left alone.
SELECT key,
       set_config('synchronous_commit',
                  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                       ELSE current_setting('synchronous_commit') END,
                  true)
FROM gate;

-- name: collect
-- Deletes what is not kept (step P6), if the head row still is the expected one; its lock keeps
-- writers out until the end. Frames above `above_seq` are never touched. One row if it was.
WITH gate AS MATERIALIZED (
    SELECT key FROM {schema}.surefoot_thread
    WHERE key = %(key)s
      AND head_seq = %(head_seq)s
      AND head_epoch = %(head_epoch)s
      AND head_digest = %(head_digest)s
    FOR UPDATE
), frames AS (
    DELETE FROM {schema}.surefoot_frame AS f
    WHERE f.thread_key = (SELECT key FROM gate)
      AND f.last_seq <= %(above_seq)s
      AND NOT EXISTS (
          SELECT FROM unnest(%(frames_first)s, %(frames_second)s) AS k (last_seq, epoch)
          WHERE k.last_seq = f.last_seq AND k.epoch = f.epoch
      )
), stored_values AS (
    DELETE FROM {schema}.surefoot_value AS v
    WHERE v.thread_key = (SELECT key FROM gate)
      AND NOT EXISTS (SELECT FROM unnest(%(digests)s) AS k (digest) WHERE k.digest = v.digest)
), chunks AS (
    DELETE FROM {schema}.surefoot_chunk AS c
    WHERE c.thread_key = (SELECT key FROM gate)
      AND NOT EXISTS (
          SELECT FROM unnest(%(logs_first)s, %(logs_second)s) AS k (log_id, count)
          WHERE k.log_id = c.log_id AND c.ordinal < k.count
      )
)
SELECT key FROM gate;

-- name: discard_frames
-- Deletes the named frames of a thread.
DELETE FROM {schema}.surefoot_frame AS f
USING unnest((SELECT %(keys_first)s), (SELECT %(keys_second)s)) AS k (last_seq, epoch)
WHERE f.thread_key = %(key)s AND f.last_seq = k.last_seq AND f.epoch = k.epoch;

-- name: delete_thread
-- Deletes all rows of a thread.
WITH threads AS (
    DELETE FROM {schema}.surefoot_thread WHERE key = %(key)s
), frames AS (
    DELETE FROM {schema}.surefoot_frame WHERE thread_key = %(key)s
), stored_values AS (
    DELETE FROM {schema}.surefoot_value WHERE thread_key = %(key)s
), chunks AS (
    DELETE FROM {schema}.surefoot_chunk WHERE thread_key = %(key)s
)
DELETE FROM {schema}.surefoot_run WHERE thread_key = %(key)s;

-- name: threads
-- A page of a tenant's threads in the order of their keys.
SELECT key, thread, incarnation, head_seq, head_epoch, head_digest, updated_us
FROM {schema}.surefoot_thread
WHERE sha256(tenant) = sha256(%(tenant)s) AND tenant = %(tenant)s AND key > %(after_key)s
ORDER BY key
LIMIT %(limit)s;

-- name: threads_with_open
-- The same of those whose last writer knew of an open effect, or did not say; a hint.
SELECT key, thread, incarnation, head_seq, head_epoch, head_digest, updated_us
FROM {schema}.surefoot_thread
WHERE sha256(tenant) = sha256(%(tenant)s) AND tenant = %(tenant)s AND key > %(after_key)s
  AND has_open > 0
ORDER BY key
LIMIT %(limit)s;

-- name: threads_of_runs
-- Threads that hold something of these runs, in the order of their keys.
SELECT t.thread
FROM {schema}.surefoot_thread AS t
WHERE t.tenant = %(tenant)s
  AND t.key IN (
      SELECT r.thread_key
      FROM {schema}.surefoot_run AS r
      WHERE r.run_digest = ANY (%(run_digests)s)
  )
ORDER BY t.key;

-- name: read_durability
-- Settings that decide whether an acknowledged commit survives a crash.
SELECT convert_to(s.name, 'UTF8'), convert_to(s.setting, 'UTF8')
FROM pg_catalog.pg_settings AS s
WHERE s.name IN ('fsync', 'full_page_writes');

-- name: system_identity
-- Which server this really is; two addresses of one server give the same.
SELECT convert_to('postgresql:system:' || system_identifier, 'UTF8')
FROM pg_catalog.pg_control_system();

-- name: started_identity
-- The same for roles that may not read the control file: port and start time.
SELECT convert_to('postgresql:started:' || current_setting('port') || ':'
                  || extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text, 'UTF8');

-- name: tables_present
-- Which of our tables exist; needs no right on them.
SELECT convert_to(c.relname::text, 'UTF8')
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = convert_from(%(schema)s, 'UTF8')::name
  AND c.relkind IN ('r', 'p')
  AND starts_with(c.relname::text, 'surefoot_');

-- name: read_ledger
-- Migrations that were applied, in order.
SELECT number, digest FROM {schema}.surefoot_migration ORDER BY number;

-- name: try_migration_lock
-- Takes the migration lock until the transaction ends, or says that somebody else has it.
SELECT pg_try_advisory_xact_lock(%(lock)s);

-- name: schema_present
-- Whether the schema exists: CREATE SCHEMA IF NOT EXISTS wants the right to create it even then.
SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = convert_from(%(schema)s, 'UTF8')::name;

-- name: create_schema
-- Creates the schema.
CREATE SCHEMA {schema};

-- name: create_ledger
-- Creates the record of applied migrations.
CREATE TABLE IF NOT EXISTS {schema}.surefoot_migration (
    number     integer PRIMARY KEY,
    name       text    NOT NULL,
    digest     bytea   NOT NULL,
    applied_us bigint  NOT NULL
);

-- name: record_migration
-- Records an applied migration with the digest of its file.
INSERT INTO {schema}.surefoot_migration (number, name, digest, applied_us)
VALUES (%(number)s, convert_from(%(name)s, 'UTF8'), %(digest)s,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
