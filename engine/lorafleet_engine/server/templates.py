"""Renders chat messages into a prompt with a chat template. Used by prompts.py (the base's) and template_process.py.

Templates are foreign code: they run in jinja's immutable sandbox, with nothing but the messages and token names.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lorafleet_contracts.digest import CHAT_TEMPLATE


class TemplateError(Exception):
    """The template refuses these messages, or cannot be used at all."""


class ChatTemplates:
    """Compiles a template once and renders it. `base` None: the base model has no chat template."""

    def __init__(self, base: str | None, special_tokens: dict[str, str]) -> None:
        self._environment = _make_environment()
        self._special_tokens = special_tokens
        self._base = None if base is None else self.compile(base)

    def compile(self, source: str) -> jinja2.Template:
        """Check and compile a template. Raises TemplateError."""
        try:
            return self._environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template cannot be read: {error}") from error

    def render(self, messages: list[dict[str, Any]], own: jinja2.Template | None = None) -> str:
        """The prompt for an answer to `messages`; `own` goes before the base's template. Raises TemplateError."""
        template = own or self._base
        if template is None:
            raise TemplateError("this model has no chat template; use /v1/completions")
        try:
            return template.render(messages=messages, add_generation_prompt=True, **self._special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error


def read_base_template(model_dir: Path) -> str | None:
    """The chat template published with a base model: a file of its own, or inside tokenizer_config.json."""
    own = model_dir / CHAT_TEMPLATE
    if own.is_file():
        return own.read_text()
    config = model_dir / "tokenizer_config.json"
    found = json.loads(config.read_text()).get("chat_template") if config.is_file() else None
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
    return found if isinstance(found, str) else None


def _make_environment() -> ImmutableSandboxedEnvironment:
    """The environment that published templates are written for (transformers: trimmed blocks, loop controls)."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], keep_trailing_newline=False
    )
    environment.filters["tojson"] = _dump
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _dump(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
