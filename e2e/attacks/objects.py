"""Attacks by manifest: adapters and tenants of hostile owners, applied when the attacks begin, judged later."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

from e2e.attacks.api import OWN, OWN_ANSWER, UNKNOWN
from e2e.attacks.siege import GREEDY, MALLORY, STRANGER, Outcome, Siege
from e2e.attacks.store import ASKED_FOR, BOMBS, CASES, HEADERS, LED_ASTRAY, slug
from e2e.attacks.wire import CHAT, bearer, chat, make_request, send
from e2e.cluster.errors import CommandFailed
from e2e.engines import POOL
from e2e.fleet import DEMO, Fleet, Object, condition
from e2e.waiting import NotInTimeError, wait_until

STORE = f"http://store.{MALLORY}.svc/"
RULES = (
    {"prefix": STORE, "namespaces": [MALLORY]},
    {"prefix": f"http://private.{DEMO}.svc/", "namespaces": [DEMO]},
)
"""What the pool allows besides the demo's own files."""
MOST = 1000
LIMITS = {"requestsPerSecond": MOST, "concurrentRequests": MOST}
TENANCY = {
    "maxPriority": 0,
    "maxMinReplicas": 63,
    "maxWeight": 100,
    "maxPinnedBytes": "1k",
    "maxLimits": LIMITS,
    "isolation": ["Shared"],
}
VERDICT_SECONDS = 120.0

NOT_ALLOWED, UNSUPPORTED, TOO_MUCH = "SourceNotAllowed", "UnsupportedAdapter", "ExceedsPoolLimit"
NOT_ADMITTED, NO_MODELS = "NamespaceNotAllowed", "an empty list"
TOO_LARGE, NO_STRAYS = "DoesNotFit", "asked for nothing else"
UNREACHABLE = "SourceUnreachable"
ADDRESSES = {
    "the metadata service": "http://169.254.169.254/latest/meta-data",
    "the metadata service as a number": "http://2852039166/latest/meta-data",
    "the metadata service in IPv6": "http://[::ffff:169.254.169.254]/latest/meta-data",
    "the engine's own admin port": "http://127.0.0.1:8002/admin/v1/drain",
    "the API server": "https://kubernetes.default.svc/api/v1/secrets",
    "the operator": "http://lorafleet-operator.lorafleet-system.svc:8080/metrics",
    "a rule of another namespace": f"http://private.{DEMO}.svc/adapter",
    "a longer host": "http://demo-assets.example.com/adapters/pirate",
    "a user before the host": "http://demo-assets@169.254.169.254/adapters/pirate",
    "a password before the host": "http://demo-assets:80@169.254.169.254/adapters/pirate",
    "another port": "http://demo-assets:8002/adapters/pirate",
    "another scheme": "https://demo-assets/adapters/pirate",
    "dots": f"{STORE}good/../../etc",
    "dots, escaped": f"{STORE}%2e%2e/%2e%2e/etc",
    "a slash, escaped": f"{STORE}..%2f..%2fetc",
    "backslashes": f"{STORE}..\\..\\etc",
    "a zero byte": f"{STORE}good%00.txt",
    "a query": f"{STORE}good?file=/etc/passwd",
    "a fragment": f"{STORE}good#/etc/passwd",
    "the engine's files": "file:///etc/passwd",
    "the engine's token": "file:///etc/lorafleet/tokens/admin",
    "the files of its process": "file:///proc/self/environ",
    "a volume that there is not": "pvc://models/adapter",
    "a volume, climbing": "pvc://models/../../etc",
    "somebody's bucket": "s3://models/adapter",
    "the Hub": "hf://acme/adapter@main",
    "a registry": "oci://registry.example.com/adapter:v1",
}
"""Of sources, each refused by the operator before anything connects."""
NO_ADDRESSES = ("gopher://169.254.169.254/", "javascript:alert(1)", f"{STORE}good\r\nhost: inner", "/etc/passwd", "")
"""The API server itself refuses these."""
SHARDS = {name for name in LED_ASTRAY if name.startswith("a shard")}
WORDS = {
    **dict.fromkeys(SHARDS, UNSUPPORTED),
    "a shard that climbs backwards": NOT_ALLOWED,
    "a gibibyte in gzip": UNREACHABLE,
    "weights of a gibibyte in gzip": UNREACHABLE,
    "a configuration without end": TOO_LARGE,
    "weights of a terabyte": TOO_LARGE,
}
"""Reasons of the store's cases where they are others than their kind's."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A manifest and the reason for which it must be Stalled."""

    attack: str
    manifest: Object
    wanted: str


