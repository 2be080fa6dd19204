"""One run of `lorafleet bench serve`: find out what is there, run the protocol, write figures and page. Used by
command.py.

Whatever ends the run, Ctrl-C too, what was measured until then is written.
"""

import argparse
import asyncio
import datetime
import json
import os
import ssl
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from lorafleet_contracts.admin import Tier
from lorafleet_engine.bench.commit import commit
from lorafleet_engine.bench.endpoint.asks import Sizes, TraceError, read_trace
from lorafleet_engine.bench.endpoint.client import Client, Target
from lorafleet_engine.bench.endpoint.control import Admin, Control, ControlError, Port, Residency
from lorafleet_engine.bench.endpoint.figures import Slo
from lorafleet_engine.bench.endpoint.find import EndpointError, list_models, probe, with_versions
from lorafleet_engine.bench.endpoint.models import Catalogue, ModelsError, read_models
from lorafleet_engine.bench.endpoint.own import OwnEngines, OwnError, Started
from lorafleet_engine.bench.endpoint.page import render
from lorafleet_engine.bench.endpoint.progress import Progress
from lorafleet_engine.bench.endpoint.protocol import Protocol, ProtocolError, Settings

INTERRUPTED = 130
READ_BUFFER = 1 << 18
HIDDEN = ("run", "command", "bench", "key")
FAILURES = (ControlError, EndpointError, ModelsError, OwnError, ProtocolError, TraceError)


def run(parsed: argparse.Namespace) -> int:
    """Measure and write; returns the exit status: 1 where it could not go on, 130 after Ctrl-C."""
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "endpoint": parsed.url or f"engines of ours over {parsed.own.name}",
        "settings": {name: _plain(value) for name, value in vars(parsed).items() if name not in HIDDEN},
        "warnings": [],
    }
    status, problem = 0, ""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_measure(parsed, document))
    except KeyboardInterrupt:
        status, problem = INTERRUPTED, "interrupted: what was measured until then is written"
    except FAILURES as error:
        status, problem = 1, str(error)
    document["interrupted"] = status == INTERRUPTED
    if problem:
        document["warnings"].append(problem)
        print(f"lorafleet: {problem}", file=sys.stderr)
    if document.get("phases") or document.get("sweep"):
        print(json.dumps(_write(document, parsed.out)), flush=True)
    return status


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _write(document: dict[str, Any], out: Path) -> dict[str, Any]:
    """Both files; returns the last line of standard output."""
    page = out.with_suffix(".html")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    page.write_text(render(document))
    return {
        "json": str(out),
        "html": str(page),
        "phases": len(document.get("phases", ())),
        "penalty": {f"zipf {each['zipf']:g}": each["penalty"] for each in document.get("penalty", ())},
        "interrupted": document["interrupted"],
        "warnings": document["warnings"],
    }


async def _measure(parsed: argparse.Namespace, document: dict[str, Any]) -> None:
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=READ_BUFFER) as session:
        here = _Here(parsed, session, Progress(quiet=parsed.quiet), document)
        if parsed.own is None:
            await (await here.endpoint()).run()
        else:
            await here.sweep(OwnEngines.over(parsed))


@dataclass(frozen=True, slots=True)
class _Here:
    """What all parts of a run share."""

    parsed: argparse.Namespace
    session: aiohttp.ClientSession
    progress: Progress
    document: dict[str, Any]

    async def endpoint(self) -> Protocol:
        """The protocol against a running endpoint. Raises one of FAILURES."""
        parsed = self.parsed
        url = parsed.url.rstrip("/").removesuffix("/v1")
        key = parsed.key or os.environ.get("OPENAI_API_KEY", "")
        control = self._control()
        state = None if control is None else await control.residency.refresh()
        if parsed.models is not None:
            catalogue = read_models(parsed.models)
        else:
            catalogue = await list_models(self.session, url, key, parsed.base, state)
        if state is not None:
            catalogue = with_versions(catalogue, state)
        if control is not None and control.admin is not None:
            _check_evictable(catalogue)
        return await self._protocol(url, key, catalogue, control)

    async def sweep(self, engines: OwnEngines) -> None:
        """The whole protocol against an engine as it ships, then saturation under each cap. Raises one of FAILURES."""
        with engines.started() as started:
            await (await self._own(engines, started)).run()
        self.document["sweep"] = []
        for cap in self.parsed.caps:
            with engines.started(STEP_ADAPTERS=str(cap)) as started:
                protocol = await self._own(engines, started)
                found = await protocol.saturations(f"cap {cap}")
            self.document["sweep"].append({"cap": cap, **found})

    async def _own(self, engines: OwnEngines, started: Started) -> Protocol:
        residency = Residency(self.session, started.state)
        control = Control(residency, Admin(self.session, started.admin))
        return await self._protocol(started.url, started.key, engines.catalogue, control)

    async def _protocol(self, url: str, key: str, catalogue: Catalogue, control: Control | None) -> Protocol:
        parsed = self.parsed
        catalogue = catalogue.chosen(parsed.adapters)
        target = Target(url, key, parsed.api, parsed.ignore_eos, parsed.timeout, parsed.seed, parsed.token_ids)
        if control is not None and control.admin is not None:
            await control.admin.place(catalogue.adapters, Tier.GPU)
        target, found = await probe(self.session, target, catalogue)
        self.document["probe"] = found
        self.document["catalogue"] = {
            "base": None if catalogue.base is None else catalogue.base.id,
            "adapters": [{"id": model.id, "rank": model.rank} for model in catalogue.adapters],
        }
        return Protocol(
            Client(self.session, target), catalogue, self._settings(), control, self.progress, self.document
        )

    def _settings(self) -> Settings:
        parsed = self.parsed
        return Settings(
            skews=parsed.zipf,
            requests=parsed.requests,
            sizes=Sizes(parsed.prompt, parsed.answer),
            trace=() if parsed.trace is None else tuple(read_trace(parsed.trace, parsed.requests)),
            rate=parsed.rate,
            load=parsed.load,
            streams=parsed.streams,
            saturation_requests=parsed.saturation_requests,
            tier_samples=parsed.tier_samples,
            slo=Slo(parsed.slo_ttft / 1e3, parsed.slo_itl / 1e3),
            seed=parsed.seed,
        )

    def _control(self) -> Control | None:
        parsed = self.parsed
        if parsed.state_url is None:
            return None
        tls = _tls(parsed.engine_ca)
        state = _port(parsed.state_url, parsed.state_token_file)
        residency = Residency(self.session, replace(state, tls=tls, server_name=parsed.engine_name))
        if parsed.admin_url is None:
            return Control(residency, None)
        admin = _port(parsed.admin_url, parsed.admin_token_file)
        return Control(residency, Admin(self.session, replace(admin, tls=tls, server_name=parsed.engine_name)))


def _port(url: str, file: Path) -> Port:
    try:
        return Port(url.rstrip("/"), file.read_text().split()[0])
    except (OSError, IndexError) as error:
        raise ControlError(f"{file} must hold the port's token: {error}") from error


def _tls(authority: Path | None) -> ssl.SSLContext | None:
    if authority is None:
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise ControlError(f"{authority} must hold certificates of authorities in PEM: {error}") from error


def _check_evictable(catalogue: Catalogue) -> None:
    """Raises ModelsError unless every adapter can be brought back after it was evicted."""
    for model in catalogue.adapters:
        if not (model.version and model.uri):
            raise ModelsError(
                f"{model.id} cannot be evicted: --admin-url needs a --models file with the `version` (uid@digest) and"
                " the source `uri` of every adapter"
            )
