"""Dead letters by error: what several requests have found is put together."""

from typing import Any

from daemon.cli.dead.groups import NO_ERROR, DeadGroup, read_groups


def group(kind: str, count: int, example: str, queue: str = "crm") -> dict[str, Any]:
    at_ms = ord(example)
    return {
        "queue": queue,
        "error": kind,
        "example": f"{kind}\n  1" if kind else "",
        "example_id": example,
        "count": count,
        "first_ms": at_ms,
        "last_ms": at_ms + 10,
    }


ANSWERS = {
    None: ([group("timeout", 2, "b"), group("HTTP", 1, "c")], 3, "1"),
    "1": ([group("HTTP", 4, "a"), group("HTTP", 1, "d", "mail"), group("", 1, "e")], 6, "2"),
    "2": ([group("timeout", 9, "f")], 9, None),
}


def perform(op: str, /, **fields: Any) -> dict[str, Any]:
    assert (op, fields["which"]) == ("dead.groups", {"queue": "crm"})
    groups, letters, cursor = ANSWERS[fields["cursor"]]
    return {"groups": groups, "letters": letters, "cursor": cursor, "is_complete": cursor is None}


def test_a_kind_is_counted_over_all_requests_and_the_most_frequent_comes_first() -> None:
    found = read_groups(perform, {"queue": "crm"}, 1000)
    assert (found.letters, found.is_complete) == (18, True)
    assert found.groups == [
        DeadGroup("crm", "timeout", "timeout 1", 11, "b", ord("b"), ord("f") + 10),
        DeadGroup("crm", "HTTP", "HTTP 1", 5, "c", ord("a"), ord("c") + 10),
        DeadGroup("crm", "", NO_ERROR, 1, "e", ord("e"), ord("e") + 10),
        DeadGroup("mail", "HTTP", "HTTP 1", 1, "d", ord("d"), ord("d") + 10),
    ]


def test_no_more_letters_are_read_than_are_wanted() -> None:
    found = read_groups(perform, {"queue": "crm"}, 4)
    assert (found.letters, found.is_complete) == (9, False)
    assert found.groups[0].count == 5
