"""Which adapters a pool accepts before anybody looks at a file."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import SourceAccess
from lorafleet_contracts.conditions import Reason
from lorafleet_operator.core.admission import oldest_by_model, refuse_adapter
from lorafleet_operator.core.snapshot import Adapter
from lorafleet_operator.core.sources import refuse_source, source_of
from tests.support.fleet import make_adapter, make_meta, make_pool


def reason_for(adapter: Adapter, **spec: object) -> Reason | None:
    """The reason of the refusal by a pool with this spec."""
    pool = make_pool(**spec)
    assert pool.spec is not None
    namespaces = {"team": {"tier": "gold"}, "demo": {}}
    refusal = refuse_adapter(adapter, pool.meta, pool.spec, namespaces, oldest_by_model([adapter]))
    return refusal.reason if refusal else None


GOLD = {"from": "Selector", "selector": {"matchLabels": {"tier": "gold"}}}


@pytest.mark.parametrize(
    ("namespace", "allowed", "expected"),
    [
        ("demo", {"from": "Same"}, None),
        ("team", {"from": "Same"}, Reason.NAMESPACE_NOT_ALLOWED),
        ("team", {"from": "All"}, None),
        ("team", GOLD, None),
        ("unlabelled", GOLD, Reason.NAMESPACE_NOT_ALLOWED),
    ],
)
def test_namespaces(namespace: str, allowed: dict[str, object], expected: Reason | None) -> None:
    assert reason_for(make_adapter("a", namespace), allowedNamespaces=allowed) == expected


@pytest.mark.parametrize("model", ["smollm2", "smol-alias"])
def test_names_of_the_base_are_reserved(model: str) -> None:
    base = {"name": "smollm2", "aliases": ["smol-alias"], "source": {"uri": "http://assets/base"}}
    assert reason_for(make_adapter("a", model=model), baseModel=base) == Reason.NAME_RESERVED


def test_an_unreadable_adapter_is_invalid() -> None:
    assert reason_for(replace(make_adapter("a"), spec=None, invalid="spec.x")) == Reason.INVALID


def test_the_oldest_of_two_adapters_with_one_model_wins() -> None:
    old = make_adapter("old", model="support", meta={"created": "2026-01-01T00:00:00Z"})
    young = make_adapter("young", model="support", meta={"created": "2026-01-02T00:00:00Z"})
    elsewhere = make_adapter("other", "team", model="support")
    winners = oldest_by_model([young, elsewhere, old])
    assert winners == {("demo", "support"): "old", ("team", "support"): "other"}
    pool = make_pool()
    assert pool.spec is not None
    refusal = refuse_adapter(young, pool.meta, pool.spec, {}, winners)
    assert refusal is not None
    assert refusal.reason == Reason.NAME_CONFLICT


VOLUME = {"pod": {"volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "c"}}]}}


@pytest.mark.parametrize(
    ("uri", "namespace", "rules", "allowed"),
    [
        ("pvc://models/a", "demo", [], True),
        ("pvc://models/a", "team", [], False),
        ("pvc://other/a", "demo", [], False),
        ("pvc://models/a", "team", [{"prefix": "pvc://models/a"}], True),
        ("http://assets/a", "demo", [], False),
        ("http://assets/a", "team", [{"prefix": "http://assets/"}], True),
        ("http://ASSETS/a", "team", [{"prefix": "http://assets/"}], True),
        ("http://assets/a", "team", [{"prefix": "http://assets"}], True),
        ("https://assets/a", "team", [{"prefix": "http://assets/"}], False),
        ("http://assets.evil.test/a", "team", [{"prefix": "http://assets"}], False),
        ("http://assets@evil.test/a", "team", [{"prefix": "http://assets"}], False),
        ("http://assets/acme-secret/a", "team", [{"prefix": "http://assets/acme"}], False),
        ("http://assets/acme/../secret", "team", [{"prefix": "http://assets/acme"}], False),
        ("http://assets/acme/%2e%2E/secret", "team", [{"prefix": "http://assets/acme"}], False),
        ("http://assets/a?x=1", "team", [{"prefix": "http://assets/"}], False),
        ("http://assets/a\\b", "team", [{"prefix": "http://assets/"}], False),
        ("http://assets/a\x7fb", "team", [{"prefix": "http://assets/"}], False),
        ("http://assets/a", "team", [{"prefix": "http://assets/", "namespaces": ["other"]}], False),
        ("http://assets/a", "team", [{"prefix": "http://assets/", "namespaces": ["team"]}], True),
        ("file:///data/a", "demo", [], False),
        ("file:///data/a", "demo", [{"prefix": "file:///data/"}], True),
        ("http://assets:bad/a", "demo", [{"prefix": "http://assets/"}], False),
        ("http://[::1/a", "demo", [{"prefix": "http://assets/"}], False),
        ("s3://acme/a/", "team", [{"prefix": "s3://acme/"}], True),
        ("s3://acme-secret/a/", "team", [{"prefix": "s3://acme"}], False),
        ("s3://acme/a/../b", "team", [{"prefix": "s3://acme/a"}], False),
        ("hf://acme/support@main", "team", [{"prefix": "hf://acme/"}], True),
        ("hf://acme/support@main", "team", [{"prefix": "hf://acme/support"}], True),
        ("hf://acme/support-2@main", "team", [{"prefix": "hf://acme/support"}], False),
        ("hf://acme/support@a/../b", "team", [{"prefix": "hf://acme/support"}], False),
        ("oci://reg.test/acme/a:v7", "team", [{"prefix": "oci://reg.test/acme/a"}], True),
        ("oci://reg.test/acme/a@sha256:0", "team", [{"prefix": "oci://reg.test/acme/a"}], True),
        ("oci://reg.test/acme/ab:v7", "team", [{"prefix": "oci://reg.test/acme/a"}], False),
        ("oci://reg.test:5000/acme/a:v7", "team", [{"prefix": "oci://reg.test/acme/"}], False),
        ("http://assets/a:v7", "team", [{"prefix": "http://assets/a"}], False),
    ],
)
def test_sources(uri: str, namespace: str, rules: list[dict[str, object]], allowed: bool) -> None:
    pool = make_pool(engine=VOLUME, sources={"allow": rules})
    assert pool.spec is not None
    refusal = refuse_source(uri, namespace, make_meta("smol"), pool.spec)
    assert (refusal is None) == allowed


@pytest.mark.parametrize(
    ("served", "trained_on", "expected"),
    [
        ("a", None, None),
        (None, None, None),
        ("a", "a", None),
        ("a", "b", Reason.BASE_MISMATCH),
        (None, "a", Reason.BASE_MISMATCH),
    ],
)
def test_the_base_s_digest(served: str | None, trained_on: str | None, expected: Reason | None) -> None:
    base = {"name": "smollm2", "source": {"uri": "http://assets/base"}}
    base |= {"digest": f"sha256:{served * 64}"} if served else {}
    adapter = make_adapter("a", **({"trainedOn": {"digest": f"sha256:{trained_on * 64}"}} if trained_on else {}))
    assert reason_for(adapter, baseModel=base) == expected


KEY = "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n"
RULES = [{"prefix": "http://assets/"}, {"prefix": "s3://lab/", "private": True, "namespaces": ["team"]}]


def test_an_engine_is_told_what_the_pool_lets_it_do() -> None:
    s3 = {"endpoint": "https://s3.lab.test", "region": "lab-1"}
    pool = make_pool(sources={"allow": RULES, "s3": s3}, trust={"signers": [{"publicKey": KEY}]})
    assert pool.spec is not None

    lab = source_of("s3://lab/a", "team", pool.spec)
    assert lab.access == SourceAccess(private=True, endpoint="https://s3.lab.test", region="lab-1")
    assert lab.signers == (KEY,)
    # The rule that opens private networks is another namespace's.
    assert not source_of("s3://lab/a", "demo", pool.spec).access.private
    assert source_of("http://assets/a", "team", pool.spec).access == SourceAccess()


def test_a_pool_may_require_digests() -> None:
    assert reason_for(make_adapter("a")) is None
    assert reason_for(make_adapter("a"), trust={"requireDigest": True}) == Reason.DIGEST_REQUIRED
