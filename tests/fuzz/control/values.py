"""JSON around what is valid: the shape of an object, and ways to damage one that has it.

A body is made as text, not with `json.dumps` of a whole: duplicate keys, lone surrogates, NaN and
numbers without end can be written that way alone. One wrong member at a time is the rule, because
the first one that is found out hides all others.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy


def nested(depth: int, opening: str = "[", closing: str = "]", core: str = "") -> str:
    return opening * depth + core + closing * depth


def long_text(length: int, character: str) -> str:
    return f'"{character * length}"'


DEEP: Final = (nested(256), nested(2000), nested(256, '{"a":', "}", "0"), nested(100_000))
HUGE: Final = (
    *("1e28", "1e400", "1e-320", "9007199254740993", "9223372036854775808"),
    *("-9223372036854775809", "18446744073709551616", "9" * 400, "9" * 4300),
)
DIGITS: Final = tuple(long_text(count, "9") for count in (19, 310, 5000, 100_000))
OTHER_TYPES: Final = (
    *("null", "true", "0", "-1", "1.5", '""', '"1"', "[]", "{}", "[null]", '{"a":1,"a":2}'),
    *('{"\\u0000":0}', "[" + "0," * 10_000 + "0]"),
)
STRANGE: Final = (
    *('"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\ud83d\\ude00"', '" "', '"\\u202e"', '"a\\nb"'),
    *('"%"', '"../../etc/passwd"', '"Infinity"', '"1e400"', '"\\u0663"', '"@cursor@"', '"@item0@"'),
    *('"AAAA"', '"AAECAwQ="', '["a","a"]'),
)
LONG: Final = tuple(long_text(count, "x") for count in (129, 501, 5000, 70_000))
NOT_JSON: Final = (
    *(b"", b"null", b"[]", b"{", b"\xff\xfe{}", b"\x00" * 9, b'{"a":NaN}', b'{"a":-Infinity}'),
    *(b'{"a":01}', b'{"a":"\x00"}', b'{"a":"\\x"}', b'{"a":' + b"9" * 5000 + b"}"),
)
PATTERNS: Final = tuple(
    json.dumps(pattern)
    for pattern in (
        *("(a+)+$", "(a|a)*b", "(a|aa)+$", "(.*)*x", "[", "(?P<n>a)(?P=n)", "(?<=a)b", "(?i:A)"),
        *("a{1000000}", "(a{1,100}){1,100}", "((a{1,100}){1,100}){1,100}", "\\N{BULLET}", "\\1"),
        *("(" * 5000 + ")" * 5000, "(?:" * 300 + "a" + ")" * 300, "|" * 50_000, "[a-" + "z" * 9000),
    )
)
DURATIONS: Final = (
    *("1e28", "-1e28", "1e-7", "0.0001", "1e15", '"1us"', '"0.0000001s"', '"1e5s"', '"-1s"'),
    *('"1d1d1d"', '"1.5h"', '"1h30"', '"\\u0663s"', '"1 s"', '"99999999999d"', '"1w"', '"s"'),
    *(f'"{"9" * digits}d"' for digits in (30, 310, 5000, 100_000)),
    f'"0.{"0" * 5000}1s"',
    f'"{"1s" * 30_000}"',
)
SIZES: Final = (
    *('"64Ki"', '"1Ti"', '"1Pi"', '"1.5"', '"1.1Ki"', '"-1Ki"', '"Ki"', "65536.5", "1e28"),
    *(f'"{"9" * digits}Ki"' for digits in (30, 310, 5000, 100_000)),
    f'"0.{"0" * 5000}1Ki"',
)


def among(values: Sequence[Any]) -> SearchStrategy[Any]:
    """As `sampled_from`, whose description would hold all of them, and some are long."""
    return st.integers(0, len(values) - 1).map(values.__getitem__)


anything: SearchStrategy[str] = st.one_of(
    *map(among, (OTHER_TYPES, DEEP, HUGE, DIGITS, STRANGE, LONG)),
    st.one_of(st.integers().map(str), st.text(max_size=12).map(json.dumps)),
)
"""Any JSON, and some that is none."""


@dataclass(frozen=True, slots=True, repr=False)
class Leaf:
    """A member's value: valid ones, and what is odd in this place beside what is odd anywhere."""

    valid: Sequence[Any]
    odd: Sequence[str] = ()
    only_these: bool = False
    """Nothing but `odd` is put in its place: some values would be valid, and make a case wait."""


