"""The statements of daemon/stores/postgres/writes.py, and the tables that they are about.

    writes             open, published or aborted; when it was heard of or decided
    stages             those that are sealed, and with whom; published or dropped by the decision
    versions           the highest of each application
    journal_receipts   what became of a published write's items in each journal

A daemon that has recorded a decision in its journal says so (`is_applied`); until then the write is
not forgotten. `sealed_ms` is in the stage's row, so that tasks which seal at once wait for nobody.
"""

from typing import Final

from actors.ports.writes import VERDICTS_MAX
from daemon.stores.postgres.rows import NOW

EXPIRED_MAX: Final = 1000
HEARD_SLACK_MS: Final = 1000
"""Two clocks never say quite the same: less than this is nothing new."""

TABLES: Final = (
    """CREATE TABLE writes (
        write_id bytea PRIMARY KEY,
        phase text NOT NULL,
        heard_ms bigint NOT NULL,
        items bigint NOT NULL DEFAULT 0,
        queues text[] NOT NULL DEFAULT '{}',
        app text,
        version bigint
    )""",
    """CREATE TABLE stages (
        write_id bytea NOT NULL,
        stage bytea NOT NULL,
        daemon bytea NOT NULL,
        state text NOT NULL,
        runs bigint NOT NULL,
        items bigint NOT NULL,
        queues text[] NOT NULL,
        sealed_ms bigint NOT NULL,
        is_applied boolean NOT NULL DEFAULT false,
        PRIMARY KEY (write_id, stage)
    )""",
    """CREATE TABLE versions (
        app text PRIMARY KEY,
        version bigint NOT NULL,
        write_id bytea NOT NULL,
        at_ms bigint NOT NULL
    )""",
    """CREATE TABLE journal_receipts (
        write_id bytea NOT NULL,
        daemon bytea NOT NULL,
        delivered bigint NOT NULL DEFAULT 0,
        dropped bigint NOT NULL DEFAULT 0,
        deleted bigint NOT NULL DEFAULT 0,
        is_over boolean NOT NULL DEFAULT false,
        PRIMARY KEY (write_id, daemon)
    ) WITH (fillfactor = 50)""",
    "CREATE INDEX writes_open ON writes (heard_ms) WHERE phase = 'open'",
    "CREATE INDEX writes_ended ON writes (heard_ms) WHERE phase <> 'open'",
    "CREATE INDEX stages_unapplied ON stages (daemon, write_id) WHERE NOT is_applied",
    "CREATE INDEX versions_at ON versions (at_ms)",
    "CREATE INDEX journal_receipts_open ON journal_receipts (daemon, write_id) WHERE NOT is_over",
)

# A write.
OPEN: Final = f"""INSERT INTO writes (write_id, phase, heard_ms) VALUES ($2, 'open', {NOW})
    ON CONFLICT DO NOTHING"""
SHARE: Final = "SELECT phase FROM writes WHERE write_id = $1 FOR SHARE"
LOCK: Final = "SELECT phase, items, heard_ms FROM writes WHERE write_id = $1 FOR UPDATE"
LOOK: Final = """SELECT items, heard_ms, queues FROM writes
    WHERE write_id = $1 AND phase = 'published'"""
PUBLISH: Final = f"""UPDATE writes SET phase = 'published', heard_ms = {NOW}, items = $3,
    queues = $4, app = $5, version = $6 WHERE write_id = $2 RETURNING heard_ms"""
END: Final = f"""WITH ended AS (
        UPDATE writes SET phase = 'aborted', heard_ms = {NOW}
        WHERE write_id = $2 AND phase = 'open' RETURNING write_id
    ) UPDATE stages SET state = 'dropped' FROM ended
    WHERE stages.write_id = ended.write_id AND state = 'sealed'"""
DROPPED_ITEMS: Final = "UPDATE writes SET items = $2 WHERE write_id = $1"

# Its stages.
ADD: Final = f"""INSERT INTO stages
        (write_id, stage, daemon, state, runs, items, queues, sealed_ms)
    SELECT $2, stage, $3, 'sealed', runs, items, string_to_array(queues, ','), {NOW}
    FROM unnest($4::bytea[], $5::bigint[], $6::bigint[], $7::text[])
        AS sealed (stage, runs, items, queues)
    ON CONFLICT (write_id, stage) DO NOTHING"""
STATE: Final = "SELECT state FROM stages WHERE write_id = $1 AND stage = $2"
SEALED: Final = """SELECT stage, items, queues FROM stages
    WHERE write_id = $1 AND stage = ANY ($2::bytea[]) AND state = 'sealed'"""
STAGED: Final = """SELECT coalesce(sum(items), 0)::bigint FROM stages
    WHERE write_id = $1 AND daemon <> $2 AND state = 'sealed'"""
SHOW: Final = """UPDATE stages
    SET state = CASE WHEN stage = ANY ($2::bytea[]) THEN 'published' ELSE 'dropped' END
    WHERE write_id = $1 AND state = 'sealed'"""
DROP: Final = f"""INSERT INTO stages AS known
        (write_id, stage, daemon, state, runs, items, queues, sealed_ms)
    VALUES ($2, $4, $3, 'dropped', 0, 0, '{{}}', {NOW})
    ON CONFLICT (write_id, stage) DO UPDATE SET state = 'dropped' WHERE known.state = 'sealed'"""
DROP_ALL: Final = """UPDATE stages SET state = 'dropped'
    WHERE write_id = ANY ($1::bytea[]) AND state = 'sealed'"""

