import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.state.lock import CannotLock, StateLock


def test_second_daemon_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    with StateLock(tmp_path), pytest.raises(CannotLock) as caught:
        StateLock(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert f"process id {os.getpid()}" in str(caught.value)


def test_directory_is_free_after_release(tmp_path: Path) -> None:
    StateLock(tmp_path).release()
    with StateLock(tmp_path):
        pass


def test_refusal_leaves_the_holders_process_id_in_place(tmp_path: Path) -> None:
    with StateLock(tmp_path):
        for _ in range(2):
            with pytest.raises(CannotLock, match=f"process id {os.getpid()}"):
                StateLock(tmp_path)


def test_state_directory_is_created(tmp_path: Path) -> None:
    with StateLock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / "lock").read_text() == f"{os.getpid()}\n"


def test_shorter_process_id_replaces_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("12345678901\n")
    with StateLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_lock_file_without_a_process_id_is_refused_without_one(tmp_path: Path) -> None:
    with StateLock(tmp_path):
        (tmp_path / "lock").write_text("?")
        with pytest.raises(CannotLock, match="in use by another daemon"):
            StateLock(tmp_path)


def test_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotLock, match="cannot be used: Not a directory"):
        StateLock(tmp_path / "file" / "state")


def test_killed_holder_leaves_the_directory_free(tmp_path: Path) -> None:
    code = (
        "import sys, signal; from pathlib import Path; from daemon.state.lock import StateLock\n"
        "lock = StateLock(Path(sys.argv[1])); print('held', flush=True); signal.pause()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(CannotLock, match=f"process id {holder.pid}"):
        StateLock(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    with StateLock(tmp_path):
        pass
