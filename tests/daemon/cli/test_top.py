"""`forebay top` as an operator uses it: the real screen, real keys, a real daemon."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from daemon.cli.stats.sampling import Asker
from daemon.cli.top.app import TopApp
from daemon.cli.top.view import column_of
from daemon.cli.top.widgets import Question, QueueTable, Sheet
from forebay import connect
from tests.daemon.cli.commands import HANG_S, Host, running
from tests.eventually import eventually_sync

REFRESH_S = 0.2


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Two queues whose items die, one of them until there is a file `up`; others for consumers."""
    place = tmp_path_factory.mktemp("top")
    command = ["sh", "-c", f"test -f {place / 'up'} || {{ echo model not found >&2; exit 1; }}"]
    dying = {"max_retries": 0, "breaker": {"enabled": False}}
    pull = {"handler": {"type": "pull"}}
    queues = {
        "feed": pull,
        "lost": dying | {"handler": {"type": "command", "command": ["false"]}},
        "rest": pull,
        "scoring": dying | {"handler": {"type": "command", "command": command}},
    }
    with running(Host(place, {"queues": queues})) as host:
        with connect(host.socket) as client:
            for queue in ("scoring", "lost", "feed"):
                client.push(queue, ["1", "2", "3"])
        yield host


Scene = Callable[[TopApp, Pilot[None]], Awaitable[None]]


def play(host: Host, scene: Scene, size: tuple[int, int] = (130, 36)) -> None:
    async def run() -> None:
        app = TopApp(Asker(str(host.socket)), REFRESH_S, "", column_of("queue"))
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.sample is not None)
            await scene(app, pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], is_so: Callable[[], Any]) -> None:
    """As `eventually`, on the screen's own loop: it is drawn between two looks."""
    deadline = time.monotonic() + HANG_S
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"the last look: {found!r}\n{shown(pilot)}"
        await pilot.pause(0.01)


def shown(pilot: Pilot[None]) -> str:
    """What stands on the screen."""
    return "\n".join(str(part.render()) for part in pilot.app.screen.query(Static))


async def choose(app: TopApp, pilot: Pilot[None], queue: str) -> None:
    await pilot.press("home")
    while app.chosen_name != queue:
        await pilot.press("down")


def text_of(app: TopApp, selector: str) -> str:
    return str(app.screen_stack[0].query_one(selector, Static).render())


def is_paused(host: Host, queue: str) -> bool:
    with connect(host.socket) as client:
        return bool(client.control("queues.show", queue=queue)["is_paused"])


def books(host: Host, queue: str) -> dict[str, int]:
    with connect(host.socket) as client:
        found = client.stats()["queues"][queue]
    return {name: found[name] for name in ("accepted", "delivered", "dead", "held")}


def test_a_queue_is_paused_and_resumed(host: Host) -> None:
    async def scene(app: TopApp, pilot: Pilot[None]) -> None:
        await choose(app, pilot, "feed")
        await pilot.press("p")
        await until(pilot, lambda: app.chosen and app.chosen.state == "paused")
        assert is_paused(host, "feed")
        assert not is_paused(host, "scoring")
        await pilot.press("p")
        await until(pilot, lambda: app.chosen and app.chosen.state == "running")
        assert not is_paused(host, "feed")

    play(host, scene)


def test_dead_letters_are_shown_by_error_and_retried_when_asked_for(host: Host) -> None:
    async def scene(app: TopApp, pilot: Pilot[None]) -> None:
        await choose(app, pilot, "scoring")
        await until(pilot, lambda: "model not found" in text_of(app, "#groups"))
        await until(pilot, lambda: "3 dead letters" in text_of(app, "#groups"))
        (host.directory / "up").touch()
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, Question))
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, Question))
        assert books(host, "scoring") == {"accepted": 3, "delivered": 0, "dead": 3, "held": 0}
        await pilot.press("r")
        await until(pilot, lambda: isinstance(app.screen, Question))
        await pilot.press("y")
        await until(pilot, lambda: app.chosen and not app.chosen.dead and not app.chosen.held)
        assert books(host, "scoring") == {"accepted": 3, "delivered": 3, "dead": 0, "held": 0}
        await until(pilot, lambda: "no dead letters" in text_of(app, "#groups"))

    play(host, scene)


def test_filter_sort_details_and_help(host: Host) -> None:
    async def scene(app: TopApp, pilot: Pilot[None]) -> None:
        table = app.query_one(QueueTable)
        names = ["feed", "lost", "rest", "scoring"]
        await until(pilot, lambda: [str(key.value) for key in table.rows] == names)
        await pilot.press("slash", *"RES", "enter")
        await until(pilot, lambda: table.row_count == 1)
        assert app.chosen_name == "rest"
        await pilot.press("p")
        await until(pilot, lambda: app.chosen and app.chosen.state == "paused")
        await pilot.press("escape")
        await until(pilot, lambda: table.row_count == 4)
        await pilot.press("s", "S")
        # By state, turned round: paused is before running, and so it is last.
        await until(pilot, lambda: list(table.rows)[-1].value == "rest")
        assert app.chosen_name == "rest"
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, Sheet))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, Sheet))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Sheet))
        assert "type: pull" in str(app.screen.query_one(Static).render())
        await pilot.press("q")
        await until(pilot, lambda: not isinstance(app.screen, Sheet))

    play(host, scene)


def test_a_daemon_that_goes_away_is_said_and_waited_for(host: Host) -> None:
    async def scene(app: TopApp, pilot: Pilot[None]) -> None:
        host.stop()
        await until(pilot, lambda: "no daemon answers" in text_of(app, "#head"))
        await until(pilot, lambda: app.screen_stack[0].has_class("-away"))
        assert app.query_one(QueueTable).row_count == 4
        await asyncio.to_thread(host.start)
        await until(pilot, lambda: app.away_since_s is None)
        await until(pilot, lambda: not app.screen_stack[0].has_class("-away"))
        await until(pilot, lambda: "no daemon answers" not in text_of(app, "#head"))

    play(host, scene, size=(80, 24))


def test_one_screen_as_text_and_what_cannot_be_as_one_line(host: Host) -> None:
    eventually_sync(lambda: books(host, "lost")["dead"] == 3)
    shown = host.ok("top", "--once", "--interval", "0.1", "--sort", "dead")
    lines = shown.splitlines()
    assert str(host.socket) in lines[0]
    assert re.match(r"accepted 9 \(0/s\)   delivered \d \(0/s\)   held \d   dead \d$", lines[1])
    assert lines[6].split()[:5] == ["queue", "state", "in/s", "out/s", "held"]
    assert lines[7].split()[0] == "lost"
    assert "dead letters of lost\n       3  false: exit code 1" in shown
    for arguments, code, says in (
        (("--sort", "size"), 2, "--sort is one of queue, state,"),
        ((), 2, "not a terminal: use --once"),
        (("--once", "--socket", "/nowhere"), 4, "no daemon"),
    ):
        done = host.command("top", *arguments)
        assert (done.returncode, done.stderr.count(b"\n")) == (code, 1)
        assert says in done.stderr.decode()
