"""The authority of the engines' certificates: its Secret, whom the ConfigMap says to trust, and what it issues.

Run by the leader's main.py, asked by observe.py; core/authority.py decides what is to be done.
The operator reads no Secret of pools: what it issues follows from the authority, so it is applied without looking.
"""

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lorafleet_contracts.names import ENGINE_CA, ENGINE_CA_KEY, engine_server_name
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError, KubeError
from lorafleet_kube.paths import SECRETS, Kind
from lorafleet_operator.core.actions import Apply
from lorafleet_operator.core.authority import Decision, Root, Sight, decide, term_of
from lorafleet_operator.core.manifests.certificates import MANAGED_BY, build_home_certificate, build_trust
from lorafleet_operator.core.manifests.identity import fingerprint
from lorafleet_operator.core.snapshot import Certificate, Meta, PoolTls
from lorafleet_operator.shell.certificates import Authority, Holder, issue, make_authority, read_authority, read_roots
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.kinds import CONFIG_MAPS
from lorafleet_operator.shell.lease import OwnersOf
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.trust import Trust

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
RETRY_SECONDS = 1.0
REMEMBERED = 1024
NOT_FOUND = 404
Object = dict[str, Any]
Shown = Callable[[], Iterable[tuple[Meta, str | None]]]
"""For each engine with TLS its pool, and the fingerprint of the certificate that it shows, if it is known."""


@dataclass(frozen=True, slots=True)
class GatewayCertificate:
    """The Secret with the gateway's own certificate, where the operator is to issue it, and what it is for."""

    secret: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Home:
    """The operator's namespace. `makes`: the authority is the operator's to make, not somebody else's."""

    namespace: str
    owners: OwnersOf
    makes: bool
    gateway: GatewayCertificate | None


