import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.messages import LoaderConfig
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.process import FETCHERS
from lorafleet_engine.server.loader_client import LoaderClient
from tests.support.tiny_model import make_model

pytestmark = pytest.mark.timeout(120)


@contextlib.asynccontextmanager
async def running(folder: Path, max_jobs: int = 8, stall_seconds: float = 5.0) -> AsyncIterator[LoaderClient]:
    """A client over a real loader process; `stall_seconds` of silence count as hanging."""
    config = LoaderConfig(
        host_dir=str(folder / "host"),
        host_bytes=1 << 20,
        disk_dir=str(folder / "disk"),
        disk_bytes=1 << 24,
        volumes_dir=str(folder),
        dtype="float32",
        base_names=("tiny",),
        target_modules=PROJECTIONS,
    )
    client = LoaderClient(config, max_jobs=max_jobs, stall_seconds=stall_seconds)
    task = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def pid_of(client: LoaderClient, unlike: int | None = None) -> int:
    while client.pid in (None, unlike):  # noqa: ASYNC110 - the client tells nobody when it restarts its loader
        await asyncio.sleep(0.02)
    assert client.pid is not None
    return client.pid


async def test_a_base_is_fetched(tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "tiny")
    async with running(tmp_path) as client:
        fetched = await client.fetch_base(Origin("pvc://models/tiny"), "")

    assert fetched.model_dir == str(tmp_path / "models" / "tiny")


async def test_a_failed_job_says_why(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    async with running(tmp_path) as client:
        with pytest.raises(JobError) as caught:
            await client.fetch_base(Origin("pvc://models/absent"), "")

    assert caught.value.code == ProblemCode.SOURCE_UNREACHABLE


async def test_sources_that_hang_hold_up_inspections_only(tmp_path: Path) -> None:
    """More hang than the loader has threads for inspections; what does not wait for a source goes on."""
    make_model(tmp_path / "models" / "tiny")
    asked = 0
    ended = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running(tmp_path, max_jobs=32, stall_seconds=60) as client:
        waiting = [asyncio.create_task(client.inspect(Origin(f"http://127.0.0.1:{port}/{n}"), None)) for n in range(12)]
        while asked < FETCHERS:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.02)
        async with asyncio.timeout(25):  # below what a read of a source may take
            await client.fetch_base(Origin("pvc://models/tiny"), "")
        ended.set()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.heavy
async def test_a_hanging_loader_is_killed_and_its_job_runs_again(tmp_path: Path) -> None:
    make_model(tmp_path / "models" / "tiny")
    async with running(tmp_path) as client:
        await client.fetch_base(Origin("pvc://models/tiny"), "")
        pid = await pid_of(client)
        os.kill(pid, signal.SIGSTOP)
        fetched = await asyncio.wait_for(client.fetch_base(Origin("pvc://models/tiny"), ""), 60)

        assert client.restarts == 1
        assert await pid_of(client) != pid
    assert fetched.model_dir


async def test_a_loader_that_starts_slowly_is_waited_for(tmp_path: Path) -> None:
    """On a starved node its imports take longer than it may be silent later; killing it then would go on for ever."""
    make_model(tmp_path / "models" / "tiny")
    async with running(tmp_path, stall_seconds=3.0) as client:
        pid = await pid_of(client)
        os.kill(pid, signal.SIGSTOP)
        job = asyncio.create_task(client.fetch_base(Origin("pvc://models/tiny"), ""))
        await asyncio.sleep(4.5)
        os.kill(pid, signal.SIGCONT)
        assert (await asyncio.wait_for(job, 100)).model_dir
        assert client.restarts == 0


async def test_a_job_that_kills_two_loaders_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    async with running(tmp_path) as client:
        first = await pid_of(client)
        os.kill(first, signal.SIGSTOP)
        job = asyncio.create_task(client.fetch_base(Origin("pvc://models/tiny"), ""))
        await asyncio.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        second = await pid_of(client, unlike=first)
        os.kill(second, signal.SIGKILL)

        with pytest.raises(JobError) as caught:
            await asyncio.wait_for(job, 60)

    assert caught.value.code == ProblemCode.INTERNAL
    assert "twice" in caught.value.message


async def test_a_full_queue_is_busy(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    async with running(tmp_path, max_jobs=1) as client:
        os.kill(await pid_of(client), signal.SIGSTOP)
        job = asyncio.create_task(client.fetch_base(Origin("pvc://models/tiny"), ""))
        await asyncio.sleep(0)
        with pytest.raises(JobError) as caught:
            await client.inspect(Origin("pvc://models/a"), None)
        job.cancel()

    assert caught.value.code == ProblemCode.LOADER_BUSY
