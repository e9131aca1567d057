"""The same cases through peft's own prefix methods and through foretoken's, side by side.

    python -m benchmarks.ecosystem_defects [benchmarks/results/ecosystem_defects.md]

Tiny random models; what is printed is what happened with the installed versions.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import peft  # noqa: E402 - the settings come first
import torch  # noqa: E402
import transformers as tf  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402

import foretoken  # noqa: E402
from foretoken.files import write_text  # noqa: E402

Make = Callable[..., Any]
Case = Callable[[dict[str, Make]], str]
ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "num_labels": 3,
}
DECODER = ENCODER | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOW = DECODER | {"sliding_window": 8}
PAIR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 100,
    "num_labels": 3,
}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0, "initializer_range": 0.2}
SMALL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
LAYERS = ["sliding_attention", "full_attention"]
CONFIGS: dict[str, Callable[[], Any]] = {
    "BERT": lambda: tf.BertConfig(**ENCODER),
    "DistilBERT": lambda: tf.DistilBertConfig(**SMALL, vocab_size=100, num_labels=3),
    "Longformer": lambda: tf.LongformerConfig(**ENCODER, attention_window=8, pad_token_id=1),
    "BigBird": lambda: tf.BigBirdConfig(**ENCODER, block_size=2, num_random_blocks=1),
    "ModernBERT": lambda: tf.ModernBertConfig(**ENCODER, local_attention=8, pad_token_id=0),
    "DeBERTa": lambda: tf.DebertaV2Config(**ENCODER, **RELATIVE, type_vocab_size=0),
    "GPT-2": lambda: tf.GPT2Config(**GPT2, vocab_size=100, num_labels=3),
    "Llama": lambda: tf.LlamaConfig(**DECODER),
    "Mistral": lambda: tf.MistralConfig(**WINDOW),
    "Gemma 3": lambda: tf.Gemma3TextConfig(**WINDOW, head_dim=8, query_pre_attn_scalar=8, layer_types=LAYERS),
    "T5": lambda: tf.T5Config(**T5, vocab_size=100),
    "BART": lambda: tf.BartConfig(**PAIR, max_position_embeddings=64, pad_token_id=1),
    "LED": lambda: tf.LEDConfig(**PAIR, attention_window=8, max_encoder_position_embeddings=64, pad_token_id=1),
}
TASKS = {
    "SEQ_CLS": tf.AutoModelForSequenceClassification,
    "CAUSAL_LM": tf.AutoModelForCausalLM,
    "SEQ_2_SEQ_LM": tf.AutoModelForSeq2SeqLM,
}
TRAINING = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"}
SIDES: dict[str, dict[str, Make]] = {
    f"peft {peft.__version__}": {"prefix": peft.PrefixTuningConfig, "prompt": peft.PromptTuningConfig},
    "foretoken": {"prefix": foretoken.PrefixTuningConfig, "prompt": foretoken.PromptTuningConfig},
}


def backbone(family: str = "BERT", task: str = "SEQ_CLS") -> Any:
    torch.manual_seed(0)
    return TASKS[task].from_config(CONFIGS[family]()).eval()


def adapted(make: Make, family: str = "BERT", task: str = "SEQ_CLS", **options: Any) -> Any:
    return get_peft_model(backbone(family, task), make(task_type=task, num_virtual_tokens=4, **options))


def batch(task: str = "SEQ_CLS", length: int = 16) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 100, (2, length), generator=torch.Generator().manual_seed(1))
    ids[:, -1] = 2  # where BART's classifier looks
    labels = {"SEQ_CLS": torch.tensor([0, 1]), "CAUSAL_LM": ids, "SEQ_2_SEQ_LM": ids[:, :6].clone()}[task]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def own(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters of the prefix or prompt."""
    return [p for n, p in model.named_parameters() if "prompt_encoder" in n or ".foretoken." in n]


def loud(model: Any, first_seed: int = 0) -> Any:
    """Give the prefix values that cannot be overlooked."""
    with torch.no_grad():
        for seed, parameter in enumerate(own(model), first_seed):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def logits(model: torch.nn.Module, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**{**batch(), **kwargs}).logits


