"""The backlog against a simple model: order, bounds, and nothing lost between memory and disk."""

from hypothesis import given
from hypothesis import strategies as st

from actors.model.runs import Place, StoredRun
from actors.spooler.backlog import Backlog, Places
from tests.actors.spooler.spooling import make_run

HEAD, DATA = make_run(items=1, size=10)


def run_at(position: int, priority: int = 5, queue: str = "q", due_ms: int = 0) -> StoredRun:
    head, data = make_run(queue, items=1, size=10, priority=priority, due_ms=due_ms)
    return StoredRun(position, len(data), head, data)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from([0, 5, 9])),
            st.tuples(st.just("take"), st.integers(1, 4)),
            st.tuples(st.just("read"), st.integers(1, 4)),
            st.tuples(st.just("drop"), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(1, 5),
)
def test_backlog_agrees_with_a_sorted_list(
    steps: list[tuple[str, int]], memory_runs_max: int
) -> None:
    """Takes come in order of (priority, position); drops are the oldest; memory stays bounded."""
    backlog = Backlog(memory_runs_max, 1 << 20)
    stored: dict[int, StoredRun] = {}
    waiting: list[tuple[int, int]] = []
    position = 0
    for step, number in steps:
        match step:
            case "add":
                position += 1
                stored[position] = run_at(position, priority=number)
                backlog.add(stored[position])
                waiting.append((number, position))
            case "take":
                taken = [(run.head.priority, run.position) for run in backlog.take("q", number, 99)]
                assert taken == sorted(waiting)[: len(taken)]
                waiting = [entry for entry in waiting if entry not in taken]
            case "read":
                lane = backlog.lane_to_read("q")
                if lane is not None:
                    places = backlog.begin_reading(lane, number, 1 << 20)
                    backlog.end_reading(lane, [], places)
                    again = backlog.begin_reading(lane, number, 1 << 20)
                    assert again == places
                    backlog.end_reading(lane, [stored[place.position] for place in places], [])
            case "drop":
                dropped = backlog.drop_oldest("q")
                oldest = min((entry[::-1] for entry in waiting), default=None)
                assert (dropped and dropped.place.position) == (oldest and oldest[0])
                if oldest is not None:
                    waiting.remove(oldest[::-1])
        assert backlog.memory_runs <= memory_runs_max + 4
    in_memory = sum(len(lane.memory) for lane in backlog.queue("q").lanes.values())
    assert backlog.memory_runs == in_memory
    assert backlog.memory_bytes == in_memory * len(DATA)


def test_what_was_dropped_in_vain_is_the_oldest_again() -> None:
    backlog = Backlog(1, 1 << 20)
    for position in (1, 2, 3):
        backlog.add(run_at(position))
    in_memory = backlog.drop_oldest("q")
    on_disk = backlog.drop_oldest("q")
    assert in_memory is not None
    assert on_disk is not None
    assert in_memory.run is not None
    assert on_disk.run is None
    backlog.undrop(on_disk)
    backlog.undrop(in_memory)
    again = [backlog.drop_oldest("q") for _ in range(4)]
    assert [dropped and dropped.place.position for dropped in again] == [1, 2, 3, None]


def test_lane_that_is_being_read_is_not_dropped_from() -> None:
    backlog = Backlog(1, 1)
    backlog.add(run_at(1))
    lane = backlog.lane_to_read("q")
    assert lane is not None
    places = backlog.begin_reading(lane, 1, 1)
    assert [place.position for place in places] == [1]
    assert backlog.take("q", 1, 1) == []
    assert backlog.lane_to_read("q") is None
    assert backlog.drop_oldest("q") is None


def test_run_that_was_given_back_for_later_waits_and_then_joins_its_lane() -> None:
    backlog = Backlog(10, 1 << 20)
    backlog.add_later("q", 5, 100, Place(1, 10, 1))
    backlog.add_later("q", 5, 50, Place(2, 10, 1))
    backlog.add(run_at(3))
    assert backlog.queue("q").scheduled_items == 2
    assert backlog.wake_due(49) == []
    assert backlog.wake_due(100) == ["q"]
    assert backlog.queue("q").scheduled_items == 0
    assert [run.position for run in backlog.take("q", 9, 1 << 20)] == [3]
    lane = backlog.lane_to_read("q")
    assert lane is not None
    assert [place.position for place in lane.disk.peek(9, 1 << 20)] == [2, 1]


def test_take_stops_before_more_items_than_wanted() -> None:
    backlog = Backlog(10, 1 << 20)
    for position in range(3):
        backlog.add(run_at(position))
    items = run_at(0).head.count
    assert len(backlog.take("q", 9, 1 << 20, items_max=2 * items)) == 2
    assert len(backlog.take("q", 9, 1 << 20, items_max=0)) == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=30))
def test_places_are_a_queue_that_gives_room_back(steps: list[tuple[bool, int]]) -> None:
    places = Places()
    model: list[Place] = []
    position = 0
    for is_append, count in steps:
        if is_append:
            for _ in range(count):
                position += 1
                places.append(position, position % 100, 1)
                model.append(Place(position, position % 100, 1))
        else:
            count = min(count, len(model))
            places.drop(count)
            del model[:count]
            if model and count:
                places.put_first(Place(0, 7, 2))
                assert places.peek(1, 0) == [Place(0, 7, 2)]
                places.drop(1)
        assert len(places) == len(model)
        assert places.peek(5, 1 << 20) == model[:5]
        assert len(places._positions) <= 2 * max(len(model), Places.COMPACT_MIN) + 3000


def test_peek_gives_one_place_however_large() -> None:
    places = Places()
    places.append(1, 500, 1)
    places.append(2, 500, 1)
    assert [place.position for place in places.peek(10, 100)] == [1]
