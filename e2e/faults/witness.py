"""A client that knows the right answers: it asks throughout a fault and counts what must not happen.

Used by the tests here. It knows each adapter's trained style and the words it answered before the fault, so a wrong
adapter, a wrong version, and a stream that is one version first and another later are all seen.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import httpx
import openai

from e2e.assets.styles import ANSWER_TOKENS, UNSEEN, style_of

QUESTIONS = UNSEEN[:3]
PATIENCE = httpx.Timeout(60, connect=2)
LEARNING_RETRIES = 8
LEAST_LETTERS = 8
"""What a stream that is cut must have said for its style to be told."""


@dataclass(frozen=True, slots=True)
class Account:
    """One model of one tenant. `retries` is how often the openai client may try again by itself."""

    address: str
    key: str = field(repr=False)
    model: str
    retries: int = 0

    def open(self) -> openai.OpenAI:
        """A client with connections of its own: a killed gateway must not poison the next one's."""
        return openai.OpenAI(
            base_url=f"{self.address}/v1", api_key=self.key, max_retries=self.retries, timeout=PATIENCE
        )


@dataclass(slots=True)
class Tally:
    """What was seen. `failed` are plain requests without an answer, `cut` streams that ended with an error."""

    right: dict[str, int] = field(default_factory=dict)
    streams: int = 0
    wrong: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    failed: list[tuple[float, float, str]] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    cut_at: list[float] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def total(self) -> int:
        """Right answers in all."""
        return sum(self.right.values())

    def counts(self) -> dict[str, int]:
        """For the record."""
        return {
            "right": self.total(),
            "streams": self.streams,
            "wrong": len(self.wrong),
            "mixed": len(self.mixed),
            "failed": len(self.failed),
            "cut": len(self.cut),
            "ended early": len(self.silent),
        }


class Witness:
    """Asks for every account's model, plainly and in streams. `styles` says in which styles a model may answer now.

    `known` are the answers heard so far by style; one witness hands them to the next.
    """

    def __init__(self, accounts: Sequence[Account], known: dict[str, set[str]]) -> None:
        self._accounts = accounts
        self.styles: dict[str, frozenset[str]] = {each.model: frozenset({each.model}) for each in accounts}
        self.tally = Tally()
        self._known = known
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def learn(self) -> None:
        """Hear every answer that is not known yet, before anything is broken."""
        for account in [each for each in self._accounts if each.model not in self._known]:
            with replace(account, retries=LEARNING_RETRIES).open() as api:
                for question in QUESTIONS:
                    self._hear(account, ask(api, account.model, question)[0])
        assert not self.tally.wrong, self.tally.wrong

    @contextmanager
    def asking(self) -> Iterator[Tally]:
        """Ask in the background while the block runs; one thread a model and kind of request."""
        threads = [
            threading.Thread(target=turn, args=(account,))
            for account in self._accounts
            for turn in (self._ask_plainly, self._ask_streams)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self.tally
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _ask_plainly(self, account: Account) -> None:
        turn = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                with account.open() as api:
                    text, _ = ask(api, account.model, QUESTIONS[turn % len(QUESTIONS)])
            except (openai.APIError, httpx.HTTPError) as error:
                self._fail(account, began, error)
            else:
                self._hear(account, text)
            turn += 1

    def _ask_streams(self, account: Account) -> None:
        turn = 1
        while not self._stop.is_set():
            pieces: list[str] = []
            try:
                with account.open() as api:
                    finish = stream(api, account.model, QUESTIONS[turn % len(QUESTIONS)], pieces)
            except (openai.APIError, httpx.HTTPError) as error:
                self._cut(account, "".join(pieces), error)
            else:
                self._hear_stream(account, "".join(pieces), finish)
            turn += 1

    def _hear(self, account: Account, text: str) -> None:
        style = style_of(text)
        with self._lock:
            if style in self.styles[account.model]:
                self.tally.right[account.model] = self.tally.right.get(account.model, 0) + 1
                self._known.setdefault(str(style), set()).add(text)
            else:
                self.tally.wrong.append(f"{account.model}: {text!r}")

    def _hear_stream(self, account: Account, text: str, finish: str | None) -> None:
        if finish is None:
            with self._lock:
                self.tally.silent.append(f"{account.model}: {text!r}")
            return
        if style_of(text) is None:
            with self._lock:
                self.tally.mixed.append(f"{account.model}: {text!r}")
            return
        self.tally.streams += 1
        self._hear(account, text)

    def _cut(self, account: Account, text: str, error: Exception) -> None:
        """A stream that ended with an error: what came must be the beginning of an answer that is right."""
        self._judge_error(account, error)
        with self._lock:
            if text:
                self.tally.cut.append(f"{account.model}: {text!r}: {error!r}")
                self.tally.cut_at.append(time.monotonic())
            if not self._may_begin(account.model, text[:LEAST_LETTERS]):
                self.tally.wrong.append(f"{account.model}: {text!r}")
        if not text:
            self._stop.wait(0.2)

    def _may_begin(self, model: str, text: str) -> bool:
        """Whether an answer that is right may begin so; True where it is too little to tell."""
        styles = self.styles[model]
        if len(text) < LEAST_LETTERS or not styles <= self._known.keys():
            return True
        return any(answer.startswith(text) for style in styles for answer in self._known[style])

    def _fail(self, account: Account, began: float, error: Exception) -> None:
        self._judge_error(account, error)
        with self._lock:
            self.tally.failed.append((began, time.monotonic(), f"{account.model}: {error!r}"))
        self._stop.wait(0.2)

    def _judge_error(self, account: Account, error: Exception) -> None:
        """No fault makes a model unknown or a key wrong."""
        if isinstance(error, openai.NotFoundError | openai.AuthenticationError | openai.BadRequestError):
            with self._lock:
                self.tally.wrong.append(f"{account.model}: {error!r}")


def ask(api: openai.OpenAI, model: str, question: str) -> tuple[str, str | None]:
    """A plain answer and why it ended."""
    answer = api.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=ANSWER_TOKENS
    )
    return answer.choices[0].message.content or "", answer.choices[0].finish_reason


def stream(api: openai.OpenAI, model: str, question: str, pieces: list[str]) -> str | None:
    """Fill `pieces` as they come; why the answer ended, None when it just stopped."""
    finish = None
    for chunk in api.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=ANSWER_TOKENS,
        stream=True,
    ):
        if chunk.choices:
            pieces.append(chunk.choices[0].delta.content or "")
            finish = chunk.choices[0].finish_reason or finish
    return finish
