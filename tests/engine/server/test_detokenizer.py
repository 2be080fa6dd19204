import random

import pytest

from lorafleet_engine.server.detokenizer import MAX_WINDOW, Detokenizer, WindowDetokenizer, make_detokenizer
from lorafleet_engine.server.tokenizer import BaseTokenizer
from tests.support.tiny_model import make_model

TEXTS = [
    "plain text",
    "héllo wörld",
    "日本語のテキスト",
    "a🦜b🦜🦜c",
    "mixed: ñ 🧪 end",
    "👩‍👩‍👧‍👦 family",
    "\u200d\ufe0f",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BaseTokenizer:
    return BaseTokenizer.load(make_model(tmp_path_factory.mktemp("model")))


def detokenize(tokenizer: BaseTokenizer, ids: list[int]) -> list[str]:
    """By bytes and by windows, which must agree piece by piece."""
    answers = [make_detokenizer(tokenizer), WindowDetokenizer(tokenizer.decode)]
    by_bytes, by_windows = ([*(each.push(token) for token in ids), each.flush()] for each in answers)
    assert "".join(by_bytes) == "".join(by_windows)
    return by_bytes


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(tokenizer: BaseTokenizer, text: str) -> None:
    pieces = detokenize(tokenizer, list(tokenizer.encode(text, add_special_tokens=False)))

    assert "".join(pieces) == text


@pytest.mark.parametrize("text", TEXTS)
def test_no_piece_holds_half_a_character(tokenizer: BaseTokenizer, text: str) -> None:
    pieces = detokenize(tokenizer, list(tokenizer.encode(text, add_special_tokens=False)))

    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_join_to_what_the_tokenizer_decodes(tokenizer: BaseTokenizer, seed: int) -> None:
    draw = random.Random(seed)
    ids = [draw.randrange(264) for _ in range(draw.randrange(1, 120))]

    assert "".join(detokenize(tokenizer, ids)) == tokenizer.decode(ids)


def test_an_unfinished_character_comes_at_the_end(tokenizer: BaseTokenizer) -> None:
    ids = list(tokenizer.encode("ok 🦜", add_special_tokens=False))[:-1]

    assert "".join(detokenize(tokenizer, ids)) == "ok \ufffd"


def test_text_comes_as_soon_as_it_is_certain(tokenizer: BaseTokenizer) -> None:
    ids = list(tokenizer.encode("ab🦜", add_special_tokens=False))

    assert detokenize(tokenizer, ids) == ["a", "b", "", "", "", "🦜", ""]


def test_endless_garbage_keeps_the_window_small(tokenizer: BaseTokenizer) -> None:
    sizes: list[int] = []

    def decode(ids: object) -> str:
        sizes.append(len(ids))  # type: ignore[arg-type]
        return tokenizer.decode(ids)  # type: ignore[arg-type]

    detokenizer: Detokenizer = WindowDetokenizer(decode)
    lead = next(token for token in range(264) if tokenizer.token_bytes(token) == b"\xf0")
    text = "".join(detokenizer.push(lead) for _ in range(1000)) + detokenizer.flush()

    assert text == "\ufffd" * 1000
    assert max(sizes) <= 2 * MAX_WINDOW + 2
