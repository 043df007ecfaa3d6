"""`forebay spool` on a spool with writes: what is held, staged, or dropped with its stage."""

import json
from pathlib import Path
from typing import Any

from forebay import Client, connect, encode_run
from forebay.writes import WRITE_HEADER, new_write_id
from tests.daemon.cli.commands import Host, running


def stage(client: Client, write: bytes, *payloads: str) -> bytes:
    """A sealed stage of one run."""
    part = client.stage(write)
    headers = {WRITE_HEADER: write.hex()}
    part.submit(encode_run([text.encode() for text in payloads], queue="crm", headers=headers))
    return part.seal().stage


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_spool_commands_tell_staged_from_held_and_leave_out_what_was_dropped(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    with running(host):
        with connect(host.socket) as client:
            published, open_write, aborted = (new_write_id() for _ in range(3))
            winner = stage(client, published, "a", "b")
            stage(client, published, "loser")
            client.publish(published, [winner])
            stage(client, open_write, "c", "d", "e")
            stage(client, aborted, "never")
            client.abort_write(aborted)
            client.push("crm", ["pushed"])
        look(host)
        assert host.stop() == 0
    look(host)
    assert "5 runs, 8 items: no damage" in host.ok("spool", "verify")
    everything = objects(host.ok("spool", "dump", "--all"))
    assert {item["payload"] for item in everything} >= {"loser", "never"}
    # The next start frees nothing of it, and says the same.
    assert "3 items held, 3 staged" in host.ok("spool", "repair")


def look(host: Host) -> None:
    rows = objects(host.ok("spool", "ls", "--json"))
    (row,) = [row for row in rows if row["state"] != "ready"]
    assert (row["runs"], row["items"], row["held"], row["staged"]) == (5, 8, 3, 3)
    items = objects(host.ok("spool", "dump"))
    assert {item["payload"]: item.get("staged", False) for item in items} == {
        "a": False,
        "b": False,
        "c": True,
        "d": True,
        "e": True,
        "pushed": False,
    }


def test_damaged_record_of_writes_is_found_by_verify(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host):
        with connect(host.socket) as client:
            write = new_write_id()
            client.publish(write, [stage(client, write, "a")])
        host.stop()
    log = host.state_dir / "spool" / "writes.log"
    log.write_bytes(log.read_bytes().replace(b"published", b"publixhed"))
    done = host.command("spool", "verify")
    assert done.returncode == 6
    assert "writes.log: 1 damaged line" in done.stdout.decode()
    (told, *_) = objects(host.command("spool", "verify", "--json").stdout.decode())
    assert told["file"] == "writes.log"
    assert "0 items held, 1 staged" in host.ok("spool", "repair")
    assert "no damage" in host.ok("spool", "verify")
