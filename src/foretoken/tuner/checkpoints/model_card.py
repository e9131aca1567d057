"""The model card (README.md) beside a saved adapter, in the hub's format; peft asks for it when it saves.

What a card says of a base model or a path is what others can use too: the name on the hub, or a folder's bare name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from peft import PeftConfig, PeftModel

from foretoken.files import PathLike, write_text
from foretoken.lengthening import hub_name
from foretoken.methods.base import ForetokenConfig, plain
from foretoken.methods.table import name_of
from foretoken.tuner.heads import HEAD_KEY
from foretoken.tuner.tuner import ForetokenModel

PEFTS_CARD = PeftModel.create_or_update_model_card
CARD_FILE = "README.md"
HERE = '"."  # this folder, or its name on the hub'
PREDICT = "foretoken predict ."
OWN = "<!-- written by foretoken; remove this line to keep your own changes -->"
SAVED_BY_PEFT = "<!-- of an adapter alone: another save replaces it -->"
PEFTS_TEMPLATE = "# Model Card for Model ID"
AUTO_CLASSES = {
    "SEQ_CLS": ("SequenceClassification", "text-classification"),
    "TOKEN_CLS": ("TokenClassification", "token-classification"),
    "QUESTION_ANS": ("QuestionAnswering", "question-answering"),
    "CAUSAL_LM": ("CausalLM", "text-generation"),
    "SEQ_2_SEQ_LM": ("Seq2SeqLM", "text2text-generation"),
    "FEATURE_EXTRACTION": ("FeatureExtraction", "feature-extraction"),
}
_WITH_LABELS = ("SEQ_CLS", "TOKEN_CLS")
_METADATA = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


@dataclass(frozen=True)
class Described:
    """What a card says of an adapter, or of a model that was trained whole.

    Attributes:
        title: the card's heading.
        config: the adapter's; None for a model that was trained whole.
        base_model: what it was trained on: a folder or a hub name.
        task_type: peft's name of the problem.
        num_labels: outputs of the head, for problems that have a number of them.
        head: the head in the place of transformers' own.
        problem_type: transformers' name of what the head's outputs are, where it is no single class.
        usage: the Python that answers with the loaded model.
        sections: what is known beside that, as Markdown.
        results: for the hub's ``model-index``.
        datasets: names on the hub of the data.
    """

    title: str
    config: PeftConfig | None
    base_model: str | None
    task_type: str | None
    num_labels: int | None = None
    head: dict[str, Any] | None = None
    problem_type: str | None = None
    usage: Sequence[str] = ()
    sections: Sequence[str] = ()
    results: Sequence[EvalResult] = ()
    datasets: Sequence[str] = ()

    @property
    def method(self) -> str:
        """The method's name."""
        return name_of(self.config)

    def data(self) -> ModelCardData:
        """Return the card's metadata."""
        base = hub_name(self.base_model) if self.base_model else None
        kind = "adapter" if self.config is not None else "finetune"
        tags = ["foretoken", self.method, "transformers", *([f"base_model:{kind}:{base}"] if base else [])]
        return ModelCardData(
            library_name="transformers" if self.config is None else "peft",
            base_model=base,
            pipeline_tag=AUTO_CLASSES[self.task_type][1] if self.task_type in AUTO_CLASSES else None,
            tags=sorted(tags),
            datasets=list(self.datasets) or None,
            model_name=self.title if self.results else None,
            eval_results=list(self.results) or None,
        )

    def text(self) -> str:
        """Return the card below its metadata."""
        marks = OWN if self.sections else f"{OWN}\n{SAVED_BY_PEFT}"
        parts = [marks, f"# {self.title}", self._introduction(), self._loading(), self._options(), *self.sections]
        return "\n\n".join(part for part in parts if part) + "\n"

    def card(self) -> str:
        """Return the whole card."""
        return f"---\n{self.data().to_yaml()}\n---\n\n{self.text()}"

    def _introduction(self) -> str:
        base = shown_model(self.base_model)
        if self.config is None:
            return f"A model that was trained whole, from {base}, with [foretoken](https://pypi.org/project/foretoken)."
        kind = f"A {self.method} adapter (peft type `{plain(self.config.peft_type)}`) of {base}"
        made = f"{kind}, made with [foretoken](https://pypi.org/project/foretoken) and peft."
        if not isinstance(self.config, ForetokenConfig):
            return made
        without = f"KeyError: '{plain(self.config.peft_type)}'"
        return f"It needs `pip install foretoken`: without it peft does not know the method (`{without}`).\n\n{made}"

    def _loading(self) -> str:
        needed = "foretoken" if self.head or isinstance(self.config, ForetokenConfig) else "peft transformers"
        lines = ["## How to load it", "", "```bash", f"pip install {needed}", "```", "", "```python"]
        kind = f", problem_type={self.problem_type!r}" if self.problem_type else ""
        labels = f", num_labels={self.num_labels}{kind}" if self.task_type in _WITH_LABELS and self.num_labels else ""
        lines += [*loading_lines(self.config, self.task_type, labels, self.head), *self.usage, "```"]
        return "\n".join(lines)

    def _options(self) -> str:
        if self.config is None:
            return ""
        rows = [(f"`{name}`", f"`{value}`") for name, value in shown_options(self.config)]
        rows += [("head", ", ".join(f"`{name}: {value}`" for name, value in self.head.items()))] if self.head else []
        return f"## Method\n\n{table(('option', 'value'), rows)}" if rows else ""


