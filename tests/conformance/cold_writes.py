"""The suite of the `Decisions` port: two daemons decide about writes in one store. There is one
outcome, whoever asks, however often."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Protocol

import pytest
import trio

from actors.ports.writes import (
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
from forebay.errors import Refused

THIS, OTHER = b"this daemon.....", b"the other daemon"
W, V = b"W" * 16, b"V" * 16
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
TTL_MS = 100_000


class WriteStores(Protocol):
    """Two daemons on one store."""

    @property
    def this(self) -> Decisions: ...

    @property
    def other(self) -> Decisions: ...

    def now_ms(self) -> int: ...

    def advance(self, ms: int) -> None: ...

    async def count(self, table: str) -> int:
        """The rows of a table."""


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


async def publish(publishing: Decisions, what: PublishWish) -> Published:
    """Whoever publishes is told what the decision means for it, as it is told later."""
    done, verdict = await publishing.publish(what)
    if verdict is not None:
        assert verdict in await publishing.verdicts([what.write])
    return done


async def refusal(publishing: Decisions, what: PublishWish) -> str:
    with pytest.raises(Refused) as raised:
        await publishing.publish(what)
    return str(raised.value.code)


async def race(stores: WriteStores, write: bytes, order: Sequence[str]) -> dict[str, object]:
    """All of them at once, begun in this order; what each was answered."""
    outcomes: dict[str, object] = {}
    deciding: dict[str, Callable[[], Awaitable[object]]] = {
        "publish": lambda: publish(stores.this, wish(write, A, B)),
        "abort": lambda: stores.other.abort(write, 10),
        "expire": lambda: stores.this.expire([], TTL_MS),
        "seal": lambda: stores.other.seal(write, sealed(C)),
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


class WriteSuite:
    async def test_exactly_the_named_stages_are_published_wherever_they_are(
        self, stores: WriteStores
    ) -> None:
        await stores.this.seal(W, sealed(A, 10, "crm"))
        await stores.other.seal(W, sealed(B, 20, "mail", "crm"))
        await stores.other.seal(W, sealed(C, 40))
        published = await publish(stores.this, wish(W, A, B, app="feed\0", version=3))
        assert published == Published("published", W, 30, stores.now_ms())
        here = Verdict(W, True, stores.now_ms(), (A,), 10, ("crm", "mail"), "feed\0", 3)
        assert await stores.this.verdicts([]) == [here]
        assert await stores.other.verdicts([]) == [replace(here, stages=(B,), items=20)]
        # Asked again, later, elsewhere, even if with other members: what is so.
        stores.advance(5)
        assert await publish(stores.other, wish(W, C)) == published
        assert await stores.other.abort(W, 7) == Aborted("published", 30)

    async def test_a_verdict_is_told_until_it_is_applied_and_to_whoever_has_the_write_open(
        self,
        stores: WriteStores,
    ) -> None:
        await stores.this.seal(W, sealed(A))
        assert await stores.this.verdicts([W]) == []
        await publish(stores.this, wish(W, A))
        (verdict,) = await stores.this.verdicts([])
        await stores.this.applied([W])
        assert await stores.this.verdicts([]) == []
        # The journal's record of it was lost: it is open there again.
        assert await stores.this.verdicts([W]) == [verdict]
        # A straggler there has staged something and not sealed it.
        assert [v.stages for v in await stores.other.verdicts([W])] == [()]

    async def test_a_stage_that_is_not_sealed_is_named_and_nothing_is_changed(
        self, stores: WriteStores
    ) -> None:
        await stores.this.seal(W, sealed(A))
        with pytest.raises(Refused, match=B.hex()) as raised:
            await publish(stores.other, wish(W, A, B, app="feed", version=1))
        assert raised.value.code == "NOT_FOUND"
        assert await stores.this.verdicts([W]) == []
        await stores.other.seal(W, sealed(B))
        again = await publish(stores.other, wish(W, A, B, app="feed", version=1))
        assert again.outcome == "published"

    async def test_sealing_may_be_repeated_and_comes_too_late_after_the_decision(
        self, stores: WriteStores
    ) -> None:
        for _ in range(2):
            await stores.this.seal(W, sealed(A, 10))
        await stores.this.seal(W, sealed(B, 10))
        assert (await publish(stores.other, wish(W, A))).items == 10
        await stores.this.seal(W, sealed(A, 10))
        for stage in (B, C):
            with pytest.raises(Refused) as raised:
                await stores.this.seal(W, sealed(stage))
            assert raised.value.code == "STAGE_OVER"

    async def test_a_version_that_was_published_anywhere_is_a_duplicate(
        self, stores: WriteStores
    ) -> None:
        await stores.this.seal(W, sealed(A))
        first = await publish(stores.this, wish(W, A, app="feed", version=7))
        stores.advance(1)
        await stores.other.seal(V, sealed(B))
        again = await publish(stores.other, wish(V, B, app="feed", version=7))
        assert again == first._replace(outcome="duplicate")
        # The write of the replay is dropped, and says the same when it is asked again.
        (verdict,) = await stores.other.verdicts([V])
        assert not verdict.is_published
        assert await publish(stores.this, wish(V, B, app="feed", version=7)) == again
        assert await publish(stores.this, wish(C, app="feed", version=6)) == Published(
            "duplicate", None
        )
        # An empty write has a version as well.
        assert (await publish(stores.other, wish(A, app="feed", version=8))).outcome == "published"
        assert (await publish(stores.this, wish(B, app="feed", version=8))).outcome == "duplicate"

    async def test_a_version_of_another_queue_is_a_mistake(self, stores: WriteStores) -> None:
        await stores.this.seal(W, sealed(A, 1, "crm"))
        await publish(stores.this, wish(W, A, app="feed", version=1))
        await stores.other.seal(V, sealed(B, 1, "mail"))
        assert await refusal(stores.other, wish(V, B, app="feed", version=1)) == "BAD_REQUEST"
        assert await stores.other.verdicts([V]) == []

    async def test_a_version_without_rows_is_a_duplicate_for_any_queue(
        self, stores: WriteStores
    ) -> None:
        first = await publish(stores.this, wish(W, app="feed", version=1))
        await stores.this.seal(V, sealed(B, 1, "mail"))
        again = await publish(stores.this, wish(V, B, app="feed", version=1))
        assert again == first._replace(outcome="duplicate")

    async def test_what_a_journal_did_before_it_shared_the_store_counts(
        self, stores: WriteStores
    ) -> None:
        done = Published("published", V, 5, 77)
        old = WriteView("open", 10, None, (sealed(A, 10),), LastVersion(4, V, done))
        replay = wish(W, A, app="feed", version=4, here=old)
        assert await publish(stores.this, replay) == done._replace(outcome="duplicate")
        # All know of that version now, though not of its write.
        assert await publish(stores.other, wish(C, app="feed", version=4)) == Published(
            "duplicate", None
        )
        published = WriteView("published", 5, done, (), None)
        assert await publish(stores.this, wish(V, here=published)) == done
        await stores.this.applied([W])
        # A stage that was sealed then is taken up when it is named.
        taken = await publish(stores.this, wish(B, A, app="feed", version=5, here=old))
        assert (taken.outcome, taken.items) == ("published", 10)
        assert [v.stages for v in await stores.this.verdicts([B])] == [(A,)]
        aborted = WriteView("aborted", 5, None, (), None)
        assert await refusal(stores.this, wish(b"X" * 16, here=aborted)) == "STAGE_OVER"

    async def test_what_a_journal_has_published_stays_so_in_an_older_copy_of_the_store(
        self, stores: WriteStores
    ) -> None:
        await stores.this.seal(W, sealed(A, 10))
        done = Published("published", W, 10, 77)
        here = WriteView("published", 10, done, (), LastVersion(1, W, done))
        assert await stores.this.publish(wish(W, A, here=here)) == (done, None)
        # Dropped in the store, published in the journal: nothing that is visible goes.
        stores.advance(TTL_MS)
        assert await stores.this.expire([], TTL_MS) == [W]
        assert await stores.this.publish(wish(W, A, here=here)) == (done, None)
        replay = wish(V, app="feed", version=1, here=replace(here, phase="open", published=None))
        assert await publish(stores.this, replay) == done._replace(outcome="duplicate")

    async def test_an_aborted_write_stays_so_also_for_who_has_not_heard_of_it(
        self, stores: WriteStores
    ) -> None:
        await stores.this.seal(W, sealed(A, 10))
        await stores.other.seal(W, sealed(B, 20))
        # This journal has more than what is sealed.
        assert await stores.this.abort(W, 13) == Aborted("aborted", 33)
        assert await stores.other.abort(W, 20) == Aborted("aborted", 33)
        assert await refusal(stores.other, wish(W, A, B)) == "STAGE_OVER"
        for decisions in (stores.this, stores.other):
            assert [v.is_published for v in await decisions.verdicts([])] == [False]
        assert await stores.this.abort(V, 0) == Aborted("aborted", 0)
        with pytest.raises(Refused, match="aborted"):
            await stores.other.seal(V, sealed(C))

    async def test_a_stage_that_was_dropped_is_not_published(self, stores: WriteStores) -> None:
        await stores.this.seal(W, sealed(A))
        assert await stores.this.drop(W, A)
        # Sealed in the journal, dropped before this was known here, then sealed here after all.
        assert await stores.this.drop(W, B)
        with pytest.raises(Refused, match="dropped"):
            await stores.this.seal(W, sealed(B))
        for stage in (A, B):
            assert await refusal(stores.other, wish(W, stage)) == "NOT_FOUND"
        await stores.this.seal(W, sealed(C))
        await publish(stores.other, wish(W, C))
        assert not await stores.this.drop(W, C)
        assert [v.stages for v in await stores.this.verdicts([])] == [(C,)]

    async def test_a_write_expires_when_no_daemon_has_heard_of_it(
        self, stores: WriteStores
    ) -> None:
        await stores.this.seal(W, sealed(A))
        await stores.this.seal(V, sealed(B))
        stores.advance(2 * TTL_MS)
        # The other daemon has staged something lately that is not sealed yet.
        lately = [Unheard(W, TTL_MS // 2, is_kept=False)]
        assert await stores.other.expire(lately, TTL_MS) == [V]
        await stores.other.seal(W, sealed(C))
        stores.advance(TTL_MS - 1)
        assert await stores.this.expire([Unheard(W, 9 * TTL_MS, is_kept=False)], TTL_MS) == []
        stores.advance(1)
        assert await stores.this.expire([], TTL_MS) == [W]
        assert await refusal(stores.this, wish(W, A, C)) == "STAGE_OVER"
        assert [v.is_published for v in await stores.other.verdicts([])] == [False]

    async def test_what_nobody_has_sealed_expires_here_too_unless_it_may_have_ended(
        self,
        stores: WriteStores,
    ) -> None:
        old = [Unheard(W, TTL_MS, is_kept=False), Unheard(V, TTL_MS, is_kept=True)]
        assert await stores.this.expire(old, TTL_MS) == [W]
        assert [v.write for v in await stores.this.verdicts([W, V])] == [W]

    @pytest.mark.parametrize("order", list(permutations(["publish", "abort", "expire"])))
    async def test_of_deciders_that_race_one_wins_and_all_agree(
        self, stores: WriteStores, order: tuple[str, ...]
    ) -> None:
        for number in range(6):
            write = bytes([number]) * 16
            await stores.this.seal(write, sealed(A))
            await stores.other.seal(write, sealed(B))
            stores.advance(TTL_MS)
            outcomes = await race(stores, write, [*order, "seal"])
            (here,), (there,) = (
                await stores.this.verdicts([write]),
                await stores.other.verdicts([write]),
            )
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
            await stores.this.applied([write])
            await stores.other.applied([write])

    async def test_of_one_version_that_two_publish_at_once_one_is_visible(
        self, stores: WriteStores
    ) -> None:
        outcomes: list[Published] = []

        async def take_part(on: Decisions, write: bytes, stage: bytes, version: int) -> None:
            outcomes.append(await publish(on, wish(write, stage, app="feed", version=version)))

        for version in range(8):
            mine, theirs = (bytes([65 + version, side]) * 8 for side in range(2))
            await stores.this.seal(mine, sealed(A))
            await stores.other.seal(theirs, sealed(B))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_part, stores.this, mine, A, version)
                nursery.start_soon(take_part, stores.other, theirs, B, version)
            first, second = outcomes[-2:]
            assert {first.outcome, second.outcome} == {"duplicate", "published"}
            assert first.write == second.write

    async def test_many_that_seal_at_once_are_all_there(self, stores: WriteStores) -> None:
        stages = [bytes([number]) * 16 for number in range(40)]
        async with trio.open_nursery() as nursery:
            for number, stage in enumerate(stages):
                decisions = (stores.this, stores.other)[number % 2]
                nursery.start_soon(decisions.seal, W, sealed(stage, 1))
        assert (await publish(stores.this, wish(W, *stages))).items == 40

    async def test_of_those_that_seal_at_once_each_has_its_own_answer(
        self, stores: WriteStores
    ) -> None:
        await stores.this.abort(V, 0)
        await stores.this.drop(W, B)
        answers: dict[tuple[bytes, bytes], str] = {}

        async def seal(write: bytes, stage: bytes) -> None:
            try:
                await stores.this.seal(write, sealed(stage))
                answers[write, stage] = "sealed"
            except Refused as refused:
                answers[write, stage] = refused.text

        async with trio.open_nursery() as nursery:
            for write in (W, V):
                for stage in (A, B, C):
                    nursery.start_soon(seal, write, stage)
        late = f"the write {V.hex()} is aborted"
        dropped = f"the stage {B.hex()} was dropped"
        assert answers == dict.fromkeys(((V, A), (V, B), (V, C)), late) | {
            (W, A): "sealed",
            (W, B): dropped,
            (W, C): "sealed",
        }

    async def test_who_seals_at_once_with_a_client_that_goes_is_answered(
        self, stores: WriteStores
    ) -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as gone:
                nursery.start_soon(stores.this.seal, W, sealed(B))
                gone.cancel()
                await stores.this.seal(W, sealed(A))
            for stage in (B, C):
                nursery.start_soon(stores.this.seal, W, sealed(stage))
        assert (await publish(stores.this, wish(W, B, C))).items == 20

    async def test_a_receipt_is_the_sum_of_what_the_journals_say(self, stores: WriteStores) -> None:
        await stores.this.seal(W, sealed(A, 10))
        await stores.other.seal(W, sealed(B, 20))
        assert await stores.this.receipt(W) is None
        await publish(stores.this, wish(W, A, B))
        assert await stores.this.unfinished() == [W] == await stores.other.unfinished()
        await stores.this.note_parts([WritePart(W, 1, 2, 3)])
        for delivered in (4, 11, 11):
            await stores.other.note_parts([WritePart(W, delivered, 5, 4, is_over=delivered == 11)])
        await stores.other.note_parts([WritePart(V, 1, 1, 1, is_over=True)])
        found, seen = await stores.this.receipt(W), await stores.other.receipt(W)
        assert found is not None
        assert seen is not None
        assert (found.accepted, found.others) == (30, WritePart(W, 11, 5, 4))
        assert (found.own, seen.others) == (WritePart(W, 1, 2, 3), WritePart(W, 1, 2, 3))
        assert await stores.other.unfinished() == []
        assert await stores.other.receipt(V) is None

    async def test_a_write_is_forgotten_when_every_daemon_has_applied_it(
        self, stores: WriteStores
    ) -> None:
        await stores.this.seal(W, sealed(A))
        await stores.other.seal(W, sealed(B))
        await publish(stores.this, wish(W, A, B, app="feed", version=1))
        await stores.this.abort(V, 0)
        await stores.this.seal(C, sealed(C))
        stores.advance(TTL_MS)
        await stores.this.applied([W])
        assert await stores.this.forget(TTL_MS + 1) == 0
        assert await stores.this.forget(TTL_MS) == 1
        assert [v.write for v in await stores.other.verdicts([])] == [W]
        await stores.other.applied([W])
        assert await stores.this.forget(TTL_MS) == 1
        for table, rows in (("writes", 1), ("stages", 1), ("journal_receipts", 0), ("versions", 1)):
            assert await stores.count(table) == rows
        again = await publish(stores.this, wish(V, app="feed", version=1))
        assert again == Published("duplicate", None)
