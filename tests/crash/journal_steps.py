"""What a spooler does with its journal, step by step, for tests that drive one themselves."""

from actors.messages import StoredRun
from actors.ports import LiveRun, Unreadable
from daemon.journal.journal import Journal


def do_upkeep(journal: Journal) -> None:
    journal.look()
    journal.write_indexes()
    journal.prepare()


def read_live(journal: Journal, number: int, live: LiveRun) -> StoredRun | Unreadable:
    """A run that recovery found in the chunk of this number."""
    (run,) = journal.read([(number, live.place)])
    return run
