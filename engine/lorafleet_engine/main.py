"""The engine's start and end: the api process, its two children, the three ports, signals and exit statuses.

Exit 0: drained after SIGTERM. Exit 1: the loop process ended or could not start. Exit 2: the settings are wrong.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path

import uvloop

from lorafleet_engine.errors import ChildDiedError, SettingsError
from lorafleet_engine.loader.messages import LoaderConfig
from lorafleet_engine.logs import set_up_logs
from lorafleet_engine.messages import LoopConfig
from lorafleet_engine.server.engine import Engine
from lorafleet_engine.server.loader_client import LoaderClient
from lorafleet_engine.server.ports import Ports
from lorafleet_engine.settings import Settings, load_settings

logger = logging.getLogger(__name__)
TERMINATION_LOG = Path("/dev/termination-log")
LAST_WORDS_SECONDS = 2.0
"""What an engine whose loop died takes at most to say so to whoever waits for an answer."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one engine from the environment until it is told to end; return the exit status."""
    set_up_logs("api", "INFO")
    try:
        settings = load_settings({**os.environ, **read_arguments(arguments)})
        set_up_logs("api", settings.log_level)
        uvloop.run(run_engine(settings))
    except SettingsError as error:
        return _give_up(2, error)
    except ChildDiedError as error:
        return _give_up(error.status, error)
    return 0


def read_arguments(arguments: Sequence[str] | None) -> dict[str, str]:
    """The few settings that may also be given on the command line, as the variables that they stand for."""
    parser = argparse.ArgumentParser("python -m lorafleet_engine", description="All settings: docs/engine.md.")
    parser.add_argument(
        "--merge-adapter", metavar="URI", help="merge the adapter there into the weights and serve nothing else"
    )
    parser.add_argument("--merge-version", metavar="UID@DIGEST", help="the version that it must be")
    parser.add_argument("--merge-display", metavar="NAMESPACE/NAME", help="what metrics call it")
    given = vars(parser.parse_args(arguments))
    return {f"LORAFLEET_{name.upper()}": value for name, value in given.items() if value}


async def run_engine(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises ChildDiedError when the loop process ends before."""
    engine = Engine(settings, LoaderClient(loader_config(settings)))
    ports = Ports(engine, settings.ports)
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    logger.info("engine %s starts for base %s", engine.boot_id, settings.base.name)
    serving = asyncio.create_task(ports.serve())
    working = [asyncio.create_task(work) for work in _work(engine, settings)]
    telling = asyncio.create_task(told.wait())
    try:
        done, _ = await asyncio.wait((telling, serving, *working), return_when=asyncio.FIRST_COMPLETED)
        if telling not in done:
            engine.drain()
            await engine.drained(LAST_WORDS_SECONDS)
            done.pop().result()
        engine.drain()
        if not await engine.drained(settings.drain_seconds):
            logger.warning("%d requests did not finish in %d s", engine.in_flight, settings.drain_seconds)
        ports.stop()
        await serving
        if engine.text is not None:
            await engine.text.runner.close()
    finally:
        for task in (telling, serving, *working):
            task.cancel()
        await asyncio.gather(telling, serving, *working, return_exceptions=True)
    logger.info("engine %s ends", engine.boot_id)


def _work(engine: Engine, settings: Settings) -> list[Coroutine[None, None, None]]:
    """What runs beside the ports. None of it ends by itself, except by an error that ends the engine."""
    return [engine.loader.run(), engine.loop.run(partial(_loop_config, engine, settings))]


async def _loop_config(engine: Engine, settings: Settings) -> LoopConfig:
    fetched = await engine.fetch_base()
    return LoopConfig(
        model_dir=fetched.model_dir,
        device=settings.device,
        dtype=settings.dtype,
        quantization=settings.quantization,
        prefix_cache=settings.prefix_cache,
        max_model_len=settings.max_model_len,
        memory_bytes=settings.memory_bytes,
        utilization_percent=settings.utilization_percent,
        threads=settings.cpu_threads,
        limits=settings.limits,
        tensor_parallel=settings.tensor_parallel,
        merge=await engine.fetch_merge(),
        probes=engine.probes(),
    )


def loader_config(settings: Settings) -> LoaderConfig:
    return LoaderConfig(
        host_dir=str(settings.caches.host_dir),
        host_bytes=settings.caches.host_bytes,
        disk_dir=str(settings.caches.disk_dir),
        disk_bytes=settings.caches.disk_bytes,
        volumes_dir=str(settings.caches.volumes_dir),
        dtype=settings.dtype,
        base_names=(settings.base.name, *settings.base.aliases),
        target_modules=settings.target_modules,
        tensor_parallel=settings.tensor_parallel,
    )


def _give_up(status: int, error: Exception) -> int:
    logger.critical("%s", error)
    with contextlib.suppress(OSError):
        TERMINATION_LOG.write_text(str(error))
    sys.stderr.flush()
    return status
