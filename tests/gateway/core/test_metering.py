from lorafleet_contracts.admin import UsageState
from lorafleet_gateway.core.metering import FIRST_ANSWER, Meter, Used
from tests.gateway.core.records import make_replica

ACME = ("acme", "t")


def row(requests: int, prompt: int, answer: int, adapter: str = "a", **fields: str) -> UsageState:
    names = {"tenant": "acme/t", "gateway": "g1", "adapter": adapter, **fields}
    return UsageState(**names, requests=requests, prompt_tokens=prompt, completion_tokens=answer)


def test_the_first_look_only_sets_the_marks() -> None:
    meter = Meter("g1")
    assert meter.read(make_replica(1), "boot", [row(9, 90, 900)]) == {}
    assert meter.read(make_replica(1), "boot", [row(10, 100, 930)]) == {ACME: Used(1, 10, 30)}
    assert meter.read(make_replica(1), "boot", [row(10, 100, 930)]) == {}


def test_rows_that_are_not_told_again_are_as_they_were() -> None:
    meter = Meter("g1")
    meter.read(make_replica(1), "boot", [row(1, 1, 1, "a"), row(1, 1, 1, "b")])
    assert meter.read(make_replica(1), "boot", [row(2, 2, 2, "b")]) == {ACME: Used(1, 1, 1)}
    assert meter.read(make_replica(1), "boot", [row(2, 2, 2, "a"), row(3, 3, 3, "b")]) == {ACME: Used(2, 2, 2)}


def test_all_of_a_new_boot_is_new() -> None:
    meter = Meter("g1")
    meter.read(make_replica(1), "boot", [row(9, 90, 900)])
    assert meter.read(make_replica(1), "other", [row(2, 20, 200)]) == {ACME: Used(2, 20, 200)}


def test_what_was_counted_unasked_is_never_charged() -> None:
    meter = Meter("g1")
    meter.read(make_replica(1), "boot", [row(1, 1, 1, "a")])
    meter.skip(make_replica(1), "boot")
    assert meter.read(make_replica(1), "boot", []) == {}
    assert meter.read(make_replica(1), "boot", [row(9_000, 90_000, 900_000, "a")]) == {}
    assert meter.read(make_replica(1), "boot", [row(9_001, 90_010, 900_030, "a")]) == {ACME: Used(1, 10, 30)}
    assert meter.read(make_replica(1), "other", [row(2, 20, 200, "b")]) == {ACME: Used(2, 20, 200)}


def test_each_instance_counts_its_own_rows_only() -> None:
    meter = Meter("g1")
    meter.read(make_replica(1), "boot", [])
    others = [row(1, 1, 1, gateway="g2"), row(4, 5, 6, tenant="globex/t")]
    assert meter.read(make_replica(1), "boot", others) == {("globex", "t"): Used(4, 5, 6)}


def test_replicas_are_told_apart_and_forgotten() -> None:
    meter = Meter("g1")
    meter.read(make_replica(1), "boot", [])
    assert meter.read(make_replica(2), "boot", [row(5, 5, 5)]) == {}
    meter.forget(make_replica(1))
    assert meter.read(make_replica(1), "boot", [row(5, 5, 5)]) == {}


def test_the_usual_answer_is_learnt() -> None:
    meter = Meter("g1")
    assert meter.usual_answer(ACME) == FIRST_ANSWER
    meter.read(make_replica(1), "boot", [])
    meter.read(make_replica(1), "boot", [row(2, 1, 200)])
    assert meter.usual_answer(ACME) == 100
    meter.read(make_replica(1), "boot", [row(3, 1, 210)])
    assert meter.usual_answer(ACME) == 82
