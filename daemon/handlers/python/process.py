"""The python handler's process mode: each sender has a child process.

The child is started for the first batch and kept. At the deadline, and on cancel, it is killed with
its process group, and the next batch gets a new one. If it dies while it works on an item (a crash
in C code, `os._exit`, no memory), that item fails, and a new child continues with the items after
it, so that one bad item does not cost the others an attempt.

It cannot undo what the function had done when it was killed. A child ends soon after its daemon was
killed (child.py), unless the function never releases the interpreter's lock.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import trio

from actors.model.outcomes import Failure, Report
from actors.model.units import format_duration
from actors.ports.handler import Prepared
from daemon.handlers.command.handler import describe_exit
from daemon.handlers.items import Verdict, report
from daemon.handlers.python.child import PATH_BEFORE
from daemon.handlers.python.frames import Answers, encode_items
from forebay.item import Item

END_S: Final = 1.0
"""How long an idle child may take to end."""
READ_BYTES: Final = 64 * 1024
OF_SYSTEMD: Final = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "CREDENTIALS_DIRECTORY"}
)


class BatchItems(NamedTuple):
    """The items of a batch, as the python handler's senders use them."""

    items: list[Item]
    places: list[tuple[int, int]]
    """For each item: its slice's number in the batch, and its index in its run."""


class ChildDied(Exception):
    """The text says how."""


class ChildUnusable(Exception):
    """The child could not be started, or could not import the function."""


class ProcessSender:
    def __init__(self, function: str, *, is_batch: bool, timeout_s: float) -> None:
        self._function = function
        self._is_batch = is_batch
        self._timeout_s = timeout_s
        self._child: Child | None = None
        self._lock = trio.Lock()

    async def send(self, prepared: Prepared) -> Report:
        content: BatchItems = prepared.content
        verdicts: list[Verdict] = []
        failure = Failure(f"the function was not done after {format_duration(self._timeout_s)}")
        with trio.move_on_after(self._timeout_s):
            async with self._lock:
                try:
                    await self._call(content.items, verdicts)
                except (ChildUnusable, OSError) as problem:
                    failure = Failure(f"the process for {self._function}: {problem}")
                    await self._kill()
                except BaseException:
                    await self._kill()
                    raise
        verdicts += [failure] * (len(content.items) - len(verdicts))
        return report(prepared, content.places, verdicts)

    async def aclose(self) -> None:
        """Closes the child's input, at which it ends; kills it if it does not."""
        if self._child is not None:
            child, self._child = self._child, None
            await child.end()
        else:
            await trio.lowlevel.checkpoint()

    async def _call(self, items: Sequence[Item], verdicts: list[Verdict]) -> None:
        while len(verdicts) < len(items):
            if self._child is not None and self._child.has_ended:
                # It died while idle: no item is to blame.
                await self._kill()
            if self._child is None:
                self._child = await Child.start(self._function, is_batch=self._is_batch)
            rest = items[len(verdicts) :]
            try:
                await self._child.call(rest, verdicts.append)
            except ChildDied:
                how = await self._kill()
                failure = Failure(f"the process died over it: {how}")
                verdicts += [failure] * (len(rest) if self._is_batch else 1)

    async def _kill(self) -> str:
        if self._child is None:
            return ""
        child, self._child = self._child, None
        return await child.kill()


class Child:
    """A running `python -m daemon.handlers.python.child`."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._answers = Answers()

    @classmethod
    async def start(cls, function: str, *, is_batch: bool) -> "Child":
        environment = _environment()
        module = "daemon.handlers.python.child"
        process = await trio.lowlevel.open_process(
            # -P: do not import modules from the working directory.
            [sys.executable, "-P", "-m", module, function, "batch" if is_batch else "each"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Its own group, so that it can be killed with its children, and so that only the
            # daemon gets a Ctrl-C in its terminal.
            start_new_session=True,
        )
        child = cls(process)
        problems: list[Verdict] = []
        try:
            await child._read(1, problems.append)
        except ChildDied:
            raise ChildUnusable(f"it ended before it was ready: {await child.kill()}") from None
        except BaseException:
            await child.kill()
            raise
        if isinstance(problems[0], Failure):
            await child.kill()
            raise ChildUnusable(problems[0].text)
        return child

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def call(self, items: Sequence[Item], tell: Callable[[Verdict], object]) -> None:
        """Has the child call the function, and reports each result. Raises ChildDied."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(encode_items(items))
        except trio.BrokenResourceError:
            raise ChildDied from None
        await self._read(len(items), tell)

    async def _read(self, answers: int, tell: Callable[[Verdict], object]) -> None:
        assert self._process.stdout is not None
        while answers:
            data = await self._process.stdout.receive_some(READ_BYTES)
            if not data:
                raise ChildDied
            for verdict in self._answers.feed(data):
                tell(verdict)
                answers -= 1

    async def kill(self) -> str:
        """Kills the child with its group, and describes how it ended: by this, or earlier."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            code = await self._process.wait()
            await self._close()
        return describe_exit(code)

    async def end(self) -> None:
        with trio.move_on_after(END_S, shield=True):
            assert self._process.stdin is not None
            await self._process.stdin.aclose()
            await self._process.wait()
        await self.kill()

    async def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                await pipe.aclose()


def _environment() -> dict[str, str]:
    """The daemon's environment, as a function in a thread would see it, but without what is meant
    for the daemon alone: forebay's settings, which may hold passwords, and systemd's."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FOREBAY_") and name not in OF_SYSTEMD
    }
    if "PYTHONPATH" in os.environ:
        passed[PATH_BEFORE] = os.environ["PYTHONPATH"]
    return passed | {"PYTHONPATH": os.pathsep.join(_search_path())}


def _search_path() -> list[str]:
    """The import path of this process; an empty entry means the working directory."""
    return [str(entry) if entry else os.getcwd() for entry in sys.path]  # noqa: PTH109
