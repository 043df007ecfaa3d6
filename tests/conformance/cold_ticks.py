"""The suite of the `TickStore` port: marks move once, and ticks come and go with them."""

from typing import Protocol

from actors.model.keys import KeyRule, Offer
from actors.ports.ticks import Span, Tick, TickChange, TickMark, TickOutcome, TickStore, tick_key
from forebay.run import Run, encode_run, read_head
from tests.conformance.cold_keys import deliver_all
from tests.conformance.cold_stores import START_MS, ColdStores, acquire, check_books, number

FOREVER = 2**53


class TickStores(ColdStores, Protocol):
    @property
    def ticks(self) -> TickStore: ...


def tick(at_ms: int, print_: str = "this", queue: str = "q") -> Offer:
    data = encode_run(
        [b"%d" % (at_ms - START_MS)],
        queue=queue,
        keys=[tick_key("s", print_, at_ms)],
        due_ms=at_ms,
        run_id=number(),
        enqueued_ms=START_MS,
    )
    return Offer(Run(read_head(data), data))


def mark(until: int, print_: str = "this", queue: str = "q") -> TickMark:
    return TickMark(queue, print_, START_MS + until, START_MS)


def ticks(*ats: int, print_: str = "this", queue: str = "q") -> tuple[Offer, ...]:
    return tuple(tick(START_MS + at, print_, queue) for at in ats)


async def change(stores: TickStores, *changes: TickChange) -> list[TickOutcome]:
    done = await stores.ticks.change(changes)
    await check_books(stores)
    return done


class TickSuite:
    async def test_ticks_are_installed_with_their_mark_and_are_due_in_time(
        self, stores: TickStores
    ) -> None:
        first = TickChange("s", None, mark(30), offers=ticks(10, 20, 30))
        assert await change(stores, first) == [TickOutcome(True, 0, 3)]
        marks = await stores.ticks.marks()
        assert (marks.now_ms, marks.by_name) == (stores.now_ms(), {"s": mark(30)})
        assert await acquire(stores) == []
        stores.advance(20)
        assert sorted(await deliver_all(stores)) == [b"10", b"20"]
        await stores.reopen()
        assert (await stores.ticks.marks()).by_name == {"s": mark(30)}

    async def test_a_mark_that_has_moved_changes_nothing(self, stores: TickStores) -> None:
        first = TickChange("s", None, mark(10), offers=ticks(10))
        late = TickChange("s", None, mark(20), offers=ticks(10, 20))
        other = TickChange("r", None, mark(20), offers=ticks(25))
        await change(stores, first)
        assert await change(stores, late, other) == [TickOutcome(False), TickOutcome(True, 0, 1)]
        assert (await stores.ticks.marks()).by_name == {"s": mark(10), "r": mark(20)}
        gone = TickChange("s", mark(11), None, Span(0, FOREVER))
        assert await change(stores, gone) == [TickOutcome(False)]
        assert (await stores.cold.totals())["q"].held == 2

    async def test_another_configuration_replaces_ticks_in_one_step(
        self, stores: TickStores
    ) -> None:
        await change(stores, TickChange("s", None, mark(30), offers=ticks(10, 20, 30)))
        stores.advance(10)
        after = mark(45, "new", "other")
        offers = ticks(25, 45, print_="new", queue="other")
        drop = Span(stores.now_ms(), FOREVER)
        replaced = TickChange("s", mark(30), after, drop, offers)
        assert await change(stores, replaced) == [TickOutcome(True, 2, 2)]
        # What was due already stays.
        assert await deliver_all(stores) == [b"10"]
        totals = await stores.cold.totals()
        assert (totals["q"].held, totals["q"].deleted, totals["other"].held) == (0, 2, 2)

    async def test_what_has_started_is_not_dropped(self, stores: TickStores) -> None:
        await change(stores, TickChange("s", None, mark(20), offers=ticks(10, 20)))
        stores.advance(10)
        (row,) = await acquire(stores)
        gone = TickChange("s", mark(20), None, Span(START_MS, FOREVER))
        assert await change(stores, gone) == [TickOutcome(True, 1, 0)]
        assert (await stores.ticks.marks()).by_name == {}
        assert (await stores.cold.totals())["q"].held == row.head.count

    async def test_a_span_leaves_its_first_moment_and_takes_its_last(
        self, stores: TickStores
    ) -> None:
        await change(stores, TickChange("s", None, mark(40), offers=ticks(10, 20, 30, 40)))
        drop = Span(START_MS + 10, START_MS + 30)
        assert await change(stores, TickChange("s", mark(40), mark(40), drop)) == [
            TickOutcome(True, 2, 0)
        ]
        stores.advance(100)
        assert sorted(await deliver_all(stores)) == [b"10", b"40"]

    async def test_what_is_dropped_as_missed_is_counted_in_the_mark(
        self, stores: TickStores
    ) -> None:
        await change(stores, TickChange("s", None, mark(40), offers=ticks(10, 20, 30, 40)))
        stores.advance(35)
        assert len(await acquire(stores, items_max=1)) == 1
        drop = Span(START_MS, START_MS + 35)
        late_ms = START_MS + 30
        given_up = mark(40)._replace(missed=1, missed_ms=START_MS + 5)
        missed = TickChange("s", mark(40), given_up, drop, missed_ms=late_ms)
        assert await change(stores, missed) == [TickOutcome(True, 2, 0)]
        found = (await stores.ticks.marks()).by_name["s"]
        assert found == mark(40)._replace(missed=3, missed_ms=late_ms)
        assert found == missed.mark_after(2)
        # What was not down counts nothing.
        again = TickChange("s", found, found, Span(START_MS + 35, FOREVER))
        assert await change(stores, again) == [TickOutcome(True, 1, 0)]
        assert (await stores.ticks.marks()).by_name == {"s": found}

    async def test_it_is_known_where_ticks_are(self, stores: TickStores) -> None:
        change_ = TickChange("s", None, mark(30), offers=ticks(10, 20, 30))
        await change(stores, change_)
        stores.advance(10)
        asked = [Tick("q", tick_key("s", "this", START_MS + at)) for at in (20, 10, 30, 40)]
        assert await stores.ticks.phases(asked) == ["waiting", "waiting", "waiting", None]
        await acquire(stores)
        assert await stores.ticks.phases(asked) == ["waiting", "started", "waiting", None]
        await stores.reopen()
        stores.advance(10_000_000)
        await deliver_all(stores)
        assert await stores.ticks.phases(asked) == [None] * 4
        assert await stores.ticks.phases([Tick("other", asked[0].key)]) == [None]
        assert await stores.ticks.phases([]) == []

    async def test_ticks_that_are_there_are_not_installed_again_whatever_the_queue_says(
        self, stores: TickStores
    ) -> None:
        stores.cold.keep_keys(lambda _: KeyRule("replace"))
        await change(stores, TickChange("s", None, mark(10), offers=ticks(10, 20)))
        again = TickChange("s", mark(10), mark(30), offers=ticks(10, 20, 30))
        assert await change(stores, again) == [TickOutcome(True, 0, 1)]
        # Dropped and installed in one step is there once.
        both = TickChange("s", mark(30), mark(31), Span(START_MS, FOREVER), ticks(20, 30))
        assert await change(stores, both) == [TickOutcome(True, 3, 2)]
        stores.advance(100)
        assert sorted(await deliver_all(stores)) == [b"20", b"30"]
