"""Options of a write: what is wrong is said on the driver, with its name and what is possible."""

import pickle

import pytest
from pyspark.sql import types as t

from forebay.spark.options import OptionError, parse_duration, read_options
from forebay.spark.plan import SinkPlan, make_plan, needs_labels, with_labels

SCHEMA = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("body", t.StringType()),
        t.StructField("tier", t.IntegerType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("wall", t.TimestampNTZType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("pause", t.DecimalType(10, 2)),
    ]
)


def plan(schema: t.StructType = SCHEMA, /, **options: str) -> SinkPlan:
    return make_plan({"queue": "crm", **options}, schema)


def fields(*names: str) -> t.StructType:
    return t.StructType([t.StructField(name, t.StringType()) for name in names])


@pytest.mark.parametrize(
    "schema,chosen",
    [
        (fields("value", "payload", "x"), "payload"),
        (fields("x", "value"), "value"),
        (SCHEMA, "body"),
        (fields("Payload", "x"), "Payload"),
    ],
)
def test_the_payload_is_found(schema: t.StructType, chosen: str) -> None:
    assert plan(schema).payload == chosen


def test_which_column_is_the_payload_is_never_guessed() -> None:
    with pytest.raises(OptionError, match=r"'payload'.*forebay.spark.items; the columns are: a, b"):
        plan(fields("a", "b"))


