"""Tiny models of any family with tokenizers as the real ones are, documents for them, and what their runs predicted."""

import json
import warnings

import pyarrow.parquet as pq
import torch
from peft import AutoPeftModelForSequenceClassification
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from support.tiny import CONFIGS, DECODERS
from support.tiny_run import FILLER, SIGNS, documents

ROWS = [
    *documents(35),
    ("lunch", "ham"),
    ("prize", "spam"),
    ("?", "ham"),
    ("word1 " * 600 + "lunch", "ham"),
    ("word2 " * 700 + "prize", "spam"),
]
WORDS = [*FILLER, *(word for signs in SIGNS.values() for word in signs)]
BERT_LIKE = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
ROBERTA_LIKE = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
DECODER_LIKE = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
COUNT_FROM_ONE = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "bart", "led", "jina_embeddings_v3")
ADD_NOTHING = ("gpt2", "qwen2", "qwen3")


def save_family(folder, family, *, padding=True, side="right", ends=True, dtype=None, **changes):
    """Save a tiny model and its tokenizer; `padding=False`: as GPT-2 and Llama come, with nothing to pad with."""
    torch.manual_seed(0)
    config = CONFIGS[family]()
    config.id2label, config.label2id = {0: "ham", 1: "spam"}, {"ham": 0, "spam": 1}
    for name, value in (({} if padding else {"pad_token_id": None}) | changes).items():
        setattr(config, name, value)
    classifies = type(config) in AutoModelForSequenceClassification._model_mapping
    model = (AutoModelForSequenceClassification if classifies else AutoModel).from_config(config)
    model.to(dtype or torch.float32).save_pretrained(folder)
    tokenizer_of(family, padding=padding, side=side, ends=ends).save_pretrained(folder)
    return folder


def tokenizer_of(family, *, padding=True, side="right", ends=True):
    """Return a tokenizer with the special tokens of a family; `ends=False`: it adds no end token."""
    special = special_tokens(family)
    tokenizer = letters(special) if family == "qwen2" else words(special)
    pattern = template(family, ends=ends)
    added = [(token, tokenizer.token_to_id(token)) for token in pattern.split() if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=added)
    names = special if padding else {name: token for name, token in special.items() if name != "pad_token"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side=side, **names)


def special_tokens(family):
    """Return them in the order of their ids, which are those of the tiny configs."""
    if family in COUNT_FROM_ONE:
        return ROBERTA_LIKE
    return DECODER_LIKE if family in DECODERS or family == "t5" else BERT_LIKE


def template(family, *, ends):
    if family in COUNT_FROM_ONE:
        return "<s> $A </s>" if ends else "<s> $A"
    if family in DECODERS:
        return "$A" if family in ADD_NOTHING else "<s> $A"
    if family == "t5":
        return "$A </s>" if ends else "$A"
    return "[CLS] $A [SEP]"


def words(special):
    """Return a tokenizer whose tokens are words."""
    known = {word: index for index, word in enumerate([*special.values(), *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def letters(special):
    """Return a byte-level one without merges: transformers reads the files of Qwen 2 as nothing else."""
    known = {
        token: index for index, token in enumerate([*special.values(), "Ġ", *"?abcdefghijklmnopqrstuvwxyz0123456789"])
    }
    tokenizer = Tokenizer(models.BPE(known, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def errors(result):
    """Return the error of a run that was refused: one line, and no folder."""
    found = [line for line in result.err.splitlines() if line.startswith("foretoken: error: ")]
    assert result.code == 2
    assert len(found) == 1
    assert result.err.endswith(found[0] + "\n")
    assert not result.folder.exists()
    return found[0]


def predicted(run):
    """Return the texts of the test split and the probabilities that the run gave them."""
    rows = [row for row in pq.read_table(run.folder / "predictions.parquet").to_pylist() if row["split"] == "test"]
    return [ROWS[int(row["id"])][0] for row in rows], [row["prob_spam"] for row in rows]


def answers(result):
    assert result.code == 0, result.err
    return [json.loads(line)["probabilities"]["spam"] for line in result.out.splitlines()]


def with_plain_peft(run, texts):
    """Classify document by document, without padding, without foretoken's own inference."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a name that it deprecates
        model = AutoPeftModelForSequenceClassification.from_pretrained(run.folder / "adapter").eval()
    tokenizer = AutoTokenizer.from_pretrained(run.folder / "adapter")
    found = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=run.record["max_length"], return_tensors="pt").input_ids
        with torch.inference_mode():
            found.append(model(input_ids=ids).logits.softmax(-1)[0, 1].item())
    return found
