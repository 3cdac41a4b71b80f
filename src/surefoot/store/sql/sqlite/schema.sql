-- The schema as it is after all migrations, to be read, not run. A test proves that it is what the
-- migrations add up to; the record of applied migrations is made by the statement `create_ledger`.

-- Format version 1. Bytes only: ids, records and values of users are never text or JSON here,
-- so that NUL and lone surrogates are of no consequence.

-- One row per thread. AUTOINCREMENT: a key is never given out twice, other processes know it.
CREATE TABLE surefoot_thread (
    key         INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant      BLOB    NOT NULL,
    thread      BLOB    NOT NULL,
    incarnation INTEGER NOT NULL,
    head_seq    INTEGER NOT NULL,
    head_epoch  INTEGER NOT NULL,
    head_digest BLOB    NOT NULL,
    created_us  INTEGER NOT NULL,
    updated_us  INTEGER NOT NULL,
    has_open    INTEGER NOT NULL DEFAULT 1
);
CREATE UNIQUE INDEX surefoot_thread_id ON surefoot_thread (tenant, thread);

-- Lists the threads of a tenant in the order of their keys (the rowid follows by itself).
CREATE INDEX surefoot_thread_tenant ON surefoot_thread (tenant);

-- Lists the threads of a tenant that may have an open effect. `has_open` is a hint, never trusted:
-- 0 says that the last writer knew of none.
CREATE INDEX surefoot_thread_open ON surefoot_thread (tenant) WHERE has_open > 0;

-- The journal: one row per frame. Rows with bodies keep their rowid: a table WITHOUT ROWID
-- moves everything beyond a quarter of a page to pages of its own.
CREATE TABLE surefoot_frame (
    thread_key      INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    checkpoint_hash INTEGER,
    head            BLOB    NOT NULL,
    body            BLOB    NOT NULL,
    PRIMARY KEY (thread_key, last_seq, epoch)
);

-- Finds the frame of a checkpoint id.
CREATE INDEX surefoot_frame_checkpoint
    ON surefoot_frame (thread_key, checkpoint_hash)
    WHERE checkpoint_hash IS NOT NULL;

-- Values that are too large for a record, by their digest.
CREATE TABLE surefoot_value (
    thread_key INTEGER NOT NULL,
    digest     BLOB    NOT NULL,
    body       BLOB    NOT NULL,
    PRIMARY KEY (thread_key, digest)
);

-- Pieces of lists that only grow.
CREATE TABLE surefoot_chunk (
    thread_key INTEGER NOT NULL,
    log_id     INTEGER NOT NULL,
    ordinal    INTEGER NOT NULL,
    body       BLOB    NOT NULL,
    PRIMARY KEY (thread_key, log_id, ordinal)
);

-- Which threads a run has written to. The digest covers tenant and run id.
CREATE TABLE surefoot_run (
    run_digest BLOB    NOT NULL,
    thread_key INTEGER NOT NULL,
    PRIMARY KEY (run_digest, thread_key)
) WITHOUT ROWID;
CREATE INDEX surefoot_run_thread ON surefoot_run (thread_key);
