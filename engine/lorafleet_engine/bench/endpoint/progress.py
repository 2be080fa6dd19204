"""What a person sees while it runs: a bar for each phase on standard error, then its figures in a line. Used by
protocol.py and command.py."""

import sys
from typing import Any

from tqdm import tqdm

from lorafleet_engine.bench.endpoint.client import Outcome


class Progress:
    """One bar at a time; plain lines where standard error is no terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._failed = 0

    def begin(self, name: str, total: int) -> None:
        """A phase begins."""
        self._failed = 0
        self._bar = tqdm(
            total=total,
            desc=name,
            unit="req",
            disable=self._quiet or None,
            leave=False,
            file=sys.stderr,
            mininterval=0.5,
        )

    def note(self, outcome: Outcome) -> None:
        """A request has ended."""
        if outcome.error:
            self._failed += 1
            self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()

    def end(self, figures: dict[str, Any]) -> None:
        """A phase has ended."""
        self._bar.close()
        ttft, itl = figures["ttft_ms"], figures["itl_ms"]
        failed = f", failed {sum(figures['errors'].values())}" if figures["errors"] else ""
        self.say(
            f"{figures['name']}: {figures['requests']} requests, {figures['requests_per_s']} requests/s,"
            f" {figures['tokens_per_s']} tokens/s, TTFT p50/p99 {ttft['p50']}/{ttft['p99']} ms,"
            f" ITL {itl['p50']}/{itl['p99']} ms, goodput {figures['goodput_per_s']}/s{failed}"
        )

    def say(self, line: str) -> None:
        """A line beside the bar."""
        if not self._quiet:
            tqdm.write(line, file=sys.stderr)
