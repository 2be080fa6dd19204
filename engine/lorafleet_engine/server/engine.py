"""What the three ports share: the two processes' clients, the versions, and whether this engine is ready or draining.

Built once by main.py. Holds state, no HTTP and no tensors.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path

from lorafleet_contracts.admin import BaseState, Problem, ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.messages import BaseFetched
from lorafleet_engine.server.changes import ChangeLog
from lorafleet_engine.server.loader_client import LoaderClient
from lorafleet_engine.server.loop_client import LoopClient
from lorafleet_engine.server.metrics import Metrics
from lorafleet_engine.server.problems import make_problem, problem_of
from lorafleet_engine.server.template_runner import TemplateRunner
from lorafleet_engine.server.templates import ChatTemplates, TemplateError, read_base_template
from lorafleet_engine.server.tokenizer import BaseTokenizer
from lorafleet_engine.server.usage import UsageTable
from lorafleet_engine.server.versions import Versions, Workers
from lorafleet_engine.settings import Settings

logger = logging.getLogger(__name__)
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class TextTools:
    """The base model's tokenizer and chat template, and what runs the templates of adapters."""

    tokenizer: BaseTokenizer
    templates: ChatTemplates
    runner: TemplateRunner


class Engine:
    """One engine process. `in_flight` counts serving requests, from their first byte to their last."""

    def __init__(self, settings: Settings, loader: LoaderClient) -> None:
        self.settings = settings
        self.boot_id = secrets.token_hex(8)
        self.changes = ChangeLog()
        self.usage = UsageTable()
        self.metrics = Metrics()
        self.loader = loader
        self.loop = LoopClient(self._on_loop_change, loader.warm_up)
        self.versions = Versions(Workers(loader, self.loop), self.changes, self.metrics)
        self.text: TextTools | None = None
        self.base_digest: str | None = None
        self.base_problem: Problem | None = None
        self.draining = False
        self.in_flight = 0

    @property
    def ready(self) -> bool:
        """Whether the base answers and new requests are taken."""
        return self.text is not None and self.loop.ready is not None and not self.draining

    @property
    def base_state(self) -> BaseState:
        """The base model as the state port shows it."""
        return BaseState(name=self.settings.base.name, digest=self.base_digest, problem=self.base_problem)

    def count(self, change: int) -> None:
        """A serving request began (+1) or ended (-1)."""
        self.in_flight += change
        self.changes.bump()

    def drain(self) -> None:
        """Take no new requests from now on; the running ones finish."""
        if not self.draining:
            logger.info("draining: %d requests in flight", self.in_flight)
            self.draining = True
            self.loop.drain()
            self.changes.bump()

    async def drained(self, seconds: float) -> bool:
        """Wait until no request is in flight; False when `seconds` were not enough."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self.in_flight:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await self.changes.wait_beyond(self.changes.seq, left)
        return True

    async def fetch_base(self) -> BaseFetched:
        """Have the base model's files and text tools; tries for ever and shows why not meanwhile."""
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                fetched = await self.loader.fetch_base(self.settings.base.uri, self.settings.base.digest)
                self.text = await asyncio.to_thread(_load_text_tools, Path(fetched.model_dir))
            except JobError as error:
                self._show_base_problem(problem_of(error))
            except (OSError, ValueError, TemplateError) as error:
                self._show_base_problem(make_problem(ProblemCode.INTERNAL, f"the base model's text files: {error}"))
            else:
                self.versions.runner = self.text.runner
                logger.info("the base model is in %s (%s)", fetched.model_dir, fetched.digest or "not hashed")
                self.base_digest, self.base_problem = fetched.digest or None, None
                self.changes.bump()
                return fetched
            await asyncio.sleep(wait)
            wait = min(wait * 2, LAST_RETRY_SECONDS)

    def _show_base_problem(self, problem: Problem) -> None:
        logger.error("the base model cannot be fetched: %s", problem.detail)
        self.base_problem = problem
        self.changes.bump()

    def _on_loop_change(self) -> None:
        self.changes.bump()


def _load_text_tools(model_dir: Path) -> TextTools:
    tokenizer = BaseTokenizer.load(model_dir)
    special = tokenizer.special_tokens
    return TextTools(tokenizer, ChatTemplates(read_base_template(model_dir), special), TemplateRunner(special))
