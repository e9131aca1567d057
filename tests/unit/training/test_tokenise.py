import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, GPT2Config, PreTrainedTokenizerFast, RobertaConfig

from foretoken.errors import ConfigError
from foretoken.training.tokenise import PaddingCollator, chosen_max_length, encode, model_max_length


@pytest.fixture
def tokenizer():
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "b": 5}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")


def test_truncation_is_counted_and_keeps_the_special_tokens(tokenizer):
    encoded = encode(["a b a", "a " * 20_000, "b"], tokenizer, max_length=5)
    assert encoded.input_ids == [[2, 4, 5, 4, 3], [2, 4, 4, 4, 3], [2, 5, 3]]
    assert (encoded.truncation.documents, encoded.truncation.truncated) == (3, 1)
    assert encoded.truncation.longest == 20_002


def test_a_document_of_exactly_the_length_is_not_truncated(tokenizer):
    assert encode(["a b a"], tokenizer, max_length=5).truncation.truncated == 0
    assert encode(["a b a"], tokenizer, max_length=4).truncation.truncated == 1


def test_no_documents_at_all(tokenizer):
    assert encode([], tokenizer, max_length=5).input_ids == []


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_follows_the_side_and_the_mask_says_where(side):
    batch = PaddingCollator(9, side)([{"input_ids": [1, 2, 3], "labels": 0}, {"input_ids": [4], "labels": 1}])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [9, 9, 4] if side == "left" else [4, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1] if side == "left" else [1, 0, 0]]
    assert batch["labels"].tolist() == [0, 1]


def test_batches_without_labels_have_none():
    assert "labels" not in PaddingCollator(0)([{"input_ids": [1]}])


def test_the_models_maximum_minus_the_positions_that_are_kept_for_padding(tokenizer):
    assert model_max_length(BertConfig(max_position_embeddings=512), tokenizer) == 512
    assert model_max_length(RobertaConfig(max_position_embeddings=514, pad_token_id=1), tokenizer) == 512
    assert model_max_length(GPT2Config(n_positions=1024), tokenizer) == 1024


def test_the_tokenizers_maximum_counts_too(tokenizer):
    tokenizer.model_max_length = 128
    assert model_max_length(BertConfig(max_position_embeddings=512), tokenizer) == 128


def test_more_than_the_model_reads_is_refused(tokenizer):
    config = BertConfig(max_position_embeddings=512)
    assert chosen_max_length(512, config, tokenizer) == 512
    assert chosen_max_length(None, config, tokenizer) == 512
    with pytest.raises(ConfigError, match="max_length: got 513, but the model reads at most 512"):
        chosen_max_length(513, config, tokenizer)
