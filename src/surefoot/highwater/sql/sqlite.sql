-- The high-water store on SQLite. Every block is one named statement; postgres.sql has the same
-- names. The clock is SQLite's own: milliseconds since 1970 from julianday('now').

-- name: durability
-- P0: nothing is acknowledged before it is on the disk. Run on every new connection; the
-- first row must be 'wal' and the last one 2 (FULL).
PRAGMA journal_mode = WAL;
PRAGMA fullfsync = ON;
PRAGMA checkpoint_fullfsync = ON;
PRAGMA synchronous = FULL;
PRAGMA synchronous;

-- name: identity
-- P0: content and marks in one place are "degraded"; which file is this really?
SELECT file FROM pragma_database_list WHERE name = 'main';

-- name: shape
-- P0: what is there, one fact a row; compared with what this release creates.
SELECT 'column ' || name || ' ' || lower(type) || CASE WHEN "notnull" THEN ' not null' ELSE '' END
  || CASE WHEN pk > 0 THEN ' key ' || pk ELSE '' END AS fact
FROM pragma_table_info('surefoot_marks')
UNION ALL
SELECT 'trigger ' || name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'surefoot_marks';

-- name: setup_lock
-- P0: one process at a time sets up.
BEGIN IMMEDIATE;

-- name: setup
-- Rows are never deleted, epochs only grow, a mark never goes down within one life, and a
-- tombstone ends only in a new life: held by the schema too, not only by the statements below.
CREATE TABLE IF NOT EXISTS surefoot_marks (
  tenant BLOB NOT NULL CHECK (typeof(tenant) = 'blob'),
  thread BLOB NOT NULL CHECK (typeof(thread) = 'blob'),
  incarnation INTEGER NOT NULL CHECK (typeof(incarnation) = 'integer' AND incarnation >= 1),
  seq INTEGER NOT NULL CHECK (typeof(seq) = 'integer' AND seq >= 0),
  digest BLOB NOT NULL CHECK (typeof(digest) = 'blob' AND length(digest) = 32),
  epoch INTEGER NOT NULL CHECK (typeof(epoch) = 'integer' AND epoch >= 1),
  owner BLOB NOT NULL CHECK (typeof(owner) = 'blob'),
  lease_until_ms INTEGER NOT NULL CHECK (typeof(lease_until_ms) = 'integer' AND lease_until_ms >= 0),
  step INTEGER NOT NULL CHECK (typeof(step) = 'integer'),
  state TEXT NOT NULL CHECK (state IN ('live', 'tombstone', 'frozen')),
  clean INTEGER NOT NULL CHECK (clean IN (0, 1)),
  tainted INTEGER NOT NULL CHECK (tainted IN (0, 1)),
  resumes INTEGER NOT NULL CHECK (typeof(resumes) = 'integer' AND resumes >= 0),
  intents BLOB NOT NULL CHECK (typeof(intents) = 'blob'),
  PRIMARY KEY (tenant, thread)
);
CREATE TRIGGER IF NOT EXISTS surefoot_marks_keep BEFORE DELETE ON surefoot_marks
BEGIN
  SELECT RAISE(ABORT, 'surefoot guard: a mark is never deleted');
END;
CREATE TRIGGER IF NOT EXISTS surefoot_marks_once BEFORE INSERT ON surefoot_marks
WHEN EXISTS (SELECT 1 FROM surefoot_marks WHERE tenant = NEW.tenant AND thread = NEW.thread)
BEGIN
  SELECT RAISE(IGNORE);
END;
CREATE TRIGGER IF NOT EXISTS surefoot_marks_name BEFORE UPDATE ON surefoot_marks
WHEN NEW.tenant <> OLD.tenant OR NEW.thread <> OLD.thread
BEGIN
  SELECT RAISE(ABORT, 'surefoot guard: a mark never changes its thread');
END;
CREATE TRIGGER IF NOT EXISTS surefoot_marks_epoch BEFORE UPDATE ON surefoot_marks
WHEN NEW.epoch < OLD.epoch
BEGIN
  SELECT RAISE(ABORT, 'surefoot guard: an epoch never goes down');
END;
CREATE TRIGGER IF NOT EXISTS surefoot_marks_life BEFORE UPDATE ON surefoot_marks
WHEN NEW.incarnation <> OLD.incarnation
  AND NOT (OLD.state = 'tombstone' AND NEW.incarnation = OLD.incarnation + 1 AND NEW.epoch > OLD.epoch)
BEGIN
  SELECT RAISE(ABORT, 'surefoot guard: only a tombstone is born again, and only by an acquisition');
END;
CREATE TRIGGER IF NOT EXISTS surefoot_marks_tombstone BEFORE UPDATE ON surefoot_marks
WHEN NEW.incarnation = OLD.incarnation AND OLD.state = 'tombstone' AND NEW.state <> 'tombstone'
BEGIN
  SELECT RAISE(ABORT, 'surefoot guard: a tombstone ends only by an acquisition');
END;
CREATE TRIGGER IF NOT EXISTS surefoot_marks_height BEFORE UPDATE ON surefoot_marks
WHEN NEW.incarnation = OLD.incarnation
  AND (NEW.seq < OLD.seq OR (NEW.seq = OLD.seq AND NEW.digest <> OLD.digest))
BEGIN
  SELECT RAISE(ABORT, 'surefoot guard: a mark never goes down and never changes at the same height');
END;

