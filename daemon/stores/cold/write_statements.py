"""The statements of write_steps.py, and the tables that they are about.

    writes             open, published or aborted; when it was heard of or decided
    stages             those that are sealed, and with which daemon; published or dropped by the
                       decision
    versions           the highest of each application
    journal_receipts   the outcomes of a published write's items in each journal

A daemon that has recorded a decision in its journal says so (`is_applied`); until then the write is
not forgotten. `sealed_ms` is in the stage's row, so that tasks which seal at once wait for nobody.
"""

from typing import Final

from daemon.stores.cold.statement import Statement

EXPIRED_MAX: Final = 1000
HEARD_SLACK_MS: Final = 1000
"""Two clocks never say quite the same: less than this is nothing new."""

# A write.
OPEN: Final = Statement("""INSERT INTO writes (write_id, phase, heard_ms) VALUES ($1, 'open', :now)
    ON CONFLICT DO NOTHING""")
SHARE: Final = Statement("""SELECT write_id, phase FROM writes WHERE write_id = ANY ($1)
    ORDER BY write_id FOR SHARE""")
LOCK: Final = Statement("SELECT phase, items, heard_ms FROM writes WHERE write_id = $1 FOR UPDATE")
LOOK: Final = Statement("""SELECT items, heard_ms, queues FROM writes
    WHERE write_id = $1 AND phase = 'published'""")
PUBLISH: Final = Statement("""UPDATE writes SET phase = 'published', heard_ms = :now, items = $2,
    queues = $3, app = $4, version = $5 WHERE write_id = $1 RETURNING heard_ms""")
END: Final = Statement("""UPDATE writes SET phase = 'aborted', heard_ms = :now, items = $2
    WHERE write_id = $1 RETURNING heard_ms""")
END_ALL: Final = Statement(
    "UPDATE writes SET phase = 'aborted', heard_ms = :now WHERE write_id = ANY ($1)"
)

# Its stages.
KNOWN: Final = Statement("""SELECT write_id, stage, state FROM stages
    WHERE write_id = ANY ($1) AND stage = ANY ($2)""")
STATE: Final = Statement("SELECT state FROM stages WHERE write_id = $1 AND stage = $2")
STAGES: Final = Statement(
    "SELECT stage, daemon, state, items, queues FROM stages WHERE write_id = $1"
)
ADD: Final = Statement("""INSERT INTO stages
        (write_id, stage, daemon, state, runs, items, queues, sealed_ms)
    VALUES ($1, $2, $3, 'sealed', $4, $5, $6, :now) ON CONFLICT DO NOTHING""")
SHOW: Final = Statement(
    "UPDATE stages SET state = 'published' WHERE write_id = $1 AND state = 'sealed'"
)
DROP: Final = Statement("""INSERT INTO stages AS known
        (write_id, stage, daemon, state, runs, items, queues, sealed_ms)
    VALUES ($1, $2, $3, 'dropped', 0, 0, '', :now)
    ON CONFLICT (write_id, stage) DO UPDATE SET state = 'dropped' WHERE known.state = 'sealed'""")
DROP_STAGE: Final = Statement(
    "UPDATE stages SET state = 'dropped' WHERE write_id = $1 AND stage = $2"
)
DROP_ALL: Final = Statement(
    "UPDATE stages SET state = 'dropped' WHERE write_id = ANY ($1) AND state = 'sealed'"
)

# Versions.
LOCK_VERSION: Final = Statement("""INSERT INTO versions AS known (app, version, write_id, at_ms)
    VALUES ($1, $2, $3, :now)
    ON CONFLICT (app) DO UPDATE SET at_ms = excluded.at_ms,
        version = greatest(known.version, excluded.version),
        write_id = CASE WHEN excluded.version > known.version
            THEN excluded.write_id ELSE known.write_id END
    RETURNING version, write_id""")
NOTE_VERSION: Final = Statement("UPDATE versions SET version = $2, write_id = $3 WHERE app = $1")
QUIET_APPS: Final = Statement("SELECT app FROM versions ORDER BY at_ms DESC LIMIT 1000 OFFSET $1")
FORGET_APP: Final = Statement("DELETE FROM versions WHERE app = $1")

