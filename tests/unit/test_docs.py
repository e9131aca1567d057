"""The documentation is true: its generated parts are fresh, its examples run, its console output is what is printed.

A page runs from top to bottom in an empty folder that holds a few files of mails. Blocks with a title are written to a
file of that name, ``python`` blocks run in one namespace, the ``foretoken`` lines of ``bash`` blocks must exit with 0,
and ``console`` blocks must print what stands there. Names of pretrained models stand for tiny random ones.
"""

import contextlib
import csv
import importlib
import importlib.util
import io
import json
import random
import re
import shlex
from functools import partial
from itertools import chain
from pathlib import Path

import datasets
import pytest
import torch
import yaml
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LongformerConfig,
    LongformerModel,
    T5Config,
    T5ForConditionalGeneration,
)

from foretoken import METHODS
from foretoken_cli import main

from support.tiny_run import SIGNS, make_tokenizer

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "docs" / "index.md",
        *(ROOT / "docs" / "guide").glob("*.md"),
        *(ROOT / "docs").glob("methods/*.md"),
        ROOT / "docs" / "reference" / "cli.md",
    ]
)
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = ("python", "bash", "console")
BERTS = ("google-bert/bert-base-uncased", "minilm", "sentence-transformers/all-MiniLM-L6-v2")
LONGFORMERS = ("allenai/longformer-base-4096",)
GPT2S = ("openai-community/gpt2",)
T5S = ("google-t5/t5-small",)
FILLER = [f"word{number}" for number in range(30)]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),  # examples are written for a machine with a GPU
    pytest.mark.filterwarnings("ignore:.*_prepare_4d|.*dynamo.*:FutureWarning"),
]


def load_generator(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Folders of tiny random models, by the name that stands for them in the documentation."""
    root = tmp_path_factory.mktemp("models")
    fast = make_tokenizer(words=[*FILLER, *chain(*SIGNS.values())])
    size = len(fast)
    torch.manual_seed(0)
    made = {
        "bert": BertModel(BertConfig(vocab_size=size, **SIZES)),
        "longformer": LongformerModel(LongformerConfig(vocab_size=size, attention_window=[4, 8], **SIZES)),
        "gpt2": GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=66)),
    }
    for name, model in made.items():
        model.save_pretrained(root / name)
        fast.save_pretrained(root / name)
    config = T5Config(vocab_size=size, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(config).save_pretrained(root / "t5")
    fast.eos_token = "[SEP]"  # T5 ends its texts
    fast.save_pretrained(root / "t5")
    names = {"bert": BERTS, "longformer": LONGFORMERS, "gpt2": GPT2S, "t5": T5S}
    return {name: root / folder for folder, known in names.items() for name in known}


def mails(count):
    chance = random.Random(count)
    for number in range(count):
        label = ("ham", "spam")[number % 2]
        yield " ".join([*chance.choices(FILLER, k=chance.randint(3, 20)), chance.choice(SIGNS[label])]), label


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with the files that the pages call the reader's own."""
    for name, count in {"mail.csv": 60, "held_out.csv": 12, "new.csv": 4}.items():
        with (tmp_path / name).open("w", newline="") as handle:
            csv.writer(handle).writerows([("text", "label"), *mails(count)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # no C++ compiler is needed then
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other
    yield tmp_path
    torch.set_num_threads(threads)


def with_tiny_models(text, pretrained):
    for name, place in pretrained.items():
        text = re.sub(rf'(?<=["\' ]){re.escape(name)}(?=["\'\s])', str(place), text)
    return text


def called(words):
    """Run the command line; return the exit code and everything it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words)
    return code, printed.getvalue()


def run_bash(body):
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["foretoken"]:
            code, printed = called(words[1:])
            assert code == 0, f"$ {line}\n{printed}"


def run_console(body):
    for step in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, expected = step.partition("\n")
        assert called(shlex.split(line)[1:])[1].strip() == expected.strip(), f"$ {line}"


def run_page(text, pretrained, namespace):
    for block in BLOCK.finditer(with_tiny_models(text, pretrained)):
        if block["title"]:
            Path(block["title"]).write_text(block["body"])
        elif block["kind"] == "python":
            exec(compile(block["body"], "example", "exec"), namespace)
        elif block["kind"] == "bash":
            run_bash(block["body"])
        elif block["kind"] == "console":
            run_console(block["body"])


def examples(page):
    return [block for block in BLOCK.finditer(page.read_text()) if block["kind"] in RUN]


# pages whose examples train several times; their verbs have default tests of their own
LONG = ("sweeps", "report", "problems", "recipes", "data", "export")
RUNNABLE = [
    pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in LONG else ())
    for page in PAGES
    if examples(page)
]


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_examples_of_a_page_run(page, folder, pretrained):
    run_page(page.read_text(), pretrained, {"__name__": "example"})


def test_generated_parts_are_fresh(monkeypatch):
    """Compared word by word: argparse breaks its lines differently from one Python to the next."""
    generate = load_generator(monkeypatch)
    pages = {page.name: (page.read_text().split(), text.split()) for page, text in generate.stale()}
    different = [name for name, (is_now, should_be) in pages.items() if is_now != should_be]
    assert not different, f"run `python docs/generate.py`: {different}"


def test_every_method_has_a_page():
    assert {page.stem for page in (ROOT / "docs" / "methods").glob("*.md")} == {*METHODS, "tf-idf", "index"}


def test_every_page_is_in_the_navigation():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = set(re.findall(r"[\w/-]+\.md", str(settings["nav"])))
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert listed == there


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook, folder, pretrained):
    """Lines that begin with ``!`` are the command line; the outputs that a file would hold would not stay true."""
    namespace = {"__name__": "notebook", "run_bash": run_bash}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            source = with_tiny_models("".join(cell["source"]), pretrained)
            source = re.sub("^!(.+)", lambda line: f"run_bash({line[1]!r})", source, flags=re.MULTILINE)
            exec(compile(source, cell["id"], "exec"), namespace)


@pytest.mark.parametrize("name", ["vectors", "result", "whole"])
def test_the_pictures_are_fresh(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    module = importlib.import_module(name)
    assert module.FILE.read_text() == module.picture()


@pytest.mark.parametrize("pages", ["*.md", "benchmarks/*.md", "docs/**/*.md", "research/**/*.md"])
def test_links_lead_somewhere(pages):
    """mkdocs looks at those within the site; here at files of the repository."""
    for page in ROOT.glob(pages):
        links = re.findall(r"(?:\]\(|/foretoken/\w+/main/)(?!https?:|#)([^)#\s]+)", page.read_text())
        assert [link for link in links if not ((page.parent / link).exists() or (ROOT / link).exists())] == [], page


def test_the_readme_fits_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 75
