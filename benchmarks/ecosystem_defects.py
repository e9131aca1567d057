"""The same cases through peft's own prefix methods and through foretoken's, side by side.

    python benchmarks/ecosystem_defects.py [benchmarks/results/ecosystem_defects.md]

Tiny random models; what is printed is what happened with the installed versions.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import peft  # noqa: E402 - the settings come first
import torch  # noqa: E402
import transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    LongformerConfig,
    LongformerForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import foretoken  # noqa: E402
from foretoken.files import write_text  # noqa: E402

Make = Callable[..., Any]
SIZE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "num_labels": 3,
}
TRAINING = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_strategy": "no"}
SIDES: dict[str, dict[str, Make]] = {
    f"peft {peft.__version__}": {"prefix": peft.PrefixTuningConfig, "prompt": peft.PromptTuningConfig},
    "foretoken": {"prefix": foretoken.PrefixTuningConfig, "prompt": foretoken.PromptTuningConfig},
}


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZE)).eval()


def batch(length: int = 16) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 100, (2, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1])}


def own(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters of the prefix or prompt."""
    return [p for n, p in model.named_parameters() if "prompt_encoder" in n or ".foretoken." in n]


def loud(model: torch.nn.Module) -> torch.nn.Module:
    """Give the prefix values that cannot be overlooked."""
    with torch.no_grad():
        for seed, parameter in enumerate(own(model)):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def logits(model: torch.nn.Module, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**batch(), **kwargs).logits


def adapted(make: Make, model: torch.nn.Module | None = None, **options: Any) -> Any:
    return get_peft_model(
        bert() if model is None else model, make(task_type="SEQ_CLS", num_virtual_tokens=4, **options)
    )


def checkpointing(side: dict[str, Make]) -> str:
    model = adapted(side["prefix"])
    before = [p.detach().clone() for p in own(model)]
    data = [{k: v[i] for k, v in batch().items()} for i in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, max_steps=3, learning_rate=0.1, gradient_checkpointing=True, **TRAINING)
        Trainer(model, arguments, train_dataset=data).train()
    change = max((p - b).abs().max().item() for p, b in zip(own(model), before, strict=True))
    return f"prefix changed by {change:.2g} in 3 steps"


def mixed(side: dict[str, Make]) -> str:
    model = adapted(side["prefix"])
    model.add_adapter("other", side["prefix"](task_type="SEQ_CLS", num_virtual_tokens=4))
    loud(model)
    together = logits(model, adapter_names=["default", "other"])
    model.set_adapter("other")
    return f"row of the other adapter is off by {(together[1] - logits(model)[1]).abs().max():.2g}"


def disabling(side: dict[str, Make]) -> str:
    model = loud(adapted(side["prefix"]))
    with model.disable_adapter():
        return f"differs from the frozen model by {(logits(model) - logits(bert())).abs().max():.2g}"


def full_length(side: dict[str, Make]) -> str:
    shape = adapted(side["prefix"])(input_ids=torch.randint(5, 100, (1, 64))).logits.shape
    return f"works, logits {tuple(shape)}"


def pooled_row(side: dict[str, Make]) -> str:
    model = loud(adapted(side["prompt"]))
    seen: list[torch.Tensor] = []
    pooler = next(m for n, m in model.named_modules() if n.endswith("bert.pooler"))
    pooler.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits(model)
    return f"the pooler gets {seen[0].shape[1]} rows for 16 tokens"


def distilbert_head(side: dict[str, Make]) -> str:
    torch.manual_seed(0)
    config = DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=100, num_labels=3)
    model = adapted(side["prefix"], DistilBertForSequenceClassification(config))
    model(**batch()).loss.backward()
    trained = sorted(
        n.split(".modules_to_save")[0].split(".")[-1]
        for n, p in model.named_parameters()
        if p.grad is not None and "modules_to_save" in n and n.endswith("weight")
    )
    return f"trains {', '.join(trained) or 'no head'}"


def resuming(side: dict[str, Make]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        adapted(side["prefix"]).save_pretrained(folder)
        model = PeftModel.from_pretrained(bert(), folder, is_trainable=True)
    model(**batch()).loss.backward()
    return "trains on" if all(p.grad is not None for p in own(model)) else "no gradient"


def status(side: dict[str, Make]) -> str:
    return f"active: {', '.join(adapted(side['prefix']).get_model_status().active_adapters)}"


def with_lora(side: dict[str, Make]) -> str:
    if side is SIDES["foretoken"]:
        configs = [side["prefix"](num_virtual_tokens=4), LoraConfig(r=2)]
        model = get_peft_model(bert(), foretoken.StackConfig(task_type="SEQ_CLS", configs=configs))
    else:
        model = adapted(side["prefix"])
        model.add_adapter("lora", LoraConfig(task_type="SEQ_CLS", r=2))
    model(**batch()).loss.backward()
    return "both train" if all(p.grad is not None for p in model.parameters() if p.requires_grad) else "no gradient"


def unloading(side: dict[str, Make]) -> str:
    return f"a {type(adapted(side['prefix']).unload()).__name__} again"


def longformer(side: dict[str, Make]) -> str:
    torch.manual_seed(0)
    model = LongformerForSequenceClassification(LongformerConfig(**SIZE, attention_window=8, pad_token_id=1))
    return f"works, logits {tuple(logits(adapted(side['prefix'], model)).shape)}"


CASES: tuple[tuple[str, str, Callable[[dict[str, Make]], str]], ...] = (
    ("S1", "prefix tuning, Trainer with gradient checkpointing", checkpointing),
    ("S3", "adapter_names: each row its own prefix", mixed),
    ("S4", "disable_adapter on a sequence classifier", disabling),
    ("S5", "a document of max_position_embeddings tokens", full_length),
    ("S7", "prompt tuning: what the pooler sees", pooled_row),
    ("S8", "DistilBERT: the head is trained", distilbert_head),
    ("S9", "a saved prefix goes on training", resuming),
    ("S9", "get_model_status", status),
    ("S9", "prefix + LoRA", with_lora),
    ("S9", "unload", unloading),
    ("-", "prefix tuning on Longformer", longformer),
)


def outcome(case: Callable[[dict[str, Make]], str], side: dict[str, Make]) -> str:
    """Run a case; an exception is an outcome too."""
    try:
        return case(side)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}".replace("|", "/")


def main() -> None:
    transformers.logging.set_verbosity_error()
    lines = [f"| # | case | {' | '.join(SIDES)} |", "|---|---|---|---|"]
    for number, title, case in CASES:
        lines.append(f"| {number} | {title} | {' | '.join(outcome(case, side) for side in SIDES.values())} |")
    lines.append(f"\nMeasured with transformers {transformers.__version__}, torch {torch.__version__}.")
    print("\n".join(lines))
    if len(sys.argv) > 1:
        write_text(Path(sys.argv[1]), "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
