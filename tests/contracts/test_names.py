"""Names of sets of replicas and of servers."""

from lorafleet_contracts.names import class_set, engine_server_name, is_dedicated, merged_set, private_set


def test_sets_are_named_after_what_they_are_for() -> None:
    assert class_set(64) == "class-64"
    assert merged_set("uid-1").startswith("merged-")
    assert private_set("uid-1").startswith("private-")
    assert merged_set("uid-1") != merged_set("uid-2")
    assert [is_dedicated(each) for each in ("shared", "class-64", merged_set("u"), private_set("u"))] == [
        False, False, True, True,
    ]  # fmt: skip


def test_no_two_pools_have_one_server_name() -> None:
    assert engine_server_name("serving", "smol.v1") == "smol.v1.serving.engines.lorafleet"
    assert engine_server_name("serving", "smol.v1") != engine_server_name("v1-serving", "smol")
