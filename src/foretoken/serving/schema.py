"""The requests and answers of the server, as clients of vLLM, TEI, OpenAI, Hugging Face and KServe know them."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
TokenIds = list[Annotated[int, Field(ge=0)]]


def new_id(kind: str) -> str:
    """Return a name for an answer."""
    return f"{kind}-{uuid.uuid4().hex}"


def _now() -> int:
    return int(time.time())


class Schema(BaseModel):
    """Base of all of them: keys that a client sends beyond those known are left alone."""

    model_config = ConfigDict(extra="ignore")


class Usage(Schema):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class ErrorBody(Schema):
    """What went wrong."""

    message: str
    type: str
    code: int


class ErrorAnswer(Schema):
    """The answer to every request that fails."""

    error: ErrorBody


class ClassifyRequest(Schema):
    """vLLM's request, with abstention and pairs of texts."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"model": "spam", "input": ["see you at lunch", "you won"]}]}
    )
    model: str | None = Field(None, description="the adapter; may be left out where there is one")
    input: Text | list[Text] | TokenIds | list[TokenIds] = Field(description="texts, or token numbers of texts")
    text_pair: Text | list[Text] | None = Field(None, description="second texts, for adapters trained on pairs")
    truncate_prompt_tokens: int | None = Field(None, ge=-1, description="read no more tokens; -1: as in training")
    use_activation: bool | None = Field(None, description="false: logits in the place of probabilities")
    min_confidence: Share | None = Field(None, description="abstain where the answer is less sure than this")
    coverage: Share | None = Field(None, description="abstain below the confidence of this share of validation")


class Classified(Schema):
    """What is predicted for one document; ``label`` is null for a number, and where the adapter abstains."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int
    abstained: bool = False
    truncated: bool = False
    tokens: int = 0


class ClassifyAnswer(Schema):
    """vLLM's answer; ``labels`` says what each of the probabilities is of."""

    id: str = Field(default_factory=lambda: new_id("classify"))
    object: Literal["list"] = "list"
    created: int = Field(default_factory=_now)
    model: str
    labels: list[str] = []
    data: list[Classified]
    usage: Usage


class PredictRequest(Schema):
    """TEI's request, with the adapter's name."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"model": "spam", "inputs": "see you at lunch"}]}
    )
    inputs: Text | tuple[Text, Text] | list[tuple[Text] | tuple[Text, Text]] = Field(
        description="a text, a pair [text, text], or a batch [[text], [text, text], ...]"
    )
    model: str | None = Field(None, description="the adapter; may be left out where there is one")
    raw_scores: bool = Field(False, description="logits in place of probabilities")
    truncate: bool | None = Field(None, description="cut what is too long; else it is refused with 413")
    truncation_direction: Literal["right", "Right"] | None = Field(None, description="ends are cut, no beginnings")


class Score(Schema):
    """A label and its probability."""

    score: float
    label: str


class PipelineParameters(Schema):
    """Options of transformers' pipelines."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = "simple"
    stride: int | None = Field(None, ge=0, description="tokens that neighbouring windows share")
    ignore_labels: list[str] = ["O"]
    top_k: int | None = Field(None, ge=1, description="classes: how many are answered")


class Question(Schema):
    """A question about a context."""

    question: Text
    context: Text


class ChoiceQuestion(Schema):
    """A question, and the texts of which one is its answer."""

    text: Text
    choices: list[Text] = Field(min_length=2)


class FoundAnswer(Schema):
    """The part of a context that answers a question; an empty one for none."""

    answer: str
    start: int | None
    end: int | None
    score: float = Field(description="how high the model scores its first and its last token; no probability")
    no_answer_score: float | None = Field(None, description="that of no answer, where there may be none")


class ChosenAnswer(Schema):
    """The choice that is the likeliest answer."""

    choice: str
    number: int
    probability: float
    probabilities: list[float]


class PipelineRequest(Schema):
    """The request of the Hugging Face inference API; what the inputs are depends on the adapter."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {"inputs": "Ada Lovelace wrote", "parameters": {"aggregation_strategy": "first"}},
                {"inputs": {"question": "Who wrote it?", "context": "Ada Lovelace wrote it in 1843."}},
                {"inputs": {"text": "It rained, so", "choices": ["they stayed in", "they went out"]}},
            ]
        },
    )
    inputs: Text | list[Text] | Question | list[Question] | ChoiceQuestion | list[ChoiceQuestion] = Field(
        description="texts; questions with their contexts; or questions with their choices"
    )
    parameters: PipelineParameters = Field(default_factory=lambda: PipelineParameters.model_validate({}))


class EmbeddingsRequest(Schema):
    """OpenAI's request."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"model": "spam", "input": "see you at lunch"}]}
    )
    model: str | None = Field(None, description="an adapter, or the pretrained model's own name")
    input: Text | list[Text] | TokenIds | list[TokenIds]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, description="must be the model's width where it is given")


