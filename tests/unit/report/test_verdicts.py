"""What a report says first: the best method beside its baselines, from made-up predictions."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import f1_score

from foretoken.report.figures import FIGURES
from foretoken.report.runs.verdicts import verdicts
from foretoken.report.write import write_report

from support.made_runs import LABELS, make_run, results

COUNT = 200


def right(share, seed=0):
    return np.random.default_rng(seed).random(COUNT) < share


def add_baselines(folder, **shares):
    """Let a run have measured baselines: share of the documents that each has right."""
    parts, block = [], {}
    for name, correct in shares.items():
        label = np.arange(COUNT) % 2
        said = np.where(correct, label, 1 - label)
        columns = {"baseline": [name] * COUNT, "split": ["test"] * COUNT, "id": [f"document-{n}" for n in range(COUNT)]}
        columns |= {
            key: [LABELS[place] for place in places] for key, places in (("label", label), ("prediction", said))
        }
        parts.append(pa.table(columns))
        block[name] = {split: {"f1_macro": float(np.mean(correct))} for split in ("validation", "test")}
    pq.write_table(pa.concat_tables(parts), folder / "baselines.parquet")
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"baselines": block}))


def f1(correct):
    label = np.arange(COUNT) % 2
    return f1_score(label, np.where(correct, label, 1 - label), average="macro")


@pytest.fixture
def runs(tmp_path):
    """LoRA with two seeds and a worse method; the baselines are with one run alone."""
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"lora{seed}", seed=seed, validation=0.9, correct=right(0.9, seed))
    make_run(tmp_path / "runs" / "bitfit", "bitfit", validation=0.8, correct=right(0.8, 5))
    add_baselines(tmp_path / "runs" / "bitfit", majority=np.arange(COUNT) % 2 == 0, **{"tf-idf": right(0.6, 7)})
    return tmp_path / "runs"


def test_the_mean_of_the_seeds_of_the_best_stands_beside_the_baselines(runs):
    (found,) = verdicts(results(runs))
    own = np.mean([f1(right(0.9, seed)) for seed in (0, 1)])
    assert found.group.label == "lora"
    assert {name: item.other for name, item in found.baselines.items()} == pytest.approx(
        {"tf-idf": f1(right(0.6, 7)), "majority": f1(np.arange(COUNT) % 2 == 0)}
    )
    assert found.versus.score == pytest.approx(own)
    gain = 100 * (own - f1(right(0.6, 7)))
    assert found.sentence.startswith(
        f"mail: lora, mean of 2 seeds: F1 (macro) {own:.2f} is {gain:.1f} points above TF-IDF (95 % interval "
    )
    assert found.sentence.endswith("200 test documents): training is worth it.")


def test_the_picture_has_the_whole_scale_and_the_intervals(runs):
    (axes,) = FIGURES["verdict"].draw(results(runs)).axes
    (found,) = verdicts(results(runs))
    assert axes.get_xlim() == (0.0, 1.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["lora", "tf-idf", "majority"]
    bars = [container.lines[2][0].get_segments()[0][:, 0].tolist() for container in axes.containers]
    own, tfidf = found.versus, found.baselines["tf-idf"]
    assert bars[:2] == [pytest.approx([own.lower, own.upper]), pytest.approx([tfidf.other_lower, tfidf.other_upper])]


def test_runs_of_tf_idf_take_the_place_of_what_others_measured_of_it(runs):
    make_run(runs / "tfidf", "tf-idf", validation=0.95, correct=right(0.97, 3))
    (found,) = verdicts(results(runs))
    assert list(found.baselines) == ["tf-idf", "majority"]
    assert found.baselines["tf-idf"].other == pytest.approx(f1(right(0.97, 3)))
    assert found.group.label == "lora"  # a baseline is not its own best method
    assert "TF-IDF is " in found.sentence
    assert "the trained model is not worth it here" in found.sentence


def test_it_is_the_first_thing_on_the_page(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("foretoken.report.figures.FIGURES", {"verdict": FIGURES["verdict"]})
    report = write_report([runs], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    body = page[page.index("<main>") :]
    assert re.findall(r'<section id="([\w-]+)">', body)[:2] == ["verdict", "summary"]
    assert body.index(report.verdict[0].split(" (")[0]) < body.index('id="figure-verdict"') < body.index('id="summary"')
    assert page.count('id="figure-verdict"') == 1


def test_scores_over_seeds_are_not_drawn_of_one_seed(tmp_path):
    for method in ("lora", "bitfit"):
        make_run(tmp_path / method, method, correct=right(0.8))
    assert FIGURES["scores"].draw(results(tmp_path)) is None
    make_run(tmp_path / "again", "lora", seed=1, correct=right(0.8))
    assert FIGURES["scores"].draw(results(tmp_path)) is not None


@pytest.mark.parametrize("damage", ["other documents", "other labels", "no file", "no table"])
def test_baselines_that_are_not_of_these_documents_are_left_out(tmp_path, damage):
    run = make_run(tmp_path / "lora", correct=right(0.9))
    add_baselines(run, majority=right(0.5))
    file = run / "baselines.parquet"
    table = pq.read_table(file)
    changed = {
        "other documents": lambda: pq.write_table(table.slice(1), file),
        "other labels": lambda: pq.write_table(table.set_column(3, "label", table["prediction"]), file),
        "no file": file.unlink,
        "no table": lambda: file.write_bytes(b"PAR1"),
    }
    assert len(verdicts(results(tmp_path))) == 1
    changed[damage]()
    assert verdicts(results(tmp_path)) == []


def test_without_test_scores_there_is_no_verdict(tmp_path):
    make_run(tmp_path / "lora", test=None, correct=right(0.9))
    make_run(tmp_path / "tfidf", "tf-idf", test=None, correct=right(0.9))
    assert verdicts(results(tmp_path)) == []
