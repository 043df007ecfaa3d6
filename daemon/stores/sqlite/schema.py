"""The schema of the cold tier in SQLite, as numbered migrations, each one transaction.

`runs` has a row for each set of items that share a body and a state; `bodies` has the encoded
runs, apart from the rows, so that changing a row never rewrites a body. `flows` and `totals` are
the books, and so are `receipts`, of rows that belong to a write: they change in the transaction
that changes the rows, and nothing is ever counted. `history` has rows of items that are finished:
outside the books, and on the same bodies.

A row's `state` is STORED (invisible until confirmed), COLD_QUEUED, CLAIMED (a stream's consumer
has it, as number `place` of its claim), FAILED (a dead letter) or CORRUPT (set aside). A queued
row is also in one of three orders. `is_due` = 1: in the order of delivery. `is_due` = 0: by
`scheduled_at`, not due yet (no lock; a time of the wall clock), or leased (locked; a time of the
clock of leases, which means nothing to another life of the daemon). One index over the order of
delivery with the time as a condition would walk past everything that is leased or scheduled, each
time; so a row is moved to the first order when its time has come, once.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from daemon.errors import CannotStart

APPLICATION_ID: Final = 0x46424344
"""`FBCD`, in the file's header: what `file` and a careful operator look at."""

HELD: Final = "state IN ('COLD_QUEUED', 'CLAIMED')"
"""What the index `runs_oldest` has: a query must say it in the same words to be served by it."""

