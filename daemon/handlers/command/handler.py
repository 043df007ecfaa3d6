"""The command handler: starts a program per batch, without a shell, and writes items to its stdin.

Exit code 0 means that the batch is delivered, even if the program has not read all of it. A code in
`permanent_codes` refuses it for good; any other code, or a signal, means a retry. Lines on the
program's standard output may report single items differently (results.py); they count however the
program ends.

At the deadline its process group gets SIGTERM, and SIGKILL `kill_after` later. On cancel the group
is killed at once and the program reaped; the batch is sent again. It cannot undo what the program
had done by then. If the program succeeds and leaves a process behind, that process is neither
killed nor waited for.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import trio

from actors.config.handlers import CommandHandler
from actors.model.correlation import CORRELATION_ID, TRACE_HEADER, shared_by
from actors.model.masking import masked_words
from actors.model.outcomes import Failure, Report
from actors.model.secret_values import SECRET_VALUES
from actors.model.slices import ERROR_TEXT_MAX, Slice
from actors.model.units import format_duration
from actors.ports.handler import Pace, Prepared, Sender
from daemon.errors import ConfigError
from daemon.handlers.command.results import ItemResults
from daemon.handlers.items import Encoded, all_failed, encode_batch, report

# Describes how a process ended, from the return code of `subprocess`.


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def shell_status(code: int) -> int:
    """The status as a shell shows it (137 for SIGKILL), for use in retry rules."""
    return code if code >= 0 else 128 - code


ERROR_BYTES_MAX: Final = 64 * 1024
"""How many bytes of the end of its standard error are kept."""
READ_BYTES: Final = 64 * 1024
USUAL: Final = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME"})
"""The variables that are always passed on, with those that begin with LC_."""
PIPES_S: Final = 0.5
"""How long after a program's end its pipes are read, if a process it left behind holds them."""


def name_of(command: Sequence[str]) -> str:
    """The whole command, since two scripts that share an interpreter are two destinations. Secrets
    are masked, because the name appears in metrics, logs and lists."""
    shown = masked_words(command)
    name = f"command:{shlex.join(shown)}"
    if shown == list(command):
        return name
    return f"{name} #{sha256(shlex.join(command).encode()).hexdigest()[:8]}"


