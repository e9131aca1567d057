"""`foretoken analyse` on runs of a tiny model."""

import json

import pytest

from foretoken_cli import main


def trained(tiny, folder, method):
    recipe = tiny.recipe(folder / "recipe.yaml", method=method, training={"epochs": 1, "learning_rate": 0.01})
    assert main(["train", str(recipe)]) == 0
    return folder / "runs" / "run"


@pytest.fixture(scope="module")
def selective(tiny, tmp_path_factory):
    """The folder of a run of selective prefix tuning."""
    method = {"name": "selective-prefix-tuning", "num_virtual_tokens": 3, "alpha": 2.0}
    return trained(tiny, tmp_path_factory.mktemp("selective"), method)


def test_own_validation_split(selective, cli, record):
    result = cli("analyse", selective, "--documents", 5)
    assert result.code == 0, result.err
    found = json.loads((selective / "analysis.json").read_text())
    assert (found["method"], found["source"], found["documents"]) == ("selective-prefix-tuning", "validation", 5)
    assert [len(heads) for heads in found["attention_mass"]] == [2, 2]
    assert found["selective"]["alpha"] == 2.0
    header, *rows = result.out.splitlines()
    assert header.split() == ["attention", "prefix,", "mean", "of", "heads", "least", "most", "mask"]
    assert [row.split()[:2] for row in rows] == [["layer", "0"], ["layer", "1"]]
    mean = sum(found["attention_mass"][1]) / 2
    assert rows[1].split()[2] == f"{mean:.4f}"
    names = ("attention_mass", "selective_gates", "selective_curves")
    drawn = {file.name for file in (selective / "analysis").iterdir()}
    assert drawn == {f"{name}.{ending}" for name in names for ending in ("svg", "png")}


def test_texts_of_a_file(selective, cli, tmp_path):
    file = tmp_path / "letters.jsonl"
    file.write_text('{"body": "word1 word2 prize"}\n{"body": "word3 lunch"}\n')
    result = cli("analyse", selective, "--input", file, "--text-column", "body", "-o", tmp_path / "figures")
    assert result.code == 0, result.err
    found = json.loads((selective / "analysis.json").read_text())
    assert (found["source"], found["documents"]) == ("letters.jsonl", 2)
    assert found["tokens"] == 3 + 2 + 2 * 2  # [CLS] and [SEP]
    assert (tmp_path / "figures" / "attention_mass.svg").is_file()


def test_method_without_a_prefix(finished, refused):
    said = refused("analyse", finished)
    assert "(lora): the method puts no prefix and no columns into the attention" in said
    assert not (finished / "analysis.json").exists()


def test_folder_that_is_no_run(tmp_path, refused):
    assert refused("analyse", tmp_path).endswith("give the folder of a run of `foretoken train`")


def test_run_without_an_adapter(tmp_path, refused):
    (tmp_path / "run.json").write_text('{"status": "failed", "recipe": {"method": {"name": "prefix-tuning"}}}')
    assert "the run has saved no adapter yet (status: failed)" in refused("analyse", tmp_path)
