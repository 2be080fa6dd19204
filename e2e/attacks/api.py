"""Attacks on the gateway's port, with a key or without: names, headers, keys, bodies, slowness."""

import secrets
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from e2e.attacks.siege import CANARY, MALLORY, Outcome, Siege
from e2e.attacks.wire import CHAT, PATIENCE, REFUSED_EARLY, Reply, bearer, chat, make_request, read_reply, send
from e2e.engines import engine_states
from e2e.fleet import DEMO
from lorafleet_contracts.keys import SECRET_BYTES, KeyName, format_key, parse_key
from lorafleet_contracts.names import (
    HEADER_GATEWAY,
    HEADER_MODEL,
    HEADER_PREFIX,
    HEADER_TENANT,
    HEADER_WEIGHT,
    EnginePort,
    version_key,
)
from tests.gateway.doubles.hostile_http import BROKEN_JSON, INNER_URLS, LINE, SPOOFED, break_http, make_head

OWN = "pirate"
"""The one model that Mallory may call: her own, though it has the name of another's."""
NOBODY = f"{DEMO}/nobody-is-called-so"
MISSING = "model-that-is-nowhere"
UNKNOWN, NO_KEY = "404 model_not_found", "401 invalid_api_key"
BAD, LONG = "400 invalid_request", "413 request_too_large"
OWN_ANSWER, NO_USAGE = "200 by its own adapter", "no such usage"
AT_ONCE = 4
"""Requests that engines answer."""
GUESSES = 100
"""Of each sort of key."""
MIB = 1 << 20


def foreign_names(siege: Siege) -> Iterator[Outcome]:
    """Every way to name what another tenant has gets the answer of a name that nobody has."""
    found = siege.fleet.get("loraadapter", "support")
    assert found
    version = version_key(found["metadata"]["uid"], found["status"]["digest"])
    names = ("support", "shout", "smollm2-135m", "base", "demo/support", "demo/pirate", "demo/shout", version)
    guessed = ("SUPPORT", "support ", "support\u200b", "../support", "support/../pirate", "*", "sup", "x" * 10_000)
    missing = {way: send(siege.gateway, request) for way, request in _ways(siege, MISSING).items()}
    for name in (*names, version.partition("@")[0], found["status"]["digest"], *guessed):
        for way, request in _ways(siege, name).items():
            reply = send(siege.gateway, request)
            told = reply.told(name[:128])
            answer = str(reply) if told == missing[way].told(MISSING) else f"told apart: {told}"
            yield Outcome(f"{name[:64]} by {way}", UNKNOWN, answer)
    listed = send(siege.gateway, make_request("GET /v1/models", bearer(siege.mallory))).json
    ids = [each["id"] for each in listed["data"]]
    yield Outcome("the list of models", "its own only", "its own only" if ids == [OWN] else f"{ids}")


def _ways(siege: Siege, name: str) -> dict[str, bytes]:
    key = bearer(siege.mallory)
    ways = {"chat": make_request(f"POST {CHAT}", key, chat(name))}
    ways["completions"] = make_request("POST /v1/completions", key, chat(name))
    if name.isascii() and " " not in name and len(name) < 1_000 and ".." not in name:
        ways["id"] = make_request(f"GET /v1/models/{name.replace('/', '%2F')}", key)
    return ways


def spoofed_headers(siege: Siege) -> Iterator[Outcome]:
    """Headers of the gateway's own choosing change nothing: the key's own adapter answers, a foreign name is a 404."""
    victim, own = (siege.fleet.get("loraadapter", OWN, namespace) for namespace in (DEMO, MALLORY))
    assert victim
    assert own
    engine = siege.fleet.list("pods", selector="lorafleet.io/pool")[0]["status"]["podIP"]
    ours = {
        "model": {HEADER_MODEL: version_key(victim["metadata"]["uid"], victim["status"]["digest"])},
        "base": {HEADER_MODEL: "base"},
        "tenant": {HEADER_TENANT: NOBODY},
        "gateway": {HEADER_GATEWAY: "another"},
        "weight": {HEADER_WEIGHT: "1000000"},
        "cluster": {f"{HEADER_PREFIX}cluster": "picker"},
        "destination": {"x-gateway-destination-endpoint": f"{engine}:{int(EnginePort.ADMIN)}"},
        "original destination": {"x-envoy-original-dst-host": f"{engine}:{int(EnginePort.STATE)}"},
        "original path": {"x-envoy-original-path": "/admin/v1/drain"},
    }

    def ask(name: str, headers: Mapping[str, str]) -> list[Outcome]:
        outcomes = []
        for model, wanted in ((OWN, OWN_ANSWER), ("support", UNKNOWN)):
            request = make_request(f"POST {CHAT}", {**bearer(siege.mallory), **headers}, chat(model))
            answer = _served(send(siege.gateway, request), own["status"]["digest"])
            outcomes.append(Outcome(f"{name}, asking for {model}", wanted, answer))
        return outcomes

    spoofed = ours | SPOOFED
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for found in threads.map(ask, spoofed, spoofed.values()):
            yield from found
    tenants = {row.tenant for state in engine_states(siege.fleet).values() for row in state.usage}
    yield Outcome("usage of a tenant that is none", NO_USAGE, NO_USAGE if NOBODY not in tenants else "counted")


