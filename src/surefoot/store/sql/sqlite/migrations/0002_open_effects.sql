-- A hint for whoever looks for effects in doubt: 0 says that the last writer knew of no open effect.
-- 1 is the default, because a thread that was written by an earlier release may have one. The hint
-- is never trusted: what it leads to is verified, and the high-water store is asked as well.
ALTER TABLE surefoot_thread ADD COLUMN has_open INTEGER NOT NULL DEFAULT 1;

-- Lists the threads of a tenant that may have one (the rowid follows by itself).
CREATE INDEX surefoot_thread_open ON surefoot_thread (tenant) WHERE has_open > 0;
