"""The table of operations, and everything that is made from it."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.control.operation import Operation
from actors.control.table import OPERATIONS
from daemon.generate.__main__ import stale
from daemon.generate.reference import command_line
from forebay import Refused, connect
from tests.daemon.cli.commands import Host, running
from tests.eventually import eventually_sync

NOBODY = "http://127.0.0.1:9"


def test_generated_files_are_as_the_table_wants_them() -> None:
    assert stale() == [], "run python -m daemon.generate"


def test_names_are_a_group_and_a_verb() -> None:
    for name, operation in OPERATIONS.items():
        assert name == operation.about.name
        assert operation.about.group
        assert operation.about.verb


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_explains_itself(operation: type[Operation]) -> None:
    assert operation.summary().endswith(".")
    operation.read(operation.about.example)
    for name, field in operation.model_fields.items():
        if name not in ("key", "action"):
            assert field.description, name


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A daemon that knows what the examples speak of."""
    directory: Path = tmp_path_factory.mktemp("examples")
    queues = {
        "crm": {"handler": {"type": "http", "url": f"{NOBODY}/hook"}},
        "contacts": {"handler": {"type": "pull"}, "unique": "replace"},
    }
    with running(Host(directory, {"queues": queues})) as host:
        host.ok("queues", "add", "mail", "--set", "handler.type=pull")
        yield host


def prepare(host: Host, operation: type[Operation]) -> None:
    """What an example needs that another one takes away, or makes."""
    name = operation.about.name
    if name == "queues.add":
        host.command("queues", "rm", "mail", "--yes")
    elif name.startswith("queues."):
        host.command("queues", "add", "mail", "--set", "handler.type=pull")
    elif name.startswith("keys."):
        with connect(host.socket) as client:
            client.offer("contacts", "customer-17", "hello")
    elif name.startswith("streams."):
        with connect(host.socket) as client:
            client.claim("crm", "lake", after=0)
    elif name == "breakers.set":
        # A destination is known once a queue has sent to it.
        host.ok("push", "crm", stdin=b"{}\n")
        eventually_sync(lambda: NOBODY in host.ok("breakers", "ls", "--json"))


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_example_works_over_the_socket(host: Host, operation: type[Operation]) -> None:
    prepare(host, operation)
    with connect(host.socket) as client:
        if operation.about.group == "fleet":
            with pytest.raises(Refused, match="not part of a fleet"):
                client.control(operation.about.name, **operation.about.example)
            return
        answer = client.control(operation.about.name, **operation.about.example)
    view = operation.answer()
    if view is None:
        assert answer == {}
    else:
        view.model_validate(answer)


@pytest.mark.parametrize(
    "operation",
    [
        operation
        for operation in OPERATIONS.values()
        # The commands of a fleet are run by tests/daemon/cli/test_fleet_commands.py.
        if operation.about.has_command and operation.about.group != "fleet"
    ],
    ids=lambda operation: operation.about.name,
)
def test_the_example_works_as_a_command(host: Host, operation: type[Operation]) -> None:
    prepare(host, operation)
    words = shlex.split(command_line(operation))[1:]
    assert host.ok(*words)
    prepare(host, operation)
    for line in host.ok(*words, "--json").splitlines():
        assert isinstance(json.loads(line), dict)
