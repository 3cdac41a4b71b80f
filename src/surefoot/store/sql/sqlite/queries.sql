-- Statements of the content store, SQLite 3.35 and later. A list of byte strings comes as one
-- blob `x` and the JSON list `x_spans` of [start from 1, length]; a list of pairs of numbers
-- comes as JSON. The clock is SQLite's, in steps of a millisecond.

-- name: read_thread
-- The row of a thread, by its ids.
SELECT key, incarnation, head_seq, head_epoch, head_digest, updated_us
FROM surefoot_thread
WHERE tenant = :tenant AND thread = :thread;

-- name: read_newest
-- The row of a thread and its newest frames below a seq, all of one snapshot. The inner query
-- finds the last_seq of the last frame wanted, so that its siblings come along: frames of equal
-- last_seq are never split. A thread without such frames gives one row.
SELECT t.key, t.incarnation, t.head_seq, t.head_epoch, t.head_digest, t.updated_us,
       f.last_seq, f.epoch, f.head, f.body
FROM surefoot_thread AS t
LEFT JOIN surefoot_frame AS f
  ON f.thread_key = t.key
 AND f.last_seq < :below_seq
 AND f.last_seq >= coalesce(
         (SELECT last_seq
          FROM surefoot_frame
          WHERE thread_key = t.key AND last_seq < :below_seq
          ORDER BY last_seq DESC
          LIMIT 1 OFFSET :limit - 1),
         -9223372036854775808)
WHERE t.tenant = :tenant AND t.thread = :thread
ORDER BY f.last_seq DESC, f.epoch DESC;

-- name: find_checkpoint
-- Frames that may hold a checkpoint, newest first.
SELECT last_seq, epoch
FROM surefoot_frame
WHERE thread_key = :key AND checkpoint_hash = :checkpoint_hash
ORDER BY last_seq DESC, epoch DESC;

-- name: read_heads
-- Heads of frames in a range of seqs, newest first. Bodies are not touched.
SELECT last_seq, epoch, head
FROM surefoot_frame
WHERE thread_key = :key AND last_seq BETWEEN :from_seq AND :to_seq
ORDER BY last_seq DESC, epoch DESC;

-- name: read_frames
-- The named frames with bodies, newest first.
SELECT f.last_seq, f.epoch, f.head, f.body
FROM json_each(:keys) AS k
CROSS JOIN surefoot_frame AS f
  ON f.thread_key = :key
 AND f.last_seq = json_extract(k.value, '$[0]')
 AND f.epoch = json_extract(k.value, '$[1]')
ORDER BY f.last_seq DESC, f.epoch DESC;

-- name: read_values
-- Values (part 0), the first chunks of logs (part 1) and each log's whole length (part 2).
SELECT 0 AS part, NULL AS log_id, NULL AS ordinal, v.digest, v.body
FROM json_each(:digests_spans) AS s
CROSS JOIN surefoot_value AS v
  ON v.thread_key = :key
 AND v.digest = substr(:digests, json_extract(s.value, '$[0]'), json_extract(s.value, '$[1]'))
UNION ALL
SELECT 1, c.log_id, c.ordinal, NULL, c.body
FROM json_each(:logs) AS l
CROSS JOIN surefoot_chunk AS c
  ON c.thread_key = :key
 AND c.log_id = json_extract(l.value, '$[0]')
 AND c.ordinal < json_extract(l.value, '$[1]')
UNION ALL
SELECT 2, tip.log_id, tip.ordinal + 1, NULL, NULL
FROM (
    SELECT json_extract(l.value, '$[0]') AS log_id,
           (SELECT max(ordinal)
            FROM surefoot_chunk
            WHERE thread_key = :key AND log_id = json_extract(l.value, '$[0]')) AS ordinal
    FROM json_each(:logs) AS l
) AS tip
WHERE tip.ordinal IS NOT NULL;

-- name: append_next
-- Moves the head row from exactly the expected position (step P3) and gives the thread's key,
-- or no row. The rest of the transaction is stored only after that.
UPDATE surefoot_thread
SET head_seq = :head_seq,
    head_epoch = :head_epoch,
    head_digest = :head_digest,
    updated_us = CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000,
    has_open = :has_open
WHERE tenant = :tenant AND thread = :thread
  AND head_seq = :expected_seq
  AND head_epoch = :expected_epoch
  AND head_digest = :expected_digest
RETURNING key;

-- name: append_first
-- The same for a thread that must have no row yet.
INSERT INTO surefoot_thread
    (tenant, thread, incarnation, head_seq, head_epoch, head_digest, created_us, updated_us,
     has_open)
VALUES (:tenant, :thread, :incarnation, :head_seq, :head_epoch, :head_digest,
        CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000,
        CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000,
        :has_open)
