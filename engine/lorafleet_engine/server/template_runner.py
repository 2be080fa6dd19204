"""Has adapters' own chat templates rendered in a process apart, with a deadline. Used by prompts.py and versions.py.

The process starts with the first adapter that brings a template. One that used up its CPU time is not run again.
"""

import asyncio
import logging
from typing import Any

from lorafleet_engine.server.children import Child
from lorafleet_engine.server.templates import TemplateError
from lorafleet_engine.template_process import Refused, RenderAnswer, RenderJob

logger = logging.getLogger(__name__)
SILENT_SECONDS = 15.0
START_SECONDS = 60.0
MAX_REMEMBERED = 1024


class TemplateRunner:
    """One job at a time. `special_tokens` are what templates may name."""

    def __init__(self, special_tokens: dict[str, str], silent_seconds: float = SILENT_SECONDS) -> None:
        self._special_tokens = special_tokens
        self._silent_seconds = silent_seconds
        self._lock = asyncio.Lock()
        self._child: Child | None = None
        self._condemned: set[int] = set()

    @property
    def pid(self) -> int | None:
        """Process id of the template process, if one runs."""
        return self._child.pid if self._child else None

    async def check(self, source: str) -> None:
        """Raise TemplateError for a template that cannot be read."""
        await self._run(RenderJob(source, None))

    async def render(self, source: str, messages: list[dict[str, Any]]) -> str:
        """The prompt. Raises TemplateError."""
        return await self._run(RenderJob(source, messages))

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    async def _run(self, job: RenderJob) -> str:
        # Shielded: a client that leaves must not leave half an answer in the pipe.
        answer = await asyncio.shield(asyncio.ensure_future(self._exchange(job)))
        if isinstance(answer, Refused):
            raise TemplateError(answer.message)
        return answer.text

    async def _exchange(self, job: RenderJob) -> RenderAnswer:
        async with self._lock:
            if hash(job.source) in self._condemned:
                return Refused("the chat template of this adapter took too long before and is not run any more")
            child = self._child = self._child or await self._start()
            child.send(job)
            try:
                async with asyncio.timeout(self._silent_seconds):
                    answer: RenderAnswer = await child.receive()
            except (TimeoutError, EOFError):
                logger.warning("the template process was silent for %.0f s or died", self._silent_seconds)
                await self.close()
                return Refused("the chat template of this adapter takes too long")
            if isinstance(answer, Refused) and answer.endless:
                self._condemn(job.source)
            return answer

    async def _start(self) -> Child:
        child = await Child.start("templates")
        child.send(self._special_tokens)
        try:
            async with asyncio.timeout(START_SECONDS):
                await child.receive()
        except (TimeoutError, EOFError) as error:
            await child.end()
            raise TemplateError("the template process did not start") from error
        return child

    def _condemn(self, source: str) -> None:
        if len(self._condemned) < MAX_REMEMBERED:
            self._condemned.add(hash(source))
