"""Prefix-propagation on your own csv, with peft and the Trainer: ``python five_lines.py MODEL_FOLDER FILE.csv``.

The file has the columns text and label. The adapter is saved in the folder ``adapter``.
"""

import sys

from datasets import load_dataset
from peft import get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from foretoken import PrefixPropagationConfig


def main(name: str, file: str) -> None:
    """Train an adapter for one epoch and save it."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    documents = load_dataset("csv", data_files=file, split="train").class_encode_column("label")
    documents = documents.map(lambda rows: tokenizer(rows["text"], truncation=True), batched=True)
    labels = documents.features["label"].names

    # the five lines
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=len(labels))
    model = get_peft_model(model, PrefixPropagationConfig(task_type="SEQ_CLS", num_virtual_tokens=8))
    arguments = TrainingArguments("checkpoints", num_train_epochs=1, learning_rate=1e-2, report_to="none")
    Trainer(model, arguments, train_dataset=documents, data_collator=DataCollatorWithPadding(tokenizer)).train()
    model.save_pretrained("adapter")

    model.print_trainable_parameters()


if __name__ == "__main__":
    main(*sys.argv[1:3])
