import pytest

from lorafleet_engine.server.bodies import InvalidBodyError, parse_object, validate
from lorafleet_engine.server.openai_errors import OpenAIError
from lorafleet_engine.server.openai_requests import ChatRequest, CompletionRequest, refuse_unsupported

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("modalities", ["text", "audio"]),
        ("echo", True),
        ("best_of", 3),
        ("suffix", "x"),
        ("functions", [{}]),
        ("reasoning_effort", "high"),
        ("web_search_options", {}),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(OpenAIError) as caught:
        refuse_unsupported({field: value})

    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"logit_bias": {}},
        {"best_of": 1, "echo": False, "suffix": None},
        {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "nobody_knows": 1},
    ],
)
def test_what_changes_nothing_passes(body: dict[str, object]) -> None:
    refuse_unsupported(body)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"top_p": 0}, "top_p"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "alien", "content": ""}]}, "messages.0.role"),
        ({"seed": 2**70}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [1]}, "stop.list"),
    ],
)
def test_wrong_values_name_their_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidBodyError) as caught:
        validate(ChatRequest, {"messages": MESSAGES, **change})

    assert caught.value.field is not None
    assert caught.value.field.startswith(field.split(".list")[0])


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 5000, b'{"a": NaN}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBodyError):
        parse_object(body)


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = validate(ChatRequest, {"messages": [{"role": "user", "content": parts}]})

    assert request.messages[0].for_template() == {"role": "user", "content": "a\nb"}


def test_pictures_are_refused() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "x"}}]

    with pytest.raises(InvalidBodyError, match="messages"):
        validate(ChatRequest, {"messages": [{"role": "user", "content": parts}]})


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_forms_of_a_prompt(prompt: object, expected: object) -> None:
    assert validate(CompletionRequest, {"prompt": prompt}).prompts == expected


@pytest.mark.parametrize("prompt", [None, [], [[]], [-1], [1, "a"], {"a": 1}, 5])
def test_wrong_prompts_are_refused(prompt: object) -> None:
    with pytest.raises(InvalidBodyError):
        validate(CompletionRequest, {"prompt": prompt})
