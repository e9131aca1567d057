import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser

import pytest

from foretoken.errors import SaveError
from foretoken.report import figures
from foretoken.report.page import GENERATOR
from foretoken.report.tables.task import PAPER_TEST
from foretoken.report.write import write_report

from support.made_runs import make_run

VOID = {"meta", "br", "img", "link", "input", "hr", "col"}
FILES = {"index.html", "results.csv", "results.tex", "figures"}
SECTIONS = "summary figures results tasks calibration comparisons left-out origin"
NASTY = '<script>alert("1")</script>'


class Checked(HTMLParser):
    """Fail on tags that do not match, and collect what a page would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched, self.links, self.words = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.open += [] if tag in VOID else [tag]
        self.ids += [values["id"]] if "id" in values else []
        self.fetched += [values[name] for name in ("src", "data", "srcset", "action") if name in values]
        targets = [values[name] for name in ("href", "xlink:href") if name in values]
        self.links += targets

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def checked(page):
    parser = Checked()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


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
    parsed = checked(page)
    assert parsed.fetched == []
    assert all(link.startswith("#") and link[1:] in parsed.ids for link in parsed.links)
    assert len(parsed.ids) == len(set(parsed.ids))
    styles = " ".join(re.findall(r"<style>.*?</style>|style=\"[^\"]*\"", page, re.DOTALL))
    assert "@import" not in styles
    assert all(target.startswith("#") for target in re.findall(r"url\(['\"]?([^)]*)\)", styles))
    assert "<svg" in page
    assert "the disk is full" in page
    assert re.findall(r'<section id="([\w-]+)">', page) == SECTIONS.split()
    (tmp_path / "report" / "groups.csv").write_text("left by an earlier version")
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
    parsed = checked(page)
    assert NASTY not in page
    assert parsed.fetched == []
    assert any(NASTY in words for words in parsed.words)
    assert r"50\%\_a\&b" in (tmp_path / "report" / "results.tex").read_text()


def test_the_first_picture_that_can_be_drawn_is_at_the_top(runs, tmp_path, monkeypatch):
    no_figure(monkeypatch, scores=one_line, parameters=lambda _: None, other=one_line)
    write_report([runs], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    summary, figures = page.index('<section id="summary">'), page.index('<section id="figures">')
    assert summary < page.index('id="figure-scores"') < page.index("is best with") < figures
    assert figures < page.index('id="figure-other"') < page.index('<section id="results">') < page.index("<table>")
    assert page.count('id="figure-scores"') == 1


def test_a_figure_that_fails_is_said_and_the_rest_stays(runs, tmp_path, monkeypatch):
    def broken(_):
        raise ValueError("no such <axis>")

    no_figure(monkeypatch, broken=broken, line=one_line, nothing=lambda _: None)
    write_report([runs], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    assert "This figure could not be drawn: ValueError: no such &lt;axis&gt;" in page
    assert page.count("<svg") == 1
    assert 'id="figure-nothing"' not in page


def test_figures_get_the_counted_runs_only(runs, tmp_path, monkeypatch):
    seen = []
    no_figure(monkeypatch, spy=lambda given: seen.extend(given.finished))
    write_report([runs], tmp_path / "report")
    assert sorted(run.folder.name for run in seen) == sorted(f"{m}{s}" for m in ("lora", "bitfit") for s in range(3))


def test_a_folder_without_a_finished_run_still_has_a_report(tmp_path, monkeypatch):
    no_figure(monkeypatch, line=one_line)
    make_run(tmp_path / "runs" / "bad", record={"status": "failed", "error": "full"})
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.json").write_text("{")
    report = write_report([tmp_path / "runs"], tmp_path / "report")
    assert report.summary[0].startswith("0 of 2 runs counted; there is no result to show.")
    page = (tmp_path / "report" / "index.html").read_text()
    checked(page)
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


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome to show the page")
_MEASURE = """
<script>onload = () => {
  const inside = document.querySelector("iframe").contentDocument, root = inside.documentElement;
  const style = inside.defaultView.getComputedStyle(inside.body);
  const wide = [...inside.querySelectorAll("body *")].filter((one) => !one.closest(".scroll, pre"))
    .filter((one) => one.getBoundingClientRect().right > root.clientWidth + 1);
  inside.querySelector("thead tr:last-child th").click();
  document.querySelector("pre").textContent = JSON.stringify({
    window: inside.defaultView.innerWidth, hidden: root.scrollWidth - root.clientWidth,
    wide: wide.length, ground: style.backgroundColor, ink: style.color,
    sorted: inside.querySelectorAll("th[aria-sort]").length, tables: inside.querySelectorAll("table").length,
    figures: [...inside.querySelectorAll("svg")].map((one) => one.getBoundingClientRect().width).filter(Boolean),
  });
};</script>
"""


def chromium(folder, *options):
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False)])
def test_the_page_fits_its_window_and_can_be_read(runs, tmp_path, monkeypatch, width, dark):
    # A window is never narrower than 500 pixels, a frame is.
    no_figure(monkeypatch, line=one_line)
    for number in range(5):
        make_run(runs / f"long{number}", "lora", options={"some_long_option": f"{number}" * 30}, task=f"task{number}")
    write_report([runs], tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    frame = f'<iframe width={width} height=800 style="border:0" srcdoc="{escape(page)}"></iframe><pre></pre>'
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{frame}{_MEASURE}")
    mode = ["--blink-settings=preferredColorScheme=0"] if dark else []
    shown = chromium(tmp_path, "--window-size=1400,900", *mode, "--dump-dom", f"file://{tmp_path / 'frame.html'}")
    said = json.loads(re.search(r"<pre>(\{.*?\})</pre>", shown)[1])
    assert (said["window"], said["hidden"], said["wide"]) == (width, 0, 0)
    assert said["sorted"] == 1
    assert said["tables"] > 5
    assert said["figures"][0] > 100
    assert contrast(said["ground"], said["ink"]) > 7  # WCAG 2.2, 1.4.6
    assert (luminance(said["ground"]) < 0.1) is dark


def luminance(colour):
    """Return the relative luminance of `rgb(r, g, b)`, WCAG 2.2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


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
def test_a_report_of_a_sweep_shows_what_its_file_says(runs, tmp_path, monkeypatch, said, given, shown):
    no_figure(monkeypatch)
    if said is not None:
        (runs / "sweep.json").write_text(said)
    write_report([runs], tmp_path / "report", average=given)
    assert f"{shown} ± standard deviation" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(("said", "is_made"), [("one-sided-t", True), ("wilcoxon", False), (None, False)])
def test_the_test_of_a_paper_is_made_where_its_sweep_asks_for_it(runs, tmp_path, monkeypatch, said, is_made):
    no_figure(monkeypatch)
    (runs / "sweep.json").write_text(json.dumps({"test": said}))
    write_report([runs], tmp_path / "report")
    assert (PAPER_TEST in (tmp_path / "report" / "index.html").read_text()) is is_made
