"""Every route as its clients speak to it, beside the predictor that `foretoken predict` uses."""

import base64
import struct

import numpy as np
import pytest
from transformers import pipeline

from foretoken.inference.predictor import load_for_inference

from support.served import make_store, serving

TEXTS = ["lunch word1 word2", "prize " * 20, "word7 winner"]


@pytest.fixture(scope="module")
def predicted(adapters):
    """What `foretoken predict` says of the texts: probabilities, or numbers."""
    import datasets

    from foretoken.inference.predictor import predict_rows

    def of(name, texts=TEXTS):
        table = datasets.Dataset.from_dict({"id": [str(n) for n in range(len(texts))], "text": texts})
        return predict_rows(load_for_inference(adapters[1][name]), table)[0]

    return of


def ok(answer, status=200):
    assert answer.status_code == status, answer.text
    return answer.json()


def test_classify_answers_vllms_request_with_calibrated_probabilities(server, predicted):
    asked = {"model": "spam", "input": TEXTS, "user": "me", "priority": 0, "use_activation": True}
    answer = ok(server.post("/classify", json=asked))
    assert {"id", "object", "created", "model", "data", "usage"} <= answer.keys()
    expected = predicted("spam")
    assert [row["index"] for row in answer["data"]] == [0, 1, 2]
    np.testing.assert_allclose([row["probs"] for row in answer["data"]], expected, atol=1e-5)
    assert [row["label"] for row in answer["data"]] == [answer["labels"][n] for n in expected.argmax(axis=1)]
    assert answer["usage"]["prompt_tokens"] == sum(row["tokens"] for row in answer["data"])


def test_classify_reads_chunks_numbers_and_token_ids(server, predicted):
    one = ok(server.post("/classify", json={"model": "topic", "input": TEXTS[1]}))["data"][0]
    np.testing.assert_allclose(one["probs"], predicted("topic")[1], atol=1e-5)
    number = ok(server.post("/classify", json={"model": "stars", "input": TEXTS}))["data"]
    np.testing.assert_allclose([row["probs"][0] for row in number], predicted("stars"), atol=1e-5)
    assert number[0]["label"] is None
    ids = server.service.engine.store.base.tokenizer(TEXTS[0])["input_ids"]
    given = ok(server.post("/classify", json={"model": "spam", "input": [ids, ids]}))["data"]
    np.testing.assert_allclose(given[1]["probs"], predicted("spam")[0], atol=1e-5)


def test_truncation_is_said(server):
    long = "word1 " * 100
    answer = ok(server.post("/classify", json={"model": "spam", "input": [long, "word1"]}))
    assert [(row["truncated"], row["tokens"]) for row in answer["data"]] == [(True, 64), (False, 3)]
    fewer = ok(server.post("/classify", json={"model": "spam", "input": long, "truncate_prompt_tokens": 9}))
    assert fewer["data"][0]["tokens"] == 9
    asked = {"model": "spam", "inputs": [[long], ["word1"]]}
    assert server.post("/predict", json=asked).status_code == 413
    cut = server.post("/predict", json=asked | {"truncate": True})
    assert ok(cut)
    assert cut.headers["x-truncated"] == "0"


def test_predict_answers_teis_request(server, predicted):
    one = ok(server.post("/predict", json={"inputs": TEXTS[0], "model": "spam"}))
    assert [row["score"] for row in one] == pytest.approx(sorted(predicted("spam")[0], reverse=True), abs=1e-5)
    many = ok(server.post("/predict", json={"inputs": [[text] for text in TEXTS], "model": "spam"}))
    assert [row["label"] for row in many[0]] == [row["label"] for row in one]
    raw = ok(server.post("/predict", json={"inputs": TEXTS[0], "model": "spam", "raw_scores": True}))
    assert abs(sum(row["score"] for row in raw) - 1) > 1e-3
    pair = server.post("/predict", json={"inputs": TEXTS[:2], "model": "spam"})
    assert pair.status_code == 422
    assert "single texts" in pair.json()["error"]["message"]


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")
def test_tagging_answers_as_the_pipeline_does(server, adapters, strategy):
    predictor = load_for_inference(adapters[1]["names"])
    tagger = pipeline("token-classification", model=predictor.model, tokenizer=predictor.tokenizer)
    text = "lunch meeting word3 prize winner word5 word1 lunch"
    expected = tagger(text, aggregation_strategy=strategy)
    asked = {"inputs": text, "parameters": {"aggregation_strategy": strategy}}
    found = ok(server.post("/models/names", json=asked))
    assert len(expected) == len(found) > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == {name: pytest.approx(float(v), abs=1e-5) if name == "score" else v for name, v in theirs.items()}


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")
def test_long_texts_are_tagged_in_windows(server, adapters):
    predictor = load_for_inference(adapters[1]["names"])
    tagger = pipeline("token-classification", model=predictor.model, tokenizer=predictor.tokenizer)
    text = " ".join(f"word{n % 40} lunch prize" for n in range(60))
    options = {"aggregation_strategy": "simple", "stride": 10}
    expected = tagger(text, **options)
    found = ok(server.post("/models/names", json={"inputs": [text, "lunch"], "parameters": options}))
    assert [(e["start"], e["end"]) for e in found[0]] == [(e["start"], e["end"]) for e in expected]
    assert found[0][-1]["end"] > 64 * 5
    default = ok(server.post("/models/names", json={"inputs": text}))
    assert default[-1]["end"] > 64 * 5


