"""Warm in Valkey, and in Redis where it is installed: the port's suite, and the model's scripts."""

import pytest
import trio
from hypothesis import HealthCheck, given, settings

pytest.register_assert_rewrite(
    "tests.conformance.warm_rig",
    "tests.conformance.warm_places",
    "tests.conformance.warm_leases",
    "tests.conformance.warm_moves",
    "tests.conformance.warm_waits",
    "tests.conformance.warm_scripts",
)

from tests.conformance.valkey_warm import valkey_rig  # noqa: E402
from tests.conformance.warm_rig import Check  # noqa: E402
from tests.conformance.warm_scripts import Player, Step, scripts  # noqa: E402
from tests.conformance.warm_suite import CHECKS  # noqa: E402
from tests.servers.valkey import binaries, shared_server  # noqa: E402

SERVERS = pytest.mark.parametrize("server", list(binaries()))


@SERVERS
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_valkey_warm(check: Check, server: str) -> None:
    async with valkey_rig(shared_server(server)) as rig:
        await check(rig)


@SERVERS
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(script=scripts)
def test_valkey_warm_agrees_with_the_model(script: list[Step], server: str) -> None:
    async def play() -> None:
        async with valkey_rig(shared_server(server)) as rig:
            await Player(rig).play(script)

    trio.run(play)
