"""OpenAI's /v1/embeddings."""

from __future__ import annotations

import base64

import numpy as np
from fastapi import APIRouter, Depends, Request

from foretoken.errors import ConfigError
from foretoken.serving.http.classify import texts_of
from foretoken.serving.http.service import ANY_ERROR, ServiceOf, needs_key
from foretoken.serving.schema import EmbeddingItem, EmbeddingsAnswer, EmbeddingsRequest, ErrorAnswer, Usage
from foretoken.serving.tasks import Document, Embed

_ERRORS = {status: about | {"model": ErrorAnswer} for status, about in ANY_ERROR.items()}
router = APIRouter(dependencies=[Depends(needs_key)], tags=["embed"], responses=_ERRORS)


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer)
async def embeddings(asked: EmbeddingsRequest, http: Request, service: ServiceOf) -> EmbeddingsAnswer:
    """Return the mean of each text's last hidden states, of length 1, with an adapter or the pretrained model."""
    adapter = service.adapter(asked.model)
    found = await service.ask(http, adapter, [Document(text) for text in texts_of(asked.input)], Embed())
    width = len(found[0].vector)
    if asked.dimensions not in (None, width):
        raise ConfigError(f"dimensions: got {asked.dimensions}, and the model has {width}; leave it out")
    data = [
        EmbeddingItem(index=number, embedding=_written(item.vector, asked.encoding_format), truncated=item.truncated)
        for number, item in enumerate(found)
    ]
    tokens = sum(item.tokens for item in found)
    name = asked.model or adapter.name
    return EmbeddingsAnswer(model=name, data=data, usage=Usage(prompt_tokens=tokens, total_tokens=tokens))


def _written(vector: np.ndarray, form: str) -> list[float] | str:
    if form == "float":
        return [float(value) for value in vector]
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