class EmbeddingItem(Schema):
    """One document's vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class EmbeddingsAnswer(Schema):
    """OpenAI's answer."""

    object: Literal["list"] = "list"
    model: str
    data: list[EmbeddingItem]
    usage: Usage


class StreamOptions(Schema):
    """What a stream says beside the texts."""

    include_usage: bool = Field(False, description="the last part has the numbers of tokens")


class CompletionRequest(Schema):
    """OpenAI's request of texts that go on from prompts; what would change them and is not done is refused."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"model": "story", "prompt": "Once upon a time", "max_tokens": 32}]},
    )
    model: str | None = Field(None, description="an adapter of a decoder, or the pretrained model's own name")
    prompt: Text | list[Text] | TokenIds | list[TokenIds] = Field(description="texts, or token numbers of texts")
    max_tokens: int = Field(16, ge=1, description="tokens of each text, the one that ends it included")
    temperature: float = Field(1.0, ge=0, le=100, description="0: the likeliest token at every step")
    top_p: float = Field(1.0, gt=0, le=1, description="draw from the likeliest tokens with so much probability")
    top_k: int = Field(0, ge=-1, description="and from no more of them than this; 0 or -1: any number")
    stop: Text | list[Text] | None = Field(None, description="texts that end a text and are left out of it")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="the same texts at every request")
    stream: bool = Field(False, description="the texts come as they are written, as server-sent events")
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = Field(1, description="texts of each prompt; 1 alone")
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = False
    logprobs: None = None
    suffix: Literal[""] | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = 0.0
    repetition_penalty: Annotated[float, Field(ge=1, le=1)] | None = 1.0
    min_p: Annotated[float, Field(ge=0, le=0)] | None = 0.0


class CompletionChoice(Schema):
    """The text that follows a prompt, or the next part of it; ``finish_reason`` is null until its end.

    ``truncated``: the prompt was longer than the encoder reads, which is said at the end.
    """

    index: int
    text: str
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None
    truncated: bool = False


class CompletionAnswer(Schema):
    """OpenAI's answer, and each part of a stream; the last part may have the usage and no choices."""

    id: str = Field(default_factory=lambda: new_id("cmpl"))
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(default_factory=_now)
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class RerankDocument(Schema):
    """A document's text."""

    text: str


class RerankRequest(Schema):
    """The request of Cohere and vLLM."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"model": "relevance", "query": "lunch", "documents": ["a menu", "a bill"]}]},
    )
    model: str | None = Field(None, description="an adapter that was trained on pairs of texts")
    query: Text
    documents: list[Text | RerankDocument] = Field(min_length=1)
    top_n: int | None = Field(None, ge=0, description="answer no more than these; 0 or null for all")
    return_documents: bool | None = True


class RerankItem(Schema):
    """A document's place among those asked for, and its score."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None
    truncated: bool = False


class RerankAnswer(Schema):
    """The answer, the most relevant document first."""

    id: str = Field(default_factory=lambda: new_id("rerank"))
    model: str
    results: list[RerankItem]
    usage: Usage


class ModelItem(Schema):
    """An adapter, or the pretrained model, which has no parent."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "foretoken"
    root: str
    parent: str | None = None
    task: str | None = None
    labels: list[str] = []
    method: str | None = None
    max_model_len: int | None = None
    calibrated: bool = False
    dtype: str | None = None
    precision: str | None = None


class ModelsAnswer(Schema):
    """OpenAI's list of models."""

    object: Literal["list"] = "list"
    data: list[ModelItem]


class InferTensor(Schema):
    """A tensor of the Open Inference Protocol."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any]


class InferRequest(Schema):
    """The Open Inference Protocol's request: one input of texts, of type BYTES."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["see you at lunch"]}]}
            ]
        },
    )
    id: str | None = None
    parameters: dict[str, Any] = {}
    inputs: list[InferTensor] = Field(min_length=1, max_length=2)


class InferAnswer(Schema):
    """The Open Inference Protocol's answer."""

    model_name: str
    id: str | None = None
    outputs: list[InferTensor]


class AdapterAnswer(Schema):
    """What was done with an adapter."""

    name: str
    status: Literal["loaded", "removed"]
    task: str | None = None
    labels: list[str] = []
    method: str | None = None