def lora(name: str, uri: str, namespace: str = MALLORY, **spec: object) -> Object:
    """A LoraAdapter of a hostile owner on the demo's pool."""
    pool = {"name": POOL, "namespace": DEMO}
    meta = {"name": name, "namespace": namespace}
    spec = {"poolRef": pool, "source": {"uri": uri}, **spec}
    return {"apiVersion": "lorafleet.io/v1alpha1", "kind": "LoraAdapter", "metadata": meta, "spec": spec}


SOURCES = [
    *(Trial(name, lora(f"source-{slug(name)}", uri), NOT_ALLOWED) for name, uri in ADDRESSES.items()),
    *(Trial(name, lora(slug(name), STORE + slug(name)), WORDS.get(name, NOT_ALLOWED)) for name in LED_ASTRAY),
]
ARCHIVES = [Trial(name, lora(slug(name), STORE + slug(name)), WORDS.get(name, UNSUPPORTED)) for name in BOMBS]
WEIGHTS = [Trial(name, lora(slug(name), STORE + slug(name)), UNSUPPORTED) for name in HEADERS]
SQUATS = [
    Trial("the base's name", lora("base", STORE + "good", model="smollm2-135m"), "NameReserved"),
    Trial("a name of one's own, again", lora("pirate-2", STORE + "good", model=OWN), "NameConflict"),
]
GOOD = "http://demo-assets/adapters/robot"
CLAIMS = [
    Trial("priority", lora("first", GOOD, GREEDY, priority=1000), TOO_MUCH),
    Trial("replicas", lora("everywhere", GOOD, GREEDY, minReplicas=64), TOO_MUCH),
    Trial("pinned bytes", lora("for-ever", GOOD, GREEDY, pinned=True), TOO_MUCH),
]
OUTSIDER = "outsider"
STRANGERS = [Trial("an adapter", lora(OUTSIDER, GOOD, STRANGER, sharedWith={"namespaceSelector": {}}), NOT_ADMITTED)]
TRIALS = [*SOURCES, *ARCHIVES, *WEIGHTS, *SQUATS, *CLAIMS, *STRANGERS]


def sources(siege: Siege) -> Iterator[Outcome]:
    """Addresses outside of what the pool allows, and stores that lead there; nothing else was connected to."""
    said = ""
    try:
        siege.fleet.apply(*(lora(f"no-address-{number}", uri) for number, uri in enumerate(NO_ADDRESSES)))
    except CommandFailed as error:
        said = str(error)
    for number, uri in enumerate(NO_ADDRESSES):
        refused = f'"no-address-{number}" is invalid' in said
        yield Outcome(f"the address {uri!r}", "Invalid", "Invalid" if refused else "accepted")
    yield from _verdicts(siege, SOURCES)
    seen = asked_for(siege)
    strays = [path for path in seen if not _is_ordinary(path)]
    yield Outcome("what the store was asked for", NO_STRAYS, f"{strays[:3]}" if strays else NO_STRAYS)


def archives(siege: Siege) -> Iterator[Outcome]:
    """What unpacks to more than it is, or never ends."""
    yield from _verdicts(siege, ARCHIVES)


def safetensors(siege: Siege) -> Iterator[Outcome]:
    """Every weight file of tests/engine/support/hostile.py."""
    yield from _verdicts(siege, WEIGHTS)


def claims(siege: Siege) -> Iterator[Outcome]:
    """More than `tenancy` leaves: the operator says so of adapters and tenants, the gateway refuses the tenants."""
    yield from _verdicts(siege, CLAIMS)
    for name, key in siege.greedy.items():
        found = condition(siege.fleet.get("tenant", name, GREEDY), "Accepted")
        yield Outcome(f"tenant's {name}", TOO_MUCH, found["reason"])
        reply = send(siege.gateway, make_request(f"POST {CHAT}", bearer(key), chat("smollm2-135m")))
        yield Outcome(f"a request with more {name}", "403 tenant_not_accepted", str(reply))