def test_the_pipeline_route_classifies_too(server):
    answer = ok(server.post("/models/spam", json={"inputs": TEXTS[0], "parameters": {"top_k": 1}}))
    assert len(answer) == len(answer[0]) == 1
    assert answer[0][0]["label"] in ("ham", "spam")


def test_rerank_orders_documents_by_an_adapter_of_pairs(server):
    asked = {"model": "relevance", "query": "lunch", "documents": ["word1", "prize word2", "winner"]}
    answer = ok(server.post("/rerank", json=asked))
    pairs = {"model": "relevance", "input": ["lunch"] * 3, "text_pair": asked["documents"]}
    expected = [row["probs"][1] for row in ok(server.post("/classify", json=pairs))["data"]]
    scores = {row["index"]: row["relevance_score"] for row in answer["results"]}
    assert [scores[n] for n in range(3)] == pytest.approx(expected)
    assert [row["relevance_score"] for row in answer["results"]] == sorted(expected, reverse=True)
    assert answer["results"][0]["document"]["text"] == asked["documents"][answer["results"][0]["index"]]
    assert len(ok(server.post("/v1/rerank", json=asked | {"top_n": 1, "return_documents": False}))["results"]) == 1


def test_embeddings_answer_openais_request(server):
    plain = ok(server.post("/v1/embeddings", json={"model": "spam", "input": TEXTS}))
    vectors = np.array([row["embedding"] for row in plain["data"]])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    packed = ok(server.post("/v1/embeddings", json={"model": "spam", "input": TEXTS[0], "encoding_format": "base64"}))
    found = struct.unpack("<16f", base64.b64decode(packed["data"][0]["embedding"]))
    np.testing.assert_allclose(found, vectors[0], atol=1e-5)
    frozen = ok(server.post("/v1/embeddings", json={"model": "model", "input": TEXTS[0]}))["data"][0]["embedding"]
    assert np.abs(np.array(frozen) - vectors[0]).max() > 1e-3


def test_the_open_inference_protocol(server, predicted):
    assert ok(server.get("/v2/health/live")) == {"live": True}
    assert ok(server.get("/v2/health/ready")) == {"ready": True}
    assert ok(server.get("/v2"))["name"] == "foretoken"
    assert ok(server.get("/v2/models/spam"))["outputs"][1]["shape"] == [-1, 2]
    assert ok(server.get("/v2/models/spam/ready"))["ready"]
    text = {"name": "text", "shape": [3], "datatype": "BYTES", "data": TEXTS}
    answer = ok(server.post("/v2/models/spam/infer", json={"id": "7", "inputs": [text]}))
    outputs = {tensor["name"]: tensor for tensor in answer["outputs"]}
    assert answer["id"] == "7"
    assert outputs["probabilities"]["shape"] == [3, 2]
    found = np.reshape(outputs["probabilities"]["data"], (3, 2))
    np.testing.assert_allclose(found, predicted("spam"), atol=1e-5)
    assert outputs["truncated"]["data"] == [False] * 3
    wrong = server.post("/v2/models/spam/infer", json={"inputs": [text | {"datatype": "FP32"}]})
    assert wrong.status_code == 422


def test_models_are_listed_with_their_parent(server):
    items = {item["id"]: item for item in ok(server.get("/v1/models"))["data"]}
    assert items["spam"]["parent"] == "model"
    assert items["model"]["parent"] is None
    assert items["spam"]["labels"] == ["ham", "spam"]
    assert (items["spam"]["calibrated"], items["topic"]["calibrated"]) == (True, False)


