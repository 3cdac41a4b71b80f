-- The high-water store on PostgreSQL (14 or later). Every block is one named statement;
-- sqlite.sql has the same names. {schema} is replaced by the checked, quoted schema with its
-- dot, or by nothing; {schema_name} by the name as a literal, or by NULL. The clock is the
-- server's: milliseconds since 1970 from clock_timestamp().
--
-- Every write sets synchronous_commit and lock_timeout for its own transaction (`session`), so
-- that neither a pooler nor a role's settings can weaken it, at no extra round trip.

-- name: durability
-- P0: refuse a server that may lose what it acknowledged. Last two columns: who this server
-- is, when `identity` is not permitted.
SELECT current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery(),
  set_config('synchronous_commit', CASE current_setting('synchronous_commit')
    WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
  coalesce((SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass('{schema}surefoot_marks')), 'p'),
  current_setting('port'), extract(epoch FROM pg_postmaster_start_time())::text;

-- name: identity
-- P0: content and marks on one server are "degraded"; which server is this really?
SELECT system_identifier::text FROM pg_control_system();

-- name: shape
-- P0: what is there, one fact a row; compared with what this release creates.
SELECT 'column ' || attname || ' ' || format_type(atttypid, atttypmod)
  || CASE WHEN attnotnull THEN ' not null' ELSE '' END AS fact
FROM pg_attribute
WHERE attrelid = to_regclass('{schema}surefoot_marks') AND attnum > 0 AND NOT attisdropped
UNION ALL
SELECT 'constraint ' || conname FROM pg_constraint
WHERE conrelid = to_regclass('{schema}surefoot_marks') AND contype IN ('p', 'c') AND convalidated
UNION ALL
SELECT 'trigger ' || tgname FROM pg_trigger
WHERE tgrelid = to_regclass('{schema}surefoot_marks') AND NOT tgisinternal AND tgenabled IN ('O', 'A');

-- name: setup_lock
-- P0: one process at a time sets up.
SELECT set_config('lock_timeout', %(lock_timeout)s, true), pg_advisory_xact_lock(7164214860285310017);

-- name: setup
-- Rows are never deleted, epochs only grow, a mark never goes down within one life, and a
-- tombstone ends only in a new life: held by the schema too, not only by the statements below.
-- The key is a digest of the ids, because an index entry must stay below 2704 bytes and an
-- id need not.
DO $$
BEGIN
  IF {schema_name}::text IS NOT NULL AND to_regnamespace(quote_ident({schema_name})) IS NULL THEN
    EXECUTE format('CREATE SCHEMA %I', {schema_name});
  END IF;
END
$$;
CREATE TABLE IF NOT EXISTS {schema}surefoot_marks (
  tenant bytea NOT NULL,
  thread bytea NOT NULL,
  tenant_key bytea GENERATED ALWAYS AS (sha256(tenant)) STORED,
  thread_key bytea GENERATED ALWAYS AS (sha256(thread)) STORED,
  incarnation bigint NOT NULL CONSTRAINT surefoot_marks_incarnation CHECK (incarnation >= 1),
  seq bigint NOT NULL CONSTRAINT surefoot_marks_seq CHECK (seq >= 0),
  digest bytea NOT NULL CONSTRAINT surefoot_marks_digest CHECK (length(digest) = 32),
  epoch bigint NOT NULL CONSTRAINT surefoot_marks_epoch CHECK (epoch >= 1),
  owner bytea NOT NULL,
  lease_until_ms bigint NOT NULL CONSTRAINT surefoot_marks_lease CHECK (lease_until_ms >= 0),
  step bigint NOT NULL,
  state text NOT NULL CONSTRAINT surefoot_marks_state CHECK (state IN ('live', 'tombstone', 'frozen')),
  clean boolean NOT NULL,
  tainted boolean NOT NULL,
  resumes bigint NOT NULL CONSTRAINT surefoot_marks_resumes CHECK (resumes >= 0),
  intents bytea NOT NULL,
  CONSTRAINT surefoot_marks_pkey PRIMARY KEY (tenant_key, thread_key)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS surefoot_marks_order
  ON {schema}surefoot_marks (tenant_key, substring(thread FROM 1 FOR 512));
CREATE OR REPLACE FUNCTION {schema}surefoot_marks_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
    RAISE EXCEPTION 'surefoot guard: a mark is never deleted' USING ERRCODE = 'SF001';
  END IF;
  IF NEW.tenant <> OLD.tenant OR NEW.thread <> OLD.thread THEN
    RAISE EXCEPTION 'surefoot guard: a mark never changes its thread' USING ERRCODE = 'SF001';
  END IF;
  IF NEW.epoch < OLD.epoch THEN
    RAISE EXCEPTION 'surefoot guard: an epoch never goes down' USING ERRCODE = 'SF001';
  END IF;
  IF NEW.incarnation <> OLD.incarnation THEN
    IF NOT (OLD.state = 'tombstone' AND NEW.incarnation = OLD.incarnation + 1
        AND NEW.epoch > OLD.epoch) THEN
      RAISE EXCEPTION 'surefoot guard: only a tombstone is born again, and only by an acquisition'
        USING ERRCODE = 'SF001';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.state = 'tombstone' AND NEW.state <> 'tombstone' THEN
    RAISE EXCEPTION 'surefoot guard: a tombstone ends only by an acquisition' USING ERRCODE = 'SF001';
  END IF;
  IF NEW.seq < OLD.seq OR (NEW.seq = OLD.seq AND NEW.digest <> OLD.digest) THEN
    RAISE EXCEPTION 'surefoot guard: a mark never goes down and never changes at the same height'
      USING ERRCODE = 'SF001';
  END IF;
  RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER surefoot_marks_grow BEFORE UPDATE ON {schema}surefoot_marks
  FOR EACH ROW EXECUTE FUNCTION {schema}surefoot_marks_guard();
CREATE OR REPLACE TRIGGER surefoot_marks_keep BEFORE DELETE ON {schema}surefoot_marks
  FOR EACH ROW EXECUTE FUNCTION {schema}surefoot_marks_guard();
CREATE OR REPLACE TRIGGER surefoot_marks_keep_all BEFORE TRUNCATE ON {schema}surefoot_marks
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}surefoot_marks_guard();

-- name: read
-- P2: the mark, read before anything of the content store.
SELECT incarnation, seq, digest, epoch, owner,
  CASE WHEN lease_until_ms = 0 THEN 0
    ELSE lease_until_ms - (extract(epoch FROM clock_timestamp()) * 1000)::bigint END AS lease_left_ms,
  step, state, clean, tainted, resumes, intents
FROM {schema}surefoot_marks
WHERE tenant_key = sha256(%(tenant)s) AND thread_key = sha256(%(thread)s);

-- name: create
-- P1: a new thread is admitted here, before any write to the content store.
WITH session AS MATERIALIZED (
  SELECT set_config('lock_timeout', %(lock_timeout)s, true) AS waits,
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) AS commits
)
INSERT INTO {schema}surefoot_marks (tenant, thread, incarnation, seq, digest, epoch, owner,
  lease_until_ms, step, state, clean, tainted, resumes, intents)
