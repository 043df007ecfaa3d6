"""Waits for what becomes true later, so that no test depends on how fast the machine is.

Books, gauges, states, log lines and files follow an acknowledgement; they do not precede it. A test
that looks at them says what must become true and waits here:

    await eventually(lambda: daemon.books("crm").delivered == 10)

    async def drained() -> None:
        books = await read_books()
        assert books["held"] == 0, books

    await eventually(drained)

`check` is called again and again until it neither raises AssertionError nor returns False. Other
exceptions end the wait at once, unless `errors` names them; `at_once` makes them of assertions that
must hold at every look. After DEADLINE_S of real time the test
fails and shows what the last look saw. The deadline does not measure speed: it is generous enough
for a machine that is many times overloaded, and only a check that never holds reaches it.
"""

import inspect
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast, overload

import trio

DEADLINE_S: Final = float(os.environ.get("FOREBAY_TEST_DEADLINE_S", "240"))
PAUSE_S: Final = 0.001
PAUSE_MAX_S: Final = 0.05
"""Most checks hold at the second or third look; the longer one takes, the rarer the looks."""

T = TypeVar("T")


class Violated(Exception):
    """What must hold at every look did not hold at one."""


@contextmanager
def at_once() -> Iterator[None]:
    """Within a check: what fails in here fails the test, and is not looked at again."""
    try:
        yield
    except AssertionError as problem:
        raise Violated(str(problem)) from problem


@overload
async def eventually(
    check: Callable[[], Awaitable[T]],
    message: str = ...,
    *,
    errors: tuple[type[Exception], ...] = ...,
    deadline_s: float = ...,
) -> T: ...
@overload
async def eventually(
    check: Callable[[], T],
    message: str = ...,
    *,
    errors: tuple[type[Exception], ...] = ...,
    deadline_s: float = ...,
) -> T: ...
async def eventually(
    check: Callable[[], Any],
    message: str = "",
    *,
    errors: tuple[type[Exception], ...] = (),
    deadline_s: float = DEADLINE_S,
) -> Any:
    """The first result of `check` that is not False; for tests that run on trio."""
    until = time.monotonic() + deadline_s
    pause_s = PAUSE_S
    while True:
        result: object = False
        problem: Exception | None = None
        try:
            found = check()
            result = await found if inspect.isawaitable(found) else found
        except _misses(errors) as raised:
            problem = raised
        if problem is None and result is not False:
            return result
        if time.monotonic() >= until:
            raise _never(message, result, problem, deadline_s) from problem
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def eventually_sync(
    check: Callable[[], T],
    message: str = "",
    *,
    errors: tuple[type[Exception], ...] = (),
    deadline_s: float = DEADLINE_S,
) -> T:
    """The same for tests that block."""
    until = time.monotonic() + deadline_s
    pause_s = PAUSE_S
    while True:
        result: object = False
        problem: Exception | None = None
        try:
            result = check()
        except _misses(errors) as raised:
            problem = raised
        if problem is None and result is not False:
            return cast("T", result)
        if time.monotonic() >= until:
            raise _never(message, result, problem, deadline_s) from problem
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _misses(errors: tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    return (AssertionError, *errors)


def _never(
    message: str, result: object, problem: Exception | None, deadline_s: float
) -> AssertionError:
    last = f"{type(problem).__name__}: {problem}" if problem is not None else repr(result)
    about = f"{message}: " if message else ""
    return AssertionError(f"{about}not true within {deadline_s:g} s; the last look: {last}")