class CommandDelivery:
    def __init__(self, queue: str, settings: CommandHandler) -> None:
        self._queue = queue
        self._settings = settings
        problem = why_not_startable(settings)
        if problem:
            raise ConfigError(f"queues.{queue}.handler.{problem}")
        self.destination = name_of(settings.command)
        self.batch_items = settings.batch_items
        self.batch_bytes = settings.batch_bytes
        self.timeout_s = settings.timeout + settings.kill_after + PIPES_S

    def prepare(self, batch: Sequence[Slice]) -> Prepared:
        content = encode_batch(batch, self._settings.encoding)
        return Prepared(batch, content, content.rejected)

    def open_sender(self, pace: Pace) -> Sender:
        return CommandSender(self._queue, self._settings)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class CommandSender:
    def __init__(self, queue: str, settings: CommandHandler) -> None:
        self._queue = queue
        self._settings = settings

    async def send(self, prepared: Prepared) -> Report:
        content: Encoded = prepared.content
        if not content.ids:
            await trio.lowlevel.checkpoint()
            return Report(prepared.rejected)
        settings = self._settings
        about = {"FOREBAY_QUEUE": self._queue, "FOREBAY_ITEMS": str(len(content.ids))}
        about |= correlation(prepared.batch)
        try:
            process = await trio.lowlevel.open_process(
                list(settings.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=settings.directory,
                env={**environment(settings), **about},
                start_new_session=True,
            )
        except OSError as error:
            failure = Failure(f"{settings.command[0]}: cannot be started: {error.strerror}")
            return all_failed(prepared, content.places, failure)
        program = Program(process, content)
        is_late = await program.run(settings.timeout, settings.kill_after)
        assert process.returncode is not None
        verdict = verdict_on(
            process.returncode,
            bytes(program.errors),
            settings,
            late_s=settings.timeout if is_late else None,
        )
        said = program.results.verdicts
        if verdict is not None and not said:
            return all_failed(prepared, content.places, verdict)
        verdicts = [said.get(item_id, verdict) for item_id in content.ids]
        return report(prepared, content.places, verdicts)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def correlation(batch: Sequence[Slice]) -> dict[str, str]:
    """The correlation that all items of a batch share, as environment variables."""
    found = shared_by(part.run.head for part in batch)
    return {
        _VARIABLES[name]: value
        for name, value in found.items()
        # An environment cannot hold it, and the program would not start.
        if "\0" not in value
    }


_VARIABLES: Final = {CORRELATION_ID: "FOREBAY_CORRELATION_ID", TRACE_HEADER: "TRACEPARENT"}


class Program:
    """A running program: writes its input, reads its output, and always reaps it."""

    def __init__(self, process: trio.Process, content: Encoded) -> None:
        self._process = process
        self._body = content.body
        self.results = ItemResults(content.ids)
        self.errors = bytearray()

    async def run(self, timeout_s: float, kill_after_s: float) -> bool:
        """Returns when the program has ended: True if that was after the deadline."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._feed)
                nursery.start_soon(self._read_results)
                nursery.start_soon(self._read_errors)
                with trio.move_on_after(timeout_s) as in_time:
                    await self._process.wait()
                if in_time.cancelled_caught:
                    await self._stop(kill_after_s)
                nursery.cancel_scope.deadline = trio.current_time() + PIPES_S
        finally:
            with trio.CancelScope(shield=True):
                if self._process.returncode is None:
                    self._signal(signal.SIGKILL)
                    await self._process.wait()
                for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                    assert pipe is not None
                    await pipe.aclose()
        self.results.end()
        return in_time.cancelled_caught

    async def _feed(self) -> None:
        assert self._process.stdin is not None
        # A program need not read all of its input; its exit code counts.
        with suppress(trio.BrokenResourceError):
            await self._process.stdin.send_all(self._body)
        await self._process.stdin.aclose()

    async def _read_results(self) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.receive_some(READ_BYTES):
            self.results.feed(data)

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.receive_some(READ_BYTES):
            self.errors += data
            del self.errors[:-ERROR_BYTES_MAX]

    async def _stop(self, kill_after_s: float) -> None:
        self._signal(signal.SIGTERM)
        with trio.move_on_after(kill_after_s):
            await self._process.wait()
        # Even if it has ended: its children may have ignored SIGTERM.
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def verdict_on(
    code: int, errors: bytes, settings: CommandHandler, late_s: float | None
) -> Failure | None:
    """The verdict for the items that the program did not report itself."""
    name = Path(settings.command[0]).name
    if late_s is not None:
        return Failure(_with_end(f"{name}: not done after {format_duration(late_s)}", errors))
    if code == 0:
        return None
    is_permanent = code in settings.permanent_codes
    return Failure(
        _with_end(f"{name}: {describe_exit(code)}", errors),
        status=shell_status(code),
        is_permanent=is_permanent,
        # A program that refuses its input works: its destination is not to blame.
        blames_destination=not is_permanent,
    )


def _with_end(text: str, errors: bytes) -> str:
    """The text, and as much of the end of the program's standard error as fits."""
    # Masked before it is cut: half a secret would not be recognised.
    said = SECRET_VALUES.masked(errors.decode(errors="replace").strip())
    room = ERROR_TEXT_MAX - len(text) - len(": …")
    if not said or room <= 0:
        return text
    return f"{text}: {said}" if len(said) <= room else f"{text}: …{said[-room:]}"


def environment(settings: CommandHandler) -> dict[str, str]:
    """A program gets what every program needs, and what its handler names. The daemon's environment
    may hold passwords of stores and the secrets of other handlers."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in USUAL or name.startswith("LC_") or name in settings.inherit
    }
    return passed | settings.environment_texts()


def why_not_startable(settings: CommandHandler) -> str:
    """The key and what is wrong with it; empty if the program can be started."""
    directory = settings.directory
    try:
        variables = environment(settings)
    except ValueError as problem:
        return f"environment: {problem}"
    if directory is not None and not directory.is_dir():
        return f"directory: {directory} is not a directory"
    program = settings.command[0]
    if "/" in program:
        # Like the system: relative to the directory in which the program runs.
        path = Path(directory or "", program)
        if not path.exists():
            return f"command: {path} does not exist"
        if not path.is_file() or not os.access(path, os.X_OK):
            return f"command: {path} cannot be executed"
        return ""
    if shutil.which(program, path=variables.get("PATH")) is None:
        return f"command: no program {program} in PATH"
    return ""