SELECT %(tenant)s, %(thread)s, 1, 0, decode(repeat('00', 32), 'hex'), 1, %(owner)s,
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(ttl_ms)s,
  0, 'live', false, false, 0, ''::bytea
FROM session
WHERE session.waits <> '' AND session.commits IN ('on', 'remote_apply')
ON CONFLICT (tenant_key, thread_key) DO NOTHING
RETURNING incarnation, seq, digest, epoch, owner,
  lease_until_ms - (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS lease_left_ms,
  step, state, clean, tainted, resumes, intents;

-- name: admit
-- R2: the mark of a thread whose mark was lost, under an operator's order: tainted, in the life
-- and above every epoch of what is stored.
WITH session AS MATERIALIZED (
  SELECT set_config('lock_timeout', %(lock_timeout)s, true) AS waits,
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) AS commits
)
INSERT INTO {schema}surefoot_marks (tenant, thread, incarnation, seq, digest, epoch, owner,
  lease_until_ms, step, state, clean, tainted, resumes, intents)
SELECT %(tenant)s, %(thread)s, %(incarnation)s, %(seq)s, %(digest)s, %(epoch)s, %(owner)s,
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(ttl_ms)s,
  %(step)s, %(state)s, false, true, 0, ''::bytea
FROM session
WHERE session.waits <> '' AND session.commits IN ('on', 'remote_apply')
ON CONFLICT (tenant_key, thread_key) DO NOTHING
RETURNING incarnation, seq, digest, epoch, owner,
  lease_until_ms - (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS lease_left_ms,
  step, state, clean, tainted, resumes, intents;

-- name: acquire
-- P1: lease free on this clock (or its holder proven dead) -> epoch + 1, lease set, clean
-- cleared, taint and resumes counted. A tombstone starts its next life; frozen stays frozen.
WITH session AS MATERIALIZED (
  SELECT set_config('lock_timeout', %(lock_timeout)s, true) AS waits,
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) AS commits
)
UPDATE {schema}surefoot_marks AS mark SET
  epoch = epoch + 1,
  owner = %(owner)s,
  lease_until_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(ttl_ms)s,
  incarnation = CASE WHEN state = 'tombstone' THEN incarnation + 1 ELSE incarnation END,
  seq = CASE WHEN state = 'tombstone' THEN 0 ELSE seq END,
  digest = CASE WHEN state = 'tombstone' THEN decode(repeat('00', 32), 'hex') ELSE digest END,
  step = CASE WHEN state = 'tombstone' THEN 0 ELSE step END,
  intents = CASE WHEN state = 'tombstone' THEN ''::bytea ELSE intents END,
  tainted = CASE WHEN state = 'tombstone' THEN false WHEN NOT clean THEN true ELSE tainted END,
  resumes = CASE WHEN state = 'tombstone' THEN 0 WHEN NOT clean THEN resumes + 1 ELSE resumes END,
  clean = false,
  state = 'live'
