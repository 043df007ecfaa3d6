"""What pipelines are asked for: decided, or refused, before Spark does anything."""

import socket
import threading
from pathlib import Path

import pytest

from forebay.client import TIMEOUT_S
from forebay.errors import Unreachable
from forebay.pipeline.commands import read_arguments
from forebay.pipeline.push_rows import batch_name, outcome_of, push
from forebay.pipeline.replay_letters import letter_options, write_options
from forebay.spark.options import OptionError
from forebay.spark.receipts import LastWrite, ReceiptReader

WRITE = "00" * 16


class TestTransaction:
    @pytest.mark.parametrize("given", [["--app", "feed"], ["--version", "3"]])
    def test_the_command_takes_both_or_none(
        self, given: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            read_arguments(["push", "/data", "--queue", "crm", *given])
        assert ended.value.code == 2
        assert "--app and --version go together" in capsys.readouterr().err

    def test_the_function_takes_both_or_none_and_no_other_way(self) -> None:
        nothing: object = None  # Refused before the session or the rows are looked at.
        for given in ({"app": "feed"}, {"version": 3}):
            with pytest.raises(ValueError, match="app and version go together"):
                push(nothing, nothing, "crm", **given)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="give app and version instead"):
            push(nothing, nothing, "crm", options={"TxnAppId": "feed"})  # type: ignore[arg-type]

    def test_the_outcome_is_that_of_the_push_itself(self) -> None:
        last = LastWrite("duplicate", "crm", "feed", 3, None, None)
        assert outcome_of(last, "crm", "feed", 3) == "duplicate"
        assert outcome_of(last, "crm", "feed", 4) == "unknown"
        assert outcome_of(last, "crm", None, None) == "published"
        assert outcome_of(None, "crm", None, None) == "published"
        assert outcome_of(None, "crm", "feed", 3) == "unknown"


class TestBatchName:
    def test_each_application_and_version_has_its_own(self) -> None:
        asked = [("eu", 1), ("us", 1), ("eu", 2), ("eu/1", 1), ("eu%2F1", 1), ("eu-1", 1)]
        asked += [("x" * 255, 1), ("/" * 255, 1), ("/" * 254 + "x", 1)]
        names = [batch_name(*each) for each in asked]
        assert len(set(names)) == len(asked)
        assert names == [batch_name(*each) for each in asked]
        assert all("/" not in name and len(name) < 240 for name in names)

    def test_each_run_without_a_transaction_has_its_own(self) -> None:
        assert batch_name(None, None) != batch_name(None, None)


class TestReplayOptions:
    def test_each_side_gets_what_it_knows(self) -> None:
        written = {"Socket": "/s", "timeout": "5s", "runItems": "10"}
        assert letter_options("crm", written, {"error": "gone", "timeout": "9s"}) == {
            "queue": "crm",
            "state": "dead",
            "socket": "/s",
            "timeout": "9s",
            "error": "gone",
        }
        options = write_options("crm", written)
        assert options["runItems"] == "10"
        assert options["retryOf"] == "id"

    @pytest.mark.parametrize(
        "given,words",
        [
            ({"error": "gone"}, "no such option"),
            ({"runItems": "many"}, "a whole number"),
            ({"delay": "soon"}, "a duration"),
            ({"flow": "eu"}, "not both"),
            ({"Queue": "other"}, "sets it itself"),
            ({"txnVersion": "1"}, "sets it itself"),
        ],
    )
    def test_a_write_refuses(self, given: dict[str, str], words: str) -> None:
        with pytest.raises(OptionError, match=words):
            write_options("crm", given)

    @pytest.mark.parametrize(
        "given,words",
        [
            ({"runItems": "10"}, "no such option"),
            ({"timeout": "soon"}, "a duration"),
            ({"state": "queued"}, "sets it itself"),
        ],
    )
    def test_a_read_refuses(self, given: dict[str, str], words: str) -> None:
        with pytest.raises(OptionError, match=words):
            letter_options("crm", {}, given)


class TestTimeoutOfAReceipt:
    def test_it_must_be_one(self) -> None:
        with pytest.raises(OptionError, match="a duration"):
            ReceiptReader({"write": WRITE, "timeout": "soon"})

    def test_a_daemon_that_is_silent_is_given_up_after_it(self, tmp_path: Path) -> None:
        problems: list[Exception] = []

        def ask() -> None:
            given = {"write": WRITE, "socket": str(tmp_path / "s"), "timeout": "50ms"}
            try:
                ReceiptReader(given).partitions()
            except Unreachable as problem:
                problems.append(problem)

        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "s"))
            listening.listen()
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            # A client waits longer than this by default.
            asking.join(TIMEOUT_S - 10)
            assert not asking.is_alive()
        assert len(problems) == 1
