"""The requests that clients of other servers make, as these clients make them or their schemas describe them."""

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient

from foretoken.serving.engine import Limits

from support.served import make_store, serving
from support.served_decoders import save_decoder_adapters

TEXTS = ["lunch word1 word2", "prize word3"]
# every field of vLLM's ClassificationCompletionRequest (vllm/entrypoints/pooling/base/protocol.py and
# classify/protocol.py, https://docs.vllm.ai/en/latest/examples/pooling/classify/), as its server fills them
VLLM = {
    "model": "spam",
    "input": TEXTS,
    "user": "me",
    "truncate_prompt_tokens": None,
    "truncation_side": None,
    "request_id": "one",
    "priority": 0,
    "mm_processor_kwargs": None,
    "cache_salt": None,
    "add_special_tokens": True,
    "use_activation": None,
}
# PredictRequest of text-embeddings-inference 1.7.1 (docs/openapi.json in its repository): these may be null
TEI = {"raw_scores": False, "truncate": None, "truncation_direction": "Right"}
# OpenAI's body of /v1/completions with every optional field (CompletionRequest of
# vllm/entrypoints/openai/completion/protocol.py), which LiteLLM's text completions pass on
OPENAI = {
    "model": "short",
    "prompt": ["word1 word2"],
    "best_of": None,
    "echo": False,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "logprobs": None,
    "max_tokens": 4,
    "n": 1,
    "presence_penalty": 0.0,
    "seed": None,
    "stop": [],
    "stream": False,
    "stream_options": None,
    "suffix": None,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": -1,
    "user": None,
    "use_beam_search": False,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def ok(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_vllms_requests_of_texts_and_token_numbers(server):
    found = ok(server.post("/classify", json=VLLM))
    assert {"index", "label", "probs", "num_classes"} <= found["data"][0].keys()
    ids = [server.service.engine.store.base.tokenizer(text)["input_ids"] for text in TEXTS]
    again = ok(server.post("/classify", json=VLLM | {"input": ids, "truncate_prompt_tokens": -1}))
    for one, other in zip(found["data"], again["data"], strict=True):
        np.testing.assert_allclose(one["probs"], other["probs"], atol=1e-6)
    logits = [row["probs"] for row in ok(server.post("/classify", json=VLLM | {"use_activation": False}))["data"]]
    scaled = np.exp(np.array(logits) / 2)  # the adapter's card says a temperature of 2
    np.testing.assert_allclose(
        scaled / scaled.sum(1, keepdims=True), [row["probs"] for row in found["data"]], atol=1e-5
    )
    first = ok(server.post("/v1/classify", json={"model": "spam", "input": TEXTS[0], "rid": "7"}))  # SGLang's
    np.testing.assert_allclose(first["data"][0]["probs"], found["data"][0]["probs"], atol=1e-6)


def test_teis_requests_of_its_schema(server):
    one = ok(server.post("/predict", json=TEI | {"inputs": TEXTS[0], "model": "spam"}))
    assert [set(row) for row in one] == [{"score", "label"}] * 2
    batch = ok(server.post("/predict", json=TEI | {"inputs": [[text] for text in TEXTS], "model": "spam"}))
    assert batch[0] == [{"label": row["label"], "score": pytest.approx(row["score"], abs=1e-6)} for row in one]
    pairs = TEI | {"inputs": [["lunch", "word1"], ["lunch", "prize"]], "model": "relevance"}
    assert len(ok(server.post("/predict", json=pairs))) == 2
    assert len(ok(server.post("/predict", json=pairs | {"inputs": ["lunch", "word1"]}))) == 2
    mixed = server.post("/predict", json=pairs | {"inputs": [["lunch"], ["lunch", "prize"]]})
    assert mixed.status_code == 422
    left = server.post("/predict", json=TEI | {"inputs": TEXTS[0], "model": "spam", "truncation_direction": "Left"})
    assert left.status_code == 422
    assert "truncation_direction" in left.json()["error"]["message"]


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")
def test_hugging_faces_own_client(server, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the server is on this machine
    address = str(server.base_url).rstrip("/")
    found = InferenceClient(f"{address}/models/spam").text_classification(TEXTS[0])
    expected = ok(server.post("/predict", json={"inputs": TEXTS[0], "model": "spam"}))
    assert [(one.label, pytest.approx(one.score, abs=1e-6)) for one in found] == [
        (row["label"], row["score"]) for row in expected
    ]
    text = "lunch meeting word3 prize winner word5"
    entities = InferenceClient(f"{address}/models/names").token_classification(text, aggregation_strategy="first")
    asked = {"inputs": text, "parameters": {"aggregation_strategy": "first"}}
    told = ok(server.post("/models/names", json=asked))
    assert [(one.start, one.end, one.entity_group) for one in entities] == [
        (row["start"], row["end"], row["entity_group"]) for row in told
    ]


def test_coheres_requests_as_litellm_passes_them_on(server):
    """Documents may be texts or objects with one (https://docs.litellm.ai/docs/rerank)."""
    body = {"model": "relevance", "query": "lunch", "documents": ["word1", {"text": "prize"}], "top_n": 2}
    body |= {"return_documents": None, "max_chunks_per_doc": None, "rank_fields": None, "max_tokens_per_doc": None}
    found = ok(server.post("/v1/rerank", json=body))
    assert {"index", "relevance_score"} <= found["results"][0].keys()
    plain = ok(server.post("/rerank", json=body | {"documents": ["word1", "prize"], "return_documents": True}))
    assert [row["index"] for row in plain["results"]] == [row["index"] for row in found["results"]]
    assert {row["document"]["text"] for row in plain["results"]} == {"word1", "prize"}


def test_openais_whole_body_of_completions(tmp_path):
    store = make_store(*save_decoder_adapters(tmp_path, "gpt2")[:2])
    with serving(store, limits=Limits()) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        whole = ok(client.post("/v1/completions", json=OPENAI))
        short = ok(
            client.post(
                "/v1/completions", json={key: OPENAI[key] for key in ("model", "prompt", "max_tokens", "temperature")}
            )
        )
    assert whole["object"] == "text_completion"
    assert whole["choices"] == short["choices"]
