"""Jinja2 for the templates that are more than plain fields: a small, bounded part of its language.

Imported only when a template needs it. Every template is parsed and checked before it is compiled:
it may use fields, constants, operators, filters and tests that are listed here, `if`, `for` and
`set`. Nothing can be called, so nothing but the data and the filters can be reached, and the work
of a rendering is bounded by the size of the template, of the item, and the steps of its loops.
"""

import base64
import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import StrictUndefined, Template, TemplateSyntaxError, Undefined, nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from actors.config.rendering import OUTPUT_BYTES_MAX, BadTemplate, Unrenderable, as_text

_ALLOWED: Final = (
    *(nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.CondExpr),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Concat),
)
_FILTERS: Final = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
    *("groupby", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min"),
    *("reject", "rejectattr", "reverse", "round", "select", "selectattr", "sort", "string"),
    *("sum", "title", "trim", "truncate", "unique", "upper", "wordcount"),
)
_LOOP_FILTER: Final = "steps of a loop"
"""A name that no template can write."""

_encode = msgspec.json.Encoder().encode


class _Environment(ImmutableSandboxedEnvironment):
    """Fields are members of objects, never attributes of Python's types."""

    intercepted_binops = frozenset(["*", "%"])

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            return obj
        try:
            return obj[argument]
        except (LookupError, TypeError):
            return self.undefined(f"{argument} is missing")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        # `"x" * 1000000000` and `"%1000000000d" % 1` would take all memory.
        if not all(isinstance(side, int | float) for side in (left, right)):
            raise Unrenderable(f"{operator} is for numbers")
        return super().call_binop(context, operator, left, right)


def compile_program(
    where: str, source: str, names: frozenset[str], finish: Callable[[Any], str]
) -> tuple[Template, frozenset[str], bool]:
    """The compiled template, the names that it uses, and whether it makes a text.

    A template that is one expression leaves its value in `result`. Raises BadTemplate.
    """
    environment = _environment(finish)
    try:
        parsed = environment.parse(source)
        _check(where, parsed, environment)
        used = frozenset(find_undeclared_variables(parsed))
        if unknown := used - names:
            raise BadTemplate(
                f"{where}: {min(unknown)!r} is not a name here: use {', '.join(sorted(names))}"
            )
        alone = _alone(parsed)
        if alone is not None:
            result = nodes.Assign(nodes.Name("result", "store"), alone, lineno=1)
            parsed = nodes.Template([result], lineno=1)
            parsed.set_environment(environment)
        return environment.from_string(parsed), used, alone is None
    except TemplateSyntaxError as problem:
        raise BadTemplate(f"{where}: line {problem.lineno}: {problem.message}") from None
    except (TemplateError, RecursionError, SyntaxError) as problem:
        raise BadTemplate(f"{where}: {str(problem).partition(chr(10))[0]}") from None


def _alone(parsed: nodes.Template) -> nodes.Expr | None:
    """The expression of a template that is nothing else."""
    outputs = [node for node in parsed.body if isinstance(node, nodes.Output)]
    found = [node for output in outputs for node in output.nodes]
    is_one = len(parsed.body) == len(outputs) == len(found) == 1
    return found[0] if is_one and not isinstance(found[0], nodes.TemplateData) else None


def _check(where: str, parsed: nodes.Template, environment: _Environment) -> None:
    """Refuses everything that is not allowed, and makes loops count their steps."""
    for node in parsed.find_all(nodes.Node):
        kind = type(node).__name__.lower()
        if not isinstance(node, _ALLOWED) or (isinstance(node, nodes.For) and node.recursive):
            what = "a recursive loop" if isinstance(node, nodes.For) else repr(kind)
            raise BadTemplate(f"{where}: line {node.lineno}: {what} is not allowed in a template")
    for loop in list(parsed.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, _LOOP_FILTER, [], [], None, None, lineno=loop.lineno)
        loop.iter.set_environment(environment)


@lru_cache(maxsize=8)
def _environment(finish: Callable[[Any], str]) -> _Environment:
    def finalize(value: Any) -> str:
        if isinstance(value, Undefined):
            value = str(value)  # raises
        return finish(list(value) if isinstance(value, Iterator) else value)

    environment = _Environment(
        undefined=StrictUndefined, finalize=finalize, keep_trailing_newline=True, autoescape=False
    )
    environment.globals.clear()
    usual = environment.filters
    environment.filters = {name: usual[name] for name in _FILTERS}
    environment.filters |= {
        "b64encode": lambda value: base64.b64encode(as_text(value).encode()).decode(),
        "csv": _csv,
        "replace": _replace,
        "sha256": lambda value: hashlib.sha256(as_text(value).encode()).hexdigest(),
        "tojson": lambda value: _encode(
            list(value) if isinstance(value, Iterator) else value
        ).decode(),
        "urlencode": _urlencode if finish is as_text else as_text,
        _LOOP_FILTER: _counted,
    }
    return environment


@pass_context
def _counted(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    steps = context["steps"]
    for value in values:
        steps.take()
        yield value


def _csv(value: Any) -> str:
    """A field of a CSV line, or the fields of a list."""
    line = io.StringIO()
    fields = value if isinstance(value, list | tuple) else [value]
    csv.writer(line, lineterminator="").writerow([as_text(field) for field in fields])
    return line.getvalue()


def _replace(value: Any, old: str, new: str) -> str:
    text = as_text(value)
    if len(text) + text.count(old) * len(new) > OUTPUT_BYTES_MAX:
        raise Unrenderable(f"the text is longer than {OUTPUT_BYTES_MAX} bytes")
    return text.replace(old, new)


def _urlencode(value: Any) -> str:
    if isinstance(value, dict):
        return urlencode({name: as_text(one) for name, one in value.items()})
    return quote(as_text(value), safe="")
