"""The schema of the cold tier in PostgreSQL, as numbered migrations, all in one transaction.

All tables are in a schema of forebay's own. One daemon migrates at a time: an advisory lock of the
transaction, which works through PgBouncer, makes the others wait.

The tables are those of the SQLite store (daemon/stores/sqlite/schema.py), plus columns for many
daemons: `brought_by` is the daemon that stored a row, `holder` the one that leases it. The database
guarantees that a row of `runs` or `history` has its body: if one transaction stores a row while
another removes the body's last row, only one of them succeeds, and the other is repeated. Counters
are kept per daemon, so that no daemon waits for another's transaction, and are added up when they
are read. All times use the server's clock, so rows that are not due yet and rows that are leased
share one order by time.

Bodies are compressed already: TOAST must not try it again (STORAGE EXTERNAL).
"""

from collections.abc import Sequence
from typing import Final

from daemon.errors import CannotStart
from daemon.stores.postgres.connection import Connection

MOVED_MAX: Final = 2000
"""At most this many rows that have come due are moved in one transaction; others wait for it."""

PICK: Final = f"""CREATE OR REPLACE FUNCTION pick(
    of_queue text, without_flows text[], items_max bigint, bytes_max bigint, rows_max integer,
    must_fit boolean, cuts boolean, now_ms bigint
) RETURNS bigint[] LANGUAGE plpgsql
-- The order comes from the index, whatever the statistics say.
SET enable_sort = off SET enable_bitmapscan = off AS $$
DECLARE
    next record;
    moved integer;
    cost bigint;
    last_body bytea;
    picked bigint[] := '{{}}';
BEGIN
    -- Rows whose time has come, or whose lease has run out, join the order of delivery.
    UPDATE runs SET is_due = true WHERE n = ANY (ARRAY(
        SELECT later.n FROM runs AS later
        WHERE later.state = 'COLD_QUEUED' AND NOT later.is_due
            AND later.queue = of_queue AND later.scheduled_at <= now_ms
        ORDER BY later.scheduled_at LIMIT {MOVED_MAX} FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS moved = ROW_COUNT;
    IF moved = {MOVED_MAX} THEN
        RETURN NULL;
    END IF;
    FOR next IN
        SELECT due.n, due.body_id, due.count, due.size FROM runs AS due
        WHERE due.state = 'COLD_QUEUED' AND due.is_due AND due.queue = of_queue
            AND NOT (due.flow = ANY (without_flows))
        ORDER BY due.priority, due.scheduled_at_initially, due.body_id, due.first_item
        LIMIT rows_max FOR UPDATE SKIP LOCKED
    LOOP
        -- Rows that share a body are neighbours in this order.
        cost := 1 + CASE WHEN next.body_id = last_body THEN 0 ELSE next.size END;
        EXIT WHEN (must_fit OR last_body IS NOT NULL)
            AND (CASE WHEN cuts THEN 1 ELSE next.count END > items_max OR cost > bytes_max);
        items_max := items_max - next.count;
        bytes_max := bytes_max - cost;
        last_body := next.body_id;
        picked := picked || next.n;
    END LOOP;
    RETURN picked;
END $$"""
"""Locks the next rows that are due, in order. The first row is returned even if it does not fit,
unless `must_fit`. With `cuts` the last row may have more items than are wanted. NULL: so many rows
came due at once that the caller should let other transactions run, and ask again."""

DROP_BODIES: Final = """CREATE FUNCTION drop_bodies(ids bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Two transactions that remove the last rows of a body at once must see each other: one waits.
    PERFORM 1 FROM bodies WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    DELETE FROM bodies WHERE id = ANY (ids)
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.body_id = bodies.id)
        AND NOT EXISTS (SELECT 1 FROM history WHERE history.body_id = bodies.id);
END $$"""
"""Removes bodies that no row of `runs` or `history` needs."""

FUNCTIONS: Final = (PICK, DROP_BODIES)
"""Functions of the server, for steps whose parts must see each other's effects. Each statement in
them sees what was committed before it began; the parts of a single statement do not. A loop that
ends early locks no more rows than it needs."""

HELD: Final = "state IN ('COLD_QUEUED', 'CLAIMED')"
"""What the index `runs_oldest` has: a query must say it in the same words to be served by it."""