@pytest.mark.parametrize(
    "options,says",
    [
        ({"queu": "x"}, r"option 'queu' is 'x'.*did you mean 'queue'"),
        ({"RunItem": "5"}, r"option 'runitem'.*did you mean 'runItems'"),
        ({"zzz": "5"}, r"option 'zzz'.*there are queue, payload"),
        ({"path": "here"}, r"option 'path' is 'here': there is no such option"),
        ({"runItems": "0"}, r"'runItems' is '0': a whole number, 1 to 4096"),
        ({"runItems": "4097"}, r"'runItems' is '4097'"),
        ({"runBytes": "many"}, r"'runBytes' is 'many': bytes or a size as 512Ki"),
        ({"timeout": "0"}, r"'timeout' is '0': a duration above 0, and at most 7d"),
        ({"timeout": "0s"}, r"'timeout' is '0s': a duration above 0"),
        ({"timeout": "8d"}, r"'timeout' is '8d': .*at most 7d"),
        ({"timeout": "9" * 400}, r"'timeout' .*at most 7d"),
        ({"delay": "9" * 16}, r"'delay' is '9+': at most \d+ seconds"),
        ({"delay": "9" * 400}, r"'delay' .*at most \d+ seconds"),
        ({"timeout": "soon"}, r"'timeout' is 'soon': seconds, or a duration"),
        ({"compression": "zip"}, r"'compression' is 'zip': snappy or none"),
        ({"headers": "x"}, r"'headers' is 'x': a JSON object of texts"),
        ({"headers": '{"a": 1}'}, r"'headers'.*a JSON object of texts"),
        ({"headers": '{"forebay-write": "1"}'}, r"'headers'.*is forebay's own"),
        ({"headers": '{"": "1"}'}, r"'headers'.*a header has no name"),
        ({"payload": "nothing"}, r"'payload' is 'nothing': there is no such column; there are: id"),
        ({"payload": "tags"}, r"'payload' is 'tags': the column is of type array<string>"),
        ({"key": "tags"}, r"'key' is 'tags': .* must be one of"),
        ({"priority": "pause"}, r"'priority' is 'pause': the column is of type decimal"),
        ({"due": "wall"}, r"'due' is 'wall': the column is of type timestamp_ntz"),
        ({"due": "at", "delay": "3s"}, r"'delay' is '3s': give delay or due, not both"),
        ({"delay": "later"}, r"'delay' is 'later': seconds, a duration .* or one of the columns"),
        ({"delay": "body"}, r"'delay' is 'body': the column is of type string"),
        ({"flow": "a", "flowColumn": "body"}, r"give flow or flowColumn, not both"),
        ({"flow": "f" * 256}, r"'flow'.*at most 255 bytes"),
        ({"retryOf": "id"}, r"'retryOf' is 'id': the column is of type bigint"),
        ({"flowColumn": "tier"}, r"'flowColumn' is 'tier': the column is of type int"),
        ({"txnAppId": "a"}, r"'txnVersion' is None: txnAppId and txnVersion go together"),
        ({"txnVersion": "1"}, r"'txnAppId' is None"),
        ({"txnAppId": "a", "txnVersion": "-1"}, r"'txnVersion' is '-1'"),
        ({"txnAppId": "a" * 256, "txnVersion": "1"}, r"'txnAppId'.*1 to 255 bytes"),
        ({"queue": "no such/name"}, r"'queue' is 'no such/name'.*is not a valid queue name"),
        ({"queue": ""}, r"'queue' is ''.*is needed"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        plan(SCHEMA, **options)


@pytest.mark.parametrize(
    "option", ["payload", "key", "retryOf", "flowColumn", "actionColumn", "priority", "delay"]
)
def test_a_name_that_several_columns_have_cannot_be_asked_for(option: str) -> None:
    twice = fields("body", "x", "x")
    with pytest.raises(OptionError, match=rf"'{option}' is 'x': there are 2 columns of this name"):
        plan(twice, **{"payload": "body", option: "x"})
    assert plan(twice, payload="body").payload == "body"


@pytest.mark.parametrize(
    "names,says", [(("payload", "payload"), "there are 2 columns"), (("x", "x"), "name the column")]
)
def test_a_payload_that_several_columns_may_be_is_never_guessed(
    names: tuple[str, ...], says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        plan(fields(*names))


def test_values_columns_and_labels() -> None:
    assert plan(priority="7").priority == 7
    assert plan(priority="TIER").priority_column == "tier"
    assert plan(delay="1m30s").delay_s == 90
    assert plan(delay="pause").delay_column == "pause"
    assert plan(due="at").due_column == "at"
    assert plan(due="id").due_column == "id"
    read = plan(runBytes="64Ki", txnAppId="a", txnVersion="0", headers='{"a":"b"}').options
    assert (read.run_bytes, read.app, read.version, read.headers) == (65536, "a", 0, {"a": "b"})
    read = plan(headers='{"a":"b"}', correlationId="run-7", traceparent="00-1-2-01").options
    assert read.headers == {"a": "b", "correlation_id": "run-7", "traceparent": "00-1-2-01"}


LABELS = {"now": 1, "7": 200}


def test_only_labels_need_the_daemon() -> None:
    assert not needs_labels(plan())
    assert not needs_labels(plan(priority="7"))
    assert not needs_labels(plan(priority="tier"))
    for label in ("now", "body"):
        assert needs_labels(plan(priority=label))


def test_a_label_is_what_the_daemon_says() -> None:
    told = with_labels(plan(priority="now"), LABELS)
    assert (told.priority, needs_labels(told)) == (1, False)
    column = with_labels(plan(priority="body"), LABELS)
    assert (column.priority_column, column.priority_labels) == ("body", LABELS)


@pytest.mark.parametrize("given", ["urgent", "256", "-1", "NOW"])
def test_a_label_that_the_daemon_does_not_know_is_refused(given: str) -> None:
    says = rf"'priority' is '{given}': it is no column, .*0 to 255, .* now \(1\), 7 \(200\)"
    with pytest.raises(OptionError, match=says):
        with_labels(plan(priority=given), LABELS)


def test_names_of_options_are_read_in_any_case() -> None:
    assert read_options({"QUEUE": "crm", "runitems": "5"}).run_items == 5


def test_a_timeout_that_is_given_holds_for_publishing_too() -> None:
    assert plan(timeout="5s").options.commit_timeout_s == 5
    assert plan().options.commit_timeout_s > plan().options.timeout_s


@pytest.mark.parametrize(
    "text,seconds", [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("1d1h", 90000)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration("timeout", text) == seconds


def test_what_items_has_prepared_gives_way_to_options() -> None:
    metadata = {"forebay": {"queue": "mail", "flowColumn": "flow", "priority": "3"}}
    schema = t.StructType(
        [
            t.StructField("payload", t.StringType(), metadata=metadata),
            t.StructField("flow", t.StringType()),
        ]
    )
    prepared = make_plan({}, schema)
    assert prepared.options.queue == "mail"
    assert (prepared.flow_column, prepared.priority) == ("flow", 3)
    other = make_plan({"queue": "crm", "flow": "x", "priority": "10"}, schema)
    assert (other.options.queue, other.options.flow, other.flow_column) == ("crm", "x", None)
    assert other.priority == 10


def test_a_plan_and_its_errors_travel_between_processes() -> None:
    made = plan(priority="tier")
    assert pickle.loads(pickle.dumps(made)) == made
    error = OptionError("runItems", "0", "at least 1")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.option) == (str(error), "runItems")