def strangers(siege: Siege) -> Iterator[Outcome]:
    """A namespace that the pool does not admit: what is in it is nobody's, and whose key is of there has nothing."""
    yield from _verdicts(siege, STRANGERS)
    found = condition(siege.fleet.get("tenant", OUTSIDER, STRANGER), "Accepted")
    yield Outcome("a tenant", NOT_ADMITTED, found["reason"])
    for name in (OUTSIDER, OWN, f"{DEMO}/{OWN}", "support", "smollm2-135m", "base"):
        reply = send(siege.gateway, make_request(f"POST {CHAT}", bearer(siege.stranger), chat(name)))
        yield Outcome(f"{name} with a key of there", UNKNOWN, str(reply))
    listed = send(siege.gateway, make_request("GET /v1/models", bearer(siege.stranger)))
    answer = NO_MODELS if listed.json.get("data") == [] else str(listed)
    yield Outcome("the models of a key of there", NO_MODELS, answer)
    for name in (OUTSIDER, f"{STRANGER}/{OUTSIDER}"):
        reply = send(siege.gateway, make_request(f"POST {CHAT}", bearer(siege.mallory), chat(name)))
        yield Outcome(f"{name} with a key of a namespace that names it", UNKNOWN, str(reply))


def squats(siege: Siege) -> Iterator[Outcome]:
    """A name that is another's, in a namespace of one's own: each tenant gets its own adapter."""
    yield from _verdicts(siege, SQUATS)
    digests = {
        siege.victims.acme: (siege.fleet.get("loraadapter", OWN, DEMO) or {})["status"]["digest"],
        siege.mallory: (siege.fleet.get("loraadapter", OWN, MALLORY) or {})["status"]["digest"],
    }
    for name, key in (("the victim's", siege.victims.acme), ("the squatter's", siege.mallory)):
        reply = send(siege.gateway, make_request(f"POST {CHAT}", bearer(key), chat(OWN)))
        own = reply.json.get("system_fingerprint") == digests[key]
        yield Outcome(f"the name with {name} key", OWN_ANSWER, OWN_ANSWER if own else str(reply))
    for name in (f"{MALLORY}/{OWN}", f"{DEMO}/{OWN}"):
        reply = send(siege.gateway, make_request(f"POST {CHAT}", bearer(siege.victims.acme), chat(name)))
        yield Outcome(f"{name} with the victim's key", UNKNOWN, str(reply))
    tenant = condition(siege.fleet.get("tenant", "acme", MALLORY), "Stalled")
    yield Outcome("a tenant that names another's adapters", "AdapterNotFound", tenant["reason"])


def asked_for(siege: Siege) -> list[str]:
    """The paths that the hostile store was asked for."""
    ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/seen').read().decode())"
    text = siege.fleet.kubectl.run("exec", "-n", MALLORY, "store", "--", "python3", "-c", ask)
    return re.findall(r'"([^"]*)"', text)


def _is_ordinary(path: str) -> bool:
    """Whether a path is a file that an engine may want of one of the cases."""
    _, case, *files = path.split("/")
    names = [unquote(file) for file in files]
    return (
        case in CASES
        and len(names) == 1
        and "?" not in files[0]
        and (names[0] in ASKED_FOR or (names[0].endswith(".safetensors") and "/" not in names[0]))
    )


def _verdicts(siege: Siege, trials: Iterable[Trial]) -> Iterator[Outcome]:
    """The reason for which each is Stalled, once all are."""
    waiting = list(trials)
    namespaces = sorted({each.manifest["metadata"]["namespace"] for each in waiting})

    def told() -> bool:
        found = {namespace: _reasons(siege.fleet, namespace) for namespace in namespaces}
        reasons.update({name: each for names in found.values() for name, each in names.items()})
        return all(each.manifest["metadata"]["name"] in reasons for each in waiting)

    reasons: dict[str, str] = {}
    with suppress(NotInTimeError):  # those without one are told below
        wait_until(told, seconds=VERDICT_SECONDS, what="every verdict", pause=1.0)
    for each in waiting:
        yield Outcome(each.attack, each.wanted, reasons.get(each.manifest["metadata"]["name"], "no verdict"))


def _reasons(fleet: Fleet, namespace: str) -> Mapping[str, str]:
    found = {each["metadata"]["name"]: condition(each, "Stalled") for each in fleet.list("loraadapters", namespace)}
    return {name: str(each["reason"]) for name, each in found.items() if each.get("status") == "True"}
