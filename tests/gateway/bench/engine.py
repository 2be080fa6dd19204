"""The benchmark's engines, in a process of their own. Started by stage.py: `python -m ... CERTIFICATE KEY PORT...`.

It runs on what the real engine's server runs on and does as little as it can: a short answer at once, or a stream of
as many events as `max_tokens` says, each written by itself and as fast as they are taken.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
import uvicorn
import uvloop

Message = MutableMapping[str, Any]
ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "word " * 16}}],
        "usage": {"prompt_tokens": 64, "completion_tokens": 16, "total_tokens": 80},
    }
)
EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
)


async def answer(scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Any]) -> None:
    """The ASGI application."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    wanted = orjson.loads(body)
    if not wanted.get("stream"):
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})
        return
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(wanted["max_tokens"]):
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(0)  # streams take turns, as those of one batch do
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def serve(certificate: str, key: str, ports: list[int]) -> None:
    """Serve by TLS, as the real engine does, on several loopback ports, one for each replica."""
    options = {"host": "127.0.0.1", "log_level": "warning", "access_log": False, "lifespan": "off"}
    options |= {"ssl_certfile": certificate, "ssl_keyfile": key}
    servers = [uvicorn.Server(uvicorn.Config(answer, port=port, **options)) for port in ports]
    await asyncio.gather(*(server.serve() for server in servers))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]]))
