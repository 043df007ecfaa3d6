"""Accounts: their names, and where what they count goes when chunks and writes are gone."""

import pytest

from actors.model.books import NO_STAGE, Account, account_of, parse_account, written_by
from actors.model.runs import Fate, Place
from actors.ports.journal import Record
from actors.spooler.ledger import ItemsFinished, Ledger
from actors.spooler.writes import Writes
from tests.actors.spooler.spooling import make_run
from tests.actors.spooler.staging_desk import W1, A, staged_run


@pytest.mark.parametrize("account", [Account("q"), Account("q", W1, A), Account("q", W1, NO_STAGE)])
def test_account_is_read_as_it_is_named(account: Account) -> None:
    assert parse_account(account.name) == account
    assert written_by(account.name) == account.write.hex()
    # An index has one byte for the length of a name.
    longest = account._replace(queue="q" * 128)
    assert len(longest.name.encode()) <= 255


def test_run_is_in_the_account_of_its_stage_or_of_its_queue() -> None:
    assert account_of(make_run(queue="r")[0], b"") == Account("r")
    assert account_of(staged_run(queue="r")[0], A) == Account("r", W1, A)


def test_base_of_a_freed_chunk_is_the_writes_until_that_is_forgotten_and_the_queues_then() -> None:
    writes = Writes()
    ledger = Ledger(writes)
    published, open_write = b"P" * 16, b"O" * 16
    ledger.start(0)
    ledger.accept(0, 10, "q", 1)
    ledger.stage(10, 10, Account("q", published, b"A" * 16), 2)
    ledger.stage(20, 10, Account("q", published, b"B" * 16), 4)
    ledger.seal(0)
    assert writes.restore([publication(published, b"A" * 16, 2)]) == 0
    ledger.publish(published, "q", 2)
    ledger.unstage("q", Place(20, 10, 4))
    for position, items in ((0, 1), (10, 2)):
        ledger.finish(ItemsFinished(position, "q", items, Fate.DELIVERED, 10))
    whole = Account("q", published, NO_STAGE).name
    assert ledger.dead_chunks() == [0]
    base = ledger.base_without([0])
    assert {name: totals.delivered for name, totals in base.items()} == {"q": 1, whole: 2}
    assert ledger.base == {}, "nothing changes before the chunk is gone"
    ledger.forget([0])
    assert ledger.base == base
    assert ledger.receipts[published].delivered == 2
    writes.forget(before_ms=9, needed=frozenset({open_write}))
    ledger.forget_writes([published])
    assert {name: totals.delivered for name, totals in ledger.base.items()} == {"q": 3}
    assert published not in ledger.receipts
    assert ledger.books["q"].delivered == ledger.books["q"].accepted == 3
    # A start that finds a base from before that forgets in the same way.
    later = Ledger(writes)
    later.load(base, [])
    assert later.base == ledger.base
    assert later.receipts == {}


def test_chunk_that_staged_items_keep_is_not_asked_to_be_emptied() -> None:
    writes = Writes()
    ledger = Ledger(writes)
    staged, aborted = Account("s", W1, A), Account("a", b"D" * 16, A)
    for number, account in ((0, staged), (1000, aborted)):
        ledger.start(number)
        ledger.accept(number, 900, "q", 100)
        ledger.stage(number + 900, 10, account, 1)
        ledger.accept(number + 910, 10, "q", 1)
        ledger.seal(number)
        ledger.finish(ItemsFinished(number, "q", 100, Fate.DELIVERED, 900))
    writes.restore([{"is": "aborted", "at_ms": 1, "write": aborted.write.hex(), "items": 1}])
    ledger.unstage("a", Place(1900, 10, 1))
    # Staged items keep the first chunk; the second is left by what was dropped, and by the queue.
    ((queue, positions),) = ledger.pinned(disk_bytes_max=0)
    assert (queue, positions.start) == ("q", 1000)


def publication(write: bytes, stage: bytes, items: int) -> Record:
    names = {"write": write.hex(), "stages": [stage.hex()], "queues": ["q"]}
    return {"is": "published", "at_ms": 1, "items": items, "app": None, "version": None, **names}
