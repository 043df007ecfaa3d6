"""`forebay spool export` and `import`: what a host's journal holds goes to another host.

Exporting reads the state directory of a daemon that is stopped or gone, under its lock. Importing
pushes the runs over the socket as they are, under their own ids: what was imported before is
answered DUPLICATE, so that an import that was interrupted is simply repeated. Runs of a write stay
in it: `forebay receipt` knows them where they are now.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.client import DaemonSocket, Json, counted, print_json, show_progress
from daemon.cli.exits import Exit

if TYPE_CHECKING:
    from daemon.journal.export_file import ExportReader
    from forebay.client import Client
    from forebay.tally import Tally

EXPORT_EXAMPLE: Final = (
    "Example: [bold]forebay spool export /mnt/lost/var/lib/forebay lost.fbx --release[/bold], "
    "then [bold]forebay spool import lost.fbx[/bold] on another host."
)
IMPORT_EXAMPLE: Final = "Example: [bold]forebay spool import lost.fbx[/bold]"

Release = Annotated[
    bool,
    typer.Option(
        "--release",
        help="Mark what was exported as moved out, once the file is on disk: a daemon that is "
        "started on this directory again does not deliver it.",
    ),
]


def export(
    directory: Annotated[
        Path, typer.Argument(metavar="STATE-DIR", help="The state directory, or the spool in it.")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; must not exist.")],
    release: Release = False,
    as_json: Json = False,
) -> None:
    """Write all that a stopped daemon's journal holds into a file, for another daemon.

    Refused while a daemon runs on that directory. Items keep their ids, attempts and due times.
    Items that are staged are in the file too, apart from the others; they are neither imported nor
    released. The directory is left as it is, unless --release is given: without it, a daemon that
    is started there delivers the same items as well.
    """
    from daemon.journal import exporting
    from daemon.journal.files import Files
    from daemon.state.lock import StateLock

    state = _state_dir(directory)
    files = Files(state / "spool")
    about = {"daemon": _daemon(state), "exported_ms": _now_ms()}
    with StateLock(state):
        with show_progress("items", 0) as progress:
            found = exporting.export(files, file, about, progress)
        if release:
            exporting.release(files, found)
    counts = found.counts
    elsewhere = _in_cold(state)
    if as_json:
        print_json(
            {"file": str(file), **about, **counts.as_dict(), "released": release} | elsewhere
        )
    else:
        typer.echo(
            f"{file}: {counted(counts.items, 'item')} in {counted(counts.runs, 'run')}"
            + (", released: they are moved out of there" if release else "")
        )
    if not as_json:
        _say_what_is_left(counts.staged_items, counts.unreadable_items, elsewhere)
    if counts.unreadable_items:
        raise typer.Exit(Exit.DAMAGE)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What an export has written.")],
    socket: DaemonSocket = None,
    as_json: Json = False,
) -> None:
    """Push what was exported into the daemon at hand, under the same ids.

    The file is checked as a whole first: a damaged one is refused, with the offset, and nothing of
    it is pushed. An import that was interrupted is repeated: what is there already is left alone.
    The books here count it as accepted; those of the source, if it was released, as moved out.
    """
    from daemon.journal.export_file import DamagedExport, ExportReader
    from forebay.client import TIMEOUT_S, connect
    from forebay.errors import ForebayError
    from forebay.tally import Tally

    reader, tally = ExportReader(file), Tally()
    try:
        reader.check()
    except DamagedExport as problem:
        typer.echo(f"forebay: {problem}", err=True)
        raise typer.Exit(Exit.DAMAGE) from problem
    try:
        with connect(socket, TIMEOUT_S) as client:
            _push_all(reader, client, tally)
    except ForebayError:
        typer.echo(
            f"forebay: {counted(tally.items, 'item')} of {reader.counts.items:,} are stored; "
            "repeat the import for the rest",
            err=True,
        )
        raise
    _say_imported(reader, tally, as_json=as_json)


def _push_all(reader: "ExportReader", client: "Client", tally: "Tally") -> None:
    from actors.spooler.moved_runs import fitted
    from forebay.stage_frames import write_of

    with show_progress("items", reader.counts.items) as progress:
        for exported in reader:
            if not exported.is_staged:
                # What was published in a write stays in it: its receipt goes on there.
                is_written = write_of(exported.run.head) is not None
                submit = client.submit_moved if is_written else client.submit
                for run in fitted(exported.run, client.max_run_bytes):
                    submit(run, tally=tally)
                progress(tally.items)
        client.drain()


def _say_imported(reader: "ExportReader", tally: "Tally", *, as_json: bool) -> None:
    result, outcomes = tally.result(), tally.outcomes
    staged = reader.counts.staged_items
    if as_json:
        decided = {"outcomes": outcomes._asdict()} if any(outcomes) else {}
        told = {"file": str(reader.path), "daemon": reader.head["daemon"], **result._asdict()}
        print_json(told | {"staged_items": staged} | decided)
        return
    again = f", {result.duplicates:,} of them stored before" if result.duplicates else ""
    decided_text = ", ".join(f"{count:,} {name}" for name, count in outcomes._asdict().items())
    typer.echo(
        f"{reader.path}: {counted(result.items, 'item')} in {counted(result.runs, 'run')}{again}"
        + (f": {decided_text}" if any(outcomes) else "")
    )
    _say_what_is_left(staged, 0, {})


def _say_what_is_left(staged: int, unreadable: int, elsewhere: dict[str, Any]) -> None:
    notes = []
    if staged:
        notes.append(
            f"{counted(staged, 'item')} of writes that were not published: in the file, and not "
            "imported; their job writes them again"
        )
    if unreadable:
        notes.append(f"{counted(unreadable, 'item')} cannot be read, and stay where they are")
    if elsewhere.get("cold_items") or elsewhere.get("cold_dead"):
        notes.append(
            f"{counted(elsewhere['cold_items'], 'item')} and "
            f"{counted(elsewhere['cold_dead'], 'dead letter')} in cold.sqlite are not exported: "
            "a daemon that is started there delivers them"
        )
    for note in notes:
        typer.echo(f"forebay: {note}", err=True)


def _state_dir(given: Path) -> Path:
    """What has a spool in it, or is one."""
    if not (given / "spool").is_dir() and given.name == "spool" and given.is_dir():
        given = given.absolute().parent
    if not (given / "spool").is_dir():
        raise FileNotFoundError(2, os.strerror(2), str(given / "spool"))
    return given


def _daemon(state: Path) -> str | None:
    """Its id; None of one that was never part of a fleet."""
    from daemon.state.identity import FILE

    try:
        return (state / FILE).read_text("ascii").strip()
    except FileNotFoundError:
        return None


def _in_cold(state: Path) -> dict[str, int]:
    """What the host's own cold store holds, where it has one and it can be read."""
    import sqlite3
    from contextlib import closing

    path = state / "cold.sqlite"
    if not path.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as cold:
            [row] = cold.execute(
                "SELECT coalesce(sum(held), 0), coalesce(sum(dead), 0) FROM totals"
            )
    except sqlite3.Error:
        return {}
    return {"cold_items": row[0], "cold_dead": row[1]}


def _now_ms() -> int:
    from actors.model.clock import wall_ms

    return wall_ms()
