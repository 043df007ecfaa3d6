"""Whatever is asked of the daemon, it answers, lives on, and keeps its books.

The cases are the same in each run; `make fuzz-control` makes others, and more of them.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from actors.config.http import HttpHandler
from actors.config.queue import QueueSettings
from actors.config.schedules import ScheduleSettings
from actors.config.triggers import QueueTrigger
from tests.fuzz.control import operations, routes
from tests.fuzz.control.fuzzing import Fuzzer

CASES_MIN: Final = 1500
"""Of each store."""
EXAMPLES: Final = 600
MALFORMED: Final = ("BAD_REQUEST", "400", "422")
EXPECTED: Final = {
    "sqlite": {"fleet.ls: BAD_REQUEST", "fleet.rm: BAD_REQUEST"},
    "postgres": set(),
}
"""A daemon without PostgreSQL is not part of a fleet."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def fuzzer(request: pytest.FixtureRequest) -> Iterator[Fuzzer]:
    fuzzer = Fuzzer(request.param)
    yield fuzzer
    fuzzer.close()


def test_every_operation_and_route_is_described(fuzzer: Fuzzer) -> None:
    assert fuzzer.world.operations() == operations.OPERATIONS.keys()
    assert routes.missing(fuzzer.world.document) == []


def test_every_setting_is_described() -> None:
    assert operations.QUEUE_SETTINGS.members.keys() == QueueSettings.model_fields.keys()
    assert operations.HANDLER.members.keys() == HttpHandler.model_fields.keys()
    assert operations.SCHEDULE_CHANGE.members.keys() == ScheduleSettings.model_fields.keys()
    assert operations.TRIGGER_CHANGE.members.keys() == QueueTrigger.model_fields.keys()


def test_plain_requests_are_well_formed(fuzzer: Fuzzer) -> None:
    """Odd ones differ from them in a member or two, so that they get past most of the checks."""
    before = fuzzer.world.answers.copy()
    fuzzer.send_plain_ones()
    found = {f"{name}: {answer}" for name, answer in fuzzer.world.answers - before}
    assert {one for one in found if one.endswith(MALFORMED)} == EXPECTED[fuzzer.name]


def test_odd_requests_break_nothing(fuzzer: Fuzzer) -> None:
    fuzzer.run(EXAMPLES, seed_=None, may_restart=False)
    fuzzer.end()
    assert fuzzer.cases >= CASES_MIN
