"""The suite of the `ColdQueue` port: unique keys, decided in the step that makes items visible."""

from collections.abc import Callable
from typing import Any

import pytest

from actors.model.books import ColdReceipt
from actors.model.keys import ItemRef, KeyRule, Offer, Policy
from actors.ports.tiers import ColdItems, ColdTotals, DeadFilter, NewRow, RowOutcome
from forebay.ids import format_item_id
from forebay.keyed import KeyOutcome
from forebay.run import Run, encode_run, read_head, take_items
from tests.conformance.cold_stores import (
    LEASE_S,
    PLENTY,
    START_MS,
    ColdStores,
    acquire,
    check_books,
    new_row,
    number,
    part_of,
    put,
)

CREATED, UPDATED, IGNORED, CONFLICT = KeyOutcome
LOCK = b"L" * 16
WRITE = b"W" * 16


def offer(*keys: bytes, queue: str = "q", only_if: ItemRef | None = None, **given: Any) -> Offer:
    """A run of items with these keys; b"": none."""
    given.setdefault("run_id", number())
    given.setdefault("enqueued_ms", START_MS)
    payloads = given.pop("payloads", [b"of %b" % key for key in keys])
    data = encode_run(payloads, queue=queue, keys=keys, flow="f", action="a", **given)
    return Offer(Run(read_head(data), data), only_if)


def keyed(policy: Policy, window_ms: int = 0) -> Callable[[str], KeyRule]:
    """Of the queue q alone."""
    return lambda queue: KeyRule(policy, window_ms) if queue == "q" else KeyRule()


def ref(one: Offer, index: int = 0) -> ItemRef:
    return ItemRef(one.run.head.run_id, index)


async def answers(stores: ColdStores, *offers: Offer) -> list[list[KeyOutcome]]:
    given = await stores.cold.offer(offers)
    await check_books(stores)
    return [[KeyOutcome(outcome) for outcome in outcomes] for outcomes in given]


async def answer(stores: ColdStores, *keys: bytes, **given: Any) -> list[KeyOutcome]:
    return (await answers(stores, offer(*keys, **given)))[0]


async def deliver_all(stores: ColdStores, lock: bytes = LOCK) -> list[bytes]:
    """Everything that is due; the payloads."""
    rows = await acquire(stores, lock)
    payloads = []
    for row in rows:
        all_of_it = Run(row.head, row.data).payloads()
        payloads += [all_of_it[i] for i in range(row.head.count) if row.bits >> i & 1]
    assert all(await stores.cold.settle([RowOutcome(r.row, lock, r.bits) for r in rows]))
    await check_books(stores)
    return payloads


async def deletes_let_go(stores: ColdStores, items: ColdItems) -> None:
    """Items that are deleted one by one, changed, or purged with their queue."""
    stores.cold.keep_keys(keyed("reject", window_ms=100))
    one = offer(b"a", b"b", b"c", due_ms=START_MS + 10)
    await answers(stores, one)
    (sight,) = await items.find(*ref(one, 0))
    assert await items.delete(sight.row, 0b001, None)
    assert await answer(stores, b"a", b"b") == [CREATED, CONFLICT]
    # What is changed is in another body, and keeps its key.
    data = take_items(one.run, [1], [b"changed"])
    assert await items.change(sight.row, 0b010, None, NewRow(number(), read_head(data), data, 1))
    held = await stores.cold.key("q", b"b")
    assert held is not None
    assert (held.item, held.phase) == (ref(one, 1), "waiting")
    while await items.purge("q", 100):
        pass
    await check_books(stores)
    assert await answer(stores, b"a", b"b", b"c") == [CREATED] * 3


