"""docs/reliability.md says what the records say, and the records what was tried."""

from e2e.cluster.paths import REPOSITORY
from e2e.reliability.laws import cut, merge
from e2e.reliability.page import render
from e2e.reliability.records import Record, read_records


def test_the_page_is_made_of_the_records() -> None:
    page = (REPOSITORY / "docs" / "reliability.md").read_text()
    assert page == render(read_records()), "run `make reliability`"


def test_laws_are_cut_into_seeds_and_equal_parts() -> None:
    shards = cut(["tests/engine/memory"], 100_000, 24, 7)
    assert len({shard.seed for shard in shards}) == 24
    assert {shard.cases for shard in shards} == {4167}
    assert len(cut(["tests"], 100_000, 2, 0)) == 20, "a process that tries too many gets slow"


def test_a_module_s_record_is_the_sum_of_its_shards() -> None:
    parts: list[Record] = [
        {"date": "2026-11-30", "module": "m", "cases": {"one": 30, "two": 3}, "seconds": {"one": 1.5, "two": 2.0}},
        {"date": "2026-12-01", "module": "m", "cases": {"one": 12, "two": 3}, "seconds": {"one": 0.1, "two": 2.0}},
    ]
    assert merge(parts) == {"module": "m", "cases": {"one": 42, "two": 6}, "seconds": {"one": 1.6, "two": 4.0}}
