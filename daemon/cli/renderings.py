"""How people see the answers of operations; the others are printed as YAML."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import typer

from daemon.cli.client import new_table, now_ms, print_table, print_yaml
from daemon.cli.fleet import show_fleet, show_removed

Answer = dict[str, Any]


def render(command: Mapping[str, Any], fields: Mapping[str, Any], answer: dict[str, Any]) -> None:
    rendering = RENDERINGS.get(command["name"])
    if rendering is not None:
        rendering(answer)
    elif "done" in command:
        typer.echo(command["done"].format_map({**answer, **fields}))
    else:
        print_yaml(answer)


# Queues.


def queues(answer: Answer) -> None:
    from rich.markup import escape

    table = new_table(
        "queue", "defined by", "handler", "held", "state", "description",
        right=("held",), wraps=("description",),
    )  # fmt: skip
    for queue in answer["queues"]:
        settings = queue["settings"]
        table.add_row(
            queue["queue"],
            queue["origin"],
            settings.get("handler", {}).get("type", ""),
            f"{queue['held']:,}",
            escape(queue_state(queue)),
            escape(settings.get("description", "")),
        )
    print_table(table)


def queue_state(queue: Mapping[str, Any]) -> str:
    """Running, paused or not active; of a queue that is only in the books, nothing is known."""
    if queue.get("is_paused"):
        return "paused"
    if not queue.get("settings", {}).get("is_active", True):
        return "not active"
    flows = queue.get("paused_flows")
    return f"paused: {', '.join(flows)}" if flows else "running"


def pause(queue: Answer) -> None:
    flows = ", ".join(queue["paused_flows"])
    now = "paused" if queue["is_paused"] else "running"
    typer.echo(f"{queue['queue']} is {now}" + (f", paused flows: {flows}" if flows else ""))


# Breakers.


def breakers(answer: Answer) -> None:
    from rich.markup import escape

    if not answer["breakers"]:
        typer.echo("no breakers: no queue has delivered anything yet", err=True)
        return
    table = new_table(
        "destination", "state", "failures", "queues", "last error", right=("failures",)
    )
    at_ms = now_ms()
    for breaker in answer["breakers"]:
        table.add_row(
            escape(breaker["destination"]),
            describe_breaker(breaker, at_ms),
            str(breaker["failures"]),
            escape(", ".join(breaker["queues"])),
            escape(" ".join(breaker["last_error"].split())),
        )
    print_table(table)


def breaker(answer: Answer) -> None:
    typer.echo(f"{answer['destination']} is {describe_breaker(answer, now_ms())}")


def describe_breaker(breaker: Mapping[str, Any], at_ms: int) -> str:
    """The state of a breaker, in a few words."""
    if breaker["forced"]:
        return "open, by an operator"
    if breaker["state"] == "open" and breaker["open_until_ms"] is not None:
        seconds = max(0, round((breaker["open_until_ms"] - at_ms) / 1000))
        return f"open, tried again in {seconds} s"
    return str(breaker["state"]).replace("_", " ")


# Streams.


def streams(answer: Answer) -> None:
    from rich.markup import escape

    if not answer["streams"]:
        typer.echo("no streams", err=True)
        return
    figures = ("acknowledged", "open claim", "items", "backlog")
    table = new_table("queue", "consumer", *figures, right=figures)
    for stream in answer["streams"]:
        claim = stream["claim"]
        table.add_row(
            stream["queue"],
            escape(stream["consumer"]),
            f"{stream['acknowledged']:,}",
            "–" if claim is None else f"{claim:,}",
            f"{stream['items']:,}",
            f"{stream['backlog']:,}",
        )
    print_table(table)


RENDERINGS: Final[Mapping[str, Callable[[Answer], None]]] = {
    "queues.ls": queues,
    "queues.pause": pause,
    "queues.resume": pause,
    "breakers.ls": breakers,
    "breakers.set": breaker,
    "streams.ls": streams,
    "fleet.ls": show_fleet,
    "fleet.rm": show_removed,
}