MIGRATIONS: Final[Sequence[Sequence[str]]] = (
    (
        "CREATE TABLE bodies (id bytea PRIMARY KEY, data bytea NOT NULL)",
        "ALTER TABLE bodies ALTER COLUMN data SET STORAGE EXTERNAL",
        """CREATE TABLE runs (
            n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            id bytea NOT NULL UNIQUE,
            body_id bytea NOT NULL REFERENCES bodies (id),
            state text NOT NULL,
            is_due boolean NOT NULL,
            queue text NOT NULL,
            flow text NOT NULL,
            flow_type text NOT NULL,
            action text NOT NULL,
            key text,
            priority smallint NOT NULL,
            scheduled_at bigint NOT NULL,
            scheduled_at_initially bigint NOT NULL,
            due_ms bigint NOT NULL,
            first_item integer NOT NULL,
            count integer NOT NULL,
            size integer NOT NULL,
            attempt integer NOT NULL,
            lock_uuid bytea,
            holder bytea,
            brought_by bytea NOT NULL,
            created_at bigint NOT NULL,
            origin bytea NOT NULL,
            item_id text,
            died_at bigint,
            error_folded text,
            bits bytea NOT NULL,
            error_history text NOT NULL,
            headers bytea,
            write_id bytea,
            consumer bigint,
            place integer
        ) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000)""",
        """CREATE TABLE flows (
            queue text NOT NULL,
            flow text NOT NULL,
            action text NOT NULL,
            daemon bytea NOT NULL,
            items bigint NOT NULL,
            runs bigint NOT NULL,
            dead bigint NOT NULL,
            PRIMARY KEY (queue, flow, action, daemon)
        ) WITH (fillfactor = 50)""",
        """CREATE TABLE totals (
            queue text NOT NULL,
            daemon bytea NOT NULL,
            taken bigint NOT NULL,
            delivered bigint NOT NULL,
            dead bigint NOT NULL,
            deleted bigint NOT NULL,
            held bigint NOT NULL,
            runs bigint NOT NULL,
            corrupt bigint NOT NULL,
            accepted bigint NOT NULL,
            duplicate bigint NOT NULL,
            PRIMARY KEY (queue, daemon)
        ) WITH (fillfactor = 50)""",
        """CREATE TABLE receipts (
            write_id bytea NOT NULL,
            daemon bytea NOT NULL,
            delivered bigint NOT NULL,
            dead bigint NOT NULL,
            deleted bigint NOT NULL,
            corrupt bigint NOT NULL,
            updated bigint NOT NULL,
            ignored bigint NOT NULL,
            conflict bigint NOT NULL,
            PRIMARY KEY (write_id, daemon)
        ) WITH (fillfactor = 50)""",
        """CREATE TABLE consumers (
            n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            queue text NOT NULL,
            name text NOT NULL,
            acknowledged bigint NOT NULL DEFAULT 0,
            claim bigint,
            rows bigint NOT NULL DEFAULT 0,
            items bigint NOT NULL DEFAULT 0,
            bytes bigint NOT NULL DEFAULT 0,
            UNIQUE (queue, name)
        )""",
        """CREATE TABLE history (
            n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            body_id bytea NOT NULL REFERENCES bodies (id),
            queue text NOT NULL,
            flow text NOT NULL,
            action text NOT NULL,
            priority smallint NOT NULL,
            count integer NOT NULL,
            size integer NOT NULL,
            attempt integer NOT NULL,
            outcome text NOT NULL,
            created_at bigint NOT NULL,
            finished_at bigint NOT NULL,
            bits bytea NOT NULL,
            error_history text NOT NULL
        )""",
        """CREATE INDEX runs_due ON runs
            (queue, priority, scheduled_at_initially, body_id, first_item)
            WHERE state = 'COLD_QUEUED' AND is_due""",
        """CREATE INDEX runs_later ON runs (queue, scheduled_at)
            WHERE state = 'COLD_QUEUED' AND NOT is_due""",
        "CREATE INDEX runs_lock ON runs (lock_uuid, id) WHERE lock_uuid IS NOT NULL",
        "CREATE INDEX runs_holder ON runs (holder) WHERE holder IS NOT NULL",
        "CREATE INDEX runs_body ON runs (body_id)",
        "CREATE INDEX runs_stored ON runs (brought_by, id) WHERE state = 'STORED'",
        "CREATE INDEX runs_dead ON runs (died_at, id) WHERE state = 'FAILED'",
        "CREATE INDEX runs_dead_queue ON runs (queue, died_at, id) WHERE state = 'FAILED'",
        "CREATE INDEX runs_dead_item ON runs (item_id) WHERE state = 'FAILED'",
        "CREATE INDEX runs_claimed ON runs (consumer, place) WHERE state = 'CLAIMED'",
        f"""CREATE INDEX runs_oldest ON runs (queue, flow, action, created_at)
            WHERE {HELD}""",
        "CREATE INDEX history_queue ON history (queue, finished_at, n)",
        "CREATE INDEX history_body ON history (body_id)",
        *FUNCTIONS,
    ),
    # Which bodies list items of a run, so that an item is found by its id in a part of its run.
    (
        """CREATE TABLE aliases (
            run_id bytea NOT NULL,
            body_id bytea NOT NULL REFERENCES bodies (id) ON DELETE CASCADE,
            PRIMARY KEY (run_id, body_id)
        )""",
        "CREATE INDEX aliases_body ON aliases (body_id)",
    ),
    # Unique keys: whose each is, where that item is now, and, once it is done, until when nobody
    # else may have the key. And what was answered to runs.
    (
        """CREATE TABLE keys (
            queue text NOT NULL,
            key bytea NOT NULL,
            run_id bytea NOT NULL,
            item smallint NOT NULL,
            body_id bytea NOT NULL,
            place smallint NOT NULL,
            until bigint,
            PRIMARY KEY (queue, key)
        ) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000)""",
        "CREATE INDEX keys_home ON keys (body_id, place) WHERE until IS NULL",
        "CREATE INDEX keys_until ON keys (until) WHERE until IS NOT NULL",
        """CREATE TABLE offered (
            n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            run_id bytea NOT NULL UNIQUE,
            outcomes bytea NOT NULL
        )""",
    ),
    # What is decided about writes whose stages are with many daemons.
    (
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
        """CREATE INDEX journal_receipts_open ON journal_receipts (daemon, write_id)
            WHERE NOT is_over""",
    ),
    # How far the ticks of schedules are installed.
    (
        """CREATE TABLE ticks (
            name text PRIMARY KEY,
            queue text NOT NULL,
            fingerprint text NOT NULL,
            until_ms bigint NOT NULL,
            seen_ms bigint NOT NULL
        ) WITH (fillfactor = 50)""",
    ),
    # Who had finished items in hand, since when, what was said of them, and for which job; and
    # why dead letters failed.
    (
        "ALTER TABLE history ADD COLUMN locked_by text",
        "ALTER TABLE history ADD COLUMN locked_at bigint",
        "ALTER TABLE history ADD COLUMN result text",
        "ALTER TABLE history ADD COLUMN job_id text",
        "ALTER TABLE runs ADD COLUMN failure_reason text",
    ),
    # Triggers: who looks after each, the jobs that are not done, and in which job a row is.
    (
        "ALTER TABLE runs ADD COLUMN job_id text",
        """CREATE TABLE trigger_leases (
            name text PRIMARY KEY,
            holder bytea NOT NULL,
            until_ms bigint NOT NULL,
            polled_ms bigint NOT NULL,
            is_paused boolean NOT NULL
        ) WITH (fillfactor = 50)""",
        """CREATE TABLE trigger_jobs (
            run_id bytea PRIMARY KEY,
            name text NOT NULL,
            queue text NOT NULL,
            target text NOT NULL,
            items integer NOT NULL,
            made_ms bigint NOT NULL
        )""",
        "CREATE INDEX trigger_jobs_name ON trigger_jobs (name)",
    ),
    # Since when ticks are those of a schedule as it is now, and which of them were missed.
    (
        "ALTER TABLE ticks ADD COLUMN since_ms bigint NOT NULL DEFAULT 0",
        "ALTER TABLE ticks ADD COLUMN missed bigint NOT NULL DEFAULT 0",
        "ALTER TABLE ticks ADD COLUMN missed_ms bigint NOT NULL DEFAULT 0",
        "UPDATE ticks SET since_ms = seen_ms",
    ),
    # The state of a row that stays changes in these ways alone, whatever a statement says
    # (actors/model/moves.py). What does not set the state, as leasing and settling, is not looked
    # at.
    (
        """CREATE FUNCTION no_way() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'there is no way from % to %', OLD.state, NEW.state;
        END $$""",
        """CREATE TRIGGER runs_state BEFORE UPDATE OF state ON runs FOR EACH ROW
            WHEN (OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
                ('STORED', 'COLD_QUEUED'), ('STORED', 'FAILED'), ('COLD_QUEUED', 'CLAIMED'),
                ('COLD_QUEUED', 'CORRUPT'), ('CLAIMED', 'COLD_QUEUED'), ('CLAIMED', 'CORRUPT'),
                ('FAILED', 'COLD_QUEUED')
            )) EXECUTE FUNCTION no_way()""",
    ),
    # What daemons once asked each other to give back.
    ("CREATE TABLE recalls (n bigint)",),
    # Tells a run that is offered again from another one under its id; null: not known.
    ("ALTER TABLE offered ADD COLUMN fingerprint bigint",),
    # Items of rows that cannot be read are lost, and no longer held.
    (
        "UPDATE totals SET held = held - corrupt",
        "ALTER TABLE totals RENAME COLUMN corrupt TO lost",
        "ALTER TABLE receipts RENAME COLUMN corrupt TO lost",
        "ALTER TABLE journal_receipts ADD COLUMN lost bigint NOT NULL DEFAULT 0",
    ),
    # When an operator last changed or retried the items of a row.
    ("ALTER TABLE runs ADD COLUMN changed_at bigint",),
    # Rows may be cut when they are acquired, and none is acquired ahead that a key may replace.
    (
        "DROP TABLE recalls",
        "DROP FUNCTION IF EXISTS pick(text, text[], bigint, bigint, integer, boolean, bigint)",
        PICK,
    ),
    # The daemons of the fleet, each with its own report.
    (
        """CREATE TABLE daemons (
            id bytea PRIMARY KEY,
            host text NOT NULL,
            version text NOT NULL,
            started_ms bigint NOT NULL,
            seen_ms bigint NOT NULL,
            last_hand_over_ms bigint NOT NULL,
            report jsonb NOT NULL
        ) WITH (fillfactor = 50)""",
        "CREATE INDEX totals_daemon ON totals (daemon)",
    ),
    # Names of queues as one text, with commas: SQLite has no arrays.
    tuple(
        f"""ALTER TABLE {table} ALTER COLUMN queues DROP DEFAULT,
            ALTER COLUMN queues TYPE text USING array_to_string(queues, ','),
            ALTER COLUMN queues SET DEFAULT ''"""
        for table in ("writes", "stages")
    ),
    # Attempts of items, as each daemon counts them: how many failed, and how long they took.
    (
        """CREATE TABLE attempts (
            queue text NOT NULL,
            daemon bytea NOT NULL,
            application bigint NOT NULL,
            business bigint NOT NULL,
            processing text NOT NULL,
            PRIMARY KEY (queue, daemon)
        ) WITH (fillfactor = 50)""",
    ),
)


async def is_current(con: Connection, schema: str) -> bool:
    """Whether there is nothing to migrate."""
    if await con.fetchval("SELECT to_regclass($1)", f'"{schema}".schema_version') is None:
        return False
    version = await con.fetchval(f'SELECT version FROM "{schema}".schema_version')
    return bool(version == len(MIGRATIONS))


async def migrate(con: Connection, schema: str) -> None:
    """In a transaction that looks for names in the schema. CannotStart if it is a newer one's."""
    await con.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"forebay.{schema}")
    await con.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    await con.execute("CREATE TABLE IF NOT EXISTS schema_version (version integer NOT NULL)")
    known = len(MIGRATIONS)
    version = await con.fetchval("SELECT version FROM schema_version")
    if version is None:
        await con.execute("INSERT INTO schema_version VALUES (0)")
        version = 0
    if version > known:
        raise CannotStart(
            f"the cold store's schema is version {version}, and this forebay knows {known}: "
            "it was written by a newer one"
        )
    for migration in MIGRATIONS[version:]:
        for statement in migration:
            await con.execute(statement)
    if version < known:
        await con.execute("UPDATE schema_version SET version = $1", known)
