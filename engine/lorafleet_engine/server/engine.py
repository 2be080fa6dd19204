"""What the three ports share: the two processes' clients, the versions, and whether this engine is ready or draining.

Built once by main.py. Holds state, no HTTP and no tensors.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from lorafleet_contracts.admin import BaseState, Display, Problem, ProblemCode, ShapeState, SourceSpec
from lorafleet_contracts.probe import PROBES
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.messages import BaseFetched, ForMerge
from lorafleet_engine.loader.origin import Origin, origin_of, owners_origin
from lorafleet_engine.messages import AdapterChecked, MergeConfig
from lorafleet_engine.pauses import set_aside
from lorafleet_engine.server.changes import ChangeLog
from lorafleet_engine.server.loader_client import LoaderClient
from lorafleet_engine.server.loop_client import LoopClient
from lorafleet_engine.server.metrics import Metrics
from lorafleet_engine.server.problems import make_problem, problem_of
from lorafleet_engine.server.template_runner import TemplateRunner
from lorafleet_engine.server.templates import ChatTemplates, TemplateError, read_base_template
from lorafleet_engine.server.tls import TlsFolder
from lorafleet_engine.server.tokenizer import BaseTokenizer
from lorafleet_engine.server.usage import UsageTable
from lorafleet_engine.server.version import Version
from lorafleet_engine.server.versions import Versions, Workers
from lorafleet_engine.settings import MergeSettings, Settings

logger = logging.getLogger(__name__)
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0
Fetched = TypeVar("Fetched")


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
        self.tls = None if settings.ports.tls_dir is None else TlsFolder(settings.ports.tls_dir)
        self.loader = loader
        self.loop = LoopClient(self._on_loop_change, self._on_loop_ready, self._on_checked)
        self.versions = Versions(Workers(loader, self.loop), self.changes, self.metrics)
        if settings.merge is not None:
            merge, display = settings.merge, Display(namespace=settings.merge.namespace, name=settings.merge.name)
            self.versions.hold_merged(Version(merge.uid, merge.digest, _origin_of(merge), display))
        self.text: TextTools | None = None
        self.base_digest: str | None = None
        self.base_problem: Problem | None = None
        self.draining = False
        self.in_flight = 0
        self._merge_blob: Path | None = None

    @property
    def ready(self) -> bool:
        """Whether the base answers and new requests are taken."""
        return self.text is not None and self.loop.ready is not None and not self.draining

    @property
    def base_state(self) -> BaseState:
        """The base model as the state port shows it."""
        ready = self.loop.ready
        shape = None if ready is None else ShapeState(**asdict(ready.shape))
        return BaseState(name=self.settings.base.name, digest=self.base_digest, problem=self.base_problem, shape=shape)

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
        fetched = await self._insist(self._fetch_base)
        logger.info("the base model is in %s (%s)", fetched.model_dir, fetched.digest or "not hashed")
        self.base_digest = fetched.digest or None
        self.changes.bump()
        return fetched

    async def fetch_merge(self) -> MergeConfig | None:
        """What the loop needs to merge the adapter that the settings name, after the base; tries for ever, too."""
        if self.settings.merge is None:
            return None
        found = await self._insist(partial(self._fetch_merge, self.settings.merge))
        self._merge_blob = Path(found.blob.path)
        return MergeConfig(found.blob)

    def probes(self) -> tuple[tuple[int, ...], ...]:
        """The probe set as the base's tokens, for an engine that checks something on it."""
        if self.text is None or (self.settings.merge is None and self.settings.quantization == "none"):
            return ()
        return tuple(self.text.tokenizer.encode(text, add_special_tokens=True) for text in PROBES)

    async def _fetch_base(self) -> BaseFetched:
        base = self.settings.base
        fetched = await self.loader.fetch_base(owners_origin(base.uri, base.access), base.digest)
        self.text = await asyncio.to_thread(_load_text_tools, Path(fetched.model_dir))
        self.versions.runner = self.text.runner
        return fetched

    async def _fetch_merge(self, merge: MergeSettings) -> ForMerge:
        found = await self.loader.pack_for_merge(_origin_of(merge), merge.digest)
        await self.versions.note_merge(found)
        return found

    async def _insist(self, attempt: Callable[[], Awaitable[Fetched]]) -> Fetched:
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                fetched = await attempt()
            except JobError as error:
                self._show_base_problem(problem_of(error))
            except (OSError, ValueError, TemplateError) as error:
                self._show_base_problem(make_problem(ProblemCode.INTERNAL, f"the base model's text files: {error}"))
            else:
                self.base_problem = None
                return fetched
            await asyncio.sleep(wait)
            wait = min(wait * 2, LAST_RETRY_SECONDS)

    def _show_base_problem(self, problem: Problem) -> None:
        logger.error("the engine cannot start yet: %s", problem.detail)
        self.base_problem = problem
        self.changes.bump()

    def _on_loop_ready(self) -> None:
        set_aside()
        if self.versions.merged is None:
            self.loader.warm_up()
            return
        self.versions.settle_merged()
        if self._merge_blob is not None:
            self._merge_blob.unlink(missing_ok=True)

    def _on_checked(self, checked: AdapterChecked) -> None:
        self.versions.note_quality(checked)

    def _on_loop_change(self) -> None:
        self.changes.bump()


def _origin_of(merge: MergeSettings) -> Origin:
    return origin_of(SourceSpec(uri=merge.uri, access=merge.access))


def _load_text_tools(model_dir: Path) -> TextTools:
    tokenizer = BaseTokenizer.load(model_dir)
    special = tokenizer.special_tokens
    return TextTools(tokenizer, ChatTemplates(read_base_template(model_dir), special), TemplateRunner(special))
