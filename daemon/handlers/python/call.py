"""Loads and calls a user's Python function, and interprets its result. Used by the daemon and its
child processes.

Imports neither trio nor the settings, so that child processes start faster.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, reduce
from importlib import import_module
from typing import Any

import msgspec

from actors.model.outcomes import Failure
from actors.model.slices import cut_text
from daemon.handlers.items import Verdict
from forebay.item import BusinessError, Item, Reject, Retry
from forebay.limits import SETTLE_TEXT_BYTES_MAX

_json = msgspec.json.Encoder().encode


class NoFunction(Exception):
    """The function does not exist; the text says what is wrong with the name or the module."""


def load_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` names; `function` may have dots in it."""
    module_name, _, path = name.partition(":")
    try:
        module = import_module(module_name)
    # The module is the user's code and may raise anything: then the function is not available.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        is_missing = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(
            f"{error.name}."
        )
        text = str(error) if is_missing else f"importing {module_name}: {describe(error)}"
        raise NoFunction(text) from error
    try:
        function = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        raise NoFunction(f"module {module_name} has no {path}") from error
    if not callable(function):
        raise NoFunction(f"{name} is a {type(function).__name__}, which cannot be called")
    return function


def is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    called = getattr(function, "__call__", None)  # noqa: B004 (its kind is wanted)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def call_each(
    function: Callable[[Item], object],
    items: Sequence[Item],
    tell: Callable[[Verdict], object],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Calls the function for each item in turn, and reports each result at once."""
    for item in items:
        if is_over():
            return
        tell(_call(function, item))


def call_batch(
    function: Callable[[list[Item]], object],
    items: Sequence[Item],
    tell: Callable[[Verdict], object],
) -> None:
    """Calls the function once for all items, and reports the result of each."""
    try:
        verdicts = verdicts_of(function(list(items)), len(items))
    except BaseException as error:
        verdicts = [failure_of(error)] * len(items)
    for verdict in verdicts:
        tell(verdict)


def _call(function: Callable[[Item], object], item: Item) -> Verdict:
    try:
        return verdict_of(function(item))
    except BaseException as error:
        return failure_of(error)


async def call_each_async(
    function: Callable[[Item], Awaitable[object]],
    items: Sequence[Item],
    tell: Callable[[Verdict], object],
) -> None:
    for item in items:
        try:
            verdict = verdict_of(await function(item))
        # Not BaseException: a cancellation does not come from the function.
        except (Exception, SystemExit) as error:
            verdict = failure_of(error)
        tell(verdict)


async def call_batch_async(
    function: Callable[[list[Item]], Awaitable[object]],
    items: Sequence[Item],
    tell: Callable[[Verdict], object],
) -> None:
    try:
        verdicts = verdicts_of(await function(list(items)), len(items))
    except (Exception, SystemExit) as error:
        verdicts = [failure_of(error)] * len(items)
    for verdict in verdicts:
        tell(verdict)


def verdict_of(result: object) -> Verdict:
    """The verdict that a function's result means for an item.

    A value is the item's result. False and what JSON cannot hold, such as the response of an HTTP
    client, mean failure: taken for a result, an unchecked one would lose the item.
    """
    if result is None or result is True:
        return None
    if isinstance(result, BaseException):
        return failure_of(result)
    if inspect.iscoroutine(result):
        result.close()
        return Failure("the function returned a coroutine: it must be declared with async def")
    if result is False:
        return Failure("the function returned False: failures must be raised")
    try:
        text = result if isinstance(result, str) else _json(result).decode()
    # The value is the user's: its parts may raise anything.
    except Exception as error:
        return Failure(
            f"the function returned a {type(result).__name__}, which JSON cannot hold "
            f"({describe(error)}); delivered is None or a value, failures must be raised"
        )
    # Half a surrogate pair cannot be stored.
    return cut_text(text, SETTLE_TEXT_BYTES_MAX).encode(errors="replace").decode() or None


def verdicts_of(results: object, items: int) -> list[Verdict]:
    """The verdicts for a batch: one result for all items, or a list with one result per item."""
    if not isinstance(results, list | tuple):
        return [verdict_of(results)] * items
    if len(results) != items:
        failure = Failure(f"the function returned {len(results)} results for {items} items")
        return [failure] * items
    return [verdict_of(result) for result in results]


def failure_of(error: BaseException) -> Failure:
    match error:
        case Retry():
            return Failure(
                str(error) or "Retry", retry_after_s=error.after_s, blames_destination=False
            )
        case Reject():
            is_business = isinstance(error, BusinessError)
            return Failure(
                str(error) or type(error).__name__,
                is_permanent=True,
                blames_destination=False,
                failure_reason="business" if is_business else "application",
            )
        case _:
            return Failure(describe(error))


def describe(error: BaseException) -> str:
    """Like the last line of a traceback."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    return f"{name}: {text}" if text else name
