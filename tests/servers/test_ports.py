import socket
import subprocess
import sys

import pytest

from tests.servers.ports import free_port

BIND = "import socket, sys; socket.socket().bind(('127.0.0.1', int(sys.argv[1])))"
"""The look of another caller, here in another process."""


def test_port_is_kept_for_the_server_that_asked_for_it() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    other = subprocess.run([sys.executable, "-c", BIND, str(port)], capture_output=True)
    assert b"Address already in use" in other.stderr
    with (
        socket.create_server(("127.0.0.1", port)) as server,
        socket.create_connection(("127.0.0.1", port)) as client,
    ):
        accepted, _ = server.accept()
        with accepted:
            assert accepted.getpeername() == client.getsockname()
