"""Two daemons decide about writes in one database: one outcome, whoever asks, however often."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import permutations

import asyncpg
import pytest
import trio

from actors.ports.writes import (
    DECIDED,
    Aborted,
    Decisions,
    LastVersion,
    Published,
    PublishWish,
    SealedStage,
    Unheard,
    Verdict,
    WritePart,
    WriteView,
)
from daemon.stores.bridge import Bridge
from forebay.errors import Refused
from tests.conformance.postgres_stores import PostgresStores

THIS, OTHER = b"this daemon.....", b"the other daemon"
W, V = b"W" * 16, b"V" * 16
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
TTL_MS = 100_000


class Fleet(PostgresStores):
    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        self.heard: list[str] = []
        self.has_heard = trio.Event()
        self.cold = self.make(THIS)
        self.other_cold = self.make(OTHER, on_wake=self._hear)
        self.this: Decisions = self.cold.decisions
        self.other: Decisions = self.other_cold.decisions

    def _hear(self, said: str) -> None:
        self.heard.append(said)
        self.has_heard.set()


@pytest.fixture
async def fleet(bridge: Bridge) -> AsyncIterator[Fleet]:
    fleet = Fleet(bridge)
    await fleet.cold.open()
    await fleet.other_cold.open()
    yield fleet
    await fleet.other_cold.close()
    await fleet.drop()


def sealed(stage: bytes, items: int = 10, *queues: str) -> SealedStage:
    return SealedStage(stage, 1, items, queues or ("crm",))


def wish(
    write: bytes,
    *stages: bytes,
    app: str | None = None,
    version: int | None = None,
    here: WriteView | None = None,
) -> PublishWish:
    return PublishWish(write, stages, app, version, here or WriteView("open", 0, None, (), None))


async def refusal(publishing: Decisions, what: PublishWish) -> str:
    with pytest.raises(Refused) as raised:
        await publishing.publish(what)
    return str(raised.value.code)


async def test_exactly_the_named_stages_are_published_wherever_they_are(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A, 10, "crm"))
    await fleet.other.seal(W, sealed(B, 20, "mail", "crm"))
    await fleet.other.seal(W, sealed(C, 40))
    published = await fleet.this.publish(wish(W, A, B, app="feed\0", version=3))
    assert published == Published("published", W, 30, fleet.now_ms())
    here = Verdict(W, True, fleet.now_ms(), (A,), 10, ("crm", "mail"), "feed\0", 3)
    assert await fleet.this.verdicts([]) == [here]
    assert await fleet.other.verdicts([]) == [replace(here, stages=(B,), items=20)]
    # Asked again, later, elsewhere, even if with other members: what is so.
    fleet.advance(5)
    assert await fleet.other.publish(wish(W, C)) == published
    assert await fleet.other.abort(W, 7) == Aborted("published", 30)


async def test_a_verdict_is_told_until_it_is_applied_and_to_whoever_has_the_write_open(
    fleet: Fleet,
) -> None:
    await fleet.this.seal(W, sealed(A))
    assert await fleet.this.verdicts([W]) == []
    await fleet.this.publish(wish(W, A))
    (verdict,) = await fleet.this.verdicts([])
    await fleet.this.applied([W])
    assert await fleet.this.verdicts([]) == []
    # The journal's record of it was lost: it is open there again.
    assert await fleet.this.verdicts([W]) == [verdict]
    # A straggler there has staged something and not sealed it.
    assert [v.stages for v in await fleet.other.verdicts([W])] == [()]


async def test_a_stage_that_is_not_sealed_is_named_and_nothing_is_changed(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A))
    with pytest.raises(Refused, match=B.hex()) as raised:
        await fleet.other.publish(wish(W, A, B, app="feed", version=1))
    assert raised.value.code == "NOT_FOUND"
    assert await fleet.this.verdicts([W]) == []
    await fleet.other.seal(W, sealed(B))
    again = await fleet.other.publish(wish(W, A, B, app="feed", version=1))
    assert again.outcome == "published"


async def test_sealing_may_be_repeated_and_comes_too_late_after_the_decision(fleet: Fleet) -> None:
    for _ in range(2):
        await fleet.this.seal(W, sealed(A, 10))
    await fleet.this.seal(W, sealed(B, 10))
    assert (await fleet.other.publish(wish(W, A))).items == 10
    await fleet.this.seal(W, sealed(A, 10))
    for stage in (B, C):
        with pytest.raises(Refused) as raised:
            await fleet.this.seal(W, sealed(stage))
        assert raised.value.code == "STAGE_OVER"


async def test_a_version_that_was_published_anywhere_is_a_duplicate(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A))
    first = await fleet.this.publish(wish(W, A, app="feed", version=7))
    fleet.advance(1)
    await fleet.other.seal(V, sealed(B))
    again = await fleet.other.publish(wish(V, B, app="feed", version=7))
    assert again == first._replace(outcome="duplicate")
    # The write of the replay is dropped, and says the same when it is asked again.
    (verdict,) = await fleet.other.verdicts([V])
    assert not verdict.is_published
    assert await fleet.this.publish(wish(V, B, app="feed", version=7)) == again
    assert await fleet.this.publish(wish(C, app="feed", version=6)) == Published("duplicate", None)
    # An empty write has a version as well.
    assert (await fleet.other.publish(wish(A, app="feed", version=8))).outcome == "published"
    assert (await fleet.this.publish(wish(B, app="feed", version=8))).outcome == "duplicate"


async def test_a_version_of_another_queue_is_a_mistake(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A, 1, "crm"))
    await fleet.this.publish(wish(W, A, app="feed", version=1))
    await fleet.other.seal(V, sealed(B, 1, "mail"))
    assert await refusal(fleet.other, wish(V, B, app="feed", version=1)) == "BAD_REQUEST"
    assert await fleet.other.verdicts([V]) == []


async def test_what_a_journal_did_before_it_shared_the_store_counts(fleet: Fleet) -> None:
    done = Published("published", V, 5, 77)
    old = WriteView("open", 10, None, (sealed(A, 10),), LastVersion(4, V, done))
    replay = wish(W, A, app="feed", version=4, here=old)
    assert await fleet.this.publish(replay) == done._replace(outcome="duplicate")
    # All know of that version now, though not of its write.
    assert await fleet.other.publish(wish(C, app="feed", version=4)) == Published("duplicate", None)
    published = WriteView("published", 5, done, (), None)
    assert await fleet.this.publish(wish(V, here=published)) == done
    await fleet.this.applied([W])
    # A stage that was sealed then is taken up when it is named.
    taken = await fleet.this.publish(wish(B, A, app="feed", version=5, here=old))
    assert (taken.outcome, taken.items) == ("published", 10)
    assert [v.stages for v in await fleet.this.verdicts([B])] == [(A,)]
    aborted = WriteView("aborted", 5, None, (), None)
    assert await refusal(fleet.this, wish(b"X" * 16, here=aborted)) == "STAGE_OVER"


async def test_an_aborted_write_stays_so_also_for_who_has_not_heard_of_it(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A, 10))
    await fleet.other.seal(W, sealed(B, 20))
    # This journal has more than what is sealed.
    assert await fleet.this.abort(W, 13) == Aborted("aborted", 33)
    assert await fleet.other.abort(W, 20) == Aborted("aborted", 33)
    assert await refusal(fleet.other, wish(W, A, B)) == "STAGE_OVER"
    for decisions in (fleet.this, fleet.other):
        assert [v.is_published for v in await decisions.verdicts([])] == [False]
    assert await fleet.this.abort(V, 0) == Aborted("aborted", 0)
    with pytest.raises(Refused, match="aborted"):
        await fleet.other.seal(V, sealed(C))


async def test_a_stage_that_was_dropped_is_not_published(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A))
    assert await fleet.this.drop(W, A)
    # Sealed in the journal, dropped before this was known here, then sealed here after all.
    assert await fleet.this.drop(W, B)
    with pytest.raises(Refused, match="dropped"):
        await fleet.this.seal(W, sealed(B))
    for stage in (A, B):
        assert await refusal(fleet.other, wish(W, stage)) == "NOT_FOUND"
    await fleet.this.seal(W, sealed(C))
    await fleet.other.publish(wish(W, C))
    assert not await fleet.this.drop(W, C)
    assert [v.stages for v in await fleet.this.verdicts([])] == [(C,)]


async def test_a_write_expires_when_no_daemon_has_heard_of_it(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A))
    await fleet.this.seal(V, sealed(B))
    fleet.advance(2 * TTL_MS)
    # The other daemon has staged something lately that is not sealed yet.
    lately = [Unheard(W, TTL_MS // 2, is_kept=False)]
    assert await fleet.other.expire(lately, TTL_MS) == [V]
    await fleet.other.seal(W, sealed(C))
    fleet.advance(TTL_MS - 1)
    assert await fleet.this.expire([Unheard(W, 9 * TTL_MS, is_kept=False)], TTL_MS) == []
    fleet.advance(1)
    assert await fleet.this.expire([], TTL_MS) == [W]
    assert await refusal(fleet.this, wish(W, A, C)) == "STAGE_OVER"
    assert [v.is_published for v in await fleet.other.verdicts([])] == [False]


async def test_what_nobody_has_sealed_expires_here_too_unless_it_may_have_ended(
    fleet: Fleet,
) -> None:
    old = [Unheard(W, TTL_MS, is_kept=False), Unheard(V, TTL_MS, is_kept=True)]
    assert await fleet.this.expire(old, TTL_MS) == [W]
    assert [v.write for v in await fleet.this.verdicts([W, V])] == [W]


async def race(fleet: Fleet, write: bytes, order: Sequence[str]) -> dict[str, object]:
    """All of them at once, begun in this order; what each was answered."""
    outcomes: dict[str, object] = {}
    deciding: dict[str, Callable[[], Awaitable[object]]] = {
        "publish": lambda: fleet.this.publish(wish(write, A, B)),
        "abort": lambda: fleet.other.abort(write, 10),
        "expire": lambda: fleet.this.expire([], TTL_MS),
        "seal": lambda: fleet.other.seal(write, sealed(C)),
    }

    async def decide(how: str) -> None:
        try:
            outcomes[how] = await deciding[how]()
        except Refused as refused:
            outcomes[how] = refused.code

    async with trio.open_nursery() as nursery:
        for how in order:
            nursery.start_soon(decide, how)
    return outcomes


@pytest.mark.parametrize("order", list(permutations(["publish", "abort", "expire"])))
async def test_of_deciders_that_race_one_wins_and_all_agree(
    fleet: Fleet, order: tuple[str, ...]
) -> None:
    for number in range(6):
        write = bytes([number]) * 16
        await fleet.this.seal(write, sealed(A))
        await fleet.other.seal(write, sealed(B))
        fleet.advance(TTL_MS)
        outcomes = await race(fleet, write, [*order, "seal"])
        (here,), (there,) = await fleet.this.verdicts([write]), await fleet.other.verdicts([write])
        assert here.is_published == there.is_published
        if here.is_published:
            assert (here.stages, there.stages) == ((A,), (B,))
            assert outcomes["publish"] == Published("published", write, 20, here.at_ms)
            assert outcomes["abort"] == Aborted("published", 20)
            assert outcomes["expire"] == []
        else:
            assert outcomes["publish"] == "STAGE_OVER"
            assert isinstance(outcomes["abort"], Aborted)
            assert outcomes["abort"].outcome == "aborted"
        await fleet.this.applied([write])
        await fleet.other.applied([write])


async def test_of_one_version_that_two_publish_at_once_one_is_visible(fleet: Fleet) -> None:
    outcomes: list[Published] = []

    async def publish(decisions: Decisions, write: bytes, stage: bytes, version: int) -> None:
        outcomes.append(await decisions.publish(wish(write, stage, app="feed", version=version)))

    for version in range(8):
        mine, theirs = (bytes([65 + version, side]) * 8 for side in range(2))
        await fleet.this.seal(mine, sealed(A))
        await fleet.other.seal(theirs, sealed(B))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, fleet.this, mine, A, version)
            nursery.start_soon(publish, fleet.other, theirs, B, version)
        first, second = outcomes[-2:]
        assert {first.outcome, second.outcome} == {"duplicate", "published"}
        assert first.write == second.write


async def test_a_seal_waits_for_a_decision_that_is_under_way(fleet: Fleet, bridge: Bridge) -> None:
    await fleet.this.seal(W, sealed(A))
    has_begun = trio.Event()

    async def decide() -> None:
        """Commits when somebody waits for it, or nobody has for long."""
        con = await asyncpg.connect(fleet.url, server_settings={"search_path": fleet.schema})
        async with con.transaction():
            await con.execute("UPDATE writes SET phase = 'aborted'")
            bridge.call_in_trio(has_begun.set)
            for _ in range(6000):
                if await con.fetchval(
                    "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND"
                    " transactionid::text = pg_current_xact_id()::text)"
                ):
                    break
                await asyncio.sleep(0.01)
        await con.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bridge.run, decide, 60.0)
        await has_begun.wait()
        with pytest.raises(Refused, match="aborted"):
            await fleet.other.seal(W, sealed(B))


async def test_many_that_seal_at_once_are_all_there(fleet: Fleet) -> None:
    stages = [bytes([number]) * 16 for number in range(40)]
    async with trio.open_nursery() as nursery:
        for number, stage in enumerate(stages):
            decisions = (fleet.this, fleet.other)[number % 2]
            nursery.start_soon(decisions.seal, W, sealed(stage, 1))
    assert (await fleet.this.publish(wish(W, *stages))).items == 40


async def test_a_receipt_is_the_sum_of_what_the_journals_say(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A, 10))
    await fleet.other.seal(W, sealed(B, 20))
    assert await fleet.this.receipt(W) is None
    await fleet.this.publish(wish(W, A, B))
    assert await fleet.this.unfinished() == [W] == await fleet.other.unfinished()
    await fleet.this.note_parts([WritePart(W, 1, 2, 3)])
    for delivered in (4, 11, 11):
        await fleet.other.note_parts([WritePart(W, delivered, 5, 4, is_over=delivered == 11)])
    await fleet.other.note_parts([WritePart(V, 1, 1, 1, is_over=True)])
    found, seen = await fleet.this.receipt(W), await fleet.other.receipt(W)
    assert found is not None
    assert seen is not None
    assert (found.accepted, found.others) == (30, WritePart(W, 11, 5, 4))
    assert (found.own, seen.others) == (WritePart(W, 1, 2, 3), WritePart(W, 1, 2, 3))
    assert await fleet.other.unfinished() == []
    assert await fleet.other.receipt(V) is None


async def test_a_write_is_forgotten_when_every_daemon_has_applied_it(fleet: Fleet) -> None:
    await fleet.this.seal(W, sealed(A))
    await fleet.other.seal(W, sealed(B))
    await fleet.this.publish(wish(W, A, B, app="feed", version=1))
    await fleet.this.abort(V, 0)
    await fleet.this.seal(C, sealed(C))
    fleet.advance(TTL_MS)
    await fleet.this.applied([W])
    assert await fleet.this.forget(TTL_MS + 1) == 0
    assert await fleet.this.forget(TTL_MS) == 1
    assert [v.write for v in await fleet.other.verdicts([])] == [W]
    await fleet.other.applied([W])
    assert await fleet.this.forget(TTL_MS) == 1
    for table, rows in (("writes", 1), ("stages", 1), ("journal_receipts", 0), ("versions", 1)):
        assert (await fleet.sql(f"SELECT count(*) FROM {table}"))[0][0] == rows
    again = await fleet.this.publish(wish(V, app="feed", version=1))
    assert again == Published("duplicate", None)


async def test_a_decision_wakes_the_others(fleet: Fleet) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(fleet.other_cold.listen)
        with trio.fail_after(60):
            await fleet.other_cold.wakes.listening.wait()
            await fleet.this.seal(W, sealed(A))
            await fleet.this.publish(wish(W, A))
            await fleet.has_heard.wait()
        assert fleet.heard == [DECIDED]
        nursery.cancel_scope.cancel()
