import pytest
from tokenizers import processors
from transformers import BertConfig, ByT5Tokenizer, T5Config

from foretoken.errors import BackboneError, ConfigError, DataError
from foretoken.training.tokens import beginnings as module
from foretoken.training.tokens.encode import (
    EncodeSettings,
    TokenRules,
    chosen_max_length,
    encode,
    model_max_length,
    pair_sequences,
    reads_beyond,
    token_rules,
)
from foretoken.training.tokens.padding import PaddingCollator

from support.tiny import CONFIGS, COUNTS_POSITIONS, ROTARY
from support.tiny_run import make_tokenizer


@pytest.fixture
def tokenizer():
    return make_tokenizer(None, "ab")


def test_truncation_is_counted_and_keeps_the_special_tokens(tokenizer):
    encoded = encode(["a b a", "a " * 20_000, "b"], tokenizer, max_length=5)
    assert encoded.input_ids == [[2, 4, 5, 4, 3], [2, 4, 4, 4, 3], [2, 5, 3]]
    assert (encoded.truncation.documents, encoded.truncation.truncated) == (3, 1)
    assert encoded.truncation.longest == 20_002


def test_padding_is_on_the_right_and_the_mask_says_where():
    batch = PaddingCollator(9)([{"input_ids": [1, 2, 3], "labels": 0}, {"input_ids": [4], "labels": 1}])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [0, 1]


@pytest.mark.parametrize("family", CONFIGS)
def test_the_maximum_of_every_family(family, tokenizer):
    if family == "led":
        pytest.skip("transformers has no sequence classification for it")
    config = CONFIGS[family]()
    expected = 512 if family == "t5" else 62 if family in COUNTS_POSITIONS else 64
    assert model_max_length(config, tokenizer) == expected
    positions = {"bert": False, "gpt2": False, "bart": False, "longformer": False, "t5": True}
    positions |= {"llama": True, "qwen2": True, "qwen3": True, "mistral": True, "gemma3_text": True, "deberta-v2": True}
    positions |= dict.fromkeys(ROTARY, True)
    if family in positions:
        assert reads_beyond(config) == positions[family]


def test_a_recipe_may_ask_for_more_than_the_tokenizers_maximum(tokenizer):
    tokenizer.model_max_length = 128
    assert chosen_max_length(512, BertConfig(max_position_embeddings=512), tokenizer) == 512
    assert chosen_max_length(5000, T5Config(), tokenizer) == 5000


def test_documents_of_encoder_decoders_end_with_one_end_token(tokenizer):
    tokenizer.add_special_tokens({"sep_token": "[SEP]"})
    rules = token_rules(T5Config(eos_token_id=3, vocab_size=6))
    encoded = encode(["a b a", "a [SEP] b [SEP] [SEP]", "[SEP]", "a " * 30], tokenizer, max_length=4, rules=rules)
    assert encoded.input_ids == [[2, 4, 5, 3], [2, 4, 5, 3], [2, 3], [2, 4, 4, 3]]
    assert (encoded.truncation.truncated, encoded.truncation.longest) == (2, 32)
    assert token_rules(BertConfig()).end_token is None


def test_documents_without_tokens_and_tokens_without_embedding_are_refused(tokenizer):
    with pytest.raises(BackboneError, match="made token 5, but the model has 5 embeddings"):
        encode(["a b a"], tokenizer, max_length=9, rules=TokenRules(vocab_size=5))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(DataError, match="no tokens of the document ' '"):
        encode(["a", " "], tokenizer, max_length=9)


def test_more_than_the_model_reads_is_refused(tokenizer):
    config = BertConfig(max_position_embeddings=512)
    assert chosen_max_length(512, config, tokenizer) == 512
    assert chosen_max_length(None, config, tokenizer) == 512
    with pytest.raises(ConfigError, match="max_length: got 513, but the model reads at most 512"):
        chosen_max_length(513, config, tokenizer)


@pytest.fixture
def of_pairs(tokenizer):
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("max_length", [4, 5, 6, 9, 12])
def test_texts_and_pairs_are_cut_as_the_tokenizer_cuts_them(of_pairs, side, max_length):
    of_pairs.truncation_side = side
    texts = ["a b " * first for first in range(1, 7) for _ in range(1, 7)]
    pairs = ["b a a " * second for _ in range(1, 7) for second in range(1, 7)]
    own = {"truncation": "longest_first", "max_length": max_length, "return_attention_mask": False}
    encoded = encode(texts, of_pairs, max_length=max_length)
    assert encoded.input_ids == of_pairs(texts, **own)["input_ids"]
    assert encoded.truncation.longest == 14
    rows, lengths = pair_sequences(texts, pairs, EncodeSettings(of_pairs, max_length, TokenRules()))
    expected = of_pairs(texts, pairs, return_token_type_ids=True, **own)
    assert [row["input_ids"] for row in rows] == expected["input_ids"]
    assert lengths == [len(ids) for ids in of_pairs(texts, pairs)["input_ids"]]
    if "token_type_ids" in of_pairs.model_input_names:
        assert [row["token_type_ids"] for row in rows] == expected["token_type_ids"]


@pytest.mark.parametrize("max_length", [1, 2])
def test_a_length_without_room_for_a_text_is_left_to_the_tokenizer(tokenizer, max_length):
    own = tokenizer(["a b a"], truncation=True, max_length=max_length)["input_ids"]
    assert encode(["a b a"], tokenizer, max_length=max_length).input_ids == own


def test_tokenizers_in_python_cut_what_is_too_long_themselves():
    tokenizer = ByT5Tokenizer()
    texts, pairs = ["a word", "many words " * 9], ["more " * 20, "few"]
    encoded = encode(texts, tokenizer, max_length=12)
    assert encoded.input_ids == tokenizer(texts, truncation=True, max_length=12)["input_ids"]
    assert encoded.truncation.longest == 100
    rows, lengths = pair_sequences(texts, pairs, EncodeSettings(tokenizer, 12, TokenRules()))
    expected = tokenizer(texts, pairs, truncation="longest_first", max_length=12)
    assert [row["input_ids"] for row in rows] == expected["input_ids"]
    assert lengths == [len(ids) for ids in tokenizer(texts, pairs)["input_ids"]]


def test_every_text_is_tokenised_once(of_pairs, monkeypatch):
    seen = []
    real = type(of_pairs)._encode_plus

    def counting(self, text, text_pair=None, **given):
        for side in (text, text_pair):
            seen.append(sum(map(len, [side] if isinstance(side, str) else side or [])))
        return real(self, text, text_pair, **given)

    monkeypatch.setattr(type(of_pairs), "_encode_plus", counting)
    texts, pairs = ["a b " * 500, "a", "b " * 900], ["b", "a " * 700, "b"]
    encode(texts, of_pairs, max_length=8)
    assert sum(seen) == sum(map(len, texts))
    seen.clear()
    pair_sequences(texts, pairs, EncodeSettings(of_pairs, 8, TokenRules()))
    assert sum(seen) == sum(map(len, texts + pairs))
    seen.clear()
    monkeypatch.setattr(module, "LONG", 1000)
    encode(["a b " * 5000], of_pairs, max_length=8)
    assert 1000 <= sum(seen) <= 1000 + 2 * 8 * module._CHARACTERS_PER_TOKEN