# Following.
UNAPPLIED: Final = Statement("""SELECT DISTINCT write_id FROM stages INDEXED BY stages_unapplied
    WHERE daemon = $1 AND is_applied = FALSE""")
ENDED: Final = Statement("""SELECT write_id, phase, heard_ms, queues, app, version FROM writes
    WHERE write_id = ANY ($1) AND phase <> 'open'""")
OWN: Final = Statement("""SELECT write_id, stage, items FROM stages
    WHERE daemon = $1 AND write_id = ANY ($2) AND state = 'published'""")
APPLIED: Final = Statement("""UPDATE stages SET is_applied = TRUE
    WHERE daemon = $1 AND write_id = ANY ($2) AND is_applied = FALSE""")

# Time.
HEARD: Final = Statement(f"""UPDATE writes SET heard_ms = :now - $2::bigint
    WHERE write_id = $1 AND phase = 'open'
        AND heard_ms < :now - $2::bigint - {HEARD_SLACK_MS}""")
OPEN_OLD: Final = Statement("""INSERT INTO writes (write_id, phase, heard_ms)
    VALUES ($1, 'open', :now - $2::bigint) ON CONFLICT DO NOTHING""")
EXPIRED: Final = Statement(f"""SELECT write_id FROM writes
    WHERE phase = 'open' AND heard_ms <= :now - $1::bigint AND NOT EXISTS (
        SELECT 1 FROM stages
        WHERE stages.write_id = writes.write_id AND sealed_ms > :now - $1::bigint
    ) ORDER BY heard_ms LIMIT {EXPIRED_MAX} FOR UPDATE SKIP LOCKED""")
FORGOTTEN: Final = Statement("""SELECT write_id FROM writes
    WHERE phase <> 'open' AND heard_ms <= :now - $1::bigint AND NOT EXISTS (
        SELECT 1 FROM stages WHERE stages.write_id = writes.write_id
            AND state = 'published' AND is_applied = FALSE
    ) ORDER BY heard_ms LIMIT $2 FOR UPDATE SKIP LOCKED""")
FORGET: Final = tuple(
    Statement(f"DELETE FROM {table} WHERE write_id = ANY ($1)")
    for table in ("stages", "journal_receipts", "writes")
)

# Receipts.
BEGIN_PARTS: Final = Statement("""INSERT INTO journal_receipts (write_id, daemon)
    SELECT DISTINCT write_id, daemon FROM stages WHERE write_id = $1 AND state = 'published'""")
UNFINISHED: Final = Statement(
    "SELECT write_id FROM journal_receipts WHERE daemon = $1 AND is_over = FALSE"
)
KNOWN_PARTS: Final = Statement(
    "SELECT write_id FROM journal_receipts WHERE daemon = $1 AND write_id = ANY ($2)"
)
NOTE: Final = Statement("""UPDATE journal_receipts SET delivered = $3, dropped = $4, deleted = $5,
    lost = $6, is_over = $7 WHERE write_id = $2 AND daemon = $1""")
PUBLISHED: Final = Statement("""SELECT write_id FROM writes
    WHERE write_id = ANY ($1) AND phase = 'published' ORDER BY write_id FOR KEY SHARE""")
NOTE_MOVED: Final = Statement("""INSERT INTO journal_receipts
        (daemon, write_id, delivered, dropped, deleted, lost, is_over)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (write_id, daemon) DO UPDATE SET delivered = excluded.delivered,
        dropped = excluded.dropped, deleted = excluded.deleted, lost = excluded.lost,
        is_over = excluded.is_over""")
RECEIPT: Final = Statement("""SELECT heard_ms, app, version, queues, items FROM writes
    WHERE write_id = $1 AND phase = 'published'""")
PARTS: Final = Statement("""SELECT daemon, delivered, dropped, deleted, lost
    FROM journal_receipts WHERE write_id = $1""")
