"""Texts that encoder-decoders write of prompts, beside what transformers generates with each adapter alone."""

import copy

import httpx
import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForSeq2SeqLM

from foretoken import LoraConfig, PrefixPropagationConfig, PrefixTuningConfig
from foretoken.data.plain_table import PlainTable
from foretoken.errors import AdapterError
from foretoken.files import write_json
from foretoken.inference.predictor import load_for_inference, predict_rows
from foretoken.serving.completion import Complete
from foretoken.serving.engine import Engine, Request
from foretoken.serving.generation import Sampling
from foretoken.serving.tasks import Document

from support import tiny
from support.served import make_store, serving
from support.tiny_generation import model_of, tokenizer_of

PROMPTS = ["word1", "word2 word3 word4 word5 word6", "word7 copy word8", "subject word9 word0 word1"]
MAPS = {"t5": ["q", "v"], "bart": ["q_proj", "v_proj"], "led": ["q_proj", "v_proj"]}
FAMILIES = ["t5", pytest.param("bart", marks=pytest.mark.slow), pytest.param("led", marks=pytest.mark.slow)]


def talkative(family):
    """A tiny model whose texts do not end at once, nor repeat one word."""
    model = model_of(family)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.5)
        model.get_output_embeddings().weight[tokenizer_of(family).eos_token_id] = 0
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def written(request, tmp_path_factory):
    """The model, the adapters' folders, and what `foretoken predict` writes with each."""
    root, family = tmp_path_factory.mktemp(request.param), request.param
    base, folders, model = talkative(family), {}, root / "model"
    base.save_pretrained(model)
    tokenizer_of(family).save_pretrained(model)
    configs = {
        "short": PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2),
        "long": PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=5),
        "wide": PrefixPropagationConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3),
        "lora": LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=MAPS[family], r=2),
    }
    expected = {}
    for seed, (name, config) in enumerate(configs.items()):
        adapted = tiny.shaken(get_peft_model(copy.deepcopy(base), config).eval(), seed=seed)
        adapted.peft_config["default"].base_model_name_or_path = str(model)
        folders[name] = root / name
        adapted.save_pretrained(folders[name])
        card = {"problem": "generation", "labels": [], "max_length": 8, "recipe": {"generation": {"max_new_tokens": 6}}}
        write_json(folders[name] / "foretoken.json", card)
        rows = PlainTable({"id": list("1234"), "text": PROMPTS})
        for text, found in zip(PROMPTS, predict_rows(load_for_inference(folders[name]), rows)[0], strict=True):
            expected[name, text] = found
    assert len(set(expected.values())) > 4  # or anything would be right
    return model, folders, expected


def test_the_server_writes_what_predict_writes(written):
    model, folders, expected = written
    with serving(make_store(model, folders)) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        for name in folders:
            body = {"model": name, "prompt": PROMPTS, "max_tokens": 6, "temperature": 0}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            choices = answer.json()["choices"]
            assert [choice["text"].strip() for choice in choices] == [expected[name, text] for text in PROMPTS]
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as parts:
                assert [line for line in parts.iter_lines() if line][-1] == "data: [DONE]"
        long = client.post("/v1/completions", json=body | {"prompt": " ".join(["word1"] * 20)}).json()
        assert long["choices"][0]["truncated"]
        assert long["usage"]["prompt_tokens"] == 8
        refused = client.post("/v1/embeddings", json={"model": "lora", "input": "word1"})
        assert (refused.status_code, "ask for completions" in refused.text) == (422, True)
        listed = {item["id"]: item["task"] for item in client.get("/v1/models").json()["data"]}
        assert listed["short"] == "generation"


def test_an_adapter_with_embeddings_of_its_own_is_refused(written, tmp_path):
    model, folders, _ = written
    base = AutoModelForSeq2SeqLM.from_pretrained(model)
    maps = MAPS[base.config.model_type]
    config = LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=maps, r=2, trainable_token_indices=[5, 6])
    get_peft_model(base, config).save_pretrained(tmp_path)
    with pytest.raises(AdapterError, match="embeddings of tokens, which a bank of an encoder-decoder does not take"):
        make_store(model, folders | {"own": tmp_path})


def test_adapters_and_lengths_share_a_batch(written):
    model, folders, expected = written
    store, sizes = make_store(model, folders), []
    real = store.bank.generate
    store.bank.generate = lambda wanted: sizes.append(len(wanted)) or real(wanted)
    engine = Engine(store)
    engine.state = "ready"
    counts = (2, 6, 9)
    futures = {
        (name, text, count): engine.submit(
            Request(name, [Document(text)], Complete(Sampling(max_tokens=count, temperature=0)))
        )
        for name in folders
        for text in PROMPTS
        for count in counts
    }
    with engine:
        found = {key: future.result(60)[0] for key, future in futures.items()}
    assert sizes == [len(folders) * len(PROMPTS) * len(counts)]
    for name in folders:
        for text in PROMPTS:
            assert found[name, text, 6].text.strip() == expected[name, text]
            assert found[name, text, 2].new_tokens <= 2


def test_the_model_alone_writes_what_transformers_generates(written):
    store = make_store(written[0], {})
    tokenizer = store.base.tokenizer
    alone, end = store.base.language_model(), tokenizer.eos_token_id
    is_led = store.base.config.model_type == "led"
    with Engine(store) as engine:
        for text in PROMPTS:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            more = {"global_attention_mask": (torch.arange(ids.shape[1]) == 0).long()[None]} if is_led else {}
            whole = alone.generate(input_ids=ids, max_new_tokens=5, do_sample=False, eos_token_id=end, **more)[0]
            task = Complete(Sampling(max_tokens=5, temperature=0))
            found = engine.submit(Request(store.base_name, [Document(text)], task)).result(60)[0]
            assert found.text == tokenizer.decode(whole[1:], skip_special_tokens=True)
