"""The mailbox: what became, on other hosts, of this daemon's runs, is read and recorded.

A post is certain, and comes late: what has moved on since then (it was leased again, and more is
known of it) stays as it is. Posts are removed when what they say is durable; dead letters and late
retries are the settler's by then, and the journal's until they are the cold store's.

Owns nothing but what it has heard and nobody has asked for. On cancel, posts that are not removed
are read again, and change nothing twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from actors.fleet.entered import shrunk
from actors.fleet.shared_warm import SharedWarm
from actors.spooler.client import Borrowed, SpoolerClient
from actors.spooler.messages import Reply
from actors.tiers.router import lent
from actors.workers.posts import BadPost, Post, conclusion_of, read_post
from actors.workers.settlement import Concluded, Settlement

log = structlog.get_logger()


@dataclass(slots=True)
class Heard:
    """What was read, and somebody has still to do."""

    runs: dict[int, bytes] = field(default_factory=dict)
    """Runs that waited in the journal, by position, and are lent now: somebody must send on what
    is left of them."""
    passing: dict[int, int] = field(default_factory=dict)
    """Items on their way to the cold store: bits, by position."""


class Mailbox:
    def __init__(
        self,
        shared: SharedWarm,
        spooler: SpoolerClient,
        settlement: Settlement,
    ) -> None:
        self._shared = shared
        self._spooler = spooler
        self._settlement = settlement
        self._heard: dict[str, Heard] = {}

    async def read(self, queue: str) -> int:
        """How many posts there were. One call at a time; `heard` is for the caller to ask behind
        it, also if it has failed half-way."""
        total = 0
        remote = self._shared.remote
        while posts := await remote.mail(queue):
            await self._apply(queue, readable(posts), self._heard.setdefault(queue, Heard()))
            await remote.mail_done(queue, len(posts))
            total += len(posts)
        return total

    def heard(self, queue: str) -> Heard:
        """Once."""
        return self._heard.pop(queue, Heard())

    @property
    def queues(self) -> list[str]:
        """Of which something was heard that nobody has asked for."""
        return list(self._heard)

    async def _apply(self, queue: str, posts: Sequence[Post], heard: Heard) -> None:
        out = self._shared.out
        unknown = {
            post.position: post.run_id
            for post in posts
            if out.run_at(queue, post.position, post.run_id) is None
        }
        leases = await self._spooler.borrow(queue, unknown)
        heard.runs |= {at: unknown[at] for at, (_, is_new) in leases.items() if is_new}
        ended = []
        for post in posts:
            concluded = self._conclude(queue, post, leases)
            if concluded is not None:
                ended.append(concluded)
                for part in (*post.later, *post.dead):
                    at = post.position
                    heard.passing[at] = heard.passing.get(at, 0) | part.bits
        if ended:
            recorded = Reply[list[bool]]()
            await self._settlement.conclude(ended, recorded)
            await recorded.wait()

    def _conclude(self, queue: str, post: Post, leases: Borrowed) -> Concluded | None:
        """None: the run is done, or another one's place."""
        out = self._shared.out
        run, current = out.run_at(queue, post.position, post.run_id), -1
        if run is not None:
            current = out.current(queue, post.position, post.attempt)
        elif post.position in leases:
            run = lent(leases[post.position][0])
        if run is None or run.head.run_id != post.run_id:
            return None
        slice_, conclusion, stays = conclusion_of(post, run, current)
        if (left := shrunk(slice_, current)) is not None:
            out.gone(queue, left, stays)
        return Concluded(queue, slice_, conclusion, stays)


def readable(posts: Sequence[bytes]) -> list[Post]:
    found = []
    for post in posts:
        try:
            found.append(read_post(post))
        except BadPost as problem:
            log.error("owner.bad_post", error=str(problem))
    return found
