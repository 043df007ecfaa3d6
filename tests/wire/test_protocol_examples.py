"""The byte examples of docs/protocol.md are what the codec makes and what the daemon says."""

import re
from pathlib import Path

import pytest

from forebay import wire
from forebay.errors import CODES, RETRYABLE
from forebay.limits import FRAME_BODY_BYTES_MAX
from forebay.run import read_run
from forebay.wire import Kind, Outcome
from tests.wire.examples import make_examples
from tests.wire.harness import Served

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
_EXAMPLE = re.compile(r"^### ([^\n]+)\n\n```hex\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BYTES = re.compile(r"(?:[0-9a-f]{2})(?: [0-9a-f]{2})*(?=  |$)")


def read_examples() -> dict[str, bytes]:
    """The bytes of every example, by heading."""
    examples = {}
    for name, block in _EXAMPLE.findall(DOCUMENT):
        lines = [_BYTES.match(line) for line in block.splitlines()]
        assert all(lines), f"a line of {name} has no bytes"
        examples[name] = bytes.fromhex("".join(match[0] for match in lines if match))
    return examples


EXAMPLES = read_examples()


def test_every_example_is_in_the_document_once() -> None:
    assert [name for name, _ in _EXAMPLE.findall(DOCUMENT)] == list(make_examples())


@pytest.mark.parametrize("name", make_examples())
def test_document_shows_the_bytes_that_the_codec_makes(name: str) -> None:
    assert EXAMPLES[name].hex(" ") == make_examples()[name].hex(" ")


@pytest.mark.parametrize("name", ["PUSH with CRC-32C", "PUSH with CRC-32"])
def test_runs_of_the_document_can_be_read(name: str) -> None:
    run = read_run(EXAMPLES[name][12:])
    assert run.payloads() == [b'{"id":1}', b'{"id":22}']


async def test_daemon_answers_as_the_document_says(served: Served) -> None:
    client = await served.connect()
    await client.send(EXAMPLES["HELLO"])
    assert wire.frame(*await client.read()) == EXAMPLES["WELCOME"]
    await client.send(EXAMPLES["PUSH with CRC-32C"])
    assert wire.frame(*await client.read()) == EXAMPLES["ACK, stored"]
    served.spooler.answer = lambda _: Outcome.DUPLICATE
    await client.send(EXAMPLES["PUSH with CRC-32"])
    assert wire.frame(*await client.read()) == EXAMPLES["ACK, duplicate"]
    served.spooler.answer = lambda _: wire.read_error(EXAMPLES["ERROR, not fatal"][12:])
    await client.send(EXAMPLES["PUSH with CRC-32"])
    assert wire.frame(*await client.read()) == EXAMPLES["ERROR, not fatal"]
    await client.send(EXAMPLES["PING"])
    assert wire.frame(*await client.read()) == EXAMPLES["PONG"]
    await client.send(EXAMPLES["GOODBYE"])
    assert wire.frame(*await client.read()) == EXAMPLES["FAREWELL"]
    await client.read_end()


async def test_daemon_says_the_fatal_error_of_the_document(served: Served) -> None:
    client = await served.greeted()
    await client.send(b"\x00\x00\x00\x00\xff\x00\x00\x00\x05\x00\x00\x00")
    assert wire.frame(*await client.read()) == EXAMPLES["ERROR, fatal"]


def test_every_frame_type_is_in_the_table_with_its_number() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \|", DOCUMENT, re.MULTILINE)
    assert {name: int(number) for number, name in rows} == {kind.name: kind for kind in Kind}


def test_every_outcome_is_in_the_table_with_its_number() -> None:
    rows = re.findall(r"^\| (\d+) \| `([A-Z]+)` \|", DOCUMENT, re.MULTILINE)
    assert {name: int(number) for number, name in rows} == {kind.name: kind for kind in Outcome}


def test_every_code_is_in_the_table_and_says_whether_it_is_retryable() -> None:
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| (?:yes|no) \| (yes|no) \| (0|> 0) \|", DOCUMENT, re.MULTILINE
    )
    assert {code for code, _, _ in rows} == CODES
    assert {code for code, retryable, _ in rows if retryable == "yes"} == RETRYABLE


def test_length_over_which_a_push_is_a_bad_frame_is_right() -> None:
    assert f"{FRAME_BODY_BYTES_MAX:,} bytes" in DOCUMENT
