"""OpenAI's /v1/completions, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from foretoken.errors import ForetokenError
from foretoken.serving.completion import Complete, Completed, Prompt
from foretoken.serving.errors import TooLongError
from foretoken.serving.generation import Reason, Sampling
from foretoken.serving.http.classify import texts_of
from foretoken.serving.http.service import ANY_ERROR, ServiceOf, needs_key, while_connected
from foretoken.serving.schema import CompletionAnswer, CompletionChoice, CompletionRequest, ErrorAnswer, Usage
from foretoken.serving.tasks import Document

_ERRORS = {status: about | {"model": ErrorAnswer} for status, about in ANY_ERROR.items()}
router = APIRouter(dependencies=[Depends(needs_key)], tags=["write"], responses=_ERRORS)


@router.post("/v1/completions", response_model=CompletionAnswer)
async def completions(
    asked: CompletionRequest, http: Request, service: ServiceOf
) -> CompletionAnswer | StreamingResponse:
    """Write texts that go on from prompts, with an adapter or the pretrained model (OpenAI's request).

    A decoder goes on from the prompt; an encoder-decoder reads it and writes a text of its own.

    With `stream` the parts of the texts come as server-sent events, each a CompletionAnswer, and `[DONE]` at the end.
    """
    adapter = service.adapter(asked.model)
    name = asked.model or adapter.name
    task = Complete(sampling_of(asked, at_most=service.settings.limits.new_tokens))
    prompts = texts_of(asked.prompt)
    if not asked.stream:
        found = await service.ask(http, adapter, [Document(text) for text in prompts], task)
        choices = [
            CompletionChoice(index=number, text=item.text, finish_reason=item.reason, truncated=item.truncated)
            for number, item in enumerate(found)
        ]
        return CompletionAnswer(model=name, choices=choices, usage=_usage(found))
    heard = _Heard(asyncio.get_running_loop())
    documents = [Prompt(text, heard=partial(heard.say, number)) for number, text in enumerate(prompts)]
    future = await service.submit(http, adapter, documents, task)
    future.add_done_callback(lambda _: heard.say(0, None))
    try:
        first = await while_connected(http, asyncio.ensure_future(heard.queue.get()))
        if first[1] is None:
            future.result()  # it has failed, and says so by its status
    except BaseException:
        future.cancel()
        raise
    with_usage = asked.stream_options is not None and asked.stream_options.include_usage
    events = _events(name, heard, future, first, with_usage=with_usage)
    return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})


def sampling_of(asked: CompletionRequest, *, at_most: int) -> Sampling:
    """Return how a request's texts go on.

    Raises:
        TooLongError: it asks for more tokens than a text may have.
    """
    if asked.max_tokens > at_most:
        raise TooLongError(f"max_tokens is {asked.max_tokens:,}; a text has at most {at_most:,} here, ask for fewer")
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    return Sampling(
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=max(0, asked.top_k),
        stop=tuple(stop),
        seed=secrets.randbits(63) if asked.seed is None else asked.seed,
    )


@dataclass
class _Heard:
    """What the engine's thread says to the connection: a prompt's number and its text so far; None at the end."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[tuple[int, str | None]] = field(default_factory=asyncio.Queue)

    def say(self, number: int, text: str | None) -> None:
        """Put a text into the queue."""
        with suppress(RuntimeError):  # the server has ended, and nobody listens
            self.loop.call_soon_threadsafe(self.queue.put_nowait, (number, text))


async def _events(
    name: str, heard: _Heard, future: Future[list[Completed]], first: tuple[int, str | None], *, with_usage: bool
) -> AsyncIterator[str]:
    """Yield the parts of the texts as they come; the request is given up when nobody takes them."""
    whole = CompletionAnswer(model=name, choices=[])
    sent: dict[int, int] = {}

    def part(number: int, text: str, reason: Reason | None = None, *, truncated: bool = False) -> str:
        rest = text[sent.get(number, 0) :]
        choice = CompletionChoice(index=number, text=rest, finish_reason=reason, truncated=truncated)
        sent[number] = max(len(text), sent.get(number, 0))
        return _event(whole.model_copy(update={"choices": [choice]}).model_dump(mode="json"))

    try:
        number, text = first
        while text is not None:
            if len(text) > sent.get(number, 0):
                yield part(number, text)
            number, text = await heard.queue.get()
        found = future.result()
        for number, item in enumerate(found):
            yield part(number, item.text, item.reason, truncated=item.truncated)
        if with_usage:
            yield _event(whole.model_copy(update={"usage": _usage(found)}).model_dump(mode="json"))
        yield "data: [DONE]\n\n"
    except ForetokenError as error:
        yield _event({"error": {"message": str(error), "type": type(error).__name__, "code": 424}})
    finally:
        future.cancel()


def _event(values: object) -> str:
    return f"data: {json.dumps(values, ensure_ascii=False)}\n\n"


def _usage(found: Sequence[Completed]) -> Usage:
    prompts, new = sum(item.prompt_tokens for item in found), sum(item.new_tokens for item in found)
    return Usage(prompt_tokens=prompts, completion_tokens=new, total_tokens=prompts + new)