@dataclass(frozen=True, slots=True, repr=False)
class Each:
    """A list of a few."""

    of: "Spec"
    most: int = 3


@dataclass(frozen=True, slots=True, repr=False)
class Shape:
    """An object. Members that are not required come and go."""

    members: Mapping[str, "Spec"]
    required: frozenset[str] = frozenset()


Spec = Leaf | Each | Shape


def leaves(spec: Spec) -> int:
    """How many members it has, those of members included."""
    match spec:
        case Leaf():
            return 1
        case Each():
            return leaves(spec.of)
        case Shape():
            return sum(map(leaves, spec.members.values()))


def needs(*required: str, **members: Spec) -> Shape:
    return Shape(members, frozenset(required))


def one_of(*values: Any, odd: Sequence[str] = ()) -> Leaf:
    return Leaf(values, odd)


def whole(first: int, last: int) -> Leaf:
    """A whole number; the next ones beyond its bounds are odd."""
    edges = tuple(str(value) for value in (first - 1, first, last, last + 1))
    return Leaf(range(first, min(last, first + 5)), (*edges, f"{first}.0", f'"{first}"'))


flag: Final = one_of(True, False, odd=("0", "1", '"true"', "null"))


def plain(spec: Spec) -> str:
    """The simplest valid JSON of this shape: what is required, with the first value of each."""
    match spec:
        case Leaf():
            return json.dumps(spec.valid[0])
        case Each():
            return f"[{plain(spec.of)}]"
        case Shape():
            members = ((name, of) for name, of in spec.members.items() if name in spec.required)
            return "{" + ",".join(f"{json.dumps(name)}:{plain(of)}" for name, of in members) + "}"


@st.composite
def bodies(draw: DrawFn, spec: Spec, head: str = "") -> bytes:
    """The text of a body of this shape: valid, with a damaged member or two, or no JSON at all.

    `head`: what stands first in the object, as `"op":"queues.ls"`."""
    text = written(draw, spec, draw(st.sampled_from((0, 1, 0, 1, 2, 1, 4))))
    if head and text.startswith("{"):
        text = f"{{{head}{',' if text != '{}' else ''}{text[1:]}"
    data = text.encode(errors="surrogatepass")
    match draw(st.integers(0, 60)):
        case 60:
            garbage: bytes = draw(among(NOT_JSON))
            return garbage
        case 59:
            return data[: len(data) // 2]
        case 58:
            return text.encode("utf-16", errors="surrogatepass")
        case _:
            return data


def written(draw: DrawFn, spec: Spec, damages: int) -> str:
    """JSON of this shape with so many damages in it."""
    match spec:
        case Leaf():
            return _leaf(draw, spec, damages)
        case Each():
            if damages and draw(st.booleans()):
                return draw(anything)
            count = draw(st.integers(0, spec.most))
            return f"[{','.join(written(draw, spec.of, damages) for _ in range(count))}]"
        case Shape():
            return _shape(draw, spec, damages)


def _leaf(draw: DrawFn, leaf: Leaf, damages: int) -> str:
    if not damages:
        return json.dumps(draw(among(leaf.valid)))
    if leaf.only_these or (leaf.odd and draw(st.booleans())):
        odd: str = draw(among(leaf.odd))
        return odd
    return draw(anything)


def _shape(draw: DrawFn, shape: Shape, damages: int) -> str:
    names = [
        name for name in shape.members if name in shape.required or draw(st.integers(0, 2)) == 0
    ]
    # Each member of a member is as likely to be damaged as any other.
    places = [name for name, of in shape.members.items() for _ in range(leaves(of))]
    damaged: dict[str, int] = {}
    more: list[str] = []
    for _ in range(damages):
        how = draw(st.integers(0, 19))
        if how < 17 and places:
            name = draw(among(places))
            damaged[name] = damaged.get(name, 0) + 1
            if name not in names:
                names.append(name)
        elif how == 17 and names:
            names.remove(draw(st.sampled_from(names)))
        elif how == 18 and names:
            # The same member once more: the last one counts.
            name = draw(st.sampled_from(names))
            more.append(f"{json.dumps(name)}:{written(draw, shape.members[name], 1)}")
        elif how == 19:
            more.append(f"{draw(st.text(max_size=4).map(json.dumps))}:{draw(anything)}")
    members = [
        f"{json.dumps(name)}:{written(draw, shape.members[name], damaged.get(name, 0))}"
        for name in names
    ]
    return "{" + ",".join((*members, *more)) + "}"
