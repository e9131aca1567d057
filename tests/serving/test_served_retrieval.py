"""An adapter of queries behind `/v1/embeddings`, and the pretrained model for passages, as sentence encoders."""

import httpx
import numpy as np
import pytest
import torch
from peft import get_peft_model

from foretoken import LoraConfig, PrefixPropagationConfig
from foretoken.files import write_json
from foretoken.inference.predictor import load_for_inference
from foretoken.inference.retrieval import embed
from foretoken.inference.shared_base import SharedBase
from foretoken.sentence_encoders import SentenceEncoder
from foretoken.training.problems import make_problem

from support.served import make_store, serving
from support.tiny_run import save_tiny_model

TEXTS = ["word1 word2 word3", "lunch word4", " ".join(["prize", "word5"] * 20)]  # the last one is longer than 30 tokens
METHODS = {
    "prefix": PrefixPropagationConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3),
    "lora": LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query", "value"], r=2),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("retrieval")
    model = save_tiny_model(root / "model")
    SentenceEncoder(pool="max", normalise=True, max_length=30).write(model, 16)
    found = {}
    for name, config in METHODS.items():
        adapted = get_peft_model(SharedBase(str(model)).with_new_head(make_problem("retrieval", ()))[0], config)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 5.0)
        found[name] = root / name
        adapted.save_pretrained(found[name])
        card = {"problem": "retrieval", "labels": [], "max_length": 30, "base_model": str(model)}
        write_json(found[name] / "foretoken.json", card | {"recipe": {"retrieval": {"adapt": "queries"}}})
    return model, found


@pytest.fixture(scope="module")
def server(folders):
    with serving(make_store(*folders)) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        yield client


@pytest.mark.parametrize("name", METHODS)
def test_queries_have_the_adapters_vectors_and_passages_the_pretrained_models(server, folders, name):
    model, adapters = folders
    predictor = load_for_inference(adapters[name])
    expected = {side: embed(predictor, TEXTS, side).vectors for side in ("query", "passage")}
    assert abs(expected["query"] - expected["passage"]).max() > 1e-3
    for asked, side in ((name, "query"), (model.name, "passage")):
        answer = server.post("/v1/embeddings", json={"model": asked, "input": TEXTS}).json()
        np.testing.assert_allclose([row["embedding"] for row in answer["data"]], expected[side], atol=1e-5)
        assert [row["truncated"] for row in answer["data"]] == [False, False, True]


def test_other_questions_say_what_it_does(server):
    answer = server.post("/classify", json={"model": "lora", "input": TEXTS})
    assert (answer.status_code, "ask for embeddings" in answer.text) == (422, True)
    answer = server.get("/v2/models/lora")
    assert (answer.status_code, "/v1/embeddings" in answer.text) == (422, True)
    listed = {item["id"]: item["task"] for item in server.get("/v1/models").json()["data"]}
    assert listed["lora"] == "retrieval"
