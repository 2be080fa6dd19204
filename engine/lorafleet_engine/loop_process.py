"""The loop's process: loads the model, then runs the loop over a pipe. Started by child.py."""

import os
import time
from functools import partial
from multiprocessing.connection import Connection

from lorafleet_contracts.capacity import BaseDoesNotFitError
from lorafleet_contracts.names import EXIT_BASE_DOES_NOT_FIT
from lorafleet_engine.errors import EngineError, PeerLostError
from lorafleet_engine.loop import EngineLoop
from lorafleet_engine.mailbox import PipeMailbox
from lorafleet_engine.messages import LoopConfig, LoopFailed
from lorafleet_engine.pauses import avoid_pauses
from lorafleet_engine.quality.checking import make_checker
from lorafleet_engine.quality.merging import start_engine
from lorafleet_engine.runner.assembly import EngineCore

PEER_WORDS_S = 5.0
"""How long the loop waits to be ended by what is known of a peer that it has lost."""


def run_loop(connection: Connection, settings: LoopConfig) -> None:
    """Load the model, then serve until Shutdown or the end of the pipe. Errors go out as LoopFailed first."""
    mailbox = PipeMailbox(connection)
    core: EngineCore | None = None
    try:
        core = start_engine(settings, partial(_lose, mailbox))
        avoid_pauses()
        EngineLoop(core, mailbox, settings.state_interval_s, checker=make_checker(core, settings)).run()
    except (EOFError, BrokenPipeError):
        return
    except PeerLostError as error:
        time.sleep(PEER_WORDS_S)  # the thread that waits for the peer knows more, and ends this process
        mailbox.send(LoopFailed(str(error)))
    except (EngineError, BaseDoesNotFitError) as error:
        mailbox.send(LoopFailed(str(error), 1 if isinstance(error, EngineError) else EXIT_BASE_DOES_NOT_FIT))
    except Exception as error:
        mailbox.send(LoopFailed(f"{type(error).__name__}: {error}"))
        raise
    finally:
        if core is not None:
            core.close()


def _lose(mailbox: PipeMailbox, message: str) -> None:
    """End this process: a step that waits for a lost peer never ends."""
    mailbox.send(LoopFailed(f"tensor parallelism: {message}"))
    os._exit(1)
