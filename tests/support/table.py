"""The rows of the conformance table: every method, with a small config. A new method adds one row here.

Below them is what the tests of several families do alike.
"""

from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from foretoken import (
    AoTPTuningConfig,
    BitFitConfig,
    BottleneckAdapterConfig,
    DecoupledPrefixConfig,
    HeadOnlyConfig,
    InducerTuningConfig,
    KernelPropagationConfig,
    MAMAdapterConfig,
    PrefixPropagationConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    QueryValueLoraConfig,
    SelectivePrefixTuningConfig,
    StackConfig,
)

from support import tiny

SMALL = {"key_bottleneck_size": 3, "value_bottleneck_size": 2}

ROWS = {
    "prefix-propagation": lambda **kw: PrefixPropagationConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
    "prefix-propagation, projected": lambda **kw: PrefixPropagationConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, prefix_projection=True, encoder_hidden_size=6, **kw
    ),
    "prefix-propagation, upper layers": lambda **kw: PrefixPropagationConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, **{"layers": "last-1", **kw}
    ),
    "kernel-propagation": lambda **kw: KernelPropagationConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, alpha=0.5, alpha_scope="query", **kw
    ),
    "kernel-propagation, rbf": lambda **kw: KernelPropagationConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, alpha=0.5, alpha_scope="model", kernel="rbf", **kw
    ),
    "kernel-propagation, performer": lambda **kw: KernelPropagationConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, alpha=0.5, kernel="performer", num_random_features=5, **kw
    ),
    "prefix-tuning": lambda **kw: PrefixTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
    "prefix-tuning, projected": lambda **kw: PrefixTuningConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, prefix_projection=True, encoder_hidden_size=6, **kw
    ),
    "prefix-tuning, some layers": lambda **kw: PrefixTuningConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, **{"layers": [0, 1], **kw}
    ),
    "decoupled-prefix": lambda **kw: DecoupledPrefixConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
    "decoupled-prefix, gated": lambda **kw: DecoupledPrefixConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, gate=True, key_scale=2.0, **kw
    ),
    "prompt-tuning": lambda **kw: PromptTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
    "selective-prefix-tuning": lambda **kw: SelectivePrefixTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
    "inducer-tuning": lambda **kw: InducerTuningConfig(**SMALL, **kw),
    "inducer-tuning, MAM": lambda **kw: InducerTuningConfig(
        **SMALL, lora_r=2, lora_alpha=1.0, parallel_bottleneck_size=12, parallel_scale=0.5, **kw
    ),
    "inducer-tuning, adaptive": lambda **kw: InducerTuningConfig(variant="adaptive", **kw),
    "inducer-tuning, gating": lambda **kw: InducerTuningConfig(variant="gating", **SMALL, **kw),
    "aot-p-tuning, fc": lambda **kw: AoTPTuningConfig(variant="fc", rank=4, **kw),
    "aot-p-tuning, kronecker": lambda **kw: AoTPTuningConfig(variant="kronecker", rank=3, **kw),
    # narrower, and some rectified units are dead: their gradient is truly zero
    "bottleneck-adapter, houlsby": lambda **kw: BottleneckAdapterConfig(variant="houlsby", bottleneck_size=12, **kw),
    "bottleneck-adapter, attention": lambda **kw: BottleneckAdapterConfig(
        variant="attention", bottleneck_size=4, activation="gelu", layer_norm=True, **kw
    ),
    "bottleneck-adapter, pfeiffer": lambda **kw: BottleneckAdapterConfig(
        variant="pfeiffer", bottleneck_size=4, activation="gelu", **kw
    ),
    "bottleneck-adapter, parallel": lambda **kw: BottleneckAdapterConfig(
        variant="parallel", bottleneck_size=12, scale=0.5, **kw
    ),
    "mam-adapter": lambda **kw: MAMAdapterConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, bottleneck_size=12, scale=0.5, **kw
    ),
    "query-value-lora": lambda **kw: QueryValueLoraConfig(r=2, lora_alpha=1.0, **kw),
    "bitfit": lambda **kw: BitFitConfig(**kw),
    "head-only": lambda **kw: HeadOnlyConfig(**kw),
    "stack": lambda **kw: StackConfig(
        configs=[
            PrefixPropagationConfig(num_virtual_tokens=2, prefix_dropout=0.0),
            PrefixTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0),
            LoraConfig(r=2),
        ],
        **kw,
    ),
    "stack, of every site": lambda **kw: StackConfig(
        configs=[
            AoTPTuningConfig(rank=4),
            PromptTuningConfig(num_virtual_tokens=1, prefix_dropout=0.0),
            PrefixPropagationConfig(num_virtual_tokens=2, prefix_dropout=0.0),
            InducerTuningConfig(**SMALL),
            SelectivePrefixTuningConfig(num_virtual_tokens=2, prefix_dropout=0.0),
            BottleneckAdapterConfig(bottleneck_size=12),
        ],
        **kw,
    ),
}
METHODS = tuple(ROWS)
NO_BIASES = ("modernbert", "eurobert", "llama", "qwen3", "mistral", "gemma3_text", "t5")
EMPTY = {("bitfit", family): "trains biases" for family in NO_BIASES}  # what cannot be, and part of the message
EMPTY["head-only", "led"] = "trains the task's new head"  # transformers has no classification with LED any more
CELLS = [(method, family) for family in tiny.FAMILIES for method in METHODS if (method, family) not in EMPTY]
# what starts at the frozen model; a prefix in the text's softmax, and inducer-tuning's gate, take part from the start
NEUTRAL = (
    "bitfit",
    "head-only",
    "decoupled-prefix",
    "decoupled-prefix, gated",
    "inducer-tuning",
    "inducer-tuning, MAM",
    "inducer-tuning, adaptive",
    "aot-p-tuning, fc",
    "aot-p-tuning, kronecker",
    "bottleneck-adapter, houlsby",
    "bottleneck-adapter, attention",
    "bottleneck-adapter, pfeiffer",
    "bottleneck-adapter, parallel",
    "query-value-lora",
)
CHANGING = tuple(name for name in ROWS if name != "head-only")  # head-only leaves the body as it is


def adapted(model, method, **options):
    """Return the model with an adapter of this method."""
    return get_peft_model(model, ROWS[method](**options)).eval()


def train_with_checkpointing(model, inputs, folder, *, steps):
    """Train on a batch with transformers' own Trainer, gradient checkpointing on."""
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        learning_rate=0.1,
        warmup_steps=0,
        gradient_checkpointing=True,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    size = len(next(iter(inputs.values())))
    data = [{name: values[row] for name, values in inputs.items()} for row in range(size)]
    Trainer(model, arguments, train_dataset=data).train()
