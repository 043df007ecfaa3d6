"""What a fleet limits together: one rate, one breaker, so many trials; alone without a server.

The clock is trio's, stands still until it is moved on, and scripts take it for the server's. It may
be moved on while a step is under way: so deadlines are far.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.breaker.breaker import Admission, Breakers, SendOutcome
from actors.config.queue import BreakerSettings
from actors.fleet.breakers import HOLD_S, FleetBreakers, FleetState
from actors.model.rates import Rate
from actors.workers.rate import ALONE_S, Destinations, TokenBucket, Wish
from daemon.stores.bridge import Bridge
from daemon.stores.valkey.server import Server, ValkeySettings
from daemon.stores.valkey.shared_limits import COUNT_S, COUNTS, SharedBreaker, SharedRate
from tests.servers.valkey import ValkeyServer, new_prefix, shared_server, valkey_server

SETTINGS = BreakerSettings(threshold=3, reset_timeout=30.0, half_open_probes=2)


def now_ms() -> int:
    return 10**12 + round(trio.current_time() * 1000)


@asynccontextmanager
async def opened(server: ValkeyServer | None = None) -> AsyncIterator[Server]:
    async with Bridge() as bridge:
        settings = ValkeySettings(
            (server or shared_server()).url, timeout_s=10**6, prefix=new_prefix()
        )
        found = Server(settings, bridge)
        try:
            yield found
        finally:
            await found.close()


# Rates.


def shared_rate(server: Server, number: int = 0) -> SharedRate:
    return SharedRate(server, bytes([number]) * 16, now_ms)


def wish(items: int, *, on_credit: bool = False) -> Wish:
    """To a bucket of 20, at 10 a second."""
    return Wish(10, 20, items, items, on_credit)


async def test_rate_is_one_for_all(mock_clock: MockClock) -> None:
    async with opened() as server:
        one, two = shared_rate(server, 1), shared_rate(server, 2)
        assert await one.take("d", wish(15)) == (15, 0)
        assert await two.take("d", wish(15)) == (0, 1.0)
        assert await two.take("other", wish(15)) == (15, 0)
        assert await two.take("d", wish(5)) == (5, 0)
        mock_clock.jump(1.0)
        assert await one.take("d", wish(11)) == (0, 0.1)
        assert await one.take("d", wish(-3, on_credit=True)) == (-3, 0)
        assert await two.take("d", wish(11)) == (11, 0)
        mock_clock.jump(1000.0)
        assert await two.take("d", wish(20)) == (20, 0)
        assert await one.take("d", wish(1)) == (0, 0.1)


async def test_turn_takes_what_is_there(mock_clock: MockClock) -> None:
    async with opened() as server:
        shared = shared_rate(server)
        assert await shared.take("d", Wish(10, 20, 5, 15)) == (15, 0)
        assert await shared.take("d", Wish(10, 20, 5, 15)) == (5, 0)
        assert await shared.take("d", Wish(10, 20, 5, 15)) == (0, 0.5)
        mock_clock.jump(0.75)
        assert await shared.take("d", Wish(10, 20, 5, 15)) == (7, 0)
        assert await shared.take("d", Wish(10, 20, 1, 15)) == (0, 0.05)


async def test_reservations_are_served_before_the_line(mock_clock: MockClock) -> None:
    async with opened() as server:
        one, two = shared_rate(server, 1), shared_rate(server, 2)
        assert await one.take("d", wish(20)) == (20, 0)
        assert await one.take("d", wish(1, on_credit=True)) == (1, 0.1)
        assert await two.take("d", wish(1, on_credit=True)) == (1, 0.2)
        assert await two.take("d", wish(1)) == (0, 0.3)
        assert await one.take("d", wish(-1, on_credit=True)) == (-1, 0.1)
        mock_clock.jump(0.2)
        assert await two.take("d", wish(1)) == (1, 0)


async def test_asking_often_does_not_change_the_rate(mock_clock: MockClock) -> None:
    """The tokens of a millisecond are far less than what a rounded number would keep."""
    slow = Wish(1 / 86_400, 1, 1, 1)
    async with opened() as server:
        shared = shared_rate(server)
        assert (await shared.take("d", slow)).items == 1
        for _ in range(50):
            mock_clock.jump(0.01)
            assert (await shared.take("d", slow)).items == 0
        assert (await shared.take("d", slow)).wait_s == pytest.approx(86_399.5)
        mock_clock.jump(86_399.5)
        assert (await shared.take("d", slow)).items == 1


async def test_clock_that_is_set_back_does_not_stop_the_rate(mock_clock: MockClock) -> None:
    ahead_ms = 10**9
    async with opened() as server:
        shared = SharedRate(server, bytes(16), lambda: now_ms() + ahead_ms)
        assert await shared.take("d", wish(20)) == (20, 0)
        ahead_ms = 0
        assert await shared.take("d", wish(1)) == (0, 0.1)
        mock_clock.jump(0.1)
        assert await shared.take("d", wish(1)) == (1, 0)


async def take(bucket: TokenBucket, items: int) -> None:
    async def take_all(allowed: int) -> int:
        nonlocal items
        items -= allowed
        return allowed

    while items:
        await bucket.take_turn(items, take_all)


async def test_buckets_of_two_daemons_keep_the_rate_together(mock_clock: MockClock) -> None:
    rate, batch, wanted = 100.0, 25, 1000
    went = 0
    async with opened() as server:
        rates = [
            Destinations(shared_rate(server, number)).join("q", "d", Rate(rate))
            for number in range(2)
        ]

        async def work(bucket: TokenBucket) -> None:
            nonlocal went
            while went < wanted:
                await take(bucket, batch)
                went += batch

        async with trio.open_nursery() as nursery:
            for each in rates * 2:
                nursery.start_soon(work, each.items)
            with trio.fail_after(10**4):
                while went < wanted:
                    await wait_all_tasks_blocked()
                    assert went <= rate + rate * trio.current_time()
                    mock_clock.jump(0.01)
            nursery.cancel_scope.cancel()
        assert trio.current_time() >= (wanted - rate) / rate


async def test_items_and_requests_have_buckets_of_their_own(mock_clock: MockClock) -> None:
    async with opened() as server:
        destinations = Destinations(shared_rate(server))
        destinations.join("a", "d", Rate(10))
        rate = destinations.join("b", "d", Rate(2, 1, "requests"))
        shared = shared_rate(server, 1)

        async def take_four(allowed: int) -> int:
            assert allowed == 4
            return 4

        await rate.take_turn(4, take_four)
        await rate.requests.reserve()
        assert await shared.take("items d", Wish(10, 10, 6, 10)) == (6, 0)
        assert await shared.take("requests d", Wish(2, 2, 1, 1)) == (0, 0.5)


async def test_what_a_turn_did_not_use_is_given_back(mock_clock: MockClock) -> None:
    async with opened() as server:
        shared = shared_rate(server)
        bucket = TokenBucket("d", shared)
        bucket.change(Rate(10, burst=20))

        async def take_three(allowed: int) -> int:
            assert allowed == 20
            assert await shared.take("d", wish(1)) == (0, 0.1)
            return 3

        await bucket.take_turn(20, take_three)
        assert await shared.take("d", wish(17)) == (17, 0)
        assert await shared.take("d", wish(1)) == (0, 0.1)


async def test_reservation_that_is_cancelled_is_given_back(mock_clock: MockClock) -> None:
    async with opened() as server:
        shared = shared_rate(server)
        bucket = TokenBucket("d", shared)
        bucket.change(Rate(10, burst=20))
        await take(bucket, 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bucket.reserve)
            with trio.fail_after(10**4):
                while await shared.take("d", wish(1)) == (0, 0.1):
                    await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked(0.02)
            nursery.cancel_scope.cancel()
        assert await shared.take("d", wish(1)) == (0, 0.1)


async def test_daemons_are_counted_while_they_say_so(mock_clock: MockClock) -> None:
    async with opened() as server:
        fleet = [shared_rate(server, number) for number in range(3)]
        assert [each.daemons for each in fleet] == [1, 1, 1]
        for each in fleet * 2:
            await each.count()
        assert [each.daemons for each in fleet] == [3, 3, 3]
        # One of them is silent from now on.
        for _ in range(2 * COUNTS):
            mock_clock.jump(COUNT_S)
            for each in fleet[:2]:
                await each.count()
        assert [each.daemons for each in fleet] == [2, 2, 3]


async def test_server_that_has_forgotten_does_not_make_a_daemon_alone(
    mock_clock: MockClock,
) -> None:
    async with opened() as server:
        fleet = [shared_rate(server, number) for number in range(3)]
        for each in fleet * 2:
            await each.count()
        await server.command("DEL", f"{server.settings.prefix}:daemons")
        await fleet[0].count()
        assert fleet[0].daemons == 3


async def test_rate_goes_on_alone_at_its_share_and_comes_back(mock_clock: MockClock) -> None:
    with valkey_server() as own:
        async with opened(own) as server:
            fleet = [shared_rate(server, number) for number in range(2)]
            for each in fleet * 2:
                await each.count()
            bucket = TokenBucket("d", fleet[0])
            bucket.change(Rate(10, burst=20))
            await take(bucket, 20)
            own.kill()
            began = trio.current_time()
            # The fleet has just used the tokens. Half of ten per second is this daemon's share.
            for number in range(1, 4):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(take, bucket, 5)
                    with trio.fail_after(10**4):
                        while nursery.child_tasks:
                            await wait_all_tasks_blocked(0.02)
                            mock_clock.jump(0.1)
                assert trio.current_time() >= began + number - 0.001
                assert trio.current_time() <= began + number + 0.3
            own.start()
            mock_clock.jump(ALONE_S)
            await take(bucket, 20)
            assert await fleet[0].take("d", wish(1)) == (0, 0.1)


# Breakers.


async def test_breaker_is_one_for_all(mock_clock: MockClock) -> None:
    async with opened() as server:
        one, two = (SharedBreaker(server, bytes([n]) * 16, now_ms) for n in (1, 2))
        closed = FleetState(is_closed=True)
        assert await two.states(["d", "e"]) == {"d": closed, "e": closed}
        assert await two.ask("d", 2, 30.0) == 0
        await one.opened("d", 30.0)
        await two.opened("d", 10.0)
        assert await two.states(["d", "e"]) == {"d": FleetState(False, 30.0), "e": closed}
        mock_clock.jump(29.9)
        assert await two.ask("d", 2, 30.0) == 0
        mock_clock.jump(0.1)
        assert await two.states(["d"]) == {"d": FleetState(False, 0.0)}
        assert (await one.ask("d", 1, 30.0), await two.ask("d", 2, 30.0)) == (1, 1)
        assert (await one.ask("d", 2, 30.0), await two.ask("d", 2, 30.0)) == (0, 0)
        tried = partial(one.tried, "d", probes=2, reset_s=30.0)
        assert await tried(ok=True) == FleetState(False, 0.0)
        assert await tried(ok=True) == FleetState(False, 0.0), "it had one only"
        assert await two.ask("d", 2, 30.0) == 0
        # The other has died with its trial.
        mock_clock.jump(30.0)
        assert await one.ask("d", 2, 30.0) == 1
        assert await tried(ok=False) == FleetState(False, 30.0)
        mock_clock.jump(30.0)
        assert await one.ask("d", 2, 30.0) == 2
        assert await tried(ok=True) == FleetState(False, 0.0)
        assert await tried(ok=True) == closed
        assert await tried(ok=False) == closed, "too late"


class Daemon:
    def __init__(self, server: Server, number: int) -> None:
        self.breakers = Breakers()
        self.breakers.name("d", SETTINGS)
        self.fleet = FleetBreakers(
            self.breakers, SharedBreaker(server, bytes([number]) * 16, now_ms)
        )

    @property
    def phase(self) -> str:
        return self.breakers.state("d").phase

    def admit(self) -> Admission | None:
        return self.breakers.admit_nowait("d")

    def report(self, admission: Admission | None, *, ok: bool) -> None:
        assert admission is not None
        self.breakers.report(SendOutcome(admission, ok, "" if ok else "down"))

    def fail(self) -> None:
        for _ in range(SETTINGS.threshold):
            self.report(self.admit(), ok=False)


@asynccontextmanager
async def daemons(count: int, own: ValkeyServer | None = None) -> AsyncIterator[list[Daemon]]:
    async with opened(own) as server, trio.open_nursery() as nursery:
        found = [Daemon(server, number) for number in range(count)]
        for each in found:
            nursery.start_soon(each.breakers.run)
            await each.fleet.sync()
        yield found
        nursery.cancel_scope.cancel()


async def sync(fleet: list[Daemon]) -> None:
    for daemon in fleet:
        await daemon.fleet.sync()
    await wait_all_tasks_blocked()


async def test_what_one_finds_out_all_know(mock_clock: MockClock) -> None:
    async with daemons(5) as fleet:
        fleet[0].fail()
        await sync(fleet)
        assert {daemon.phase for daemon in fleet} == {"open"}
        assert fleet[3].admit() is None


async def test_fleet_makes_as_many_trials_as_one(mock_clock: MockClock) -> None:
    async with daemons(5) as fleet:
        fleet[0].fail()
        await sync(fleet)
        mock_clock.jump(SETTINGS.reset_timeout)
        await wait_all_tasks_blocked()
        assert {daemon.phase for daemon in fleet} == {"open"}, "nobody has asked yet"
        await sync(fleet)
        trials = [(daemon, daemon.admit()) for daemon in fleet for _ in range(3)]
        admitted = [(daemon, trial) for daemon, trial in trials if trial is not None]
        assert len(admitted) == SETTINGS.half_open_probes
        for daemon, trial in admitted:
            daemon.report(trial, ok=True)
        assert fleet[0].phase == "half_open"
        await sync(fleet)
        assert {daemon.phase for daemon in fleet} == {"closed"}


async def test_one_bad_trial_is_enough_for_all(mock_clock: MockClock) -> None:
    async with daemons(3) as fleet:
        fleet[1].fail()
        await sync(fleet)
        mock_clock.jump(SETTINGS.reset_timeout)
        await sync(fleet)
        first, second = fleet[0].admit(), fleet[0].admit()
        fleet[0].report(first, ok=True)
        fleet[0].report(second, ok=False)
        await sync(fleet)
        assert {daemon.phase for daemon in fleet} == {"open"}
        mock_clock.jump(SETTINGS.reset_timeout - 0.1)
        await sync(fleet)
        assert {daemon.phase for daemon in fleet} == {"open"}


async def test_daemon_with_nothing_to_send_does_not_keep_others_from_trying(
    mock_clock: MockClock,
) -> None:
    async with daemons(2) as fleet:
        fleet[0].fail()
        await sync(fleet)
        mock_clock.jump(SETTINGS.reset_timeout)
        await sync(fleet)
        assert [daemon.phase for daemon in fleet] == ["half_open", "open"]
        given_up = fleet[0].admit()
        assert given_up is not None
        mock_clock.jump(HOLD_S)
        fleet[0].breakers.give_up(given_up)
        await wait_all_tasks_blocked()
        assert [daemon.phase for daemon in fleet] == ["open", "open"]
        await sync(fleet[::-1])
        assert [daemon.phase for daemon in fleet] == ["open", "half_open"]


async def test_operators_word_stays_where_it_was_said(mock_clock: MockClock) -> None:
    async with daemons(2) as fleet:
        fleet[0].breakers.force("d", "open")
        await sync(fleet)
        assert [daemon.phase for daemon in fleet] == ["open", "closed"]
        fleet[1].fail()
        await sync(fleet)
        mock_clock.jump(SETTINGS.reset_timeout)
        await sync(fleet)
        assert fleet[0].breakers.state("d").is_forced
        assert fleet[1].phase == "half_open"


async def test_each_goes_on_alone_and_comes_back(mock_clock: MockClock) -> None:
    with valkey_server() as own:
        async with daemons(2, own) as fleet:
            fleet[0].fail()
            await sync(fleet)
            own.kill()
            async with trio.open_nursery() as nursery:
                for daemon in fleet:
                    nursery.start_soon(daemon.fleet.run)
                with trio.fail_after(10**4):
                    while any(daemon.breakers.is_led for daemon in fleet):
                        await trio.lowlevel.checkpoint()
                mock_clock.jump(SETTINGS.reset_timeout)
                await wait_all_tasks_blocked()
                assert {daemon.phase for daemon in fleet} == {"half_open"}
                nursery.cancel_scope.cancel()
            for _ in range(SETTINGS.half_open_probes):
                fleet[1].report(fleet[1].admit(), ok=True)
            assert fleet[1].phase == "closed"
            fleet[0].report(fleet[0].admit(), ok=False)
            own.start()
            await sync(fleet)
            assert {daemon.phase for daemon in fleet} == {"open"}, "what is open is told first"


@pytest.mark.parametrize("rate", [0.37, 3, 977.7, 1e6])
async def test_shared_rate_holds_in_the_mean(mock_clock: MockClock, rate: float) -> None:
    async with opened() as server:
        shared = shared_rate(server)
        took = 0
        for items in (1, 7, 2, 10, 1, 10, 3) * 3:
            while not (granted := await shared.take("d", Wish(rate, 10, items, items))).items:
                mock_clock.jump(granted.wait_s + 0.001)
            took += items
        assert trio.current_time() >= (took - 10) / rate * (1 - 1e-6)
        assert trio.current_time() <= took / rate + 0.1
