"""The child of a python handler in process mode: `python -m daemon.handlers.python.child NAME`.

It imports the function, says so, and then calls it for whatever it is given, until its standard
input ends. What the function prints goes to standard error, where the daemon's log goes: the
standard output belongs to the answers. See python_frames.py.

When the daemon is gone, the item at hand will be delivered again: a function that is still busy
with it then is given a moment and ended.
"""

import os
import select
import sys
import threading
from typing import Final

from actors.model.outcomes import Failure
from daemon.handlers.python.call import NoFunction, call_batch, call_each, load_function
from daemon.handlers.python.frames import LENGTH, decode_items, encode_answer
from daemon.handlers.verdicts import Verdict

PATH_BEFORE: Final = "FOREBAY_PYTHONPATH"
"""The PYTHONPATH that the daemon had; the child's own is there to find what the daemon finds."""
ORPHAN_S: Final = 2.0
"""What a function may still take when nobody waits for it any more."""


def main(name: str, is_batch: bool) -> int:
    path_before = os.environ.pop(PATH_BEFORE, None)
    os.environ.pop("PYTHONPATH", None)
    if path_before is not None:
        os.environ["PYTHONPATH"] = path_before
    frames_in = os.fdopen(os.dup(0), "rb")
    frames_out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def tell(verdict: Verdict) -> None:
        data = encode_answer(verdict)
        while data:
            data = data[os.write(frames_out, data) :]

    threading.Thread(target=end_with_daemon, args=[frames_in.fileno()], daemon=True).start()
    try:
        function = load_function(name)
    except NoFunction as problem:
        tell(Failure(str(problem)))
        return 1
    tell(None)
    call = call_batch if is_batch else call_each
    while prefix := frames_in.read(LENGTH.size):
        frame = frames_in.read(LENGTH.unpack(prefix)[0])
        call(function, decode_items(frame), tell)
        sys.stdout.flush()
    return 0


def end_with_daemon(frames_in: int) -> None:
    """Waits until nobody can send frames any more: the main thread ends by that, if it listens."""
    gone = select.poll()
    gone.register(frames_in, 0)
    gone.poll()
    threading.Event().wait(ORPHAN_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], is_batch=sys.argv[2] == "batch"))
