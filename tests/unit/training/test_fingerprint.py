"""Which model a digest is of: that of its numbers, whatever holds them, and of no other numbers."""

import json
import random
from contextlib import suppress

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer

from foretoken.errors import ForetokenError
from foretoken.training.model.load import load_with_new_head
from foretoken.training.problems import make_problem
from foretoken.training.run.fingerprint import of_model

from support import tiny
from support.saved import tokenizer_of
from support.tiny_run import save_tiny_model

PROBLEMS = [
    make_problem("classification", ["ham", "spam", "news"]),
    make_problem("token-classification", ["O", "B-X", "I-X"]),
    make_problem("question-answering", []),
    make_problem("generation", []),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("fingerprint") / "model")


def loaded(folder, problem=PROBLEMS[0], seed=0):
    """Return a model as training and inference load it: what no file holds is random."""
    torch.manual_seed(seed)
    return load_with_new_head(str(folder), problem)[0]


@pytest.mark.parametrize(
    "family",
    [name if name in ("bert", "llama", "t5") else pytest.param(name, marks=pytest.mark.slow) for name in tiny.FAMILIES],
)
def test_what_is_new_for_a_problem_is_not_of_the_model(family, tmp_path):
    """The digests of a part are the same under every head, and whatever the random numbers of a new one are."""
    task = next(task for task in ("CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION") if task in tiny.tasks(family))
    tiny.model(family, task).save_pretrained(tmp_path)
    tokenizer_of(family).save_pretrained(tmp_path)
    parts = {}
    for problem in PROBLEMS:
        if family in tiny.DECODERS and problem.name == "question-answering":
            continue  # transformers calls the body otherwise there, and finds nothing of it in the file
        with suppress(ForetokenError):  # the family has no such head
            for seed in (0, 1):
                found = of_model(loaded(tmp_path, problem, seed))
                assert found.items() <= (found | parts).items()
                parts |= found
    assert len(parts) > 1


def test_the_same_numbers_are_the_same_model(base, tmp_path):
    loaded(base).save_pretrained(tmp_path / "sharded", max_shard_size="4KB")
    loaded(base).double().bert.save_pretrained(tmp_path / "bare")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    assert of_model(loaded(base)) == of_model(loaded(tmp_path / "sharded")) == of_model(loaded(tmp_path / "bare"))


def test_a_model_in_half_precision_is_the_same_in_float32(base, tmp_path):
    loaded(base).bfloat16().save_pretrained(tmp_path / "half")
    AutoModel.from_pretrained(tmp_path / "half", dtype=torch.float32).save_pretrained(tmp_path / "float32")
    assert of_model(loaded(tmp_path / "half")) == of_model(loaded(tmp_path / "float32"))
    assert of_model(loaded(tmp_path / "half")) != of_model(loaded(base))  # rounded: its predictions are others


CHANGES = {
    "one number": lambda x, chance: x.view(-1)[chance.randrange(x.numel())].add_(1e-3),
    "the order": lambda x, chance: x.copy_(x.roll(chance.randrange(1, len(x)), dims=0)),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("change", CHANGES)
def test_any_other_number_is_another_model_and_its_part_is_named(base, change, seed):
    before, model, chance = of_model(loaded(base)), loaded(base), random.Random(seed)
    names = [n for n, x in model.bert.named_parameters() if "pooler" not in n and len(x.unique(dim=0)) == len(x) > 1]
    name = chance.choice(names)
    with torch.no_grad():
        CHANGES[change](model.bert.get_parameter(name), chance)
    after = of_model(model)
    assert [part for part in before if before[part] != after[part]] == [f"model.{name.partition('.')[0]}"]


def test_layers_that_change_places_are_another_model(base):
    model = loaded(base)
    model.bert.encoder.layer = model.bert.encoder.layer[::-1]
    assert of_model(model)["model.encoder"] != of_model(loaded(base))["model.encoder"]


RULES = {
    "numbers": lambda rules: rules["model"]["vocab"].update(word1=5, word2=4),
    "case": lambda rules: rules.update(normalizer={"type": "Lowercase"}),
    "punctuation": lambda rules: rules.update(pre_tokenizer={"type": "WhitespaceSplit"}),
    "special tokens": lambda rules: rules["post_processor"].update(single=[{"Sequence": {"id": "A", "type_id": 0}}]),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_tokenizer_that_splits_otherwise_is_another_and_a_call_does_not_change_it(base, rule):
    model, tokenizer = loaded(base), AutoTokenizer.from_pretrained(base)
    before = of_model(model, tokenizer)
    tokenizer(["word1 word2", "word3"], padding=True, truncation=True, max_length=3)
    assert of_model(model, tokenizer) == before
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    assert (rules["model"]["vocab"]["word1"], rules["model"]["vocab"]["word2"]) != (5, 4)
    RULES[rule](rules)
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(rules))
    after = of_model(model, tokenizer)
    assert [key for key in before if before[key] != after[key]] == ["tokenizer"]
