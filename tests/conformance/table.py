"""The rows of the conformance table: every method, with a small config. A new method adds one row here."""

from peft import LoraConfig, get_peft_model

from foretoken import (
    BitFitConfig,
    HeadOnlyConfig,
    PrefixPropagationConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    StackConfig,
)

ROWS = {
    "prefix-propagation": lambda **kw: PrefixPropagationConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
    "prefix-propagation, projected": lambda **kw: PrefixPropagationConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, prefix_projection=True, encoder_hidden_size=6, **kw
    ),
    "prefix-tuning": lambda **kw: PrefixTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
    "prefix-tuning, projected": lambda **kw: PrefixTuningConfig(
        num_virtual_tokens=3, prefix_dropout=0.0, prefix_projection=True, encoder_hidden_size=6, **kw
    ),
    "prompt-tuning": lambda **kw: PromptTuningConfig(num_virtual_tokens=3, prefix_dropout=0.0, **kw),
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
}
METHODS = tuple(ROWS)
CHANGING = tuple(name for name in ROWS if name != "head-only")  # head-only leaves the body as it is


def adapted(model, method, **options):
    """Return the model with an adapter of this method."""
    return get_peft_model(model, ROWS[method](**options)).eval()
