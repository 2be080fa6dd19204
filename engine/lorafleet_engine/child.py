"""The start of the children: `python -m lorafleet_engine.child {loop|follower|loader|templates} FD PARENT LEVEL`.

Run by server/children.py, a follower by parallel/gang.py. LEVEL is the log level, PARENT the id of the process that
started it, FD the child's end of a socket pair that speaks multiprocessing's Connection framing; the first message is
the child's config. A child dies with its parent (PR_SET_PDEATHSIG, and the end of the pipe) and leaves signals to it.
"""

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

from lorafleet_engine.logs import set_up_logs

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Run the named child until its pipe ends."""
    name, descriptor, parent, level = arguments
    die_with_parent(int(parent))
    set_up_logs(name, level)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(int(descriptor))
    if name == "loader":
        from lorafleet_engine.loader.process import run_loader

        run_loader(connection)
    elif name == "templates":
        from lorafleet_engine.template_process import run_templates

        run_templates(connection)
    elif name == "follower":
        from lorafleet_engine.parallel.follower import run_follower

        run_follower(connection)
    else:
        from lorafleet_engine.loop_process import (
            run_loop,  # torch takes seconds: imported while the base is being fetched
        )

        run_loop(connection, connection.recv())


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; leave at once when that has already happened."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