-- name: read
-- P2: the mark, read before anything of the content store.
SELECT incarnation, seq, digest, epoch, owner,
  CASE WHEN typeof(lease_until_ms) <> 'integer' THEN NULL WHEN lease_until_ms = 0 THEN 0
    ELSE lease_until_ms - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) END AS lease_left_ms,
  step, state, clean, tainted, resumes, intents
FROM surefoot_marks
WHERE tenant = :tenant AND thread = :thread;

-- name: create
-- P1: a new thread is admitted here, before any write to the content store.
INSERT INTO surefoot_marks (tenant, thread, incarnation, seq, digest, epoch, owner, lease_until_ms,
  step, state, clean, tainted, resumes, intents)
VALUES (:tenant, :thread, 1, 0, zeroblob(32), 1, :owner,
  CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :ttl_ms,
  0, 'live', 0, 0, 0, x'')
ON CONFLICT (tenant, thread) DO NOTHING
RETURNING incarnation, seq, digest, epoch, owner,
  lease_until_ms - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS lease_left_ms,
  step, state, clean, tainted, resumes, intents;

-- name: admit
-- R2: the mark of a thread whose mark was lost, under an operator's order: tainted, in the life
-- and above every epoch of what is stored.
INSERT INTO surefoot_marks (tenant, thread, incarnation, seq, digest, epoch, owner, lease_until_ms,
  step, state, clean, tainted, resumes, intents)
VALUES (:tenant, :thread, :incarnation, :seq, :digest, :epoch, :owner,
  CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :ttl_ms,
  :step, :state, 0, 1, 0, x'')
ON CONFLICT (tenant, thread) DO NOTHING
RETURNING incarnation, seq, digest, epoch, owner,
  lease_until_ms - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS lease_left_ms,
  step, state, clean, tainted, resumes, intents;

-- name: acquire
-- P1: lease free on this clock (or its holder proven dead) -> epoch + 1, lease set, clean
-- cleared, taint and resumes counted. A tombstone starts its next life; frozen stays frozen.
UPDATE surefoot_marks SET
  epoch = epoch + 1,
  owner = :owner,
  lease_until_ms = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :ttl_ms,
  incarnation = CASE WHEN state = 'tombstone' THEN incarnation + 1 ELSE incarnation END,
  seq = CASE WHEN state = 'tombstone' THEN 0 ELSE seq END,
  digest = CASE WHEN state = 'tombstone' THEN zeroblob(32) ELSE digest END,
  step = CASE WHEN state = 'tombstone' THEN 0 ELSE step END,
  intents = CASE WHEN state = 'tombstone' THEN x'' ELSE intents END,
  tainted = CASE WHEN state = 'tombstone' THEN 0 WHEN clean = 0 THEN 1 ELSE tainted END,
  resumes = CASE WHEN state = 'tombstone' THEN 0 WHEN clean = 0 THEN resumes + 1 ELSE resumes END,
  clean = 0,
  state = 'live'
WHERE tenant = :tenant AND thread = :thread
  AND state <> 'frozen'
  AND (lease_until_ms <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
    OR epoch = :over_epoch)
RETURNING incarnation, seq, digest, epoch, owner,
  lease_until_ms - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS lease_left_ms,
  step, state, clean, tainted, resumes, intents;

-- name: publish
-- P4: the commit point, a compare-and-set on (epoch, seq, digest). P7: clean, lease freed by
-- a ttl of 0. E5: the intents travel with it. A folded step ends the taint.
UPDATE surefoot_marks SET
  seq = :new_seq,
  digest = :new_digest,
  step = :step,
  intents = :intents,
  lease_until_ms = CASE WHEN :ttl_ms = 0 THEN 0
    ELSE CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :ttl_ms END,
  clean = :clean,
  tainted = CASE WHEN :folded THEN 0 ELSE tainted END,
  resumes = CASE WHEN :folded THEN 0 ELSE resumes END,
  state = :state
WHERE tenant = :tenant AND thread = :thread
  AND epoch = :epoch
  AND seq = :seq
  AND digest = :digest
RETURNING epoch;

-- name: renew
-- P1: the holder keeps its lease, as long as nobody else has acquired the thread
-- and the lease was not given back.
UPDATE surefoot_marks SET
  lease_until_ms = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + :ttl_ms
WHERE tenant = :tenant AND thread = :thread
  AND epoch = :epoch AND lease_until_ms > 0
RETURNING epoch;

-- name: marks
-- Readers: a page of a tenant's threads in the order of their ids, for listings and checks.
SELECT thread, incarnation, seq, digest, epoch, owner,
  CASE WHEN typeof(lease_until_ms) <> 'integer' THEN NULL WHEN lease_until_ms = 0 THEN 0
    ELSE lease_until_ms - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) END AS lease_left_ms,
  step, state, clean, tainted, resumes, intents
FROM surefoot_marks
WHERE tenant = :tenant AND thread >= :from_thread
ORDER BY thread
LIMIT :page;

-- name: marks_with_intents
-- Readers: the same of threads with effects that may have been sent (E5).
SELECT thread, incarnation, seq, digest, epoch, owner,
  CASE WHEN typeof(lease_until_ms) <> 'integer' THEN NULL WHEN lease_until_ms = 0 THEN 0
    ELSE lease_until_ms - CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) END AS lease_left_ms,
  step, state, clean, tainted, resumes, intents
FROM surefoot_marks
WHERE tenant = :tenant AND thread >= :from_thread AND length(intents) > 0
ORDER BY thread
LIMIT :page;
