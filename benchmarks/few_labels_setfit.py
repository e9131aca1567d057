"""SetFit by its own defaults, in its own environment: a line of JSON for each draw that ``few_labels`` asks for."""

import json
import sys
import time

import datasets
from setfit import SetFitModel, Trainer, TrainingArguments
from setfit import __version__ as version


def fitted(folder: str, train: list, test: list, output: str) -> dict:
    """Train on the rows and answer the texts; seconds of both."""
    began = time.process_time()
    model = SetFitModel.from_pretrained(folder)
    rows = datasets.Dataset.from_dict({"text": [text for text, _ in train], "label": [label for _, label in train]})
    arguments = TrainingArguments(output_dir=output, save_strategy="no", report_to="none", show_progress_bar=False)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    trained = time.process_time()
    answers = [str(answer) for answer in model.predict(test, show_progress_bar=False)]
    ended = time.process_time()
    return {"answers": answers, "seconds": trained - began, "predict_seconds": ended - trained, "version": version}


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # what SetFit prints is no answer
    for line in sys.stdin:
        print(json.dumps(fitted(**json.loads(line))), file=answers, flush=True)
