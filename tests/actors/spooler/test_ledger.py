"""The ledger: which chunks are kept on disk by a few old items."""

from actors.model.runs import Fate
from actors.spooler.ledger import ItemsFinished, Ledger


def test_old_items_in_mostly_empty_chunks_are_named_when_the_chunks_take_too_much() -> None:
    ledger = Ledger()
    for number in (0, 10_000, 20_000):
        ledger.start(number)
        for run in range(10):
            ledger.accept(number + 64 + run * 100, 100, "old" if run == 3 else "new", 1)
        ledger.seal(number)
        for run in range(10):
            if run != 3:
                position = number + 64 + run * 100
                ledger.finish(ItemsFinished(position, "new", 1, Fate.DELIVERED, 100))
    assert ledger.pinned(disk_bytes_max=3000) == []
    (first,) = ledger.pinned(disk_bytes_max=2999)
    assert first[0] == "old"
    assert 64 + 300 in first[1]
    assert 10_000 + 64 + 300 not in first[1]
    assert [positions.start for _, positions in ledger.pinned(1000)] == [0, 10_000]
    # What is live may take its room: emptying chunks would not free more.
    assert ledger.pinned(0) == [
        ("old", range(start, start + 1000 + 4096)) for start in (0, 10_000, 20_000)
    ]
