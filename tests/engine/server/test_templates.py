import json
from pathlib import Path

import pytest

from lorafleet_engine.server.templates import ChatTemplates, TemplateError, read_base_template

HELLO = [{"role": "user", "content": "hi"}]


def test_the_base_template_is_used_without_an_own_one() -> None:
    templates = ChatTemplates(
        "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}", {"bos_token": "<s>"}
    )

    assert templates.render(HELLO) == "<s>hi>"


def test_an_own_template_goes_before_the_base_s() -> None:
    templates = ChatTemplates("base", {})

    assert templates.render(HELLO, templates.compile("own {{ messages|length }}")) == "own 1"


def test_without_any_template_messages_are_refused() -> None:
    with pytest.raises(TemplateError, match="/v1/completions"):
        ChatTemplates(None, {}).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no system role') }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ nothing.at.all }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_a_template_may_not_do_is_refused(source: str) -> None:
    templates = ChatTemplates(source, {})

    with pytest.raises(TemplateError, match="refuses these messages"):
        templates.render(HELLO)


def test_a_broken_template_is_refused_when_read() -> None:
    with pytest.raises(TemplateError, match="cannot be read"):
        ChatTemplates("{% for %}", {})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"chat_template": "one"}, "one"),
        ({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}, "d"),
        ({}, None),
    ],
)
def test_the_base_template_in_tokenizer_config(tmp_path: Path, config: dict[str, object], expected: str | None) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    assert read_base_template(tmp_path) == expected


def test_a_template_file_goes_before_the_config(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "config"}')
    (tmp_path / "chat_template.jinja").write_text("file")

    assert read_base_template(tmp_path) == "file"
