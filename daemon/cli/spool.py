"""`forebay spool`: lists, checks, dumps and repairs the journal on disk."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.client import counted, print_table
from daemon.cli.exits import Exit
from daemon.cli.options import ConfigFile, StateDir

if TYPE_CHECKING:
    from daemon.journal.files import Files
    from daemon.journal.inspect import ChunkView

app = typer.Typer(
    help="Inspect and repair the journal on disk. [bold]ls[/bold], [bold]verify[/bold] and "
    "[bold]dump[/bold] change nothing and work while the daemon runs.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@app.command()
def ls(config: ConfigFile = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the chunks: how many runs and items each has, and how many are held or staged.

    Items that were dropped with their stage are neither held nor staged.
    """
    from daemon.journal.inspect import list_chunks

    views = list_chunks(_files(config, state_dir))
    rows = [_row(view) for view in views]
    if as_json:
        _print_json(rows)
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("chunk", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for column in ("runs", "items", "held", "staged", "used", "file"):
        table.add_column(column, justify="right", no_wrap=True)
    counts = ("runs", "items", "held", "staged", "used_bytes", "file_bytes")
    for row in rows:
        table.add_row(
            str(row["chunk"]),
            str(row["state"]),
            *(f"{row[name]:,}" for name in counts),
        )
    print_table(table)


@app.command()
def verify(config: ConfigFile = None, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Check every block's checksum and unpack every run. Exit code 6 if anything is damaged."""
    from daemon.journal.inspect import read_writes, verify_chunks
    from daemon.journal.records import RECORDS

    files = _files(config, state_dir)
    _, lines = read_writes(files)
    is_damaged = lines > 0
    if lines:
        problem = f"{lines} damaged line{'' if lines == 1 else 's'}"
        if as_json:
            _print_json([{"file": RECORDS, "problems": [problem]}])
        else:
            typer.echo(f"{RECORDS}: {problem}")
    totals = {"chunks": 0, "runs": 0, "items": 0}
    for view in verify_chunks(files):
        row = _row(view)
        totals["chunks"] += 1
        totals["runs"] += len(view.index)
        totals["items"] += sum(view.index.counts)
        is_damaged = is_damaged or view.is_damaged or bool(view.bad_runs)
        if as_json:
            _print_json([row | {"problems": _problems(view)}])
        else:
            for problem in _problems(view):
                typer.echo(f"{view.name}: {problem}")
    if not as_json:
        verdict = "damage found" if is_damaged else "no damage"
        typer.echo(
            f"{totals['chunks']} chunks, {totals['runs']} runs, {totals['items']} items: {verdict}"
        )
    if is_damaged:
        raise typer.Exit(Exit.DAMAGE)


@app.command()
def dump(
    config: ConfigFile = None,
    state_dir: StateDir = None,
    queue: Annotated[str | None, typer.Option(help="Only items of this queue.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also settled items that are still on disk.")
    ] = False,
) -> None:
    """Print the held items, or all items on disk, as JSON lines in journal order.

    A staged item, which is not visible yet, has "staged": true.
    """
    import sys

    from actors.spooler.writes import Phase
    from daemon.handlers.items import object_line, run_objects
    from daemon.journal.inspect import dump_runs
    from forebay.errors import BadRun

    for run, done, phase in dump_runs(_files(config, state_dir), held_only=not everything):
        if queue is not None and run.head.queue != queue:
            continue
        try:
            objects = run_objects(run, 0 if everything else done)
        except BadRun as problem:
            typer.echo(f"forebay: a run cannot be unpacked: {problem}", err=True)
            continue
        if phase is Phase.OPEN:
            objects = [item | {"staged": True} for item in objects]
        sys.stdout.buffer.write(b"".join(map(object_line, objects)))
    sys.stdout.buffer.flush()


@app.command()
def repair(config: ConfigFile = None, state_dir: StateDir = None) -> None:
    """Repair a stopped spool: read every block that holds items, and set damaged ones aside.

    Intact blocks are put back where they belong. Damaged bytes go to spool/quarantine, and the
    items in them count as lost. This repairs everything that [bold]verify[/bold] finds, so a
    second repair changes nothing.
    """
    from daemon.cli.options import load_settings
    from daemon.journal.repair import repair_spool
    from daemon.state.lock import StateLock

    settings = load_settings(config, None, state_dir, None, None).settings
    files = _files(config, state_dir)
    with StateLock(settings.state_dir):
        repaired = repair_spool(files, settings.spool)
    held, staged = counted(repaired.held, "item"), repaired.staged
    typer.echo(f"{counted(repaired.chunks, 'chunk')}, {held} held, {staged} staged")
    for name, count in repaired.damage.as_dict().items():
        typer.echo(f"{name.replace('_', ' ')}: {count}")
    if repaired.damage:
        typer.echo(f"damaged bytes are kept in {files.path('quarantine')}")


def _files(config: Path | None, state_dir: str | None) -> "Files":
    from daemon.cli.options import load_settings
    from daemon.journal.files import Files

    settings = load_settings(config, None, state_dir, None, None).settings
    directory = settings.state_dir / "spool"
    if not directory.is_dir():
        raise FileNotFoundError(2, os.strerror(2), str(directory))
    return Files(directory)


def _row(view: "ChunkView") -> dict[str, object]:
    state = "sealed" if view.is_sealed else "open" if len(view.index) else "ready"
    return {
        "chunk": f"{view.number:016x}",
        "state": "damaged" if view.is_damaged else state,
        "runs": len(view.index),
        "items": sum(view.index.counts),
        "held": view.held_items,
        "staged": view.staged_items,
        "used_bytes": view.used_bytes,
        "file_bytes": view.file_bytes,
    }


def _problems(view: "ChunkView") -> list[str]:
    problems = [
        f"{gap.end - gap.start} bytes at {gap.start} belong to no intact block" for gap in view.gaps
    ]
    problems += [f"the run at {offset} cannot be unpacked: {why}" for offset, why in view.bad_runs]
    if view.mark_bytes_damaged:
        problems.append(f"{view.mark_bytes_damaged} bytes of its marks are damaged")
    if view.is_head_damaged:
        problems.append("its head is damaged")
    if view.is_index_damaged:
        problems.append("its index is damaged; the next start scans the chunk instead")
    return problems


def _print_json(rows: list[dict[str, object]]) -> None:
    import json

    for row in rows:
        typer.echo(json.dumps(row))
