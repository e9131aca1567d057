"""How tests read texts for tiny models: a tokenizer that spells words, and rows of what it reads."""

from string import ascii_lowercase

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from foretoken.training.tokens.encode import EncodeSettings, token_rules

SPECIAL = {
    "bert": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "roberta": {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"},
}


def speller(style="bert", *, added=()):
    """Return a tokenizer of fewer than 100 tokens with BERT's or RoBERTa's special ones, without control characters."""
    special = SPECIAL[style]
    pieces = [*special.values(), *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase), ".", ","]
    known = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordPiece(known, unk_token=special["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = special["cls_token"], special["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, known[token]) for token in (first, last)],
    )
    names = ["input_ids", *(["token_type_ids"] if style == "bert" else []), "attention_mask"]
    made = PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=names, **special)
    made.add_tokens(list(added), special_tokens=True)
    return made


def reading(model, tokenizer, max_length, **options):
    """Return how a model's tests read documents."""
    return EncodeSettings(tokenizer, max_length, token_rules(model.config), **options)


def batch_of(problem, model, rows, how):
    """Return rows as the model gets them together."""
    return problem.collator(how.tokenizer, model)(rows)


def encoded(problem, split, how):
    """Return the rows of a split as a batch's collator gets them, and what was cut."""
    columns, truncation = problem.encode(split, how)
    columns |= {"labels": list(split["label"])} if "label" in split.column_names else {}
    names = list(columns)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows, truncation
