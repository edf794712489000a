"""What stands before vLLM's own server, as its --middleware: limits of ours, and `keep` where our clients put it.

vLLM passes over fields that it does not know: a `keep` beside the messages would be lost without a word.
"""

import json
import os
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arr_coc.gateway import Exchange

LIMIT, LOCAL = "ARR_COC_MAX_BODY", "ARR_COC_LOCAL"  # variables: bytes of a body, 1 where it is for this machine alone
KEY = "VLLM_API_KEY"  # vLLM itself asks for it under /v1 alone, and answers elsewhere too (/invocations)
BODY = 32 << 20


def with_dial(body: bytes) -> bytes:
    """A request with `keep` in its mm_processor_kwargs, wherever it stood; any other as it is."""
    try:
        given: Any = json.loads(body) if b'"keep"' in body else None
    except (ValueError, RecursionError):
        return body
    places = [given, given.get("extra_body")] if isinstance(given, dict) else []
    found = [place.pop("keep") for place in places if isinstance(place, dict) and "keep" in place]
    inner = given.get("mm_processor_kwargs") or {} if found else None
    if not isinstance(inner, dict):
        return body
    dials = [keep for keep in (*found, inner.get("keep")) if keep is not None]
    twice = {"keep given twice": True} if any(keep != dials[0] for keep in dials) else {}  # refused by that name
    given["mm_processor_kwargs"] = {**inner, **twice, **({"keep": dials[0]} if dials else {})}
    return json.dumps(given).encode()


class GatedExchange(Exchange):
    """One request to vLLM."""

    def refusal(self, status: int) -> dict[str, Any]:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": self.why(status), "type": kind, "param": None, "code": status}}


class FrontGate:
    """Every request goes through here."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.limit = app, int(os.environ.get(LIMIT, BODY))
        self.local, self.key = os.environ.get(LOCAL) == "1", os.environ.get(KEY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = GatedExchange(scope, receive, send, self.limit, self.local)
        exchange.key = None if scope["method"] == "OPTIONS" else self.key  # browsers ask for leave without it
        if await exchange.is_fit():
            await exchange.run(self._read if scope["method"] == "POST" else self.app)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The whole body first, then vLLM."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = with_dial(b"".join(parts))
        others = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
        unread: list[Message] = [{"type": "http.request", "body": body}]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        await self.app({**scope, "headers": [*others, (b"content-length", str(len(body)).encode())]}, again, send)
