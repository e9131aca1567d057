"""Tiny random models of every supported family, and batches for them."""

import torch
import transformers as tf

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,  # large enough that an adapter's effect stands out from rounding
}
CONFIGS = {
    "bert": lambda: tf.BertConfig(**SIZES),
    "roberta": lambda: tf.RobertaConfig(**SIZES, pad_token_id=1),
    "xlm-roberta": lambda: tf.XLMRobertaConfig(**SIZES, pad_token_id=1),
    "camembert": lambda: tf.CamembertConfig(**SIZES, pad_token_id=1),
    "electra": lambda: tf.ElectraConfig(**SIZES, embedding_size=16),
    "distilbert": lambda: tf.DistilBertConfig(
        dim=32,
        n_layers=3,
        n_heads=4,
        hidden_dim=48,
        vocab_size=100,
        max_position_embeddings=64,
        initializer_range=0.25,
    ),
    "longformer": lambda: tf.LongformerConfig(**SIZES, attention_window=[4, 8, 4], pad_token_id=1),
}
FAMILIES = tuple(CONFIGS)
TASKS = {
    "SEQ_CLS": tf.AutoModelForSequenceClassification,
    "TOKEN_CLS": tf.AutoModelForTokenClassification,
    "QUESTION_ANS": tf.AutoModelForQuestionAnswering,
    "MULTIPLE_CHOICE": tf.AutoModelForMultipleChoice,
    "MASKED_LM": tf.AutoModelForMaskedLM,
    "FEATURE_EXTRACTION": tf.AutoModel,
}
LABELS = 3


def model(family, task="SEQ_CLS", *, seed=1, dropout=False, **changes):
    """Return a model with the same random weights for the same seed."""
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    config.num_labels = 2 if task == "QUESTION_ANS" else LABELS
    if not dropout:
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
        for name in ("classifier_dropout", "seq_classif_dropout", "qa_dropout", "summary_last_dropout"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
    for name, value in changes.items():
        setattr(config, name, value)
    return TASKS[task].from_config(config).eval()


def peft_task(task):
    """Return peft's task_type; peft has none for multiple choice and masked language models."""
    return task if task in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION") else None


def batch(family, task="SEQ_CLS", *, size=3, length=20, labels=True):
    """Return a padded batch: the second document is shorter than the others."""
    generator = torch.Generator().manual_seed(7)
    pad = CONFIGS[family]().pad_token_id
    shape = (size, 2, length) if task == "MULTIPLE_CHOICE" else (size, length)
    ids = torch.randint(5, 100, shape, generator=generator)
    mask = torch.ones_like(ids)
    ids[1, ..., length - 6 :] = pad
    mask[1, ..., length - 6 :] = 0
    if task in ("QUESTION_ANS", "MULTIPLE_CHOICE") and family == "longformer":
        ids[..., [3, 4, 10]] = 2  # it finds the question by three separators
    inputs = {"input_ids": ids, "attention_mask": mask}
    if not labels or task == "FEATURE_EXTRACTION":
        return inputs
    if task == "SEQ_CLS":
        return inputs | {"labels": torch.arange(size) % LABELS}
    if task == "QUESTION_ANS":
        return inputs | {"start_positions": torch.arange(size), "end_positions": torch.arange(size) + 3}
    if task == "MULTIPLE_CHOICE":
        return inputs | {"labels": torch.arange(size) % 2}
    classes = LABELS if task == "TOKEN_CLS" else 100
    return inputs | {"labels": torch.randint(0, classes, shape, generator=generator).where(mask.bool(), -100)}


def first(output):
    """Return what a model computes: logits, or hidden states of a bare model."""
    for name in ("logits", "start_logits", "last_hidden_state"):
        if name in output:
            return output[name]
    raise AssertionError(f"no logits in {list(output)}")


def shaken(model, scale=0.7, seed=3):
    """Give every parameter of foretoken a random value, so that nothing is neutral by chance."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".foretoken." in name or ".lora_" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model
