"""The official `openai` client as a tenant's program uses it; the tests and the demo ask through it alone."""

from dataclasses import dataclass, field

import openai

from e2e.assets.styles import ANSWER_TOKENS


@dataclass(frozen=True, slots=True)
class Client:
    """One tenant's access to the gateway. Greedy, and no retries: every failure is seen."""

    address: str
    key: str = field(repr=False)
    patience: float = 60.0

    def ask(self, model: str, question: str, tokens: int = ANSWER_TOKENS) -> str:
        """The answer to one question. Raises openai.APIError."""
        with self._open() as api:
            answer = api.chat.completions.create(
                model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=tokens
            )
        return answer.choices[0].message.content or ""

    def stream(self, model: str, question: str) -> list[str]:
        """The answer's pieces as they come. Raises openai.APIError."""
        with self._open() as api:
            stream = api.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                temperature=0,
                max_tokens=ANSWER_TOKENS,
                stream=True,
            )
            return [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]

    def models(self) -> set[str]:
        """The models that this key may call."""
        with self._open() as api:
            return {model.id for model in api.models.list()}

    def _open(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.address}/v1", api_key=self.key, max_retries=0, timeout=self.patience)


def refusal(client: Client, model: str) -> int:
    """The HTTP status with which a request is refused; 200 where it is answered. Asks for one token only."""
    try:
        client.ask(model, "What is snow?", tokens=1)
    except openai.APIStatusError as error:
        return error.status_code
    return 200
