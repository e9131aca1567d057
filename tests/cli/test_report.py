from foretoken_cli.verbs.report import run

from support.made_runs import make_run


def test_one_report_of_several_folders_is_written_and_its_summary_printed(tmp_path, capsys):
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"lora{seed}", seed=seed, test=0.7 + seed / 10, correct=[True, False, True, True])
    make_run(tmp_path / "more" / "bitfit", "bitfit", test=0.6)
    assert run([str(tmp_path / "runs"), str(tmp_path / "more"), "-o", str(tmp_path / "report")]) == 0
    out = capsys.readouterr().out
    assert "3 of 3 runs counted: 2 methods on 1 task with 1 model, 1 to 2 seeds each." in out
    assert "mail: lora is best with F1 (macro) 75.0 on test (mean of 2 seeds)" in out
    assert out.rstrip().endswith(str(tmp_path / "report" / "index.html"))
    assert len((tmp_path / "report" / "results.csv").read_text().splitlines()) == 4
    assert "could not be drawn" not in (tmp_path / "report" / "index.html").read_text()
