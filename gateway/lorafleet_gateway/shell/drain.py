"""The preStop hook: takes this instance out of service and waits for its running streams. Called by `__main__`."""

import asyncio
import logging
import time

import aiohttp

ENDPOINTS_SECONDS = 5.0
"""How long other machines take to stop sending new connections here after readiness went."""
POLL_SECONDS = 0.5
ACTIVE_STAT = "http.clients.downstream_rq_active"

log = logging.getLogger(__name__)


async def drain(admin_port: int, seconds: float, settle_seconds: float = ENDPOINTS_SECONDS) -> None:
    """Fail Envoy's readiness, wait, close listeners gracefully, and return once no request runs or time is up.

    Raises aiohttp.ClientError when Envoy's admin port does not answer.
    """
    deadline = time.monotonic() + seconds
    async with aiohttp.ClientSession(f"http://127.0.0.1:{admin_port}", raise_for_status=True) as admin:
        await admin.post("/healthcheck/fail")
        await asyncio.sleep(settle_seconds)
        await admin.post("/drain_listeners?graceful")
        active = await _active_requests(admin)
        while active and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            active = await _active_requests(admin)
    log.info("drained with %d requests still running", active)


async def _active_requests(admin: aiohttp.ClientSession) -> int:
    async with admin.get("/stats", params={"filter": f"^{ACTIVE_STAT}$", "format": "json"}) as response:
        stats = (await response.json(content_type=None))["stats"]
        return sum(int(each["value"]) for each in stats if each.get("name") == ACTIVE_STAT)
