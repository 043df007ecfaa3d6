"""What the server does by itself: steps whose parts need to see each other's effects.

Each statement in these functions sees what was committed before it began, which one statement
with several parts does not; and a loop that ends early locks no more rows than it needs.
"""

from typing import Final

MOVED_MAX: Final = 2000
"""So many rows that have come due are moved in one transaction, which others wait for."""

PICK: Final = f"""CREATE FUNCTION pick(
    of_queue text, without_flows text[], items_max bigint, bytes_max bigint, rows_max integer,
    must_fit boolean, now_ms bigint
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
            AND (next.count > items_max OR cost > bytes_max);
        items_max := items_max - next.count;
        bytes_max := bytes_max - cost;
        last_body := next.body_id;
        picked := picked || next.n;
    END LOOP;
    RETURN picked;
END $$"""
"""The next rows that are due, locked, in order, the first of them also if it does not fit, unless
`must_fit`; NULL: so much came due at once that the caller
should let others have their turn, and ask again."""

DROP_BODIES: Final = """CREATE FUNCTION drop_bodies(ids bytea[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Two that take away the last rows of a body at once must see each other: one waits.
    PERFORM 1 FROM bodies WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    DELETE FROM bodies WHERE id = ANY (ids)
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.body_id = bodies.id)
        AND NOT EXISTS (SELECT 1 FROM history WHERE history.body_id = bodies.id);
END $$"""
"""Removes bodies, unless a row needs them, of runs or of history."""

FUNCTIONS: Final = (PICK, DROP_BODIES)
