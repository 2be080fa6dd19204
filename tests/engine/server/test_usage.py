from lorafleet_contracts.admin import UsageState
from lorafleet_engine.server.usage import MAX_ROWS, OTHER, UsageKey, UsageTable

FIRST, SECOND = UsageKey("acme/t", "base", "g1"), UsageKey("acme/t", "base", "g2")


def test_counters_grow_by_tenant_adapter_and_gateway() -> None:
    table = UsageTable()
    table.add(FIRST, 3, 4, seq=2)
    table.add(FIRST, 1, 1, seq=3)
    table.add(SECOND, 5, 6, seq=4)
    names = {"tenant": "acme/t", "adapter": "base"}
    first = UsageState(**names, gateway="g1", requests=2, prompt_tokens=4, completion_tokens=5)
    second = UsageState(**names, gateway="g2", requests=1, prompt_tokens=5, completion_tokens=6)
    assert list(table.rows()) == [first, second]
    assert list(table.rows("g1")) == [first]
    assert list(table.rows("g1", since=2)) == [first]
    assert list(table.rows("g1", since=3)) == []  # nothing has changed since
    assert list(table.rows("")) == []


def test_rows_are_bounded() -> None:
    table = UsageTable()
    for number in range(MAX_ROWS + 2):
        table.add(UsageKey(f"t{number}", "base", "g1"), 1, 1, seq=number)
    assert len(list(table.rows())) == MAX_ROWS + 1
    assert list(table.rows())[-1].tenant == OTHER
