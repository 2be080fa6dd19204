import pytest

from lorafleet_engine.messages import FinishReason, Token, Tokens
from lorafleet_engine.server.choices import Choice, Piece
from lorafleet_engine.server.tokenizer import BaseTokenizer
from tests.support.tiny_model import make_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BaseTokenizer:
    return BaseTokenizer.load(make_model(tmp_path_factory.mktemp("model")))


def run(
    tokenizer: BaseTokenizer, text: str, *stops: str, reason: FinishReason = "length"
) -> tuple[list[Piece], Choice]:
    """Feed `text` token by token until the choice is over."""
    choice = Choice(0, tokenizer, stops, wants_logprobs=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = []
    for position, token in enumerate(ids):
        last = reason if position == len(ids) - 1 else None
        pieces.append(choice.push(Tokens("r", (Token(token, -0.5),), last)))
        if pieces[-1].finish_reason:
            break
    return pieces, choice


@pytest.mark.parametrize(
    ("text", "stops", "expected", "reason"),
    [
        ("hello world", (), "hello world", "length"),
        ("hello world", ("wor",), "hello ", "stop"),
        ("hello world", ("xyz",), "hello world", "length"),
        ("aaab", ("aab",), "a", "stop"),
        ("one\n\ntwo", ("\n\n",), "one", "stop"),
        ("say 🦜 now", ("🦜",), "say ", "stop"),
        ("first second", ("second", "st "), "fir", "stop"),
        ("abc", ("abcd",), "abc", "length"),
        ("abc", ("a",), "", "stop"),
    ],
)
def test_stop_strings(tokenizer: BaseTokenizer, text: str, stops: tuple[str, ...], expected: str, reason: str) -> None:
    pieces, _ = run(tokenizer, text, *stops)

    assert "".join(piece.text for piece in pieces) == expected
    assert pieces[-1].finish_reason == reason


def test_what_may_become_a_stop_string_is_held_back(tokenizer: BaseTokenizer) -> None:
    pieces, _ = run(tokenizer, "xEND", "END")

    assert [piece.text for piece in pieces] == ["x", "", "", ""]


def test_tokens_after_the_cut_are_not_counted(tokenizer: BaseTokenizer) -> None:
    choice = Choice(0, tokenizer, ("b",), wants_logprobs=True)
    ids = tokenizer.encode("abcd", add_special_tokens=False)

    piece = choice.push(Tokens("r", tuple(Token(token, -1.0) for token in ids), "length"))

    assert (piece.text, piece.finish_reason, choice.completion_tokens, len(piece.logprobs)) == ("a", "stop", 2, 2)


def test_the_end_token_has_no_text(tokenizer: BaseTokenizer) -> None:
    choice = Choice(0, tokenizer, (), wants_logprobs=False)
    end = tokenizer.eos_id
    assert end is not None
    ids = (*tokenizer.encode("hi", add_special_tokens=False), end)

    piece = choice.push(Tokens("r", tuple(Token(token) for token in ids), "stop", stop_token_id=end))

    assert (piece.text, piece.finish_reason, choice.completion_tokens) == ("hi", "stop", 3)


def test_an_ordinary_token_as_end_token_has_no_text_either(tokenizer: BaseTokenizer) -> None:
    choice = Choice(0, tokenizer, (), wants_logprobs=False)
    first, second = tokenizer.encode("hi", add_special_tokens=False)

    piece = choice.push(Tokens("r", (Token(first), Token(second)), "stop", stop_token_id=second))

    assert piece.text == "h"


def test_logprobs_carry_bytes_of_parts_of_characters(tokenizer: BaseTokenizer) -> None:
    pieces, _ = run(tokenizer, "é")

    entries = [entry for piece in pieces for entry in piece.logprobs]
    assert b"".join(entry.content for entry in entries) == "é".encode()
    assert [entry.text for entry in entries] == ["\ufffd", "\ufffd"]


def test_minus_infinity_becomes_the_floor(tokenizer: BaseTokenizer) -> None:
    choice = Choice(0, tokenizer, (), wants_logprobs=True)

    piece = choice.push(Tokens("r", (Token(1, float("-inf"), ((2, float("-inf")),)),)))

    assert (piece.logprobs[0].logprob, piece.logprobs[0].top[0].logprob) == (-9999.0, -9999.0)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize(("text", "stops"), [("say 🦜 now", ()), ("aaab", ("aab",)), ("one\n\ntwo", ("\n\n",))])
def test_plain_tokens_in_any_bundles_give_the_same_text(
    tokenizer: BaseTokenizer, text: str, stops: tuple[str, ...], size: int
) -> None:
    pieces, alone = run(tokenizer, text, *stops)
    ids = tokenizer.encode(text, add_special_tokens=False)
    choice, said, reason = Choice(0, tokenizer, stops, wants_logprobs=False), "", None
    for start in range(0, len(ids), size):
        piece = choice.more(ids[start : start + size])
        said, reason = said + piece.text, piece.finish_reason
        if reason:
            break
    if reason is None:
        said += choice.push(Tokens("r", (), "length")).text

    assert said == "".join(piece.text for piece in pieces)
    assert choice.completion_tokens == alone.completion_tokens
