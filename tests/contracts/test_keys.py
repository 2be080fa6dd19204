import pytest

from lorafleet_contracts.keys import (
    KeyName,
    MalformedKeyError,
    format_key,
    key_digest,
    key_matches,
    parse_key,
)

NAME = KeyName("team-acme", "acme", "k1")


def test_a_key_names_its_entry() -> None:
    key = format_key(NAME, bytes(range(32)))
    assert key.startswith("lf_team-acme_acme_k1_")
    assert parse_key(key) == NAME


def test_keys_have_one_length_whatever_the_secret() -> None:
    lengths = {len(format_key(NAME, secret)) for secret in (bytes(32), b"\xff" * 32)}
    assert len(lengths) == 1


def test_only_the_whole_key_matches() -> None:
    key = format_key(NAME, b"\x07" * 32)
    stored = key_digest(key)
    assert key_matches(key, stored)
    assert not key_matches(key[:-1], stored)
    assert not key_matches(format_key(KeyName("team-acme", "other", "k1"), b"\x07" * 32), stored)


@pytest.mark.parametrize("text", ["", "lf", "lf_a_b_c", "lf_a_b_c_d_e", "sk_a_b_c_d", "lf__b_c_d", "lf_a_b_c_"])
def test_malformed_keys_are_refused_without_repeating_them(text: str) -> None:
    with pytest.raises(MalformedKeyError) as caught:
        parse_key(text)
    assert not text or text not in str(caught.value).replace("lf_<namespace>_<tenant>_<id>_<secret>", "")


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        format_key(NAME, b"short")
