"""Two adapters in one batch: ``python many_adapters.py MODEL_FOLDER``.

Each document names its adapter; ``__base__`` is the frozen model. The adapters here are untrained.
"""

import sys

import torch
from peft import get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from foretoken import PrefixPropagationConfig

TEXTS = ("see you at lunch", "you are the winner of our prize", "the meeting is at noon")
NAMES = ("spam", "tone", "__base__")


def main(name: str) -> None:
    """Run the batch, and each document alone under its adapter."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
    model = get_peft_model(model, PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8), "spam")
    model.add_adapter("tone", PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=4))
    model.eval()

    batch = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    with torch.no_grad():
        together = model(**batch, adapter_names=list(NAMES)).logits
        for row, adapter in enumerate(NAMES[:2]):
            model.set_adapter(adapter)
            alone = model(**tokenizer(TEXTS[row], return_tensors="pt")).logits[0]
            torch.testing.assert_close(together[row], alone, atol=1e-4, rtol=1e-4)
    for text, adapter, logits in zip(TEXTS, NAMES, together.tolist(), strict=True):
        print(f"{adapter:10} {[round(x, 3) for x in logits]}  {text}")


if __name__ == "__main__":
    main(sys.argv[1])
