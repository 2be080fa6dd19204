import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest

from lorafleet_engine.server.template_runner import TemplateRunner
from lorafleet_engine.server.templates import TemplateError

HELLO = [{"role": "user", "content": "hi"}]
FOR_EVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
pytestmark = pytest.mark.timeout(180)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[TemplateRunner]:
    runner = TemplateRunner({"bos_token": "<s>"}, silent_seconds=30.0)
    try:
        yield runner
    finally:
        await runner.close()


async def test_it_renders_and_checks() -> None:
    async with running() as runner:
        await runner.check("{{ bos_token }}")
        assert await runner.render("{{ bos_token }}{{ messages[0].content }}", HELLO) == "<s>hi"
        with pytest.raises(TemplateError, match="cannot be read"):
            await runner.check("{% for %}")
        with pytest.raises(TemplateError, match="no system role"):
            await runner.render("{{ raise_exception('no system role') }}", HELLO)


async def test_an_endless_template_is_ended_and_others_go_on() -> None:
    async with running() as runner:
        with pytest.raises(TemplateError, match="too long"):
            await runner.render(FOR_EVER, HELLO)
        with pytest.raises(TemplateError, match="not run any more"):
            await asyncio.wait_for(runner.render(FOR_EVER, HELLO), 0.5)
        assert await runner.render("ok", HELLO) == "ok"


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ 'a'.center(10000000000) }}",
    ],
)
async def test_a_greedy_template_is_refused(source: str) -> None:
    async with running() as runner:
        with pytest.raises(TemplateError):
            await runner.render(source, HELLO)
        assert await runner.render("ok", HELLO) == "ok"


async def test_a_client_that_leaves_does_not_mix_up_answers() -> None:
    async with running() as runner:
        await runner.check("warm")
        leaving = asyncio.create_task(runner.render("first", HELLO))
        await asyncio.sleep(0)
        leaving.cancel()

        assert await runner.render("second", HELLO) == "second"


async def test_a_dead_process_is_replaced() -> None:
    async with running() as runner:
        await runner.check("warm")
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)

        with pytest.raises(TemplateError):
            await runner.render("lost", HELLO)
        assert await runner.render("found", HELLO) == "found"