async def old_runs_are_forgotten(stores: ColdStores) -> None:
    """Where a store remembers two runs."""
    stores.cold.keep_keys(keyed("ignore"))
    runs = [offer(b"%d" % n) for n in range(5)]
    await answers(stores, *runs)
    await deliver_all(stores)
    assert await stores.cold.forget_keys() == 3
    assert await stores.cold.forget_keys() == 0
    assert await answers(stores, *runs) == [[CREATED]] * 5
    # Those that were remembered got their answers again, and the others are new.
    totals = (await stores.cold.totals())["q"]
    assert totals == ColdTotals(held=3, runs=3, accepted=8, delivered=5, duplicate=2)


class KeySuite:
    async def test_a_second_one_is_ignored_rejected_or_replaces_the_first(
        self, stores: ColdStores
    ) -> None:
        rules = {"i": "ignore", "r": "reject", "p": "replace"}
        stores.cold.keep_keys(lambda queue: KeyRule(rules[queue]))  # type: ignore[arg-type]
        for queue, second in (("i", IGNORED), ("r", CONFLICT), ("p", UPDATED)):
            assert await answer(stores, b"a", b"b", queue=queue) == [CREATED, CREATED]
            assert await answer(stores, b"a", b"c", queue=queue) == [second, CREATED]
        totals = await stores.cold.totals()
        assert totals["i"] == totals["r"] == ColdTotals(held=3, runs=2, accepted=3)
        assert totals["p"] == ColdTotals(held=3, runs=2, accepted=4, deleted=1)

    async def test_another_run_under_a_known_id_has_no_answer_and_changes_nothing(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(lambda _: KeyRule("ignore"))
        first = offer(b"a", b"b")
        run_id = first.run.head.run_id
        others = [
            offer(b"a", b"b", b"c", run_id=run_id),
            offer(b"a", b"b", payloads=[b"of a", b"of c"], run_id=run_id),
            offer(b"a", b"c", run_id=run_id),
            offer(b"a", b"b", run_id=run_id, queue="other"),
        ]
        given = await stores.cold.offer([first, *others])
        assert given == [bytes([CREATED, CREATED]), b"", b"", b"", b""]
        # Sent again it is the same run, whatever time stands in its header.
        again = offer(b"a", b"b", run_id=run_id, enqueued_ms=START_MS + 5)
        assert await stores.cold.offer([*others, again]) == [*[b""] * 4, bytes([CREATED, CREATED])]
        await check_books(stores)
        assert (await stores.cold.totals())["q"] == ColdTotals(
            held=2, runs=1, accepted=2, duplicate=2
        )
        assert await deliver_all(stores) == [b"of a", b"of b"]
        # Also when nothing of it is left.
        assert await stores.cold.offer(others) == [b""] * 4
        await check_books(stores)

    async def test_run_under_the_id_of_an_unkeyed_one_has_no_answer_and_changes_nothing(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("ignore"))
        unkeyed = new_row(1, queue="other")
        await put(stores, unkeyed)
        run_id = unkeyed.head.run_id
        assert await stores.cold.offer([offer(b"a", b"b", run_id=run_id)]) == [b""]
        await check_books(stores)
        (row,) = await stores.cold.acquire("other", LOCK, PLENTY, PLENTY, LEASE_S)
        assert row.data == unkeyed.data

    async def test_keys_of_other_queues_are_others(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(lambda _: KeyRule("reject"))
        assert await answer(stores, b"a", queue="q") == [CREATED]
        assert await answer(stores, b"a", queue="other") == [CREATED]

    async def test_many_queues_with_repeats_are_answered_in_one_step(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(lambda _: KeyRule("ignore"))
        queues = [f"q{number}" for number in range(40)]
        for outcome in (CREATED, IGNORED):
            given = await answers(stores, *(offer(b"a", queue=queue) for queue in queues))
            assert given == [[outcome]] * 40

    async def test_items_without_a_key_are_always_created(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("reject"))
        assert await answer(stores, b"", b"a", b"", b"a") == [CREATED, CREATED, CREATED, CONFLICT]
        assert await answer(stores, b"", b"") == [CREATED, CREATED]
        unnamed = encode_run([b"x"], queue="q", run_id=number())
        (plain,) = await stores.cold.offer([Offer(Run(read_head(unnamed), unnamed))])
        assert plain == bytes([CREATED])
        assert (await stores.cold.totals())["q"].held == 6

    async def test_a_key_is_held_while_its_item_runs_or_is_dead_and_free_when_it_is_done(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("ignore"))
        assert await answer(stores, b"a", b"b", b"c") == [CREATED] * 3
        (row,) = await acquire(stores)
        assert await answer(stores, b"a", b"b", b"c") == [IGNORED] * 3
        moved = (part_of(row, 0b010, is_dead=True), part_of(row, 0b100, attempt=1))
        await stores.cold.settle([RowOutcome(row.row, LOCK, 0b001, moved, 0b110)])
        await check_books(stores)
        # Delivered, dead, and to be tried again.
        assert await answer(stores, b"a", b"b", b"c") == [CREATED, IGNORED, IGNORED]

    async def test_a_window_begins_when_the_item_is_delivered(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("reject", window_ms=100))
        await answer(stores, b"a")
        stores.advance(1000)
        await deliver_all(stores)
        assert (await stores.cold.key("q", b"a")).until_ms == START_MS + 1100  # type: ignore[union-attr]
        stores.advance(99)
        assert await answer(stores, b"a") == [CONFLICT]
        await stores.reopen()
        stores.cold.keep_keys(keyed("reject", window_ms=100))
        assert await stores.cold.forget_keys() == 0
        stores.advance(1)
        assert await stores.cold.key("q", b"a") is None
        assert await answer(stores, b"a") == [CREATED]
        await deliver_all(stores)
        stores.advance(100)
        assert await stores.cold.forget_keys() == 1
        assert await stores.cold.forget_keys() == 0

    async def test_an_item_that_is_replaced_is_not_delivered(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("replace"))
        first = offer(b"a", b"b", b"c", payloads=[b"old a", b"old b", b"old c"])
        await answers(stores, first)
        again = offer(b"b", b"x", payloads=[b"new b", b"x"])
        assert await answers(stores, again) == [[UPDATED, CREATED]]
        assert (await stores.cold.key("q", b"b")).item == ref(again)  # type: ignore[union-attr]
        assert sorted(await deliver_all(stores)) == [b"new b", b"old a", b"old c", b"x"]
        assert await stores.bodies() == set()
        for key in (b"a", b"b", b"c", b"x"):
            assert await stores.cold.key("q", key) is None
        assert (await stores.cold.totals())["q"] == ColdTotals(accepted=5, delivered=4, deleted=1)

    async def test_a_replacement_brings_its_own_due_time(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("replace"))
        await answer(stores, b"a", due_ms=START_MS + 10)
        assert await answer(stores, b"a", due_ms=START_MS + 50) == [UPDATED]
        stores.advance(10)
        assert await acquire(stores) == []
        assert (await stores.cold.outlook("q")).next_due_ms == START_MS + 50
        stores.advance(40)
        assert len(await deliver_all(stores)) == 1

    async def test_what_waits_for_the_same_time_and_says_the_same_is_not_replaced(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("replace"))
        due_ms = START_MS + 50
        first = offer(b"a", b"b", due_ms=due_ms)
        await answers(stores, first)
        again = offer(b"b", b"c", due_ms=due_ms, headers={"traceparent": "another trace"})
        assert await answers(stores, again) == [[IGNORED, CREATED]]
        assert (await stores.cold.key("q", b"b")).item == ref(first, 1)  # type: ignore[union-attr]
        # Whoever sends it again has the same answer.
        assert await answers(stores, again) == [[IGNORED, CREATED]]
        others: list[dict[str, Any]] = [
            {"due_ms": due_ms + 1},
            {"due_ms": due_ms, "payloads": [b"else"]},
            {"due_ms": due_ms, "payloads": [b"else"], "priority": 1},
            {"due_ms": due_ms, "payloads": [b"else"], "headers": {"to": "them"}},
            {"due_ms": START_MS - 1},
            {},
            # At once is a moment that never comes again.
            {},
        ]
        for other in others:
            assert await answer(stores, b"a", **other) == [UPDATED], other
        assert await answer(stores, b"a", due_ms=START_MS - 1) == [UPDATED]
        assert await answer(stores, b"a", due_ms=START_MS - 1) == [IGNORED]
        totals = (await stores.cold.totals())["q"]
        assert (totals.held, totals.deleted) == (3, len(others) + 1)

    async def test_what_is_offered_twice_in_one_step_is_stored_once(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("replace"))
        due_ms = START_MS + 50
        await answer(stores, b"a", due_ms=due_ms)
        runs = [
            offer(b"a", b"b", b"b", due_ms=due_ms),
            offer(b"b", b"a", due_ms=due_ms + 1),
            offer(b"b", due_ms=due_ms + 1),
        ]
        assert await answers(stores, *runs) == [
            [IGNORED, CREATED, IGNORED],
            [UPDATED, UPDATED],
            [IGNORED],
        ]
        assert (await stores.cold.key("q", b"b")).item == ref(runs[1])  # type: ignore[union-attr]

    async def test_what_has_failed_is_replaced_by_the_same(self, stores: ColdStores) -> None:
        """It begins anew, with all of its attempts."""
        stores.cold.keep_keys(keyed("replace"))
        one: dict[str, Any] = {"due_ms": START_MS - 1}
        await answer(stores, b"a", **one)
        (row,) = await acquire(stores)
        assert await answer(stores, b"a", **one) == [CONFLICT]
        moved = part_of(row, 0b1, attempt=1, due_ms=START_MS - 1)
        await stores.cold.settle([RowOutcome(row.row, LOCK, 0, (moved,), 0b1)])
        assert await answer(stores, b"a", **one) == [UPDATED]

    async def test_item_that_cannot_be_read_is_replaced_by_the_same(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("replace"))
        one = offer(b"a", due_ms=START_MS + 50)
        await answers(stores, one)
        await stores.damage_body(one.run.head.run_id)
        assert await answer(stores, b"a", due_ms=START_MS + 50) == [UPDATED]

    async def test_the_same_is_replaced_where_its_id_is_named(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("replace"))
        one = offer(b"a", due_ms=START_MS + 50)
        await answers(stores, one)
        assert await answer(stores, b"a", due_ms=START_MS + 50, only_if=ref(one)) == [UPDATED]

    async def test_what_was_staged_is_ignored_where_the_same_waits(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("replace"))
        due_ms = START_MS + 50
        await answers(stores, offer(b"a", b"b", payloads=[b"same", b"else"], due_ms=due_ms))
        headers = {"forebay-write": WRITE.hex()}
        staged = offer(b"a", b"b", payloads=[b"same", b"new"], due_ms=due_ms, headers=headers)
        head, data = staged.run.head, bytes(staged.run.data)
        await put(stores, NewRow(number(), head, data, 0b11, due_ms=due_ms))
        await check_books(stores)
        assert await stores.cold.receipt(WRITE) == ColdReceipt(deleted=1, updated=1, ignored=1)

    async def test_what_has_started_or_is_done_or_dead_is_not_replaced(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("replace", window_ms=100))
        await answer(stores, b"a", b"b", b"c")
        (row,) = await acquire(stores)
        assert await answer(stores, b"a") == [CONFLICT]
        moved = (part_of(row, 0b010, is_dead=True), part_of(row, 0b100, attempt=1))
        await stores.cold.settle([RowOutcome(row.row, LOCK, 0b001, moved, 0b110)])
        assert await answer(stores, b"a", b"b", b"c") == [CONFLICT, CONFLICT, UPDATED]
        # What took its place was never tried.
        (row,) = await acquire(stores)
        assert (row.attempt, row.errors) == (0, ())

    async def test_a_run_that_is_offered_again_has_the_same_answer(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("ignore"))
        await answer(stores, b"a")
        one = offer(b"a", b"b", b"c")
        assert await answers(stores, one) == [[IGNORED, CREATED, CREATED]]
        assert await answers(stores, one, one) == [[IGNORED, CREATED, CREATED]] * 2
        await deliver_all(stores)
        await stores.crash()
        await stores.release_all()
        stores.cold.keep_keys(keyed("ignore"))
        assert await answers(stores, one) == [[IGNORED, CREATED, CREATED]]
        assert (await stores.cold.totals())["q"] == ColdTotals(accepted=3, delivered=3, duplicate=9)

    async def test_a_key_twice_in_a_run_belongs_to_the_first_or_the_last(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("ignore"))
        assert await answer(stores, b"a", b"a", b"b", b"a") == [CREATED, IGNORED, CREATED, IGNORED]
        await deliver_all(stores)
        stores.cold.keep_keys(keyed("replace"))
        twice = offer(b"a", b"b", b"a", payloads=[b"1", b"2", b"3"])
        assert await answers(stores, twice) == [[CREATED, CREATED, UPDATED]]
        assert (await stores.cold.key("q", b"a")).item == ref(twice, 2)  # type: ignore[union-attr]
        assert sorted(await deliver_all(stores)) == [b"2", b"3"]
        assert (await stores.cold.totals())["q"] == ColdTotals(accepted=5, delivered=4, deleted=1)

    async def test_runs_of_one_step_see_each_other(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("reject"))
        runs = [offer(b"a", b"%d" % n) for n in range(5)]
        assert await answers(stores, *runs) == [[CREATED] * 2] + [[CONFLICT, CREATED]] * 4
        for n, one in enumerate(runs):
            held = await stores.cold.key("q", b"%d" % n)
            assert held is not None
            assert held.item == ref(one, 1)

    async def test_a_run_of_losers_is_not_stored(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("ignore"))
        first = offer(b"a", b"b")
        await answers(stores, first)
        await answer(stores, b"b", b"a")
        assert await stores.bodies() == {first.run.head.run_id}

    async def test_the_few_that_win_are_cut_out_of_a_large_run(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("replace"))
        keys = [b"key %d" % n for n in range(100)]
        large: dict[str, Any] = {
            "payloads": [bytes([n]) * 100 for n in range(100)],
            "compressed": False,
        }
        one = offer(*keys, **large)
        await answers(stores, one)
        rows = await acquire(stores)
        # All but every tenth have started.
        waiting = sum(1 << n for n in range(0, 100, 10))
        await stores.cold.settle(
            [RowOutcome(rows[0].row, LOCK, 0, (part_of(rows[0], waiting),), waiting)]
        )
        again = offer(*keys, **large)
        (outcomes,) = await answers(stores, again)
        assert [n for n in range(100) if outcomes[n] is UPDATED] == list(range(0, 100, 10))
        assert again.run.head.run_id not in await stores.bodies()
        assert (await stores.cold.key("q", b"key 20")).item == ref(again, 20)  # type: ignore[union-attr]
        # They can be replaced, and are let go of, where they are now.
        assert await answer(stores, b"key 20", b"key 30") == [UPDATED, UPDATED]
        await deliver_all(stores, b"O" * 16)
        assert await stores.cold.key("q", b"key 40") is None
        assert await stores.cold.key("q", b"key 41") is not None

    async def test_compare_and_swap(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("reject"))
        one = offer(b"a")
        assert await answer(stores, b"a", only_if=ref(one)) == [CONFLICT]
        await answers(stores, one)
        two = offer(b"a", only_if=ref(one))
        assert await answers(stores, two) == [[UPDATED]]
        assert await answer(stores, b"a", only_if=ref(one)) == [CONFLICT]
        assert await answer(stores, b"", only_if=ref(two)) == [CONFLICT]
        await acquire(stores)
        assert await answer(stores, b"a", only_if=ref(two)) == [CONFLICT]
        assert (await stores.cold.totals())["q"].held == 1

    async def test_a_dead_letter_keeps_its_key_until_it_is_removed_or_done(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("reject"))
        one = offer(b"a", b"b")
        await answers(stores, one)
        (row,) = await acquire(stores)
        dead = tuple(part_of(row, 1 << index, is_dead=True) for index in (0, 1))
        await stores.cold.settle([RowOutcome(row.row, LOCK, 0, dead, 0b11)])
        assert (await stores.cold.key("q", b"a")).phase == "dead"  # type: ignore[union-attr]
        assert await stores.cold.drop_key("q", b"a") is not None
        assert (await stores.cold.key("q", b"a")).phase == "dead"  # type: ignore[union-attr]
        a, b = (DeadFilter(ids=(format_item_id(*ref(one, index)),)) for index in (0, 1))
        await stores.dead.remove(a, 10)
        assert await answer(stores, b"a", b"b") == [CREATED, CONFLICT]
        # An edited letter is in another body, and has its key there.
        assert await stores.dead.edit(b.ids[0], b"mended")
        await stores.dead.retry(b, 10)
        assert await answer(stores, b"b") == [CONFLICT]
        assert (await stores.cold.key("q", b"b")).item == ref(one, 1)  # type: ignore[union-attr]
        assert b"mended" in await deliver_all(stores)
        assert await answer(stores, b"b") == [CREATED]

    async def test_items_that_move_to_another_body_take_their_keys_along(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("replace"))
        await answer(stores, b"a", b"b", b"c")
        (row,) = await acquire(stores)
        data = take_items(Run(row.head, row.data), [1, 2])
        head = read_head(data)
        elsewhere = part_of(row, 0b11, attempt=1)
        moved = type(elsewhere)(elsewhere.row, head, data, 0b11, attempt=1)
        await stores.cold.settle([RowOutcome(row.row, LOCK, 0b001, (moved,), 0b110)])
        assert await answer(stores, b"b") == [UPDATED]
        assert sorted(await deliver_all(stores)) == [b"of b", b"of c"]
        assert await answer(stores, b"a", b"b", b"c") == [CREATED] * 3

    async def test_a_claim_that_is_acknowledged_lets_go_of_keys(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("ignore", window_ms=100))
        await answer(stores, b"a", b"b")
        await stores.cold.claim("q", "c", 0, 100)
        assert (await stores.cold.key("q", b"a")).phase == "started"  # type: ignore[union-attr]
        await stores.cold.claim("q", "c", 1, 0)
        await check_books(stores)
        assert (await stores.cold.key("q", b"a")).phase == "done"  # type: ignore[union-attr]
        stores.advance(100)
        assert await answer(stores, b"a", b"b") == [CREATED] * 2

    async def test_key_show_and_drop(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("reject", window_ms=100))
        assert await stores.cold.key("q", b"a") is None
        assert await stores.cold.drop_key("q", b"a") is None
        one = offer(b"a", b"b", due_ms=START_MS + 10)
        await answers(stores, one)
        found = await stores.cold.key("q", b"a")
        assert found is not None
        assert (found.item, found.phase) == (ref(one), "waiting")
        assert (found.due_ms, found.until_ms) == (START_MS + 10, None)
        assert await stores.cold.drop_key("q", b"a") == found
        await check_books(stores)
        assert await stores.cold.key("q", b"a") is None
        assert (await stores.cold.totals())["q"] == ColdTotals(
            accepted=2, held=1, runs=1, deleted=1
        )
        stores.advance(10)
        await acquire(stores)
        held = await stores.cold.drop_key("q", b"b")
        assert held is not None
        assert held.phase == "started"
        assert (await stores.cold.totals())["q"].held == 1

    async def test_a_key_in_its_window_can_be_dropped(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("reject", window_ms=100))
        await answer(stores, b"a")
        await deliver_all(stores)
        held = await stores.cold.drop_key("q", b"a")
        assert held is not None
        assert held.phase == "done"
        assert await answer(stores, b"a") == [CREATED]

    async def test_an_item_that_cannot_be_read_keeps_its_key_until_that_is_dropped(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("replace"))
        one = offer(b"a")
        await answers(stores, one)
        await stores.damage_body(one.run.head.run_id)
        assert await acquire(stores) == []
        assert await answer(stores, b"a") == [CONFLICT]
        held = await stores.cold.drop_key("q", b"a")
        assert held is not None
        assert held.phase == "unreadable"
        assert await answer(stores, b"a") == [CREATED]

    async def test_what_was_staged_is_decided_on_when_it_is_confirmed(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("ignore"))
        await answer(stores, b"a")
        written: dict[str, Any] = {"headers": {"forebay-write": WRITE.hex()}}
        staged = new_row(3, keys=[b"a", b"b", b"c"], **written)
        again = new_row(2, keys=[b"b", b"c"], **written)
        await put(stores, staged, again)
        await check_books(stores)
        assert (await stores.cold.key("q", b"b")).item == (staged.head.run_id, 1)  # type: ignore[union-attr]
        totals = (await stores.cold.totals())["q"]
        assert totals == ColdTotals(taken=5, accepted=1, deleted=3, held=3, runs=2)
        assert await stores.cold.receipt(WRITE) == ColdReceipt(deleted=3, ignored=3)
        # Told twice, decided once.
        await stores.cold.confirm([staged.row, again.row])
        await deliver_all(stores)
        assert await stores.cold.receipt(WRITE) == ColdReceipt(delivered=2, deleted=3, ignored=3)
        assert await stores.bodies() == set()
        assert await answer(stores, b"a", b"b", b"c") == [CREATED] * 3

    async def test_staged_items_replace_others_and_conflict(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("replace"))
        started = offer(b"a")
        await answers(stores, started)
        await acquire(stores)
        await answer(stores, b"b")
        staged = new_row(3, keys=[b"a", b"b", b""], headers={"forebay-write": WRITE.hex()})
        await put(stores, staged)
        await check_books(stores)
        assert await stores.cold.receipt(WRITE) == ColdReceipt(deleted=1, updated=1, conflict=1)
        assert (await stores.cold.totals())["q"].held == 3

    @pytest.mark.parametrize(
        "given", [{}, {"attempt": 1, "headers": {"forebay-write": WRITE.hex()}}]
    )
    async def test_what_was_pushed_before_or_tried_is_not_decided_on(
        self, stores: ColdStores, given: dict[str, Any]
    ) -> None:
        """It was acknowledged as stored, or has been with a worker: it stays."""
        stores.cold.keep_keys(keyed("reject"))
        await answer(stores, b"a")
        await put(stores, new_row(1, keys=[b"a"], **given))
        assert (await stores.cold.totals())["q"].held == 2

    async def test_keys_are_let_go_after_the_queue_is_no_longer_keyed(
        self, stores: ColdStores
    ) -> None:
        stores.cold.keep_keys(keyed("reject", window_ms=100))
        await answer(stores, b"a")
        stores.cold.keep_keys(keyed("off", window_ms=100))
        await deliver_all(stores)
        assert await stores.cold.key("q", b"a") is None

    async def test_keys_are_bytes_of_any_kind(self, stores: ColdStores) -> None:
        stores.cold.keep_keys(keyed("reject"))
        keys = [b"\0", b"\0\0", b"\xff" * 200, b"'", b"\xc3\x28", b"a", b"A", b"a "]
        assert await answer(stores, *keys) == [CREATED] * len(keys)
        assert await answer(stores, *reversed(keys)) == [CONFLICT] * len(keys)
