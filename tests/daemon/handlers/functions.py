"""What users might write: the functions that the python handler's tests deliver with."""

import os
import signal
import threading
from pathlib import Path

import trio

from forebay import BusinessError, Item, Reject, Retry

seen: list[Item] = []
batches: list[list[str]] = []
threads: set[int] = set()
gate = threading.Event()
entered = threading.Semaphore(0)
NOT_A_FUNCTION = 7


def keep(item: Item) -> None:
    seen.append(item)
    threads.add(threading.get_ident())


def by_payload(item: Item) -> object:
    """Does what the payload says."""
    match item.text.split(":"):
        case ["retry"]:
            raise Retry("later")
        case ["retry", seconds]:
            raise Retry("much later", after_s=float(seconds))
        case ["reject"]:
            raise Reject("no such customer")
        case ["business"]:
            raise BusinessError("no credit")
        case ["error"]:
            raise ValueError("bad thing")
        case ["exit"]:
            raise SystemExit(3)
        case ["false"]:
            return False
        case ["wait"]:
            entered.release()
            assert gate.wait(60)
        case ["die"]:
            os._exit(3)
        case ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["print"]:
            print("this is not an answer", flush=True)
        case ["touch", path]:
            Path(path).touch()
        case ["hang", path]:
            with open(path, "w") as fifo:
                fifo.write(str(os.getpid()))
            threading.Event().wait()
    seen.append(item)
    return None


async def by_payload_async(item: Item) -> object:
    if item.text == "hang":
        await trio.sleep_forever()
    await trio.lowlevel.checkpoint()
    return by_payload(item)


def whole(items: list[Item]) -> object:
    batches.append([item.text for item in items])
    match items[0].text:
        case "short":
            return [None]
        case "mixed":
            return [None, Retry("later"), Reject("never"), KeyError("k"), True, False]
        case "error":
            raise ConnectionError("nobody there")
        case "die":
            os._exit(3)
    return None


async def whole_async(items: list[Item]) -> object:
    await trio.lowlevel.checkpoint()
    return whole(items)


class Response:
    """What an HTTP client might return; its status was not checked."""

    status_code = 500


VALUES: dict[str, object] = {
    "text": "sent as m-1",
    "object": {"id": 7, "at": [1.5, None, True]},
    "number": 0,
    "list": [],
    "empty": "",
    "long": "x" * 20_000,
    "half": "half a pair: \ud800",
    "response": Response(),
    "deep": {"response": Response()},
    "true": True,
    "none": None,
}


def returns(item: Item) -> object:
    return VALUES[item.text]


async def returns_async(item: Item) -> object:
    await trio.lowlevel.checkpoint()
    return VALUES[item.text]


def returns_all(items: list[Item]) -> object:
    return [VALUES[item.text] for item in items]


def returns_one(items: list[Item]) -> object:
    return {"batch": len(items)}


def receipt(item: Item) -> dict[str, str]:
    return {"receipt": item.id}


class Caller:
    async def __call__(self, item: Item) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(item)


caller = Caller()


def pid(item: Item) -> None:
    """Leaves the process's number in the file that the payload names."""
    with open(item.text, "a") as file:
        file.write(f"{os.getpid()} {os.environ.get('PYTHONPATH')}\n")


def variables(item: Item) -> None:
    """Leaves the names of the process's variables in the file that the payload names."""
    Path(item.text).write_text(" ".join(sorted(os.environ)))


def forgets_async(item: Item) -> object:
    return by_payload_async(item)
