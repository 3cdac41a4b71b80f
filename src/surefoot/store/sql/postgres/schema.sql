-- The schema as it is after all migrations, to be read, not run. A test proves that it is what the
-- migrations add up to; the record of applied migrations is made by the statement `create_ledger`.

-- Format version 1. Bytes only: ids, records and values of users are never text or JSON here,
-- so that NUL, lone surrogates and any encoding of the database are of no consequence.

-- One row per thread. Writers gate on the head_* columns, so those are updated all the time:
-- no index may contain them, and the free space keeps the new row version on its page (HOT).
CREATE TABLE {schema}.surefoot_thread (
    key         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant      bytea  NOT NULL,
    thread      bytea  NOT NULL,
    incarnation bigint NOT NULL,
    head_seq    bigint NOT NULL,
    head_epoch  bigint NOT NULL,
    head_digest bytea  NOT NULL,
    created_us  bigint NOT NULL,
    updated_us  bigint NOT NULL,
    has_open    smallint NOT NULL DEFAULT 1
) WITH (fillfactor = 60);

-- Ids may be longer than an index entry (2,704 bytes), therefore a digest of them is indexed.
-- One expression: no statement that looks for one thread can be planned with the index below.
CREATE UNIQUE INDEX surefoot_thread_id
    ON {schema}.surefoot_thread (sha256(sha256(tenant) || sha256(thread)));

-- Lists the threads of a tenant in the order of their keys.
CREATE INDEX surefoot_thread_tenant ON {schema}.surefoot_thread (sha256(tenant), key);

-- Lists the threads of a tenant that may have an open effect. `has_open` is a hint, never trusted:
-- 0 says that the last writer knew of none. An update is HOT unless it changes.
CREATE INDEX surefoot_thread_open ON {schema}.surefoot_thread (sha256(tenant), key)
    WHERE has_open > 0;

-- The journal: one row per frame. Bodies are compressed already, and heads are digests.
CREATE TABLE {schema}.surefoot_frame (
    thread_key      bigint NOT NULL,
    last_seq        bigint NOT NULL,
    epoch           bigint NOT NULL,
    checkpoint_hash bigint,
    head            bytea  NOT NULL,
    body            bytea  NOT NULL,
    PRIMARY KEY (thread_key, last_seq, epoch)
);
ALTER TABLE {schema}.surefoot_frame ALTER COLUMN head SET STORAGE EXTERNAL;
ALTER TABLE {schema}.surefoot_frame ALTER COLUMN body SET STORAGE EXTERNAL;

-- Finds the frame of a checkpoint id.
CREATE INDEX surefoot_frame_checkpoint
    ON {schema}.surefoot_frame (thread_key, checkpoint_hash)
    WHERE checkpoint_hash IS NOT NULL;

-- Values that are too large for a record, by their digest.
CREATE TABLE {schema}.surefoot_value (
    thread_key bigint NOT NULL,
    digest     bytea  NOT NULL,
    body       bytea  NOT NULL,
    PRIMARY KEY (thread_key, digest)
);
ALTER TABLE {schema}.surefoot_value ALTER COLUMN body SET STORAGE EXTERNAL;

-- Pieces of lists that only grow.
CREATE TABLE {schema}.surefoot_chunk (
    thread_key bigint  NOT NULL,
    log_id     bigint  NOT NULL,
    ordinal    integer NOT NULL,
    body       bytea   NOT NULL,
    PRIMARY KEY (thread_key, log_id, ordinal)
);
ALTER TABLE {schema}.surefoot_chunk ALTER COLUMN body SET STORAGE EXTERNAL;

-- Which threads a run has written to. The digest covers tenant and run id.
CREATE TABLE {schema}.surefoot_run (
    run_digest bytea  NOT NULL,
    thread_key bigint NOT NULL,
    PRIMARY KEY (run_digest, thread_key)
);
CREATE INDEX surefoot_run_thread ON {schema}.surefoot_run (thread_key);
