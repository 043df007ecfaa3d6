"""Secrets are read from where their references say, or the problem is named."""

import os
from pathlib import Path
from typing import Any

import pytest
import structlog

from actors.config.secrets import Secret
from actors.config.settings import Settings
from actors.model.secret_values import SECRET_VALUES
from daemon.config import secrets
from daemon.config.secrets import SECRET_BYTES_MAX, read_secrets
from daemon.errors import ConfigError

HUSH = "hush-hush-4711"


def secret(**given: Any) -> Secret:
    return Secret.model_validate(given)


def value_of(**given: Any) -> str:
    found = secret(**given)
    read_secrets(found, "queues.crm.handler.auth.token")
    return found.value


def problem_of(**given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        value_of(**given)
    (line,) = caught.value.problems
    key, _, text = line.partition(": ")
    assert key == "queues.crm.handler.auth.token"
    return text


def private(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "data, value",
    [
        (b"hush", "hush"),
        (b"hush\n", "hush"),
        (b"hush\r\n", "hush"),
        (b"hush\n\n", "hush\n"),
        (b" hush ", " hush "),
        ("hüsh".encode(), "hüsh"),
    ],
)
def test_one_line_break_at_the_end_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, value: str
) -> None:
    file = private(tmp_path / "crm", data)
    monkeypatch.setenv("CRM_KEY", data.decode())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert value_of(file=file) == value
    assert value_of(env="CRM_KEY") == value
    assert value_of(credential="crm") == value


def test_what_cannot_be_read_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.setenv("EMPTY", "")
    missing, pipe = tmp_path / "missing", tmp_path / "pipe"
    os.mkfifo(pipe)
    assert problem_of(file=missing) == f"{missing} cannot be read: No such file or directory"
    assert problem_of(file=tmp_path) == f"{tmp_path} is not a regular file"
    assert problem_of(file=pipe) == f"{pipe} is not a regular file"
    assert problem_of(env="NO_SUCH") == "the environment variable NO_SUCH is not set"
    assert problem_of(env="EMPTY") == "the environment variable EMPTY is empty"
    assert problem_of(credential="crm").startswith("the credential crm does not exist: ")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert problem_of(credential="missing").startswith(f"{missing} cannot be read")
    empty = private(tmp_path / "empty", b"\n")
    assert problem_of(file=empty) == f"{empty} is empty"
    long = private(tmp_path / "long", b"x" * (SECRET_BYTES_MAX + 1))
    assert "is longer than 64Ki" in problem_of(file=long)
    binary = private(tmp_path / "binary", b"\xff\xfe")
    assert problem_of(file=binary) == f"{binary} is not UTF-8 text"


def test_every_problem_is_one_line_however_many_queues_share_it(tmp_path: Path) -> None:
    key = {"file": str(tmp_path / "missing")}
    defaults = {"handler": {"type": "http", "url": "http://h/", "headers": {"X-Key": key}}}
    queues = {"a": {}, "b": {}, "c": {"handler": {"headers": {"X-Key": {"env": "NO_SUCH"}}}}}
    settings = Settings.model_validate({"defaults": defaults, "queues": queues})
    with pytest.raises(ConfigError) as caught:
        read_secrets(settings)
    keys = [line.partition(": ")[0] for line in caught.value.problems]
    assert keys == ["defaults.handler.headers.X-Key", "queues.c.handler.headers.X-Key"]


def test_a_file_that_everybody_may_read_is_warned_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "_warned", set())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    file = private(tmp_path / "crm", HUSH.encode())
    with structlog.testing.capture_logs() as said:
        value_of(file=file)
        assert not said
        file.chmod(0o644)
        # What systemd passes is its own business.
        value_of(credential="crm")
        assert not said
        value_of(file=file)
        value_of(file=file)
    assert [line["event"] for line in said] == ["config.secret_readable_by_all"]
    assert said[0]["hint"] == f"chmod o= {file}"


def test_what_was_read_is_masked_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_KEY", "hush-read-and-known")
    assert "known" in SECRET_VALUES.masked("it said hush-read-and-known")
    value_of(env="CRM_KEY")
    assert SECRET_VALUES.masked("it said hush-read-and-known") == "it said ***"