def _served(reply: Reply, own: str) -> str:
    """Who answered, by the digest; or the refusal."""
    if any(name.startswith(HEADER_PREFIX) for name in reply.headers):
        return "headers of ours in the answer"
    if reply.status != 200:
        return str(reply)
    return OWN_ANSWER if reply.json["system_fingerprint"] == own else f"200 by {reply.json['system_fingerprint']}"


def key_trials(siege: Siege) -> Iterator[Outcome]:
    """All wrong keys get one answer, to the byte, whatever is right about them."""
    request = make_request(f"POST {CHAT}", {}, chat(OWN))
    first = send(siege.gateway, request)
    yield Outcome("no key", NO_KEY, str(first))
    for name, headers in _wrong_keys(siege):
        siege.used.update(value.rpartition(" ")[2] for value in headers.values() if len(value) > 40)
        for line, body in ((f"POST {CHAT}", chat(OWN)), ("GET /v1/models", b"")):
            reply = send(siege.gateway, make_request(line, headers, body))
            same = reply.told(OWN) == first.told(OWN)
            yield Outcome(name, NO_KEY, str(reply) if same else f"told apart: {reply.told(OWN)}")


def _wrong_keys(siege: Siege) -> Iterator[tuple[str, Mapping[str, str]]]:
    right = siege.victims.acme
    name, secret = parse_key(right), right.rpartition("_")[2]
    for _ in range(GUESSES):
        yield "a guessed secret", bearer(format_key(name, secrets.token_bytes(SECRET_BYTES)))
    for place, letter in enumerate(secret):
        other = "a" if letter != "a" else "b"
        yield "one letter wrong", bearer(right[: -len(secret)] + secret[:place] + other + secret[place + 1 :])
    for tenant in ("globex", "nobody"):
        for id in ("e2e", "k1", "default"):
            yield "a secret of another entry", bearer(f"lf_{name.namespace}_{tenant}_{id}_{secret}")
    own = siege.mallory.rpartition("_")[2]
    yield "an own secret in another's name", bearer(f"lf_{name.namespace}_{name.tenant}_{name.id}_{own}")
    yield "an expired key", bearer(siege.expired)
    escaped, both = right.replace("_", "%5F"), f"{right},{siege.mallory}"
    for broken in (right[:-1], right + "a", right.upper(), escaped, both, "lf_"):
        yield "a malformed key", bearer(broken)
    for odd in (f"Basic {right}", f"Bearer{right}", f"Token {right}", f"Bearer Bearer {right}"):
        yield "another scheme", {"authorization": odd}
    for header in ("x-api-key", "api-key", "cookie", "proxy-authorization"):
        yield "a key elsewhere", {header: f"Bearer {right}"}
    never = KeyName("kube-system", "root", "k1")
    for _ in range(GUESSES // 4):
        yield "a tenant that there is not", bearer(format_key(never, secrets.token_bytes(SECRET_BYTES)))


def bodies(siege: Siege) -> Iterator[Outcome]:
    """Broken HTTP, broken JSON, inner URLs and bodies too large, each refused in the API's shape."""
    key, prompt = siege.mallory, chat(OWN, f"Tell nobody of {CANARY}.")
    for name, (request, status) in break_http(key, prompt).items():
        reply = send(siege.gateway, request)
        yield Outcome(name, f"{status} with a code", f"{reply.status} {'with a code' if reply.error else 'bare'}")
    for name, body in BROKEN_JSON.items():
        body = body.replace(b"}", f', "user": "{CANARY}"}}'.encode()) if body.endswith(b"}") else body
        yield Outcome(name, BAD, str(send(siege.gateway, make_request(f"POST {CHAT}", bearer(key), body))))
    for url in INNER_URLS:
        yield Outcome(url, "404 unknown_url", str(send(siege.gateway, make_request(f"GET {url}", bearer(key)))))
    announced = LINE + make_head(key) + b"content-length: %d\r\n\r\n" % (1 << 40)
    yield Outcome("a terabyte announced", LONG, str(send(siege.gateway, announced)))
    yield Outcome("a body without an end", LONG, str(_send_without_end(siege)))
    unkeyed = LINE + make_head("") + b"content-length: %d\r\n\r\n" % (7 * MIB)
    yield Outcome("seven megabytes without a key", NO_KEY, str(send(siege.gateway, unkeyed)))
    long = make_request(f"POST {CHAT}", bearer(key), chat(OWN, f"{CANARY} " + "snow " * 50_000))
    yield Outcome("a prompt beyond the window", "400 context_length_exceeded", str(send(siege.gateway, long)))


def _send_without_end(siege: Siege) -> Reply:
    with socket.create_connection(siege.gateway, PATIENCE) as connection:
        connection.sendall(LINE + make_head(siege.mallory) + b"transfer-encoding: chunked\r\n\r\n")
        with suppress(*REFUSED_EARLY):
            for _ in range(64):
                connection.sendall(b"100000\r\n" + b" " * MIB + b"\r\n")
        return read_reply(connection)


def slowness(siege: Siege) -> Iterator[Outcome]:
    """Whoever does not come to an end is ended."""
    for name, answer in siege.slow.answers():
        yield Outcome(name, "408 request_timeout", answer)
