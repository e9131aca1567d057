import json
import re
from html import escape

import pytest

from foretoken.errors import SaveError
from foretoken.report import figures
from foretoken.report.write import GENERATOR, write_report

from support.made_runs import make_run

FILES = {"index.html", "results.csv", "results.tex", "figures"}
SECTIONS = "summary figures results tasks classes calibration comparisons left-out origin"
NASTY = '<script>alert("1")</script>'


def no_figure(monkeypatch, **drawn):
    made = {name: figures.Figure(name, "A caption.", draw) for name, draw in drawn.items()}
    monkeypatch.setattr(figures, "FIGURES", made)


def one_line(results):
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9, 2))
    drawing.subplots().plot([0, 1], [0, len(results.runs)])
    return drawing


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for method, gain in (("lora", 0.1), ("bitfit", 0.0)):
        for seed in range(3):
            right = [number % 10 < 6 + 10 * gain + seed % 2 for number in range(30)]
            score = 0.6 + gain + seed / 100
            make_run(folder / f"{method}{seed}", method, seed=seed, test=score, validation=score, correct=right)
    make_run(folder / "bad", seed=9, record={"status": "failed", "error": "the disk is full"})
    return folder


def test_a_report_is_whole_and_fetches_nothing(runs, tmp_path, monkeypatch):
    no_figure(monkeypatch, line=one_line)
    write_report([runs], tmp_path / "report")
    assert {entry.name for entry in (tmp_path / "report").iterdir()} == FILES
    assert {entry.name for entry in (tmp_path / "report" / "figures").iterdir()} == {"line.svg", "line.png"}
    page = (tmp_path / "report" / "index.html").read_text()
    ids, links = (re.findall(rf'\b{name}="([^"]*)"', page) for name in ("id", "href"))
    assert not re.search(r"<[^>]*\b(src|srcset|data|action)=", page)
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert len(ids) == len(set(ids))
    styles = " ".join(re.findall(r"<style>.*?</style>|style=\"[^\"]*\"", page, re.DOTALL))
    assert "@import" not in styles
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)]*)\)", styles))
    assert "<svg" in page
    assert "the disk is full" in page
    assert re.findall(r'<section id="([\w-]+)">', page) == SECTIONS.split()
    no_figure(monkeypatch)
    write_report([runs], tmp_path / "report")  # replaces the first
    assert {entry.name for entry in (tmp_path / "report").iterdir()} == FILES
    assert list((tmp_path / "report" / "figures").iterdir()) == []


def test_what_users_write_is_text_in_every_format(tmp_path, monkeypatch):
    no_figure(monkeypatch)
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"a{seed}", NASTY, task="50%_a&b|c", seed=seed, model="<b>x</b>")
    make_run(tmp_path / "runs" / "bad", record={"status": "failed", "error": "<img src=x onerror=alert(1)>"})
    write_report([tmp_path / "runs"], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert NASTY not in page
    assert "<img" not in page
    assert escape(NASTY, quote=False) in page.replace("&#34;", '"')
    assert r"50\%\_a\&b" in (tmp_path / "report" / "results.tex").read_text()


def test_the_first_picture_that_can_be_drawn_is_at_the_top_and_one_that_fails_is_said(runs, tmp_path, monkeypatch):
    def broken(_):
        raise ValueError("no such <axis>")

    no_figure(monkeypatch, scores=one_line, parameters=lambda _: None, broken=broken, other=one_line)
    write_report([runs], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    places = ['id="summary"', 'id="figure-scores"', "is best with", 'id="figures"', 'id="figure-other"', 'id="results"']
    assert sorted(places, key=page.index) == places
    assert page.count('id="figure-scores"') == 1
    assert 'id="figure-parameters"' not in page
    assert "This figure could not be drawn: ValueError: no such &lt;axis&gt;" in page


def test_a_folder_without_a_finished_run_still_has_a_report(tmp_path, monkeypatch):
    no_figure(monkeypatch, line=one_line)
    make_run(tmp_path / "runs" / "bad", record={"status": "failed", "error": "full"})
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    report = write_report([tmp_path / "runs"], tmp_path / "report")
    assert report.summary[0].startswith("0 of 2 runs counted; there is no result to show.")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "run.json is no JSON" in page


@pytest.mark.parametrize(
    "content",
    [
        {"notes.txt": "mine"},
        {"index.html": "<p>a site</p>"},
        {"index.html": f'<meta name="generator" content="{GENERATOR}">', "notes.txt": "mine"},
        {"figures/": ""},
    ],
)
def test_a_folder_that_is_no_report_is_not_replaced(runs, tmp_path, content):
    output = tmp_path / "output"
    output.mkdir()
    for name, text in content.items():
        (output / name).mkdir() if name.endswith("/") else (output / name).write_text(text)
    with pytest.raises(SaveError, match=r"exists and (holds notes\.txt|is no report)"):
        write_report([runs], output)
    assert {entry.name for entry in output.iterdir()} == {name.rstrip("/") for name in content}


def test_records_with_little_in_them_are_enough(tmp_path, monkeypatch):
    no_figure(monkeypatch)
    few = {"status": "finished", "recipe": {"method": {"name": "lora"}}, "validation": {"accuracy": 0.5, "f1": None}}
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text(json.dumps(few))
    report = write_report([tmp_path / "runs"], tmp_path / "report")
    assert report.summary[0].startswith("1 of 1 run")


@pytest.mark.parametrize(
    ("said", "given", "shown"),
    [
        ('{"average": "median"}', None, "Median"),
        ('{"average": "median"}', "mean", "Mean"),
        ('{"average": ["median"]}', None, "Mean"),
        ("{", None, "Mean"),
        (None, "median", "Median"),
    ],
)
def test_a_report_of_a_sweep_shows_what_its_file_says(tmp_path, monkeypatch, said, given, shown):
    no_figure(monkeypatch)
    make_run(tmp_path / "runs" / "lora")
    if said is not None:
        (tmp_path / "runs" / "sweep.json").write_text(said)
    write_report([tmp_path / "runs"], tmp_path / "report", average=given)
    assert f"{shown} ± standard deviation" in (tmp_path / "report" / "index.html").read_text()
