"""The process that runs adapters' own chat templates. Started by child.py; asked by server/template_runner.py.

A template is foreign code that may loop or fill memory: here it only hurts this process, which limits memory and CPU
time (the latter by a timer, so that a busy machine condemns nobody), and which the api kills when it stays silent.
"""

import resource
import signal
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, TypeAlias

import jinja2

from lorafleet_engine.server.templates import ChatTemplates, TemplateError

MEMORY_BYTES = 1 << 29
CPU_SECONDS = 1.0
MAX_COMPILED = 64


@dataclass(frozen=True, slots=True)
class RenderJob:
    """Render `messages` with template `source`; None only checks that the template can be read."""

    source: str
    messages: list[dict[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt ("" for a check)."""

    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The template refuses, cannot be read, or (`endless`) has used up its CPU time."""

    message: str
    endless: bool = False


RenderAnswer: TypeAlias = Rendered | Refused


def run_templates(connection: "Connection[Any, Any]") -> None:
    """Answer jobs in order until the pipe ends. The first message in holds the special tokens; an empty one answers."""
    renderer = _Renderer(ChatTemplates(None, connection.recv()))
    signal.signal(signal.SIGVTALRM, _run_out)
    connection.send(Rendered(""))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        while True:
            connection.send(renderer.answer(connection.recv()))
    except EOFError:
        return


class _OutOfTimeError(Exception):
    """The CPU time of this job is used up."""


class _Renderer:
    """Keeps the last templates compiled."""

    def __init__(self, templates: ChatTemplates) -> None:
        self._templates = templates
        self._compiled: OrderedDict[str, jinja2.Template] = OrderedDict()

    def answer(self, job: RenderJob) -> RenderAnswer:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
        try:
            template = self._compile(job.source)
            return Rendered("" if job.messages is None else self._templates.render(job.messages, template))
        except _OutOfTimeError:
            return Refused("the chat template takes too long", endless=True)
        except TemplateError as error:
            return Refused(str(error))
        except MemoryError:
            return Refused("the chat template takes too much memory")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _compile(self, source: str) -> jinja2.Template:
        template = self._compiled.pop(source, None) or self._templates.compile(source)
        self._compiled[source] = template
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return template


def _run_out(number: int, frame: FrameType | None) -> None:
    raise _OutOfTimeError
