"""The ring of events: bounded, numbered, and whoever waits is woken."""

import trio
import trio.testing

from actors.observers.event_log import EventRing
from actors.observers.events import StoreChanged


def changed(at_ms: int) -> StoreChanged:
    return StoreChanged(at_ms, "cold", is_away=True)


def test_the_oldest_are_forgotten_and_numbers_go_on() -> None:
    ring = EventRing(kept=2)
    for at_ms in (1, 2, 3):
        ring.note(changed(at_ms))
    assert [(event.number, event.row["at_ms"]) for event in ring.after(0)] == [(2, 2), (3, 3)]
    assert [event.number for event in ring.after(2)] == [3]
    assert ring.latest == 3


async def test_who_waits_is_woken_by_the_next_event() -> None:
    ring = EventRing()
    ring.note(changed(1))
    woken: list[int] = []

    async def wait() -> None:
        await ring.wait_after(1)
        woken.append(ring.latest)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        ring.note(changed(2))
    assert woken == [2]
