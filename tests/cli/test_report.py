import pytest

from foretoken_cli.verbs.report import run

from support.made_runs import make_run


@pytest.fixture
def runs(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"lora{seed}", seed=seed, test=0.7 + seed / 10, correct=[True, False, True, True])
    return tmp_path / "runs"


def test_a_report_is_written_and_its_summary_printed(runs, tmp_path, capsys):
    assert run([str(runs), "-o", str(tmp_path / "report")]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 runs counted: 1 method on 1 task with 1 model, 2 seeds each." in out
    assert "mail: lora, the only one measured, has F1 (macro) 75.0 on test (mean of 2 seeds)." in out
    assert out.rstrip().endswith(str(tmp_path / "report" / "index.html"))
    assert len((tmp_path / "report" / "results.csv").read_text().splitlines()) == 3
    assert "could not be drawn" not in (tmp_path / "report" / "index.html").read_text()


def test_several_folders_are_one_report(runs, tmp_path, capsys, monkeypatch):
    from foretoken.report import figures

    monkeypatch.setattr(figures, "FIGURES", {})
    make_run(tmp_path / "more" / "bitfit", "bitfit")
    assert run([str(runs), str(tmp_path / "more"), "--output", str(tmp_path / "report")]) == 0
    assert "3 of 3 runs" in capsys.readouterr().out