class EngineAuthority:
    """Whom engines' certificates come from. `loaded` is set after the first look; `on_change` is told of another
    authority and of other roots."""

    def __init__(self, reach: tuple[KubeApi, Cluster], home: Home, trust: Trust, metrics: Metrics) -> None:
        self._api, self._cluster = reach
        self._home = home
        self._trust = trust
        self._metrics = metrics
        self._authority: Authority | None = None
        self._decision = Decision(make=False, trusted=(), issues=False)
        self._first_seen: tuple[str, float] = ("", 0.0)
        self._issued: dict[str, tuple[object, Certificate]] = {}
        self._problems: dict[str, str] = {}
        self.loaded = asyncio.Event()

    async def run(self, shown: Shown, on_change: Callable[[], None]) -> None:
        """Look, decide and act for ever; cancel to stop. Raises NotLeadingError."""
        while True:
            before = self._decision, self._authority and self._authority.root
            try:
                await self.look(shown, time.time())
                self.loaded.set()
            except KubeError as error:
                log.warning("the authority of the engines' certificates could not be looked after: %s", error)
            if before != (self._decision, self._authority and self._authority.root):
                on_change()
            await asyncio.sleep(LOOK_SECONDS if self.loaded.is_set() else RETRY_SECONDS)

    async def look(self, shown: Shown, now: float) -> None:
        """One look and what follows from it. Raises NotLeadingError or KubeError."""
        published = await self._published()
        authority, makes = await self._read()
        decision = decide(self._sight(authority, makes, published, shown), now)
        if decision.make:
            authority = await self._make(now)
            decision = decide(self._sight(authority, makes, published, shown), now)
        roots = _bundle(decision.trusted)
        if roots and decision.trusted != published:
            owners = await self._home.owners()
            await self._apply(build_trust(self._home.namespace, owners, roots))
            log.info("engines are to be trusted by %d root(s)", len(decision.trusted))
        self._trust.take(roots)
        self._authority, self._decision = authority, decision
        self._metrics.authority_expires.set(authority.root.expires if authority else 0)
        if self._home.gateway is not None:
            await self._renew_gateway(self._home.gateway, now)

    def tls_of(self, pool: Meta) -> PoolTls:
        """What a pool's engines are to have now; no certificate while nothing is issued."""
        roots = _bundle(self._decision.trusted)
        if self._authority is None or not self._decision.issues:
            return PoolTls(roots=roots)
        return PoolTls(self._issue(self._authority, _engines(pool), time.time()), roots)

    def _issue(self, authority: Authority, holder: Holder, now: float) -> Certificate:
        term = term_of(authority.root, holder.identity, now)
        follows_from = (authority.root.fingerprint, term, holder)
        known = self._issued.get(holder.identity)
        if known is not None and known[0] == follows_from:
            return known[1]
        issued = issue(authority, holder, term)
        if len(self._issued) >= REMEMBERED:
            self._issued.clear()  # of pools that are gone, mostly
        self._issued[holder.identity] = (follows_from, issued)
        return issued

    def _sight(self, authority: Authority | None, makes: bool, published: tuple[Root, ...], shown: Shown) -> Sight:
        root, waited = (authority.root if authority else None), 0.0
        if root is not None and root in published:
            if self._first_seen[0] != root.fingerprint:
                self._first_seen = (root.fingerprint, time.monotonic())
            waited = time.monotonic() - self._first_seen[1]
        lagging = authority is not None and len(published) > 1 and self._lagging(authority, shown)
        return Sight(root, makes, published, waited, lagging)

    def _lagging(self, authority: Authority, shown: Shown) -> bool:
        """Whether an engine shows no certificate of the present authority's that is good now."""
        now = time.time()
        return any(found != self._issue(authority, _engines(pool), now).fingerprint for pool, found in shown())

    async def _read(self) -> tuple[Authority | None, bool]:
        """The authority, None where there is none that is usable, and whether it is the operator's to make."""
        secret = await self._get(SECRETS, ENGINE_CA)
        where = f"Secret {self._home.namespace}/{ENGINE_CA}"
        if secret is None:
            waits = f"{where} is not there yet: cert-manager makes it for the Certificate of that name; engines get no"
            self._tell(ENGINE_CA, "" if self._home.makes else f"{waits} certificates until then")
            return None, self._home.makes
        try:
            authority = read_authority(_decode(secret, "tls.crt"), _decode(secret, "tls.key"))
        except ValueError as error:
            advice = "Engines keep the certificates that they have; put it right, or delete it to have one made anew"
            self._tell(ENGINE_CA, f"{where} cannot be used: {error}. {advice}")
            return None, False
        self._tell(ENGINE_CA, "")
        return authority, self._home.makes and _is_ours(secret)

    async def _make(self, now: float) -> Authority:
        chain, key = make_authority(now)
        made = read_authority(chain.encode(), key.encode())
        certificate = Certificate(made.root.fingerprint, chain, key)
        place, owners = (self._home.namespace, ENGINE_CA), await self._home.owners()
        await self._apply(build_home_certificate(place, owners, certificate, chain))
        log.info("made the authority of the engines' certificates, Secret %s/%s", self._home.namespace, ENGINE_CA)
        return made

    async def _published(self) -> tuple[Root, ...]:
        found = await self._get(CONFIG_MAPS, ENGINE_CA)
        try:
            return read_roots(((found or {}).get("data") or {}).get(ENGINE_CA_KEY, ""))
        except ValueError as error:
            log.warning("ConfigMap %s is no list of certificates and is written anew: %s", ENGINE_CA, error)
            return ()

    async def _renew_gateway(self, wanted: GatewayCertificate, now: float) -> None:
        if self._authority is None or not self._decision.issues:
            return
        there = await self._get(SECRETS, wanted.secret)
        if there is not None and not _is_ours(there):
            self._tell(
                wanted.secret,
                f"Secret {self._home.namespace}/{wanted.secret} was not made by the operator and is left alone: delete"
                " it to have the gateway's certificate issued, or name it in gateway.tls.secretName",
            )
            return
        self._tell(wanted.secret, "")
        holder = Holder(f"gateway/{self._home.namespace}", wanted.names, wanted.addresses)
        certificate, roots = self._issue(self._authority, holder, now), _bundle(self._decision.trusted)
        place = (self._home.namespace, wanted.secret)
        if there is None or there.get("data") != build_home_certificate(place, (), certificate, roots)["data"]:
            owners = await self._home.owners()
            await self._apply(build_home_certificate(place, owners, certificate, roots))
            log.info("issued the gateway's certificate, Secret %s/%s", *place)

    async def _apply(self, manifest: Object) -> None:
        key = f"{manifest['kind']}/{manifest['metadata']['name']}"
        await self._cluster.apply(Apply(key, fingerprint(manifest), manifest))

    async def _get(self, kind: Kind, name: str) -> Object | None:
        try:
            return await self._api.get(kind.path(self._home.namespace, name))
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise
            return None

    def _tell(self, secret: str, problem: str) -> None:
        """Log a problem of a Secret once, not with every look; an empty one: there is none any more."""
        if problem and problem != self._problems.get(secret):
            log.error("%s", problem)
        self._problems[secret] = problem


def _engines(pool: Meta) -> Holder:
    return Holder(f"pool/{pool.uid}", (engine_server_name(pool.namespace, pool.name),))


def _bundle(roots: Iterable[Root]) -> str:
    return "".join(each.pem for each in roots)


def _decode(secret: Object, entry: str) -> bytes:
    try:
        return base64.b64decode((secret.get("data") or {}).get(entry, ""))
    except binascii.Error as error:
        raise ValueError(f"{entry} is damaged: {error}") from error


def _is_ours(found: Object) -> bool:
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in MANAGED_BY.items())
