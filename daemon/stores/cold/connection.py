"""What the steps of the cold store are written against: one transaction on one connection.

A step is a coroutine that takes a `Connection`. It reads and locks its rows, decides in plain code,
and writes by kind: as many statements as there are kinds of change, not as there are rows. It
awaits nothing but its connection, and has no effect outside before it returns: PostgreSQL may run
it again, and SQLite may when the disk is full.

asyncpg runs a step on its loop, one hop per step. For SQLite `drive` runs the same step to its end
in the connection's thread: its connection never waits (0.28 µs per statement).
"""

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from actors.model.finished import Keeps
from actors.ports.tiers import NewRow, RowOutcome
from daemon.stores.cold.books import Books
from daemon.stores.cold.keyed import Answer, Held, Moved, Released, Taking
from daemon.stores.cold.rows import Bodies, Unpacked
from daemon.stores.cold.statement import Statement

T = TypeVar("T")

Row = Sequence[Any]


class Room(NamedTuple):
    """How much is picked of what is due."""

    items_max: int
    bytes_max: int
    """Of bodies as a whole: each once, however many rows share it, and 1 for each row."""
    rows_max: int
    must_fit: bool = False
    """Not even one row if it does not fit."""
    cuts: bool = False
    """A row with more items than are wanted fits: the caller cuts it."""


class RowTable(Protocol):
    """The tables `runs` and `bodies`, written many rows at once."""

    async def insert(
        self,
        rows: Sequence[NewRow],
        runs: Unpacked,
        *,
        is_stored: bool = False,
        known_bodies: Collection[bytes] = (),
    ) -> set[bytes]:
        """The ids of those that are new, with their bodies. `is_stored`: not visible yet.
        `known_bodies` are there. ValueError if a row's items are not its run's."""

    async def shrink(self, rests: Mapping[int, int]) -> None:
        """Rows keep these bits of theirs, by number."""

    async def delete(self, ns: Collection[int]) -> None:
        """The caller drops the bodies afterwards."""

    async def drop_claimed(self, consumer: int) -> None:
        """The rows of an open claim are gone, with their bodies, however many they are."""

    async def insert_bodies(self, bodies: Mapping[bytes, bytes]) -> None:
        """Those that are not there."""

    async def lock_bodies(self, ids: Iterable[bytes]) -> None:
        """For steps that store rows on these bodies and then drop some of them: two that only
        found out at the second statement would wait for each other."""

    async def drop_bodies(self, ids: Iterable[bytes]) -> None:
        """Removes bodies, unless a row needs them, of runs or of history."""

    async def read_bodies(self, ids: Iterable[bytes]) -> Bodies:
        """Those that are there; each is verified when it is looked at."""


class KeyTable(Protocol):
    """The table of unique keys, and that of answers. It decides nothing: `offers` does, with
    actors/keys/arbiter.py."""

    @property
    def offered_max(self) -> int:
        """How many runs' answers are remembered."""

    async def find(
        self, queue: str, keys: Collection[bytes], *, with_rows: bool, locks: bool = True
    ) -> dict[bytes, Held]:
        """Those of the keys that have an entry. Without rows, who is not done seems to wait."""

    async def take(self, queue: str, takings: Sequence[Taking]) -> None:
        """These keys are free, and belong to these items from now on. RunAgain if one is
        taken after all."""

    async def let_go(self, ended: Sequence[Released]) -> None:
        """Items have ended: their keys are free, at once or after the window."""

    async def follow(self, moved: Sequence[Moved]) -> None:
        """Keys that these items have are where the items are."""

    async def release(self, queue: str, held: Collection[Held]) -> None:
        """Frees their keys."""

    async def remember(self, answers: Sequence[Answer]) -> None:
        """What was answered to runs that were not known. RunAgain if one is known after all."""

    async def forget(self) -> int:
        """Some of the keys that are free again; how many."""


class Connection(Protocol):
    """One transaction."""

    @property
    def daemon(self) -> bytes:
        """The id of this daemon: rows that it holds carry it, where daemons share them."""

    @property
    def makes_room(self) -> bool:
        """The step is run again because the disk is full: it keeps only what it must."""

    @property
    def rows(self) -> RowTable: ...

    @property
    def keys(self) -> KeyTable: ...

    @property
    def jobs(self) -> set[bytes]:
        """Jobs of triggers whose receipts this step has changed: it may have ended them
        (`job_ends`)."""

    async def fetch(self, statement: Statement, *values: Any) -> Sequence[Row]: ...

    async def first(self, statement: Statement, *values: Any) -> Row | None: ...

    async def execute(self, statement: Statement, *values: Any) -> int:
        """How many rows it has changed."""

    async def each(self, statement: Statement, rows: Sequence[Row]) -> None:
        """Carries out a statement without lists for each row, in one round trip."""

    async def pick(self, queue: str, except_flows: Collection[str], room: Room) -> list[int] | None:
        """The numbers of the next rows that are due, in order, locked. The first is picked in any
        case, unless it must fit. Rows that another transaction is about to take are passed over.
        None: so much came due that others should have their turn first."""

    async def now(self) -> int:
        """The wall clock in ms, the same throughout the step."""

    async def record(self, books: Books) -> None:
        """At the end of the step: from here on others of this daemon's wait."""

    async def settle_delivered(
        self, outcomes: Sequence[RowOutcome], keeps: Keeps
    ) -> list[bool] | None:
        """The outcomes, if all of them say nothing but that items were delivered, and nothing
        hangs on their rows. None: nothing was changed, and the step goes the long way."""

    def wake(self, queue: str) -> None:
        """Once this is committed, other daemons hear that the queue has something due."""


class RunAgain(Exception):
    """The step was in another's way, or guessed wrong: it is undone, and run again."""


Step = Callable[[Connection], Coroutine[Any, Any, T]]


class Database(Protocol):
    """Runs steps, one transaction each."""

    async def read(self, step: Step[T]) -> T:
        """On one state of the database."""

    async def write(
        self,
        step: Step[T],
        *,
        is_durable: bool = True,
        is_new_work: bool = False,
        may_fill_disk: bool = False,
        is_repeatable: bool = True,
    ) -> T:
        """`is_new_work`: it brings work that was not here before: it is refused where it would be
        on one machine only and must not, or take the last of the disk, unless it `may_fill_disk`.
        `is_repeatable`: it may be run again when it is unknown whether it was committed."""

    async def sync(self) -> None:
        """What was written is durable on return. Free if it is already."""


def drive(step: Coroutine[Any, Any, T]) -> T:
    """Runs a step to its end, on a connection that never waits."""
    try:
        step.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    step.close()
    raise RuntimeError("a step of the cold store awaits something other than its connection")
