-- A hint for whoever looks for effects in doubt: 0 says that the last writer knew of no open effect.
-- 1 is the default, because a thread that was written by an earlier release may have one. The hint
-- is never trusted: what it leads to is verified, and the high-water store is asked as well.
ALTER TABLE {schema}.surefoot_thread ADD COLUMN has_open smallint NOT NULL DEFAULT 1;

-- Lists the threads of a tenant that may have one. An update is HOT unless the hint changes.
CREATE INDEX surefoot_thread_open ON {schema}.surefoot_thread (sha256(tenant), key)
    WHERE has_open > 0;