def write_card(self: PeftModel, output_dir: str) -> None:
    """Write the card of an adapter of foretoken's; one that its user has written keeps its text. Else as peft does."""
    if not isinstance(self.base_model, ForetokenModel):
        return PEFTS_CARD(self, output_dir)
    save_card(output_dir, described(self), marks=[SAVED_BY_PEFT])
    return None


def save_card(folder: PathLike, found: Described, *, marks: Iterable[str]) -> None:
    """Write a card into a folder; one that is there keeps its text, and gets metadata if it has none.

    Args:
        folder: where the card is.
        found: what the new card says.
        marks: a card that holds one of these lines is replaced.

    Raises:
        SaveError: it cannot be written.
    """
    file = Path(folder) / CARD_FILE
    before = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
    if before is None or any(mark in before for mark in marks):
        write_text(file, found.card())
    elif not _METADATA.match(before):
        write_text(file, f"---\n{found.data().to_yaml()}\n---\n\n{before}")


def described(model: PeftModel) -> Described:
    """Return what is known of a model's adapter when peft saves it."""
    name = model.active_adapter if isinstance(model.active_adapter, str) else next(iter(model.peft_config))
    config, base = model.peft_config[name], model.get_base_model()
    source = config.base_model_name_or_path or getattr(base.config, "name_or_path", None)
    found = Described(
        title="",
        config=config,
        base_model=source,
        task_type=plain(config.task_type),
        num_labels=getattr(base.config, "num_labels", None),
        head=getattr(base.config, HEAD_KEY, None),
    )
    return replace(found, title=f"{found.method} of {bare_name(source)}")


def loading_lines(
    config: PeftConfig | None, task_type: str | None, labels: str, head: dict[str, Any] | None
) -> list[str]:
    """Return the Python that loads an adapter, or a model that was trained whole, from the folder of the card.

    ``labels`` are the arguments for a head with so many outputs.
    """
    kind = AUTO_CLASSES[task_type][0] if task_type in AUTO_CLASSES else None
    auto = f"AutoModelFor{kind}" if kind and kind != "FeatureExtraction" else "AutoModel"
    if config is None:
        note = [f'# its head is put in place by foretoken: {PREDICT} "some text"'] if head else []
        loaded = [f"model = {auto}.from_pretrained(folder)", "tokenizer = AutoTokenizer.from_pretrained(folder)"]
        return [*note, f"from transformers import {auto}, AutoTokenizer", "", f"folder = {HERE}", *loaded]
    if isinstance(config, ForetokenConfig) and kind:  # it brings its head along, and knows its labels
        name = f"AutoPeftModelFor{kind}"
        first = ["import foretoken", f"from peft import {name}", "", f"folder = {HERE}"]
        return [*first, f"model = {name}.from_pretrained(folder)"]
    ours = ["import foretoken"] if isinstance(config, ForetokenConfig) else []
    return [
        *(["from foretoken import replace_head"] if head else ours),
        *("from peft import PeftConfig, PeftModel", f"from transformers import {auto}", "", f"folder = {HERE}"),
        "source = PeftConfig.from_pretrained(folder).base_model_name_or_path",
        f"base = {auto}.from_pretrained(source{labels})",
        *([f"base = replace_head(base, pool={head['pool']!r}, hidden={head['hidden']!r})"] if head else []),
        "model = PeftModel.from_pretrained(base, folder)",
    ]


def shown_options(config: PeftConfig) -> list[tuple[str, Any]]:
    """Return the options that a card shows: all of foretoken's methods, of peft's those that were chosen."""
    ours = isinstance(config, ForetokenConfig)
    shared = {item.name for item in fields(PeftConfig)} | {"modules_to_save"}
    found = []
    for item in fields(config):
        value = plain(getattr(config, item.name))
        is_default = value == (item.default if item.default_factory is MISSING else item.default_factory())
        if item.name in shared or item.metadata.get("internal") or (is_default and (value is None or not ours)):
            continue
        found.append((item.name, _public(value)))
    return found


def _public(value: Any) -> Any:
    """Return a value without paths of this machine: a folder is its bare name, a member of a stack its options."""
    if isinstance(value, PeftConfig):
        return {"peft_type": plain(value.peft_type)} | dict(shown_options(value))
    if isinstance(value, dict):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_public(inner) for inner in value]
    is_path = isinstance(value, str) and value and (Path(value).is_absolute() or Path(value).expanduser().exists())
    return Path(value).name if is_path else plain(value)


def shown_model(source: str | None) -> str:
    """Return a base model as a text names it: with a link to the hub, or a folder by its bare name."""
    name = hub_name(source) if source else None
    if name:
        return f"[{name}](https://huggingface.co/{name})"
    return f"the model in the author's folder `{bare_name(source)}`" if source else "a model without a name"


def bare_name(source: str | None) -> str:
    """Return the last part of a model's name or path.

    >>> bare_name("FacebookAI/roberta-base"), bare_name(None)
    ('roberta-base', 'a model')
    """
    return Path(hub_name(source) or source).name if source else "a model"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a Markdown table.

    >>> print(table(("metric", "value"), [("f1", 0.5)]))
    | metric | value |
    | --- | --- |
    | f1 | 0.5 |
    """
    escaped = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [list(head), ["---"] * len(head), *escaped])