FROM session
WHERE session.waits <> '' AND session.commits IN ('on', 'remote_apply')
  AND tenant_key = sha256(%(tenant)s) AND thread_key = sha256(%(thread)s)
  AND state <> 'frozen'
  AND (lease_until_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    OR epoch = %(over_epoch)s::bigint)
RETURNING incarnation, seq, digest, epoch, owner,
  lease_until_ms - (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS lease_left_ms,
  step, state, clean, tainted, resumes, intents;

-- name: publish
-- P4: the commit point, a compare-and-set on (epoch, seq, digest). P7: clean, lease freed by
-- a ttl of 0. E5: the intents travel with it. A folded step ends the taint.
WITH session AS MATERIALIZED (
  SELECT set_config('lock_timeout', %(lock_timeout)s, true) AS waits,
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) AS commits
)
UPDATE {schema}surefoot_marks AS mark SET
  seq = %(new_seq)s,
  digest = %(new_digest)s,
  step = %(step)s,
  intents = %(intents)s,
  lease_until_ms = CASE WHEN %(ttl_ms)s = 0 THEN 0
    ELSE (extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(ttl_ms)s END,
  clean = %(clean)s,
  tainted = CASE WHEN %(folded)s THEN false ELSE tainted END,
  resumes = CASE WHEN %(folded)s THEN 0 ELSE resumes END,
  state = %(state)s
FROM session
WHERE session.waits <> '' AND session.commits IN ('on', 'remote_apply')
  AND tenant_key = sha256(%(tenant)s) AND thread_key = sha256(%(thread)s)
  AND epoch = %(epoch)s
  AND seq = %(seq)s
  AND digest = %(digest)s
RETURNING epoch;

-- name: renew
-- P1: the holder keeps its lease, as long as nobody else has acquired the thread
-- and the lease was not given back.
WITH session AS MATERIALIZED (
  SELECT set_config('lock_timeout', %(lock_timeout)s, true) AS waits,
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) AS commits
)
UPDATE {schema}surefoot_marks AS mark SET
  lease_until_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint + %(ttl_ms)s
FROM session
WHERE session.waits <> '' AND session.commits IN ('on', 'remote_apply')
  AND tenant_key = sha256(%(tenant)s) AND thread_key = sha256(%(thread)s)
  AND epoch = %(epoch)s AND lease_until_ms > 0
RETURNING epoch;

-- name: marks
-- Readers: a page of a tenant's threads in the order of their ids, for listings and checks.
SELECT thread, incarnation, seq, digest, epoch, owner,
  CASE WHEN lease_until_ms = 0 THEN 0
    ELSE lease_until_ms - (extract(epoch FROM clock_timestamp()) * 1000)::bigint END AS lease_left_ms,
  step, state, clean, tainted, resumes, intents
FROM {schema}surefoot_marks
WHERE tenant_key = sha256(%(tenant)s)
  AND (substring(thread FROM 1 FOR 512), thread)
    >= (substring(%(from_thread)s::bytea FROM 1 FOR 512), %(from_thread)s::bytea)
ORDER BY substring(thread FROM 1 FOR 512), thread
LIMIT %(page)s;

-- name: marks_with_intents
-- Readers: the same of threads with effects that may have been sent (E5).
SELECT thread, incarnation, seq, digest, epoch, owner,
  CASE WHEN lease_until_ms = 0 THEN 0
    ELSE lease_until_ms - (extract(epoch FROM clock_timestamp()) * 1000)::bigint END AS lease_left_ms,
  step, state, clean, tainted, resumes, intents
FROM {schema}surefoot_marks
WHERE tenant_key = sha256(%(tenant)s)
  AND (substring(thread FROM 1 FOR 512), thread)
    >= (substring(%(from_thread)s::bytea FROM 1 FOR 512), %(from_thread)s::bytea)
  AND intents <> ''::bytea
ORDER BY substring(thread FROM 1 FOR 512), thread
LIMIT %(page)s;