# Versions.
LOCK_VERSION: Final = f"""INSERT INTO versions AS known (app, version, write_id, at_ms)
    VALUES ($2, $3, $4, {NOW})
    ON CONFLICT (app) DO UPDATE SET at_ms = excluded.at_ms,
        version = greatest(known.version, excluded.version),
        write_id = CASE WHEN excluded.version > known.version
            THEN excluded.write_id ELSE known.write_id END
    RETURNING version, write_id"""
NOTE_VERSION: Final = "UPDATE versions SET version = $2, write_id = $3 WHERE app = $1"
FORGET_APPS: Final = """DELETE FROM versions WHERE app = ANY (ARRAY(
    SELECT app FROM versions ORDER BY at_ms DESC OFFSET $1))"""

# Following.
VERDICTS: Final = f"""SELECT writes.write_id, phase, heard_ms, queues, app, version,
        own.stages, own.items
    FROM writes, LATERAL (
        SELECT coalesce(array_agg(stage) FILTER (WHERE state = 'published'), '{{}}') AS stages,
            coalesce(sum(items) FILTER (WHERE state = 'published'), 0)::bigint AS items
        FROM stages WHERE stages.write_id = writes.write_id AND daemon = $1
    ) AS own
    WHERE phase <> 'open' AND writes.write_id = ANY (ARRAY(
        SELECT unnest($2::bytea[])
        UNION SELECT write_id FROM stages WHERE daemon = $1 AND NOT is_applied
    )) LIMIT {VERDICTS_MAX}"""
APPLIED: Final = """UPDATE stages SET is_applied = true
    WHERE daemon = $1 AND write_id = ANY ($2::bytea[]) AND NOT is_applied"""

# Time.
HEARD: Final = f"""UPDATE writes SET heard_ms = {NOW} - age_ms
    FROM unnest($2::bytea[], $3::bigint[]) AS heard (write_id, age_ms)
    WHERE writes.write_id = heard.write_id AND phase = 'open'
        AND heard_ms < {NOW} - age_ms - {HEARD_SLACK_MS}"""
OPEN_OLD: Final = f"""INSERT INTO writes (write_id, phase, heard_ms)
    SELECT write_id, 'open', {NOW} - $3::bigint FROM unnest($2::bytea[]) AS old (write_id)
    ON CONFLICT DO NOTHING"""
EXPIRE: Final = f"""UPDATE writes SET phase = 'aborted', heard_ms = {NOW}
    WHERE write_id = ANY (ARRAY(
        SELECT old.write_id FROM writes AS old
        WHERE phase = 'open' AND heard_ms <= {NOW} - $2::bigint AND NOT EXISTS (
            SELECT 1 FROM stages
            WHERE stages.write_id = old.write_id AND sealed_ms > {NOW} - $2::bigint
        ) ORDER BY heard_ms LIMIT {EXPIRED_MAX} FOR UPDATE SKIP LOCKED
    )) RETURNING write_id"""
FORGET: Final = f"""WITH gone AS (
        DELETE FROM writes WHERE write_id = ANY (ARRAY(
            SELECT old.write_id FROM writes AS old
            WHERE phase <> 'open' AND heard_ms <= {NOW} - $2::bigint AND NOT EXISTS (
                SELECT 1 FROM stages WHERE stages.write_id = old.write_id
                    AND state = 'published' AND NOT is_applied
            ) ORDER BY heard_ms LIMIT $3 FOR UPDATE SKIP LOCKED
        )) RETURNING write_id
    ), of_stages AS (
        DELETE FROM stages USING gone WHERE stages.write_id = gone.write_id
    ), of_journals AS (
        DELETE FROM journal_receipts USING gone WHERE journal_receipts.write_id = gone.write_id
    ) SELECT count(*) FROM gone"""

# Receipts.
PART: Final = ("delivered", "dropped", "deleted", "lost")


def _sums(whose: str, which: str) -> str:
    return ", ".join(
        f"coalesce(sum({name}) FILTER (WHERE {which}), 0)::bigint AS {whose}_{name}"
        for name in PART
    )


_NOW: Final = (
    "unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[]) "
    f"AS now (write_id, {', '.join(PART)}, is_over)"
)
BEGIN_PARTS: Final = """INSERT INTO journal_receipts (write_id, daemon)
    SELECT DISTINCT write_id, daemon FROM stages WHERE write_id = $1 AND state = 'published'"""
UNFINISHED: Final = "SELECT write_id FROM journal_receipts WHERE daemon = $1 AND NOT is_over"
NOTE: Final = f"""UPDATE journal_receipts AS known SET delivered = now.delivered,
        dropped = now.dropped, deleted = now.deleted, lost = now.lost, is_over = now.is_over
    FROM {_NOW}
    WHERE known.write_id = now.write_id AND known.daemon = $1 RETURNING known.write_id"""
BEGIN_MOVED: Final = f"""WITH now AS (
        SELECT * FROM {_NOW}
    ), known AS (
        -- One that is being forgotten is not to come back.
        SELECT write_id FROM writes WHERE phase = 'published'
            AND write_id IN (SELECT write_id FROM now) ORDER BY write_id FOR KEY SHARE
    ) INSERT INTO journal_receipts (write_id, daemon, delivered, dropped, deleted, lost, is_over)
    SELECT write_id, $1, delivered, dropped, deleted, lost, is_over
    FROM now JOIN known USING (write_id)
    ON CONFLICT (write_id, daemon) DO UPDATE SET delivered = excluded.delivered,
        dropped = excluded.dropped, deleted = excluded.deleted, lost = excluded.lost,
        is_over = excluded.is_over"""
RECEIPT: Final = f"""SELECT heard_ms, app, version, queues, items,
        {_sums("own", "daemon = $2")}, {_sums("others", "daemon <> $2")}
    FROM writes LEFT JOIN journal_receipts USING (write_id)
    WHERE writes.write_id = $1 AND phase = 'published' GROUP BY writes.write_id"""
