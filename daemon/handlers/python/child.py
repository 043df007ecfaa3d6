"""The child of a python handler in process mode: `python -m daemon.handlers.python.child NAME`.

It imports the function, reports that, and then calls it for every batch on its standard input,
until the input ends. What the function prints goes to standard error, where the daemon's log goes:
standard output carries the answers. See frames.py.

When the daemon is gone, the current item will be delivered again. A function that is still busy
with it gets a moment to finish; then the process ends.
"""

import os
import select
import sys
import threading
from typing import Final

from actors.model.outcomes import Failure
from daemon.handlers.items import Verdict
from daemon.handlers.python.call import NoFunction, call_batch, call_each, load_function
from daemon.handlers.python.frames import LENGTH, decode_items, encode_answer

PATH_BEFORE: Final = "FOREBAY_PYTHONPATH"
"""The daemon's PYTHONPATH; the child's own is extended to find the same modules as the daemon."""
ORPHAN_S: Final = 2.0
"""How long a function may still run after the daemon is gone."""


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
    """Waits until the daemon has closed the pipe, and ends the process if the main thread does
    not."""
    gone = select.poll()
    gone.register(frames_in, 0)
    gone.poll()
    threading.Event().wait(ORPHAN_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], is_batch=sys.argv[2] == "batch"))
