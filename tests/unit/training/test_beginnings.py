"""The first tokens of a very long text do not depend on how it ends."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from foretoken.training.options import ChunkOptions
from foretoken.training.tokens import beginnings as module
from foretoken.training.tokens.beginnings import beginnings
from foretoken.training.tokens.chunks import spans
from foretoken.training.tokens.encode import EncodeSettings, TokenRules, encode
from foretoken.training.tokens.texts import encode_texts

SPECIAL = ["[UNK]", "[CLS]", "[SEP]"]
PIECES = [
    *(
        "the",
        "cat",
        "cats",
        "sat",
        "a",
        "un",
        "known",
        "über",
        "naïve",
        "3.14",
        "don't",
        "...",
        "日本語",
        "e\u0301",
        "ß",
    ),
    *("e\u0301", "ß", " ", "  ", "\n", "\t", "\u00a0", "\r\n", "-", "[SEP]", "\u200b", "😀"),
]
CORPUS = ["the cat sat on the unknown cats", "don't a naïve über 3.14 ... 日本語", "cat-cats the  the\nthe a"] * 20


def wordpiece():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL)


def byte_level():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return made, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)


def unigram():
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made, trainers.UnigramTrainer(vocab_size=80, special_tokens=SPECIAL, unk_token="[UNK]")


def whole_text_bpe():
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    return made, trainers.BpeTrainer(vocab_size=120, special_tokens=SPECIAL, max_token_length=6)


@pytest.fixture(scope="module", params=[wordpiece, byte_level, unigram, whole_text_bpe])
def tokenizer(request):
    made, trainer = request.param()
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[UNK]"
    )


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    pieces=st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 30)), min_size=20, max_size=80),
    wanted=st.integers(4, 30),
    end=st.sampled_from([None, 2]),
    long=st.integers(250, 600),  # a word of more than 100 characters is unknown to WordPiece
)
def test_what_is_kept_is_what_the_whole_text_begins_with(tokenizer, pieces, wanted, end, long):
    texts = ["the " + "".join(piece * times for piece, times in pieces), "a cat"]
    rules = TokenRules(end_token=end)
    whole = encode(texts, tokenizer, max_length=wanted, rules=rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG", long)
        begun = encode(texts, tokenizer, max_length=wanted, rules=rules)
        cut = beginnings(texts, tokenizer, wanted, end).cut
    assert begun.input_ids == whole.input_ids
    assert begun.truncation.truncated == whole.truncation.truncated
    assert begun.truncation.partly == len(cut)
    assert begun.truncation.longest <= whole.truncation.longest
    assert cut or begun == whole


def test_pairs_and_chunks_keep_what_they_would(tokenizer, monkeypatch):
    texts, pairs = ["the cat sat " * 500, "a cat"], ["a cat", "the unknown " * 600]
    few = EncodeSettings(tokenizer, 16, TokenRules(), ChunkOptions(overlap=2), 40)
    all_of_it = EncodeSettings(tokenizer, 16, TokenRules(), ChunkOptions(overlap=2))
    found = []
    for long in (module.LONG, 300):
        monkeypatch.setattr(module, "LONG", long)
        both, counts = encode_texts(texts, pairs, EncodeSettings(tokenizer, 16, TokenRules()))
        chunks, chunk_counts = encode_texts(texts, None, few)
        everything, _ = encode_texts(texts, None, all_of_it)
        found.append((both["sequences"], chunks["sequences"], everything["sequences"]))
        assert (counts.partly, chunk_counts.partly) == ((0, 0) if long > 300 else (2, 1))
    assert found[0] == found[1]
    assert len(found[0][1][0]) == len(spans(range(40 - 2), 14, 2)) == 3
