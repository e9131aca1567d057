"""`foretoken.embed` and the server's `/v1/embeddings` make the same vectors, which are plain means of peft's states."""

import json
import shutil

import numpy as np
import pytest
import torch
from peft import PeftModel, get_peft_model
from transformers import AutoModel, AutoTokenizer

import foretoken
from foretoken import LoraConfig, PrefixPropagationConfig
from foretoken.errors import BackboneError, DataError

from support.saved import save_base
from support.tiny_run import save_tiny_model

TEXTS = ["word1 word2 word3", "lunch word4", " ".join(["prize", "word5"] * 40)]  # the last is longer than 64 tokens
SEARCH = {  # adapters without a head and without a card, as sentence-transformers saves them
    "prefix": PrefixPropagationConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3),
    "lora": LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query", "value"], r=2, init_lora_weights=False),
}


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    root = tmp_path_factory.mktemp("search")
    model = save_tiny_model(root / "model")
    for name, config in SEARCH.items():
        torch.manual_seed(0)
        adapted = get_peft_model(AutoModel.from_pretrained(model), config)
        adapted.save_pretrained(root / name)
    return model, {name: root / name for name in SEARCH}


def plain_means(model, adapter=None):
    """The same with transformers and peft alone, one text at a time."""
    tokenizer, body = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model)
    body = (body if adapter is None else PeftModel.from_pretrained(body, adapter)).eval()
    with torch.no_grad():
        inputs = [tokenizer(text, truncation=True, return_tensors="pt") for text in TEXTS]
        found = torch.stack([body(**one).last_hidden_state[0].mean(0) for one in inputs])
    return torch.nn.functional.normalize(found).numpy()


def test_vectors_of_headless_models_are_plain_means(search):
    model, adapters = search
    frozen = foretoken.embed(model, TEXTS, batch_size=2)
    np.testing.assert_allclose(frozen, plain_means(model), atol=1e-5)
    for adapter in adapters.values():
        found = foretoken.embed(adapter, TEXTS, batch_size=2)
        np.testing.assert_allclose(found, plain_means(model, adapter), atol=1e-5)
        assert abs(found - frozen).max() > 1e-3


def test_a_sentence_encoders_folder_says_pooling_and_length(search, tmp_path):
    model = save_tiny_model(tmp_path / "model")
    adapter = shutil.copytree(search[1]["lora"], tmp_path / "lora")
    tokenizer, body = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model)
    tokenizer.save_pretrained(adapter)
    inputs = tokenizer(TEXTS[2], truncation=True, max_length=8, return_tensors="pt")
    files = {
        "modules.json": [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling")],
        "1_Pooling/config.json": {"pooling_mode_max_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 8},
    }
    for folder in (model, adapter):
        (folder / "1_Pooling").mkdir(exist_ok=True)
        for name, values in files.items():
            (folder / name).write_text(json.dumps(values))
        body = (body if folder == model else PeftModel.from_pretrained(body, adapter)).eval()
        with torch.no_grad():
            states = body(**inputs).last_hidden_state
        expected = torch.nn.functional.normalize(states.amax(dim=1))[0].numpy()
        np.testing.assert_allclose(foretoken.embed(folder, TEXTS)[2], expected, atol=1e-5)


def test_what_has_no_vectors_is_refused(search, tmp_path):
    with pytest.raises(DataError, match="document 2 of 2 is empty"):
        foretoken.embed(search[0], ["word1", " "])
    for texts in ("word1", []):
        with pytest.raises(DataError, match="expected a list of at least one text"):
            foretoken.embed(search[0], texts)
    with pytest.raises(BackboneError, match="an encoder and a decoder"):
        foretoken.embed(save_base(tmp_path / "t5", "t5", "SEQ_2_SEQ_LM"), ["word1"])