def test_an_adapter_abstains_below_a_confidence(server):
    asked = {"model": "spam", "input": TEXTS}
    free = ok(server.post("/classify", json=asked))["data"]
    confidences = [max(row["probs"]) for row in free]
    between = sorted(confidences)[1]
    held = ok(server.post("/classify", json=asked | {"min_confidence": between}))["data"]
    assert [row["abstained"] for row in held] == [confidence < between for confidence in confidences]
    assert [row["label"] is None for row in held] == [row["abstained"] for row in held]
    unknown = server.post("/classify", json=asked | {"coverage": 0.5})
    assert unknown.status_code == 422
    assert "run folder" in unknown.json()["error"]["message"]


def test_errors_have_one_form_and_the_right_status(server):
    cases = [
        (404, "/classify", {"model": "spma", "input": "a"}),
        (422, "/classify", {"input": "a"}),
        (422, "/classify", {"model": "spam", "input": ["   "]}),
        (422, "/classify", {"model": "spam"}),
        (422, "/classify", {"model": "names", "input": "a"}),
        (422, "/models/spam", {"inputs": 3}),
        (422, "/rerank", {"model": "spam", "query": "a", "documents": ["b"]}),
        (413, "/classify", {"model": "spam", "input": ["word1"] * 257}),
        (413, "/classify", {"model": "spam", "input": "a" * 2_000_001}),
        (401, "/v1/adapters/new", None),
        (404, "/nowhere", {}),
    ]
    for status, path, body in cases:
        answer = server.post(path, json=body)
        assert answer.status_code == status, (path, body, answer.text)
        assert answer.json()["error"]["code"] == status
        assert answer.headers["x-request-id"]
    assert "did you mean 'spam'" in server.post("/classify", json=cases[0][2]).json()["error"]["message"]


def test_the_openapi_page_has_examples(server):
    schema = ok(server.get("/openapi.json"))
    assert {"/classify", "/predict", "/rerank", "/v1/embeddings", "/models/{adapter}"} <= schema["paths"].keys()
    assert schema["components"]["schemas"]["ClassifyRequest"]["examples"]
    assert server.get("/docs").status_code == 200


def test_metrics_count(server):
    page = server.get("/metrics").text
    assert 'foretoken_requests_total{route="/classify",status="200"}' in page
    assert 'foretoken_documents_total{adapter="spam"}' in page
    assert "foretoken_batch_tokens_bucket" in page


def test_requests_have_spans_where_they_are_asked_for(server, monkeypatch):
    import httpx
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from foretoken.serving.http.settings import ServerSettings

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    settings = ServerSettings(sources={}, traces=True)
    with serving(server.service.engine.store, settings=settings, engine=False) as (address, _):
        assert httpx.post(f"{address}/classify", json={"input": "a"}).status_code == 503
    (span,) = exporter.get_finished_spans()
    assert span.name == "/classify"
    assert span.attributes["http.response.status_code"] == 503


def test_a_hundred_adapters_have_labels_of_their_own():
    from foretoken.serving.http.metrics import MOST_LABELS, Metrics

    metrics = Metrics()
    for number in range(MOST_LABELS + 20):
        metrics.accepted(f"a{number}", 1)
    page = metrics.page(None).decode()
    assert 'foretoken_documents_total{adapter="other"} 20.0' in page
    assert f'adapter="a{MOST_LABELS}"' not in page


def test_coverage_chooses_the_threshold_from_validation(adapters, tmp_path):
    import shutil

    import pyarrow as pa
    import pyarrow.parquet as pq

    run = tmp_path / "run"
    shutil.copytree(adapters[1]["spam"], run / "adapter")
    (run / "run.json").write_text("{}")
    sure = np.linspace(0.5, 0.99, 50)
    table = {"split": ["validation"] * 50, "prob_ham": sure, "prob_spam": 1 - sure}
    pq.write_table(pa.table(table), run / "predictions.parquet")
    adapter = make_store(adapters[0], {"run": run}).get("run")
    for coverage in (0.2, 0.5, 1.0):
        kept = (adapter.confidences >= adapter.threshold(coverage)).mean()
        assert kept == pytest.approx(coverage, abs=0.02)
    assert adapter.confidences.max() < 0.99  # the temperature of the card is 2
