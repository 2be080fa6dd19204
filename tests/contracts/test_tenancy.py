from hypothesis import given
from hypothesis import strategies as st

from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_contracts.resources.tenant import Isolation, TenantLimits
from lorafleet_contracts.tenancy import AdapterClaim, TenantClaim, refuse_adapters, refuse_tenants


def tenant(name: str, created: int, isolation: Isolation = "Shared", **limits: int) -> TenantClaim:
    return TenantClaim(("acme", name), created, TenantLimits(**limits), isolation)


def adapter(name: str, created: int, priority: int = 0, pinned: int = 0, min_replicas: int = 1) -> AdapterClaim:
    return AdapterClaim(("acme", name), created, priority, pinned, min_replicas)


def test_without_caps_everything_goes() -> None:
    assert refuse_tenants(Tenancy(), [tenant("a", 1, "Dedicated", requests_per_second=1_000_000)]) == {}
    assert refuse_adapters(Tenancy(), None, [adapter("a", 1, 1000, 1 << 60, 64)]) == {}


def test_the_oldest_tenants_keep_what_they_have() -> None:
    tenancy = Tenancy(max_limits=TenantLimits(requests_per_second=30))
    claims = [tenant("new", 3, requests_per_second=11), tenant("old", 1, requests_per_second=20)]
    claims.append(tenant("small", 4, requests_per_second=10))
    assert refuse_tenants(tenancy, claims) == {
        ("acme", "new"): "limits.requestsPerSecond of namespace acme would be 31 in sum, above tenancy.maxLimits 30"
    }


def test_namespaces_do_not_share() -> None:
    tenancy = Tenancy(max_limits=TenantLimits(concurrent_requests=1))
    others = [TenantClaim((name, "t"), 1, TenantLimits(concurrent_requests=1), "Shared") for name in ("a", "b")]
    assert refuse_tenants(tenancy, others) == {}


def test_a_capped_limit_must_be_set_and_its_burst_counts() -> None:
    tenancy = Tenancy(max_limits=TenantLimits(requests_per_second=10, burst=15, tokens_per_minute=100))
    found = refuse_tenants(
        tenancy,
        [
            tenant("unset", 1, requests_per_second=1),
            tenant("bursty", 2, requests_per_second=1, burst=16, tokens_per_minute=1),
            tenant("fits", 3, requests_per_second=10, tokens_per_minute=100),
        ],
    )
    assert found == {
        ("acme", "unset"): "limits.tokensPerMinute is not set, and tenancy.maxLimits allows namespace acme 100",
        ("acme", "bursty"): "limits.burst of namespace acme would be 16 in sum, above tenancy.maxLimits 15",
    }


def test_weights_are_summed() -> None:
    claims = [TenantClaim(("acme", f"t{number}"), number, TenantLimits(), "Shared", 2) for number in range(3)]
    assert refuse_tenants(Tenancy(max_weight=5), claims) == {
        ("acme", "t2"): "the weights of namespace acme would be 6 in sum, above tenancy.maxWeight 5"
    }


def test_isolation_is_the_pools_to_allow() -> None:
    found = refuse_tenants(Tenancy(isolation=["Shared"]), [tenant("a", 1, "Dedicated"), tenant("b", 2)])
    assert found == {("acme", "a"): "isolation Dedicated is not among tenancy.isolation"}


def test_adapters_are_held_to_priority_pins_and_replicas() -> None:
    tenancy = Tenancy(max_priority=5, max_pinned_bytes="1Ki", max_min_replicas=4)
    claims = [
        adapter("loud", 1, priority=6),
        adapter("first", 2, priority=5, pinned=1000, min_replicas=2),
        adapter("heavy", 3, pinned=25),
        adapter("wide", 4, min_replicas=3),
        adapter("last", 5, pinned=24, min_replicas=2),
    ]
    found = refuse_adapters(tenancy, 1024, claims)
    assert found == {
        ("acme", "loud"): "priority 6 is above tenancy.maxPriority 5",
        (
            "acme",
            "heavy",
        ): "the pinned adapters of namespace acme would take 1025 bytes, above tenancy.maxPinnedBytes 1024",
        ("acme", "wide"): "minReplicas of namespace acme would be 5 in sum, above tenancy.maxMinReplicas 4",
    }


@given(st.permutations(range(8)), st.integers(1, 40))
def test_what_is_granted_fits_and_does_not_hang_on_the_order(order: list[int], most: int) -> None:
    claims = [tenant(f"t{number}", number // 2, requests_per_second=number + 1) for number in range(8)]
    tenancy = Tenancy(max_limits=TenantLimits(requests_per_second=most))
    refused = refuse_tenants(tenancy, [claims[number] for number in order])
    assert refused == refuse_tenants(tenancy, claims)
    granted = [each.limits.requests_per_second or 0 for each in claims if each.key not in refused]
    assert sum(granted) <= most
