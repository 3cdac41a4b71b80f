-- Statements of the demo's payment service (SQLite). Each block is named.

-- name: schema
-- Everything that ever landed, in order.
CREATE TABLE IF NOT EXISTS landed (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    kind         TEXT NOT NULL,
    mode         TEXT NOT NULL,
    key          TEXT,
    invoice      TEXT NOT NULL,
    body         TEXT NOT NULL,
    landed_at_ms INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS landed_key ON landed (kind, mode, key);
CREATE INDEX IF NOT EXISTS landed_invoice ON landed (invoice);

-- name: insert
-- One thing that lands.
INSERT INTO landed (kind, mode, key, invoice, body, landed_at_ms) VALUES (?, ?, ?, ?, ?, ?);

-- name: newest_with_key
-- What a receiver that deduplicates looks up.
SELECT seq, kind, mode, key, invoice, body, landed_at_ms FROM landed
WHERE kind = ? AND mode = ? AND key = ? ORDER BY seq DESC LIMIT 1;

-- name: select
-- The audit and the lookup; a parameter that is NULL does not restrict.
SELECT seq, kind, mode, key, invoice, body, landed_at_ms FROM landed
WHERE (:kind IS NULL OR kind = :kind) AND (:mode IS NULL OR mode = :mode)
  AND (:key IS NULL OR key = :key) AND (:invoice IS NULL OR invoice = :invoice)
  AND (:until_ms IS NULL OR landed_at_ms <= :until_ms)
ORDER BY seq;