ON CONFLICT DO NOTHING
RETURNING key;

-- name: insert_frame
-- Stores the frame of an append.
INSERT INTO surefoot_frame (thread_key, last_seq, epoch, checkpoint_hash, head, body)
VALUES (:key, :last_seq, :epoch, :checkpoint_hash, :frame_head, :frame_body);

-- name: insert_value
-- Stores a value of an append; a value that exists is left alone.
INSERT INTO surefoot_value (thread_key, digest, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: insert_chunk
-- Stores a list chunk of an append; one that exists is an error.
INSERT INTO surefoot_chunk (thread_key, log_id, ordinal, body) VALUES (?, ?, ?, ?);

-- name: insert_run
-- Stores that a run has written to a thread; a known pair is left alone.
INSERT INTO surefoot_run (thread_key, run_digest) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: is_head
-- Gate of a collection: one row if the head row still is the expected one. Inside a transaction
-- that has begun with the write lock.
SELECT 1 FROM surefoot_thread
WHERE key = :key
  AND head_seq = :head_seq AND head_epoch = :head_epoch AND head_digest = :head_digest;

-- name: collect_frames
-- Deletes frames that are not kept (step P6), never one above `above_seq`.
DELETE FROM surefoot_frame
WHERE thread_key = :key
  AND last_seq <= :above_seq
  AND (last_seq, epoch) NOT IN (
      SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:frames));

-- name: collect_values
-- Deletes values that are not kept.
DELETE FROM surefoot_value
WHERE thread_key = :key
  AND digest NOT IN (
      SELECT substr(:digests, json_extract(value, '$[0]'), json_extract(value, '$[1]'))
      FROM json_each(:digests_spans));

-- name: collect_chunks
-- Deletes chunks beyond what is kept of their log.
DELETE FROM surefoot_chunk
WHERE thread_key = :key
  AND ordinal >= coalesce(
      (SELECT max(json_extract(value, '$[1]'))
       FROM json_each(:logs)
       WHERE json_extract(value, '$[0]') = surefoot_chunk.log_id),
      0);

-- name: discard_frames
-- Deletes the named frames of a thread.
DELETE FROM surefoot_frame
WHERE thread_key = :key
  AND (last_seq, epoch) IN (
      SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:keys));

-- name: delete_thread
-- Deletes the row of a thread.
DELETE FROM surefoot_thread WHERE key = :key;

-- name: delete_frames
-- Deletes the frames of a thread.
DELETE FROM surefoot_frame WHERE thread_key = :key;

-- name: delete_values
-- Deletes the values of a thread.
DELETE FROM surefoot_value WHERE thread_key = :key;

-- name: delete_chunks
-- Deletes the list chunks of a thread.
DELETE FROM surefoot_chunk WHERE thread_key = :key;

-- name: delete_runs
-- Deletes what runs have stored about a thread.
DELETE FROM surefoot_run WHERE thread_key = :key;

-- name: threads
-- A page of a tenant's threads in the order of their keys.
SELECT key, thread, incarnation, head_seq, head_epoch, head_digest, updated_us
FROM surefoot_thread
WHERE tenant = :tenant AND key > :after_key
ORDER BY key
LIMIT :limit;

-- name: threads_with_open
-- The same of those whose last writer knew of an open effect, or did not say; a hint.
SELECT key, thread, incarnation, head_seq, head_epoch, head_digest, updated_us
FROM surefoot_thread
WHERE tenant = :tenant AND key > :after_key AND has_open > 0
ORDER BY key
LIMIT :limit;

-- name: threads_of_runs
-- Threads that hold something of these runs, in the order of their keys.
SELECT t.thread
FROM surefoot_thread AS t
WHERE t.tenant = :tenant
  AND t.key IN (
      SELECT r.thread_key
      FROM json_each(:run_digests_spans) AS s
      CROSS JOIN surefoot_run AS r
        ON r.run_digest
           = substr(:run_digests, json_extract(s.value, '$[0]'), json_extract(s.value, '$[1]')))
ORDER BY t.key;

-- name: tables_present
-- Which of our tables exist.
SELECT CAST(name AS BLOB) FROM sqlite_master WHERE type = 'table' AND name GLOB 'surefoot_*';

-- name: read_ledger
-- Migrations that were applied, in order.
SELECT number, digest FROM surefoot_migration ORDER BY number;

-- name: create_ledger
-- Creates the record of applied migrations.
CREATE TABLE IF NOT EXISTS surefoot_migration (
    number     INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    digest     BLOB    NOT NULL,
    applied_us INTEGER NOT NULL
);

-- name: record_migration
-- Records an applied migration with the digest of its file.
INSERT INTO surefoot_migration (number, name, digest, applied_us)
VALUES (:number, CAST(:name AS TEXT), :digest,
        CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000);
