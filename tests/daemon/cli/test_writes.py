"""Staging, publishing, receipts and `forebay receipt`: a real client, a real daemon."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay import Client, Refused, connect, encode_run, read_run
from forebay.errors import Code
from forebay.receipts import StillPending
from forebay.stage_frames import pack_stage_head
from forebay.tally import Tally
from forebay.writes import WRITE_HEADER, Published, Sealed, new_write_id
from tests.daemon.cli.commands import FOREBAY, HANG_S, Host, running

CONFIG = {"auto_create_queues": False, "queues": {"crm": {}, "mail": {}}}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with running(Host(tmp_path, CONFIG)) as host:
        yield host


@pytest.fixture
def client(host: Host) -> Iterator[Client]:
    client = connect(host.socket, HANG_S)
    yield client
    client.abort()


def make_run(write: bytes, *payloads: str, queue: str = "crm") -> bytes:
    return encode_run(
        [payload.encode() for payload in payloads],
        queue=queue,
        headers={WRITE_HEADER: write.hex()},
    )


def stage(client: Client, write: bytes, *payloads: str) -> Sealed:
    """Two items a run."""
    staged = client.stage(write)
    for at in range(0, len(payloads), 2):
        staged.submit(make_run(write, *payloads[at : at + 2]))
    return staged.seal()


def publish(client: Client, *payloads: str) -> bytes:
    """A write of these."""
    write = new_write_id()
    client.publish(write, [stage(client, write, *payloads).stage])
    return write


def take_all(client: Client, queue: str = "crm") -> Counter[str]:
    """What can be had now, acknowledged."""
    taken: Counter[str] = Counter()
    # Between spool and warm there is a moment; nothing more comes when the books hold nothing.
    while client.stats()["queues"].get(queue, {}).get("held"):
        with client.lease(queue, 1000, wait_s=1) as items:
            taken.update(item.payload.decode() for item in items)
    return taken


def refused(client: Client, write: bytes, stages: list[bytes]) -> Code:
    with pytest.raises(Refused) as problem:
        client.publish(write, stages)
    return problem.value.code


def test_staged_items_are_seen_when_published_and_those_of_other_stages_never(
    host: Host, client: Client
) -> None:
    write = new_write_id()
    kept, other = stage(client, write, "a", "b", "c"), stage(client, write, "a", "b", "c")
    assert (kept.runs, kept.items) == (2, 3)
    host.until_books({"staged": 6})
    assert not client.lease("crm", 10)
    done = client.publish(write, [kept.stage])
    assert (done.outcome, done.write, done.items) == ("published", write, 3)
    assert take_all(client) == Counter("abc")
    host.until_books({"accepted": 3, "delivered": 3})
    assert client.publish(write, [kept.stage]) == done
    assert refused(client, new_write_id(), [other.stage]) == "NOT_FOUND"


def test_publish_without_stages_is_a_write_of_nothing(client: Client) -> None:
    write = new_write_id()
    assert client.publish(write, []).items == 0
    receipt = client.wait_receipt(write)
    assert (receipt.accepted, receipt.queues) == (0, ())


def test_missing_or_unsealed_stage_fails_the_publish_and_changes_nothing(
    host: Host, client: Client
) -> None:
    write = new_write_id()
    sealed = stage(client, write, "a")
    assert refused(client, write, [sealed.stage, new_write_id()]) == "NOT_FOUND"
    unsealed = client.stage(write)
    unsealed.submit(make_run(write, "b"))
    client.drain()
    assert refused(client, write, [sealed.stage, unsealed.id]) == "NOT_FOUND"
    host.until_books({"staged": 2})
    unsealed.seal()
    assert client.publish(write, [sealed.stage, unsealed.id]).items == 2


def test_version_that_was_published_is_a_duplicate_and_its_write_is_dropped(
    host: Host, client: Client
) -> None:
    first, second, third = new_write_id(), new_write_id(), new_write_id()
    done = client.publish(first, [stage(client, first, "a").stage], app="feed", version=7)
    again = client.publish(second, [stage(client, second, "a").stage], app="feed", version=7)
    assert again == Published("duplicate", first, 1, done.published_ms)
    older = client.publish(third, [stage(client, third, "a").stage], app="feed", version=3)
    assert (older.outcome, older.write) == ("duplicate", None)
    host.until_books({"accepted": 1, "held": 1}, "crm")


def test_aborted_write_is_dropped_and_takes_nothing_more(host: Host, client: Client) -> None:
    write = new_write_id()
    sealed = stage(client, write, "a", "b")
    assert client.abort_write(write).outcome == "aborted"
    host.until_books({})
    late = client.stage(write)
    late.submit(make_run(write, "c"))
    with pytest.raises(Refused, match="STAGE_OVER"):
        late.seal()
    assert refused(client, write, [sealed.stage]) == "STAGE_OVER"
    with pytest.raises(Refused, match="NOT_FOUND"):
        client.receipt(write)


def test_abort_after_publish_changes_nothing(host: Host, client: Client) -> None:
    write = publish(client, "a", "b")
    aborted = client.abort_write(write)
    assert (aborted.outcome, aborted.items) == ("published", 2)
    assert take_all(client) == Counter("ab")


def test_sealed_stage_takes_nothing_more(client: Client) -> None:
    write = new_write_id()
    sealed = stage(client, write, "a")
    head = pack_stage_head(write, sealed.stage)
    client._exchange.stage(head, make_run(write, "b"), 8, Tally())
    with pytest.raises(Refused, match="STAGE_OVER"):
        client.drain()


def test_run_that_does_not_name_its_write_is_a_bad_run(client: Client) -> None:
    write = new_write_id()
    for run in (encode_run([b"a"], queue="crm"), make_run(new_write_id(), "a")):
        staged = client.stage(write)
        staged.submit(run)
        with pytest.raises(Refused, match="BAD_RUN"):
            staged.seal()


ZEROS, ONES = bytes(16), b"\xff" * 16
ORDINARY = bytes.fromhex("0198c0de0a0070008000000000000001")


@pytest.mark.parametrize(
    "write, stage_id",
    [(ORDINARY, ZEROS), (ORDINARY, ONES), (ZEROS, ORDINARY), (ONES, ORDINARY), (ZEROS, ZEROS)],
)
def test_staging_under_a_reserved_id_is_a_bad_run_and_stores_nothing(
    host: Host, client: Client, write: bytes, stage_id: bytes
) -> None:
    client._exchange.stage(pack_stage_head(write, stage_id), make_run(write, "a"), 8, Tally())
    with pytest.raises(Refused, match=r"BAD_RUN.* is reserved"):
        client.drain()
    assert host.books() == {}


@pytest.mark.parametrize("write", [ORDINARY, ZEROS, ONES])
def test_moved_run_is_a_bad_run_and_stores_nothing(
    host: Host, client: Client, write: bytes
) -> None:
    """Older versions imported runs under these ids."""
    client._exchange.stage(pack_stage_head(ONES, ONES), make_run(write, "a"), 8, Tally())
    with pytest.raises(Refused, match=r"BAD_RUN.* is reserved"):
        client.drain()
    assert host.books() == {}


@pytest.mark.parametrize("reserved", [ZEROS.hex(), ONES.hex()])
def test_operations_on_reserved_ids_are_refused(client: Client, reserved: str) -> None:
    ordinary = ORDINARY.hex()
    for op, members in (
        ("stage.seal", {"write": reserved, "stage": ordinary, "runs": 0, "items": 0}),
        ("stage.seal", {"write": ordinary, "stage": reserved, "runs": 0, "items": 0}),
        ("stage.drop", {"write": reserved, "stage": ordinary}),
        ("stage.drop", {"write": ordinary, "stage": reserved}),
        ("write.publish", {"write": reserved, "stages": []}),
        ("write.publish", {"write": ordinary, "stages": [reserved]}),
        ("write.abort", {"write": reserved}),
        ("write.list", {"write": reserved}),
        ("receipt.show", {"write": reserved}),
    ):
        with pytest.raises(Refused, match=r"BAD_REQUEST.* is reserved"):
            client._exchange.perform(op, members)
    with pytest.raises(ValueError, match="is reserved"):
        client.stage(bytes.fromhex(reserved))


def test_unknown_queue_is_refused_before_anything_is_seen(client: Client) -> None:
    staged = client.stage(new_write_id())
    staged.submit(make_run(staged.write, "a", queue="nowhere"))
    with pytest.raises(Refused, match="UNKNOWN_QUEUE"):
        staged.seal()


def test_write_goes_on_through_a_daemon_that_is_killed_at_every_step(
    host: Host, client: Client
) -> None:
    def kill() -> None:
        host.stop(signal.SIGKILL)
        host.start()

    write = new_write_id()
    staged = client.stage(write)
    staged.submit(make_run(write, "a", "b"))
    client.drain()
    kill()
    staged.submit(make_run(write, "c"))
    kill()
    sealed = staged.seal()
    kill()
    done = client.publish(write, [sealed.stage], app="feed", version=1)
    kill()
    assert client.publish(write, [sealed.stage], app="feed", version=1) == done
    assert client.receipt(write).accepted == 3
    assert take_all(client) == Counter("abc")
    assert client.receipt(write).wait(timeout=HANG_S).delivered == 3


def test_receipt_balances_while_items_are_delivered_and_die(client: Client) -> None:
    write = publish(client, *"abcdef")
    other = publish(client, "x")
    receipt = client.receipt(write)
    assert (receipt.accepted, receipt.pending, receipt.queues) == (6, 6, ("crm",))
    with client.lease("crm", 5, wait_s=HANG_S) as items:
        items.nack(items[0], error="no such customer", permanent=True)
    with pytest.raises(StillPending) as late:
        client.wait_receipt(write, timeout=0)
    seen = late.value.receipt
    parts = seen.delivered + seen.dead + seen.dropped + seen.deleted + seen.lost + seen.pending
    assert seen.accepted == parts
    take_all(client)
    ended = client.wait_receipt(write, timeout=HANG_S)
    assert (ended.delivered, ended.dead, ended.pending) == (5, 1, 0)
    assert client.wait_receipt(other, timeout=HANG_S).delivered == 1


def test_command_shows_a_receipt_and_ends_with_1_while_something_is_pending(
    host: Host, client: Client
) -> None:
    write = new_write_id()
    client.publish(write, [stage(client, write, "a", "b").stage], app="[feed]", version=3)
    shown = host.command("receipt", write.hex())
    assert shown.returncode == 1
    lines = [line.split(maxsplit=1) for line in shown.stdout.decode().splitlines()]
    rows = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    assert (rows["write"], rows["queues"]) == (write.hex(), "crm")
    assert (rows["accepted"], rows["delivered"], rows["pending"]) == ("2", "0", "2")
    assert rows["transaction"] == "[feed], version 3"
    late = host.command("receipt", write.hex(), "--wait", "--timeout", "10ms", "--json")
    assert (late.returncode, json.loads(late.stdout)["pending"]) == (1, 2)
    assert late.stderr.decode() == "forebay: still pending after 10ms: 2 items\n"


def test_command_waits_until_nothing_is_pending_and_ends_with_0(host: Host, client: Client) -> None:
    write = publish(client, "a", "b")
    text = write.hex()
    dashed = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    command = [*FOREBAY, "receipt", dashed, "--wait", "--timeout", "0", "--json"]
    with subprocess.Popen(command, env=host.environment, stdout=subprocess.PIPE) as waiting:
        take_all(client)
        out, _ = waiting.communicate(timeout=HANG_S)
    assert waiting.returncode == 0
    assert json.loads(out) == client.receipt(write).as_dict()
    assert json.loads(out)["delivered"] == 2


def test_command_ends_with_1_when_something_is_dead(host: Host, client: Client) -> None:
    write = publish(client, "a")
    with client.lease("crm", 1, wait_s=HANG_S) as items:
        items.nack(items[0], error="no", permanent=True)
    shown = host.command("receipt", write.hex(), "--wait", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["dead"]) == (1, 1)


def test_command_ends_with_4_for_an_unknown_receipt_and_2_for_no_id(host: Host) -> None:
    unknown = host.command("receipt", new_write_id().hex())
    assert unknown.returncode == 4
    assert b"NOT_FOUND" in unknown.stderr
    wrong = host.command("receipt", "yesterday")
    assert wrong.returncode == 2
    assert b"use 32 hex digits" in wrong.stderr


def test_stats_have_a_column_for_what_is_staged_while_anything_is(
    host: Host, client: Client
) -> None:
    def columns() -> dict[str, str]:
        lines = host.ok("stats").splitlines()
        return dict(zip(lines[0].split(), lines[1].split(), strict=True))

    write = new_write_id()
    sealed = stage(client, write, "a", "b", "c")
    assert columns() == {
        "queue": "crm",
        "accepted": "0",
        "delivered": "0",
        "held": "0",
        "staged": "3",
    }
    client.publish(write, [sealed.stage])
    assert "staged" not in columns()


def test_open_writes_are_listed_and_those_that_are_over_only_if_asked_for(
    host: Host, client: Client
) -> None:
    assert host.ok("writes", "ls") == ""
    published, orphan = publish(client, "a"), new_write_id()
    stage(client, orphan, "a", "b", "c")
    unsealed = client.stage(orphan)
    unsealed.submit(make_run(orphan, "d", queue="mail"))
    client.drain()
    [listed] = map(json.loads, host.ok("writes", "ls", "--json").splitlines())
    heard_ms = listed.pop("heard_ms")
    assert heard_ms >= client.receipt(published).published_ms
    assert listed == {
        "write": orphan.hex(),
        "phase": "open",
        "stages": 2,
        "sealed": 1,
        "items": 4,
        "queues": ["crm", "mail"],
        "app": None,
        "version": None,
    }
    rows = host.ok("writes", "ls").splitlines()
    assert rows[0].split()[:5] == ["write", "phase", "items", "stages", "sealed"]
    assert rows[1].split()[:5] == [orphan.hex(), "open", "4", "2", "1"]
    assert len(rows) == 2
    lines = host.ok("writes", "ls", "--all", "--json").splitlines()
    everything = [json.loads(line) for line in lines]
    assert [(each["write"], each["phase"]) for each in everything] == [
        (orphan.hex(), "open"),
        (published.hex(), "published"),
    ]


def test_list_of_writes_says_how_many_it_leaves_out(host: Host, client: Client) -> None:
    for _ in range(3):
        publish(client, "a")
    newest = publish(client, "a")
    shown = host.command("writes", "ls", "--all", "-n", "1", "--json")
    assert json.loads(shown.stdout)["write"] == newest.hex()
    assert shown.stderr.decode() == "… and 3 with earlier activity: see --limit\n"


def test_command_aborts_a_write_whose_driver_is_gone(host: Host, client: Client) -> None:
    write = new_write_id()
    sealed = stage(client, write, "a", "b")
    unasked = host.command("writes", "abort", write.hex())
    assert unasked.returncode == 2
    assert b"Drop 2 staged items for crm" in unasked.stderr
    host.until_books({"staged": 2})
    done = f"{write.hex()} aborted: 2 items dropped\n"
    assert host.ok("writes", "abort", write.hex(), "--yes") == done
    host.until_books({})
    assert host.ok("writes", "ls") == ""
    assert refused(client, write, [sealed.stage]) == "STAGE_OVER"
    again = json.loads(host.ok("writes", "abort", write.hex(), "--yes", "--json"))
    assert again == {"write": write.hex(), "outcome": "aborted", "items": 2}


def test_command_aborts_no_write_that_is_published_or_unknown(host: Host, client: Client) -> None:
    published = publish(client, "a", "b")
    late = host.command("writes", "abort", published.hex(), "--yes")
    assert late.returncode == 1
    assert b"was published, 2 items: nothing changed" in late.stderr
    assert client.receipt(published).pending == 2
    unknown = new_write_id()
    assert host.command("writes", "abort", unknown.hex(), "--yes").returncode == 4
    # A mistyped id leaves nothing behind: whoever has it can still write.
    assert stage(client, unknown, "a").items == 1
    assert host.command("writes", "abort", "yesterday", "--yes").returncode == 2


def test_claim_is_read_again_by_another_client_and_acknowledged_by_the_next(
    host: Host, client: Client
) -> None:
    write = publish(client, *"abcde")
    claim = client.claim("crm", "reader", after=0)
    assert (claim.number, claim.items, claim.backlog) == (1, 5, 0)
    assert client.claim("crm", "reader", after=0) == claim
    seen = read_claim(client, 1, rows=1)
    assert seen == Counter("abcde")
    with connect(host.socket, HANG_S) as another:
        assert read_claim(another, 1) == seen
    status = client.stream_status("crm", "reader")
    assert (status.acknowledged, status.claim, status.items) == (0, 1, 5)
    assert client.claim("crm", "reader", after=1).number is None
    assert client.wait_receipt(write, timeout=HANG_S).delivered == 5
    with pytest.raises(Refused, match="NOT_FOUND"):
        client.fetch("crm", "reader", 1)
    with pytest.raises(Refused, match="BAD_REQUEST"):
        client.claim("crm", "reader", after=0)


def read_claim(client: Client, number: int, *, rows: int = 4096) -> Counter[str]:
    """Its payloads, so many rows at a time."""
    seen: Counter[str] = Counter()
    at: int | None = 0
    while at is not None:
        fetched = client.fetch("crm", "reader", number, first=at, rows=rows)
        assert [row.number for row in fetched.rows] == list(range(at, at + len(fetched.rows)))
        for row in fetched.rows:
            payloads = read_run(row.run).payloads()
            bits = (1 << len(payloads)) - 1 if row.bits is None else row.bits
            seen.update(each.decode() for i, each in enumerate(payloads) if bits >> i & 1)
        at = fetched.next
    return seen
