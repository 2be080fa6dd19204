"""The ext_proc server's one method: a request's headers and body in, a rejection or a destination out.

Called by Envoy over loopback. Translates between Envoy's messages and core, which decides. It ends its stream right
after the answer: Envoy would otherwise cut a running response when the picker dies.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

import orjson
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import HEADER_GATEWAY, HEADER_MODEL, HEADER_REQUEST_ID, HEADER_TENANT, HEADER_WEIGHT
from lorafleet_gateway.core.auth import authenticate
from lorafleet_gateway.core.envoy_clusters import cluster_name
from lorafleet_gateway.core.envoy_names import HEADER_CLUSTER
from lorafleet_gateway.core.records import Tenant
from lorafleet_gateway.core.rejections import (
    Rejection,
    body_too_large,
    internal_error,
    invalid_body,
    starting,
    tenant_not_accepted,
)
from lorafleet_gateway.core.routing import Route, pick_route
from lorafleet_gateway.core.table import Table
from lorafleet_gateway.core.urls import Operation, read_url
from lorafleet_gateway.shell.answers import (
    build_continue,
    build_model,
    build_model_list,
    build_pick,
    build_rejection,
)
from lorafleet_gateway.shell.cold_queue import ColdQueue
from lorafleet_gateway.shell.grpc_port import Stream
from lorafleet_gateway.shell.limits.limiter import Call, Limiter
from lorafleet_gateway.shell.metrics import Metrics
from lorafleet_gateway.shell.port_keys import PortKeys
from lorafleet_gateway.shell.states import StatePolls

ABANDONED = "abandoned"
"""What metrics call a request whose client left before the answer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Desk:
    """What the picker works with."""

    instance: str
    max_body: int
    polls: StatePolls
    cold: ColdQueue
    keys: PortKeys
    limiter: Limiter
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Opened:
    """A request whose body is to be read: whose it is, and Envoy's id for it."""

    tenant: Tenant
    id: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request's body asks for; `max_tokens` None: as long as the answer gets."""

    model: str
    max_tokens: int | None
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A message to Envoy and what metrics call it."""

    label: str
    response: ext_proc.ProcessingResponse


class Picker:
    """Answers requests from `table`, which the service replaces whole; None until the first full sync."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.table: Table | None = None

    async def process(self, stream: Stream) -> None:
        """One gRPC stream per HTTP request."""
        started = time.monotonic()
        label = ABANDONED
        try:
            label = await self._answer(stream)
        finally:
            self._desk.metrics.answers.labels(label).inc()
            self._desk.metrics.pick_seconds.observe(time.monotonic() - started)

    async def _answer(self, stream: Stream) -> str:
        """Answer one request. Returns what metrics call it."""
        request_id = ""
        try:
            first = await stream.read()
            if first is None:
                return ABANDONED
            opened = self._open(ext_proc.ProcessingRequest.FromString(first).request_headers)
            if isinstance(opened, Answer):
                answer = opened
            else:
                request_id = opened.id
                await stream.write(build_continue().SerializeToString())
                second = await stream.read()
                if second is None:
                    return ABANDONED
                answer = await self._pick_counted(
                    opened, ext_proc.ProcessingRequest.FromString(second).request_body.body
                )
        except Rejection as rejection:
            answer = Answer(rejection.code, build_rejection(rejection))
        except Exception:
            log.exception("the picker failed", extra={"request_id": request_id})
            answer = Answer("internal_error", build_rejection(internal_error()))
        await stream.write(answer.response.SerializeToString())
        return answer.label

    def _open(self, message: ext_proc.HttpHeaders) -> Answer | Opened:
        """Judge the request by its headers: a final answer, or the request whose body is to be read."""
        table = self._table()
        headers = {each.key: each.raw_value.decode("latin-1") for each in message.headers.headers}
        wanted = read_url(headers.get(":method", ""), headers.get(":path", ""))
        tenant = authenticate(headers.get("authorization", ""), table.tenants, time.time())
        if tenant.key in table.excess:
            raise tenant_not_accepted(table.excess[tenant.key])
        match wanted.operation:
            case Operation.LIST_MODELS:
                return Answer("models", build_model_list(table.list_models(tenant)))
            case Operation.GET_MODEL:
                return Answer("models", build_model(table.resolve(tenant, wanted.model)))
        if message.end_of_stream:
            raise invalid_body("The request has no body; send a JSON object with `model`.")
        if int(headers.get("content-length", 0)) > self._desk.max_body:
            raise body_too_large(self._desk.max_body)
        return Opened(tenant, headers.get(HEADER_REQUEST_ID, ""))

    async def _pick_counted(self, opened: Opened, body: bytes) -> Answer:
        """`_pick`, with refusals counted for the tenant. Raises Rejection."""
        try:
            return await self._pick(opened, body)
        except Rejection as rejection:
            self._desk.metrics.count_refusal("/".join(opened.tenant.key), rejection.code)
            raise

    async def _pick(self, opened: Opened, body: bytes) -> Answer:
        """Let the request in, as far as its tenant's limits allow, and find replicas for it."""
        tenant, wanted = opened.tenant, _read_body(body)
        if tenant.limits is None:
            return await self._find(tenant, wanted)
        table = self._table()
        table.resolve(tenant, wanted.model)  # what nobody may call costs nothing
        call = Call(opened.id, wanted.body_bytes, wanted.max_tokens)
        await self._desk.limiter.admit(tenant, call, table.pools[tenant.pool].window)
        try:
            return await self._find(tenant, wanted)
        except BaseException:
            self._desk.limiter.end(opened.id)
            raise

    async def _find(self, tenant: Tenant, wanted: Wanted) -> Answer:
        """Choose replicas for the model; wait a while for one that no replica holds yet."""
        until = asyncio.get_running_loop().time() + self._desk.cold.seconds
        while True:
            table = self._table()
            model = table.resolve(tenant, wanted.model)
            route = pick_route(table, self._desk.polls.fleet, tenant.pool, model)
            if route is not None:
                return self._send(route, table.pools[tenant.pool].uid, tenant)
            await self._desk.cold.wait(model.version or "", wanted.model, wanted.body_bytes, until)

    def _send(self, route: Route, pool_uid: str, tenant: Tenant) -> Answer:
        self._desk.polls.picked(route.replicas[0])
        headers = {
            "authorization": f"Bearer {self._desk.keys.token(PortName.SERVING, pool_uid)}",
            HEADER_MODEL: route.version,
            HEADER_TENANT: "/".join(tenant.key),
            HEADER_GATEWAY: self._desk.instance,
            HEADER_CLUSTER: cluster_name(route.set.pool),
        }
        if tenant.weight != 1:
            headers[HEADER_WEIGHT] = str(tenant.weight)
        counted = tenant.limits is not None and tenant.limits.counted_to_the_end
        return Answer("picked", build_pick([each.serving for each in route.replicas], headers, counted))

    def _table(self) -> Table:
        if self.table is None:
            raise starting()
        return self.table


def _read_body(body: bytes) -> Wanted:
    """What the picker needs of a request's body. Raises Rejection (400)."""
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise invalid_body("The request body is not valid JSON.") from None
    if not isinstance(decoded, dict):
        raise invalid_body("The request body must be a JSON object.")
    name = decoded.get("model")
    if not isinstance(name, str) or not name:
        raise invalid_body("`model` is required and must be a string.", param="model")
    longest = decoded.get("max_completion_tokens", decoded.get("max_tokens"))
    return Wanted(name, longest if isinstance(longest, int) and longest > 0 else None, len(body))