MIGRATIONS: Final[Sequence[Sequence[str]]] = (
    (
        """CREATE TABLE runs (
            n INTEGER PRIMARY KEY,
            id BLOB NOT NULL UNIQUE,
            body_id BLOB NOT NULL,
            state TEXT NOT NULL,
            is_due INTEGER NOT NULL DEFAULT 0,
            queue TEXT NOT NULL,
            flow TEXT NOT NULL,
            flow_type TEXT NOT NULL,
            action TEXT NOT NULL,
            key TEXT,
            priority INTEGER NOT NULL,
            scheduled_at INTEGER NOT NULL,
            scheduled_at_initially INTEGER NOT NULL,
            due_ms INTEGER NOT NULL,
            first_item INTEGER NOT NULL,
            count INTEGER NOT NULL,
            size INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            lock_uuid BLOB,
            created_at INTEGER NOT NULL,
            origin BLOB NOT NULL,
            item_id TEXT,
            died_at INTEGER,
            error_folded TEXT,
            bits BLOB NOT NULL,
            error_history TEXT NOT NULL,
            headers BLOB
        )""",
        "CREATE TABLE bodies (id BLOB NOT NULL UNIQUE, data BLOB NOT NULL)",
        """CREATE TABLE flows (
            queue TEXT NOT NULL,
            flow TEXT NOT NULL,
            action TEXT NOT NULL,
            items INTEGER NOT NULL,
            runs INTEGER NOT NULL,
            dead INTEGER NOT NULL,
            PRIMARY KEY (queue, flow, action)
        ) WITHOUT ROWID""",
        """CREATE TABLE totals (
            queue TEXT PRIMARY KEY,
            taken INTEGER NOT NULL,
            delivered INTEGER NOT NULL,
            dead INTEGER NOT NULL,
            deleted INTEGER NOT NULL,
            held INTEGER NOT NULL,
            runs INTEGER NOT NULL,
            corrupt INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE TABLE synced (times INTEGER NOT NULL)",
        "INSERT INTO synced VALUES (0)",
        """CREATE INDEX runs_due ON runs
            (queue, priority, scheduled_at_initially, body_id, first_item, flow, count, size)
            WHERE state = 'COLD_QUEUED' AND is_due = 1""",
        """CREATE INDEX runs_later ON runs (queue, scheduled_at, flow)
            WHERE state = 'COLD_QUEUED' AND is_due = 0""",
        "CREATE INDEX runs_lock ON runs (lock_uuid) WHERE lock_uuid IS NOT NULL",
        "CREATE INDEX runs_body ON runs (body_id)",
        "CREATE INDEX runs_stored ON runs (id) WHERE state = 'STORED'",
        "CREATE INDEX runs_dead ON runs (died_at, id) WHERE state = 'FAILED'",
        "CREATE INDEX runs_dead_queue ON runs (queue, died_at, id) WHERE state = 'FAILED'",
        "CREATE INDEX runs_dead_item ON runs (item_id) WHERE state = 'FAILED'",
    ),
    # Leases and due times are on different clocks: none may be compared with the other's.
    (
        "DROP INDEX runs_later",
        """CREATE INDEX runs_later ON runs (queue, scheduled_at, flow)
            WHERE state = 'COLD_QUEUED' AND is_due = 0 AND lock_uuid IS NULL""",
        """CREATE INDEX runs_leased ON runs (queue, scheduled_at, flow)
            WHERE state = 'COLD_QUEUED' AND is_due = 0 AND lock_uuid IS NOT NULL""",
    ),
    # Receipts of writes, and consumers with the claim that each has open.
    (
        "ALTER TABLE runs ADD COLUMN write_id BLOB",
        "ALTER TABLE runs ADD COLUMN consumer INTEGER",
        "ALTER TABLE runs ADD COLUMN place INTEGER",
        """CREATE TABLE receipts (
            write_id BLOB PRIMARY KEY,
            delivered INTEGER NOT NULL,
            dead INTEGER NOT NULL,
            deleted INTEGER NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE consumers (
            n INTEGER PRIMARY KEY,
            queue TEXT NOT NULL,
            name TEXT NOT NULL,
            acknowledged INTEGER NOT NULL DEFAULT 0,
            claim INTEGER,
            rows INTEGER NOT NULL DEFAULT 0,
            items INTEGER NOT NULL DEFAULT 0,
            bytes INTEGER NOT NULL DEFAULT 0,
            UNIQUE (queue, name)
        )""",
        "CREATE INDEX runs_claimed ON runs (consumer, place) WHERE state = 'CLAIMED'",
    ),
    # What was finished and is still to be seen. These rows need their bodies as well.
    (
        """CREATE TABLE history (
            n INTEGER PRIMARY KEY,
            body_id BLOB NOT NULL,
            queue TEXT NOT NULL,
            flow TEXT NOT NULL,
            action TEXT NOT NULL,
            priority INTEGER NOT NULL,
            count INTEGER NOT NULL,
            size INTEGER NOT NULL,
            attempt INTEGER NOT NULL,
            outcome TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            finished_at INTEGER NOT NULL,
            bits BLOB NOT NULL,
            error_history TEXT NOT NULL
        )""",
        "CREATE INDEX history_queue ON history (queue, finished_at)",
        "CREATE INDEX history_body ON history (body_id)",
    ),
    # Nobody is to wait for items that cannot be read.
    ("ALTER TABLE receipts ADD COLUMN corrupt INTEGER NOT NULL DEFAULT 0",),
    # The oldest of each flow, for the metrics.
    (
        f"""CREATE INDEX runs_oldest ON runs (queue, flow, action, created_at)
            WHERE {HELD}""",
    ),
    # Which bodies list items of a run, so that an item is found by its id in a part of its run.
    (
        """CREATE TABLE aliases (
            run_id BLOB NOT NULL,
            body_id BLOB NOT NULL,
            PRIMARY KEY (run_id, body_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX aliases_body ON aliases (body_id)",
        """CREATE TRIGGER bodies_gone AFTER DELETE ON bodies BEGIN
            DELETE FROM aliases WHERE body_id = OLD.id;
        END""",
    ),
    # Unique keys. `n` says where the item is that has one: at place `n & 4095` of the body whose
    # number is `n >> 12`. The item's id is that place of that body, unless it is said beside.
    # `until`: it is done, and nobody else may have the key before. And what was answered to runs.
    (
        """CREATE TABLE keys (
            n INTEGER PRIMARY KEY,
            queue TEXT NOT NULL,
            key BLOB NOT NULL,
            run_id BLOB,
            item INTEGER,
            until INTEGER,
            UNIQUE (queue, key)
        )""",
        "CREATE INDEX keys_until ON keys (until) WHERE until IS NOT NULL",
        "CREATE TABLE homes (number INTEGER PRIMARY KEY, body_id BLOB NOT NULL UNIQUE)",
        """CREATE TABLE offered (
            n INTEGER PRIMARY KEY,
            run_id BLOB NOT NULL UNIQUE,
            outcomes BLOB NOT NULL
        )""",
        "ALTER TABLE totals ADD COLUMN accepted INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE totals ADD COLUMN duplicate INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE receipts ADD COLUMN updated INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE receipts ADD COLUMN ignored INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE receipts ADD COLUMN conflict INTEGER NOT NULL DEFAULT 0",
    ),
    # How far the ticks of schedules are installed.
    (
        """CREATE TABLE ticks (
            name TEXT PRIMARY KEY,
            queue TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            until_ms INTEGER NOT NULL,
            seen_ms INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    # Who had finished items in hand, since when, what was said of them, and for which job; and
    # why dead letters failed.
    (
        "ALTER TABLE history ADD COLUMN locked_by TEXT",
        "ALTER TABLE history ADD COLUMN locked_at INTEGER",
        "ALTER TABLE history ADD COLUMN result TEXT",
        "ALTER TABLE history ADD COLUMN job_id TEXT",
        "ALTER TABLE runs ADD COLUMN failure_reason TEXT",
    ),
    # Triggers: who looks after each, the jobs that are not done, and in which job a row is.
    (
        "ALTER TABLE runs ADD COLUMN job_id TEXT",
        """CREATE TABLE trigger_leases (
            name TEXT PRIMARY KEY,
            holder BLOB NOT NULL,
            until_ms INTEGER NOT NULL,
            polled_ms INTEGER NOT NULL,
            is_paused INTEGER NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE trigger_jobs (
            run_id BLOB PRIMARY KEY,
            name TEXT NOT NULL,
            queue TEXT NOT NULL,
            target TEXT NOT NULL,
            items INTEGER NOT NULL,
            made_ms INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX trigger_jobs_name ON trigger_jobs (name)",
    ),
    # Since when ticks are those of a schedule as it is now, and which of them were missed.
    (
        "ALTER TABLE ticks ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE ticks ADD COLUMN missed INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE ticks ADD COLUMN missed_ms INTEGER NOT NULL DEFAULT 0",
        "UPDATE ticks SET since_ms = seen_ms",
    ),
    # The state of a row that stays changes in these ways alone, whatever a statement says
    # (actors/model/moves.py). What does not set the state, as leasing and settling, is not looked
    # at.
    (
        """CREATE TRIGGER runs_state BEFORE UPDATE OF state ON runs
            WHEN OLD.state <> NEW.state AND OLD.state || ' ' || NEW.state NOT IN (
                'STORED COLD_QUEUED', 'STORED FAILED', 'COLD_QUEUED CLAIMED',
                'COLD_QUEUED CORRUPT', 'CLAIMED COLD_QUEUED', 'CLAIMED CORRUPT',
                'FAILED COLD_QUEUED'
            )
        BEGIN
            SELECT RAISE(ABORT, 'there is no way from this state to that one');
        END""",
    ),
    # Tells a run that is offered again from another one under its id; null: not known.
    ("ALTER TABLE offered ADD COLUMN fingerprint INTEGER",),
    # Items of rows that cannot be read are lost, and no longer held.
    (
        "UPDATE totals SET held = held - corrupt",
        "ALTER TABLE totals RENAME COLUMN corrupt TO lost",
        "ALTER TABLE receipts RENAME COLUMN corrupt TO lost",
    ),
    # When an operator last changed or retried the items of a row.
    ("ALTER TABLE runs ADD COLUMN changed_at INTEGER",),
    # What is decided about writes.
    (
        """CREATE TABLE writes (
            write_id BLOB PRIMARY KEY,
            phase TEXT NOT NULL,
            heard_ms INTEGER NOT NULL,
            items INTEGER NOT NULL DEFAULT 0,
            queues TEXT NOT NULL DEFAULT '',
            app TEXT,
            version INTEGER
        ) WITHOUT ROWID""",
        """CREATE TABLE stages (
            write_id BLOB NOT NULL,
            stage BLOB NOT NULL,
            daemon BLOB NOT NULL,
            state TEXT NOT NULL,
            runs INTEGER NOT NULL,
            items INTEGER NOT NULL,
            queues TEXT NOT NULL,
            sealed_ms INTEGER NOT NULL,
            is_applied INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (write_id, stage)
        ) WITHOUT ROWID""",
        """CREATE TABLE versions (
            app TEXT PRIMARY KEY,
            version INTEGER NOT NULL,
            write_id BLOB NOT NULL,
            at_ms INTEGER NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE journal_receipts (
            write_id BLOB NOT NULL,
            daemon BLOB NOT NULL,
            delivered INTEGER NOT NULL DEFAULT 0,
            dropped INTEGER NOT NULL DEFAULT 0,
            deleted INTEGER NOT NULL DEFAULT 0,
            lost INTEGER NOT NULL DEFAULT 0,
            is_over INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (write_id, daemon)
        ) WITHOUT ROWID""",
        "CREATE INDEX writes_open ON writes (heard_ms) WHERE phase = 'open'",
        "CREATE INDEX writes_ended ON writes (heard_ms) WHERE phase <> 'open'",
        "CREATE INDEX stages_unapplied ON stages (daemon, write_id) WHERE is_applied = 0",
        "CREATE INDEX versions_at ON versions (at_ms)",
        """CREATE INDEX journal_receipts_open ON journal_receipts (daemon, write_id)
            WHERE is_over = 0""",
    ),
    # Attempts of items: how many failed, and how long they took.
    (
        """CREATE TABLE attempts (
            queue TEXT NOT NULL,
            daemon BLOB NOT NULL,
            application INTEGER NOT NULL,
            business INTEGER NOT NULL,
            processing TEXT NOT NULL,
            PRIMARY KEY (queue, daemon)
        ) WITHOUT ROWID""",
    ),
)


def migrate(db: sqlite3.Connection) -> None:
    """Brings the schema up to date. CannotStart if a newer version of forebay has written it."""
    known = len(MIGRATIONS)
    version = _version(db)
    if version > known:
        raise CannotStart(
            f"the cold store's schema is version {version}, and this forebay knows {known}: "
            "it was written by a newer one"
        )
    while version < known:
        db.execute("BEGIN IMMEDIATE")
        try:
            if version == 0:
                db.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
                db.execute("INSERT INTO schema_version VALUES (0)")
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            for statement in MIGRATIONS[version]:
                db.execute(statement)
            version += 1
            db.execute("UPDATE schema_version SET version = ?", (version,))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _version(db: sqlite3.Connection) -> int:
    has_table = db.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'"
    ).fetchone()
    if not has_table:
        return 0
    row = db.execute("SELECT version FROM schema_version").fetchone()
    if row is None or not isinstance(row[0], int):
        raise CannotStart("the cold store's schema has no version: it is not forebay's")
    return row[0]