def checkpointing(side: dict[str, Make], family: str, task: str) -> str:
    model = adapted(side["prefix"], family, task)
    before = [p.detach().clone() for p in own(model)]
    data = [{k: v[i] for k, v in batch(task).items()} for i in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        options = {"max_steps": 3, "learning_rate": 0.1, "gradient_checkpointing": True, **TRAINING}
        tf.Trainer(model, tf.TrainingArguments(folder, **options), train_dataset=data).train()
    change = max((p - b).abs().max().item() for p, b in zip(own(model), before, strict=True))
    return f"prefix changed by {change:.2g} in 3 steps"


def encoder_decoder(side: dict[str, Make], family: str) -> str:
    model = adapted(side["prefix"], family, "SEQ_2_SEQ_LM").eval()
    inputs = batch("SEQ_2_SEQ_LM")
    model(**inputs).loss.backward()
    reached = sum(0 if p.grad is None else int((p.grad != 0).sum()) for p in own(model))
    share = reached / sum(p.numel() for p in own(model))
    with torch.no_grad():
        change = loud(model)(**inputs).encoder_last_hidden_state
        change = change - backbone(family, "SEQ_2_SEQ_LM")(**inputs).encoder_last_hidden_state
    return f"{share:.0%} of it gets gradient; the encoder's output changes by {change.abs().max():.2g}"


def mixed(side: dict[str, Make]) -> str:
    model = adapted(side["prefix"])
    model.add_adapter("other", side["prefix"](task_type="SEQ_CLS", num_virtual_tokens=4))
    loud(model)
    together = logits(model, adapter_names=["default", "other"])
    model.set_adapter("other")
    return f"the other adapter's row is off by {(together[1] - logits(model)[1]).abs().max():.2g}"


def disabling(side: dict[str, Make]) -> str:
    model = loud(adapted(side["prefix"]))
    with model.disable_adapter():
        return f"differs from the frozen model by {(logits(model) - logits(backbone())).abs().max():.2g}"


def full_length(side: dict[str, Make], family: str, task: str) -> str:
    shape = adapted(side["prefix"], family, task)(input_ids=torch.randint(5, 100, (1, 64))).logits.shape
    return f"works, logits {tuple(shape)}"


def in_windows(side: dict[str, Make], family: str) -> str:
    """Count the tokens that a change of the prefix reaches in the first layer, which has a window."""
    model = adapted(side["prefix"], family, "CAUSAL_LM")
    states = []
    for seed in (0, 10):
        with torch.no_grad():
            out = loud(model, seed)(**batch("CAUSAL_LM", 40), output_hidden_states=True)
        states.append(out.hidden_states[1][:, -40:])
    reached = (states[0] - states[1]).abs().amax((0, 2)) > 1e-6
    return f"{int(reached.sum())} of 40 tokens see it"


def pooled_row(side: dict[str, Make]) -> str:
    model = loud(adapted(side["prompt"]))
    seen: list[torch.Tensor] = []
    pooler = next(m for n, m in model.named_modules() if n.endswith("bert.pooler"))
    pooler.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits(model)
    return f"the pooler gets {seen[0].shape[1]} rows for 16 tokens"


def left_padding(side: dict[str, Make]) -> str:
    model = loud(adapted(side["prompt"], "GPT-2"))
    ids = batch()["input_ids"][:1]
    found = []
    for x in (ids, torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], dim=1)):
        mask = (x != 0).long()
        positions = (mask.cumsum(1) - 1).clamp_min(0)  # without them frozen GPT-2 itself differs
        found.append(logits(model, input_ids=x, attention_mask=mask, position_ids=positions, labels=None))
    one, other = found
    return f"logits differ by {(one - other).abs().max():.2g}"


def new_head(side: dict[str, Make], family: str) -> str:
    model = adapted(side["prompt"], family)
    model(**batch()).loss.backward()
    heads = {"classifier", "pre_classifier", "pooler", "head", "classification_head"}
    trained = (n.split(".") for n, p in model.named_parameters() if p.grad is not None and "prompt" not in n)
    found = sorted(heads.intersection(part for name in trained for part in name))
    return f"trains {', '.join(found) or 'no head'}"


