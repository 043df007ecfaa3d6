"""What a read may be told, and how a claim is dealt out: decisions that need neither Spark nor a
daemon."""

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from forebay.limits import CLAIM_ITEMS_MAX
from forebay.spark.options import OptionError
from forebay.spark.source_options import read_options, stream_options
from forebay.spark.stream_reader import deal, explain, items_within
from forebay.streams import StreamStatus

STREAM = {"queue": "crm", "consumer": "nightly"}


def test_options_are_read_in_any_case() -> None:
    options = stream_options({**STREAM, "maxitemspertrigger": "7", "PARTITIONS": "3"})
    assert (options.queue, options.consumer) == ("crm", "nightly")
    assert (options.items, options.partitions) == (7, 3)
    options = stream_options({**STREAM, "socket": "/s", "timeout": "1m30s"})
    assert (options.socket, options.timeout_s) == ("/s", 90)


def test_a_stream_without_consumer_is_told_why_it_needs_one() -> None:
    with pytest.raises(OptionError, match=r"'consumer'.*Spark does not tell.*stays the same"):
        stream_options({"queue": "crm"})


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"queue": ""}, "the queue to read is needed"),
        ({"queue": "a b"}, "not a valid queue name"),
        ({"consumer": "x" * 101}, "1 to 100 bytes"),
        ({"maxItemsPerTrigger": "0"}, "1 to 16777216"),
        ({"maxItemsPerTrigger": "many"}, "a whole number"),
        ({"partitions": "-1"}, "a whole number"),
        ({"timeout": "soon"}, "a duration"),
        ({"timeout": "0"}, "a duration above 0"),
        ({"maxItemPerTrigger": "5"}, "did you mean 'maxItemsPerTrigger'"),
        ({"state": "dead"}, "no such option"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(wrong: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        stream_options({**STREAM, **wrong})


@pytest.mark.parametrize(
    "given, text",
    [
        ({}, "the queue to read is needed"),
        ({"queue": "crm", "state": "lost"}, "one of queued, cold, dead, history"),
        ({"queue": "crm", "error": "timeout"}, "chooses among dead letters"),
        ({"queue": "crm", "consumer": "x"}, "no such option"),
        ({"queue": "crm", "timeout": "0ms"}, "a duration above 0"),
    ],
)
def test_a_wrong_option_of_a_look_is_named(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        read_options(given)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100, 4096])
@pytest.mark.parametrize("partitions", [1, 2, 3, 8])
def test_every_row_is_dealt_once(rows: int, partitions: int) -> None:
    parts = deal(5, rows, partitions)
    assert [row for part in parts for row in range(part.first, part.last)] == list(range(rows))
    assert len(parts) == min(rows, partitions)
    sizes = [part.last - part.first for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert {part.claim for part in parts} == {5}


def test_a_claim_of_which_nothing_is_left_has_no_parts() -> None:
    assert deal(5, 0, 2) == []


def test_sparks_limits() -> None:
    assert items_within(ReadMaxRows(10)) == 10
    assert items_within(ReadMaxRows(2**40)) == CLAIM_ITEMS_MAX
    assert items_within(ReadAllAvailable()) == CLAIM_ITEMS_MAX
    with pytest.raises(ValueError, match="ReadMaxBytes"):
        items_within(ReadMaxBytes(1))
    with pytest.raises(ValueError, match="ReadLimit"):
        items_within(ReadLimit())


def test_a_checkpoint_that_is_not_the_consumers_is_explained() -> None:
    behind = explain("crm", "nightly", 2, StreamStatus(5, 6, 1, 1, 1, 0))
    assert "up to claim 2, and is behind" in behind
    assert "up to 5 were acknowledged" in behind
    assert "client.stream_drop('crm', 'nightly')" in behind
    assert "is ahead" in explain("crm", "nightly", 9, StreamStatus(5, None, 0, 0, 0, 0))
