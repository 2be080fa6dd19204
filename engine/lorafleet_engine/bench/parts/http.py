"""The engine as it is deployed: how long it takes to be Ready, and what its own HTTP server costs in throughput.

Both cases start the process tree of `python -m lorafleet_engine` over a checkpoint in memory (so that its files are in
the page cache), after the same kernels have run in this process, whose compiled files the server finds.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lorafleet_contracts.digest import adapter_files, folder_digest
from lorafleet_engine.bench.bench import Bench, Case, median, rounded
from lorafleet_engine.bench.deployed import prepared_server
from lorafleet_engine.bench.serving import traffic, warm
from lorafleet_engine.bench.session import BenchError
from lorafleet_engine.bench.workload import RANKS, write_adapters

STARTS = 1
"""Each takes most of a minute of the device."""


def cases(bench: Bench) -> Iterator[Case]:
    """The start, then the server against the loop in this process."""
    both = _Server(bench)
    yield Case("start", both.start)
    yield Case("http", both.http)


def kernel_files() -> int:
    """Files in Triton's cache: one more is one compilation more."""
    root = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return sum(len(files) for _, _, files in os.walk(root))


@dataclass(slots=True)
class _Server:
    bench: Bench
    answers: list[tuple[float, int, int]] = field(default_factory=list)

    def start(self) -> dict[str, Any]:
        """Times of starts with a warm kernel cache; whether requests after the last of them compile anything."""
        child, plan = prepared_server(self.bench)
        self.bench.session(self.bench.plan()).core.runner.prepare()  # compiles what an engine compiles at its start
        self.bench.drop()
        seconds, compiled = [], []
        before = kernel_files()
        for _ in range(STARTS):
            with child.running_server(plan) as server:
                seconds.append(server.ready_s)
                ready = kernel_files()
                if len(seconds) == STARTS:
                    self.answers = self._answers(server)
                    self._use(server, plan)
                compiled.append(kernel_files() - ready)
        return {
            "case": "start",
            "ready_s": median(seconds, 2),
            "repeats_s": rounded(seconds, 2),
            "compiled_before_ready": ready - before,
            "compiled_after_ready": sum(compiled),
            "from": "checkpoint in memory, kernels compiled before",
            "settings": plan.settings,
        }

    def http(self) -> dict[str, Any]:
        """Wall times of the same requests through the server and through the loop in this process."""
        child, plan = prepared_server(self.bench)
        dims = self.bench.dims
        load = traffic(self.bench, None)
        inside = warm(self.bench, self.bench.session(self.bench.plan()), None)
        self.bench.drop()
        if not self.answers:
            with child.running_server(plan) as server:
                self.answers = self._answers(server)
        answers = self.answers
        outside = [seconds for seconds, _, _ in answers]
        return {
            "case": "http",
            "ratio": round(median(inside) / median(outside), 4),
            "tok_s": load.tokens_per_second(median(outside)),
            "in_process_tok_s": load.tokens_per_second(median(inside)),
            "streams": min(dims.streams, dims.requests),
            "requests": dims.requests,
            "tokens_an_event": round(answers[-1][1] / max(answers[-1][2] - dims.requests, 1), 3),
            "client_processes": dims.clients,
            "repeats_s": rounded(outside),
            "in_process_repeats_s": rounded(inside),
            "settings": plan.settings,
        }

    def _answers(self, server: Any) -> list[tuple[float, int, int]]:
        """The base's requests through the server: once to warm up, then as often as is counted."""
        found = [server.answer(self._bodies(), self.bench.dims.clients) for _ in range(1 + self.bench.options.repeats)]
        for answer in found:
            self._check(answer)
        return found[1:]

    def _use(self, server: Any, plan: Any) -> None:
        """Requests on an adapter of the widest rank, in batches of many sizes."""
        number = RANKS.index(max(RANKS))
        (adapter,) = write_adapters(plan.volumes / "models", [number], raw=self.bench.raw)
        digest = folder_digest(adapter.directory, adapter_files(adapter.directory))
        version = server.load(digest, f"pvc://models/{adapter.directory.name}")
        self._check(server.answer(self._bodies(), self.bench.dims.clients, version))

    def _bodies(self) -> list[list[dict[str, Any]]]:
        """The base's requests of the serving workload, dealt to the streams."""
        dims = self.bench.dims
        bodies = [
            {
                "model": "bench",
                "prompt": list(request),
                "max_tokens": dims.request_answer,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for request in self.bench.prompts(dims.requests, dims.request_prompt, 7)
        ]
        streams = min(dims.streams, dims.requests)
        return [bodies[number::streams] for number in range(streams)]

    def _check(self, answer: Sequence[float]) -> None:
        wanted = self.bench.dims.requests * self.bench.dims.request_answer
        if answer[1] != wanted:
            raise BenchError(f"the server gave {answer[1]} tokens, {wanted} were asked for")