def resuming(side: dict[str, Make]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        adapted(side["prefix"]).save_pretrained(folder)
        model = PeftModel.from_pretrained(backbone(), folder, is_trainable=True)
    model(**batch()).loss.backward()
    return "trains on" if all(p.grad is not None for p in own(model)) else "no gradient"


def status(side: dict[str, Make]) -> str:
    return f"active: {', '.join(adapted(side['prefix']).get_model_status().active_adapters)}"


def with_lora(side: dict[str, Make]) -> str:
    if side is SIDES["foretoken"]:
        configs = [side["prefix"](num_virtual_tokens=4), LoraConfig(r=2)]
        model = get_peft_model(backbone(), foretoken.StackConfig(task_type="SEQ_CLS", configs=configs))
    else:
        model = adapted(side["prefix"])
        model.add_adapter("lora", LoraConfig(task_type="SEQ_CLS", r=2))
    model(**batch()).loss.backward()
    return "both train" if all(p.grad is not None for p in model.parameters() if p.requires_grad) else "no gradient"


def unloading(side: dict[str, Make]) -> str:
    return f"a {type(adapted(side['prefix']).unload()).__name__} again"


def works(side: dict[str, Make], family: str) -> str:
    task = "SEQ_2_SEQ_LM" if family == "LED" else "SEQ_CLS"
    model = loud(adapted(side["prefix"], family, task))
    model(**batch(task)).loss.backward()
    return "trains" if all(p.grad is not None and p.grad.abs().max() > 0 for p in own(model)) else "no gradient"


def with_masks(side: dict[str, Make]) -> str:
    model = loud(adapted(side["prefix"], "Llama", "CAUSAL_LM"))
    inputs = batch("CAUSAL_LM")
    inputs["attention_mask"][1, -4:] = 0
    model(**inputs).loss.backward()
    return f"largest gradient {max(p.grad.abs().max().item() for p in own(model)):.1g}"


def of(case: Callable[..., str], *arguments: str) -> Case:
    """Return a case of one family."""
    return lambda side: case(side, *arguments)


CASES: tuple[tuple[str, str, Case], ...] = (
    ("S1", "BERT: Trainer with gradient checkpointing", of(checkpointing, "BERT", "SEQ_CLS")),
    ("S1", "Llama: Trainer with gradient checkpointing", of(checkpointing, "Llama", "CAUSAL_LM")),
    *(("S2", f"{family}: gradient of the prefix", of(encoder_decoder, family)) for family in ("T5", "BART", "LED")),
    ("S3", "adapter_names: each row its own prefix", mixed),
    ("S4", "disable_adapter on a sequence classifier", disabling),
    ("S5", "BERT: a document of max_position_embeddings tokens", of(full_length, "BERT", "SEQ_CLS")),
    ("S5", "GPT-2: a document of max_position_embeddings tokens", of(full_length, "GPT-2", "CAUSAL_LM")),
    *(("S6", f"{family}: a layer with a window of 8", of(in_windows, family)) for family in ("Mistral", "Gemma 3")),
    ("S7", "prompt tuning: what BERT's pooler sees", pooled_row),
    ("S7", "prompt tuning: GPT-2 with and without left padding", left_padding),
    *(("S8", f"{f}: the new head", of(new_head, f)) for f in ("DistilBERT", "DeBERTa", "ModernBERT", "BART")),
    ("S9", "a saved prefix goes on training", resuming),
    ("S9", "get_model_status", status),
    ("S9", "prefix + LoRA", with_lora),
    ("S9", "unload", unloading),
    *(("-", f"{f}: prefix tuning", of(works, f)) for f in ("Longformer", "BigBird", "ModernBERT", "DeBERTa", "LED")),
    ("-", "Llama, sdpa, padded batch: gradient of the prefix", with_masks),
)


def outcome(case: Case, side: dict[str, Make]) -> str:
    """Run a case; an exception is an outcome too."""
    try:
        return case(side)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}".replace("|", "/")


def main() -> None:
    tf.logging.set_verbosity_error()
    lines = [f"| # | case | {' | '.join(SIDES)} |", "|---|---|---|---|"]
    for number, title, case in CASES:
        lines.append(f"| {number} | {title} | {' | '.join(outcome(case, side) for side in SIDES.values())} |")
    lines.append(
        f"\nMeasured on {date.today()} with foretoken {foretoken.__version__}, "
        f"transformers {tf.__version__}, torch {torch.__version__}."
    )
    print("\n".join(lines))
    if len(sys.argv) > 1:
        write_text(Path(sys.argv[1]), "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
