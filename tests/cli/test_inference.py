import io
import json
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foretoken.inference import int8
from foretoken_cli import main

from support.tiny_run import documents, write_csv


def answers(text):
    return [json.loads(line) for line in text.splitlines()]


def test_evaluate_agrees_with_the_run(finished, tiny, cli, tmp_path):
    rows = [row for row in pq.read_table(finished / "predictions.parquet").to_pylist() if row["split"] == "test"]
    data = write_csv(tmp_path / "all.csv", documents(120))
    out = tmp_path / "all.parquet"
    result = cli("evaluate", finished, data, "--output", out)
    assert result.code == 0
    measured = {line.split("  ")[0]: line.split()[1] for line in result.out.split("\n\n")[0].splitlines()[1:]}
    table = pq.read_table(out).to_pandas()
    assert len(table) == 120
    assert float(measured["accuracy"]) == pytest.approx((table["label"] == table["prediction"]).mean(), abs=1e-4)
    ours = {round(value, 5) for value in table["prob_spam"]}
    assert all(any(abs(row["prob_spam"] - value) < 2e-5 for value in ours) for row in rows)


def test_predict_texts_one_json_line_each(finished, cli):
    result = cli("predict", finished, "word1 prize winner", "lunch")
    assert result.code == 0
    first, second = answers(result.out)
    assert first["id"] == "1"
    assert second["id"] == "2"
    assert first["label"] in ("ham", "spam")
    assert sum(first["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert first["probability"] == max(first["probabilities"].values())


def test_order_is_kept_whatever_the_lengths_and_batch_size(finished, cli):
    texts = ["lunch " * length for length in (3, 40, 1, 20, 9)]
    together = answers(cli("predict", finished, *texts, "--batch-size", 2).out)
    alone = [answers(cli("predict", finished, text).out)[0] for text in texts]
    assert [row["probability"] for row in together] == pytest.approx([row["probability"] for row in alone], abs=1e-5)


def test_predict_a_file_a_folder_and_stdin_give_the_same(finished, cli, tmp_path, monkeypatch):
    texts = ["lunch word1", "prize word2"]
    data = write_csv(tmp_path / "texts.csv", [(text,) for text in texts], header=("body",))
    folder = tmp_path / "texts"
    folder.mkdir()
    for index, text in enumerate(texts):
        (folder / f"{index}.txt").write_text(text)
    expected = [row["probabilities"] for row in answers(cli("predict", finished, *texts).out)]
    from_file = answers(cli("predict", finished, "--input", data, "--text-column", "body").out)
    from_folder = answers(cli("predict", finished, "--input", folder).out)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join([texts[0], "", texts[1]]).encode())))
    from_stdin = answers(cli("predict", finished, "--input", "-").out)
    for rows in (from_file, from_folder, from_stdin):
        assert [row["probabilities"] for row in rows] == expected
    assert [row["id"] for row in from_stdin] == ["1", "3"]


def test_adapter_folder_run_folder_and_a_copy_elsewhere_are_the_same(finished, cli, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(finished / "adapter", moved)
    outputs = {cli("predict", folder, "lunch").out for folder in (finished, finished / "adapter", moved)}
    assert cli("predict", finished, "--output", tmp_path / "out.jsonl", "lunch").out == ""
    assert outputs == {(tmp_path / "out.jsonl").read_text()}


def test_int8_needs_a_processor_with_units_for_it(finished, refused, monkeypatch):
    monkeypatch.setattr(int8, "instructions", lambda: frozenset({"avx2"}))
    assert "use auto, which measures fp32 and bf16" in refused("predict", finished, "lunch", "--precision", "int8")


def test_a_very_long_text_is_cut_and_said(finished, cli):
    result = cli("predict", finished, "prize " * 20_000)
    assert result.code == 0
    assert "1 of 1 truncated to 64 tokens" in result.err


def test_an_empty_text_and_texts_with_input_or_neither_are_refused(finished, refused):
    assert "text 2: the document is empty" in refused("predict", finished, "lunch", "   \n", "--strict")
    assert "either texts, or --input" in refused("predict", finished)
    assert "either texts, or --input" in refused("predict", finished, "a", "--input", "-")


def test_a_folder_that_holds_no_adapter_says_what_is_there(refused, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    message = refused("predict", tmp_path, "lunch")
    assert "notes.txt" in message
    assert "adapter_config.json" in message
    assert "is not there" in refused("predict", tmp_path / "nowhere", "lunch")


def test_evaluate_refuses_labels_that_the_adapter_does_not_know(finished, refused, tmp_path):
    data = write_csv(tmp_path / "x.csv", [("lunch", "ham"), ("prize", "eggs")])
    message = refused("evaluate", finished, data)
    assert "eggs" in message
    assert "ham, spam" in message


def test_columns_are_those_of_the_training_data(finished, tmp_path, capsys):
    """What the recipe called text and label need not be said again; a flag overrides it."""
    card = json.loads((finished / "adapter" / "foretoken.json").read_text())
    card["recipe"]["data"] |= {"text_column": "body", "label_column": "kind"}
    folder = tmp_path / "adapter"
    shutil.copytree(finished / "adapter", folder)
    (folder / "foretoken.json").write_text(json.dumps(card))
    file = tmp_path / "new.csv"
    file.write_text("body,kind\nlunch at noon,ham\nbuy pills now,spam\n")
    assert main(["evaluate", str(folder), str(file)]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert main(["predict", str(folder), "--input", str(file)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["evaluate", str(folder), str(file), "--text-column", "text"]) == 2
    assert "no column 'text'; the columns are body, kind" in capsys.readouterr().err


def test_the_template_of_a_run_is_that_of_later_files(tiny, cli, refused, record, tmp_path):
    """As a shell hands it over: a new line is two characters."""
    rows = [
        {"mail": {"head": text.split()[0], "rest": text}, "label": label, "from": f"p{number // 3}"}
        for number, (text, label) in enumerate(documents(60))
    ]
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    template = r"{mail.head?}\n{mail.rest}"
    recipe = tiny.recipe(tmp_path / "r.yaml", method="tf-idf", data={"path": str(data), "group_column": "from"})
    unknown = refused("train", recipe, "--data.text", "{mail.head?} {mail.rset}")
    assert f"{data}: no column 'mail.rset' (did you mean 'mail.rest'?)" in unknown
    trained = cli("train", recipe, "--data.text", template)
    assert trained.code == 0, trained.err
    run = tmp_path / "runs" / "run"
    assert record(run)["groups"]["groups"].keys() == {"train", "validation", "test"}
    assert cli("evaluate", run, data).code == 0
    data.write_text("".join(json.dumps({"mail": row["mail"]}) + "\n" for row in rows[:5]))
    predicted = answers(cli("predict", run, "--input", data).out)
    whole = cli("predict", run, *("{head}\n{rest}".format(**row["mail"]) for row in rows[:5]))
    assert [row["probabilities"] for row in predicted] == [row["probabilities"] for row in answers(whole.out)]
    assert "a bare text is taken as the whole text" in whole.err
    flat = write_csv(tmp_path / "b.csv", [tuple(row["mail"].values()) for row in rows[:5]], header=("a", "b"))
    renamed = answers(cli("predict", run, "--input", flat, "--text", r"{a}\n{b}").out)
    assert [row["probabilities"] for row in renamed] == [row["probabilities"] for row in predicted]
    assert answers(cli("predict", run, "--input", flat, "--text-column", "b").out)
    assert "no column 'mail.rest'" in refused("predict", run, "--input", flat)
    assert "'{' at character 1 names no column" in refused("predict", run, "--input", flat, "--text", "{a")


def test_ray_reads_the_texts_of_one_column(finished, refused, tmp_path):
    pytest.importorskip("ray")
    card = json.loads((finished / "adapter" / "foretoken.json").read_text())
    card["recipe"]["data"] |= {"text": "{title}"}
    shutil.copytree(finished / "adapter", tmp_path / "adapter")
    (tmp_path / "adapter" / "foretoken.json").write_text(json.dumps(card))
    files = "--input", tmp_path / "in.parquet", "--output", tmp_path / "out"
    pq.write_table(pa.table({"title": ["lunch"]}), files[1])
    assert "give --text-column" in refused("predict", tmp_path / "adapter", "--ray", *files)
    assert "--text does not go with --ray" in refused("predict", tmp_path / "adapter", "--ray", *files, "--text", "{a}")


def test_predict_goes_on_after_rows_that_cannot_be_used(finished, cli, refused, tmp_path):
    rows = [{"id": "a", "text": "lunch"}, {"id": "b", "text": " "}, {"id": "a", "text": "prize"}, {"id": "c"}]
    rows += [{"id": "d", "text": "\u200b"}, {"id": "e", "text": "prize word1"}]
    data, out = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    result = cli("predict", finished, "--input", data, "-o", out)
    assert result.code == 1
    assert "5 of 7 rows: an error in the place of an answer" in result.err
    said = answers(out.read_text())
    assert [row["id"] for row in said] == ["a", "b", "a", "c", "d", "e", "6"]
    assert ["error" in row for row in said] == [False, True, True, True, True, False, True]
    assert [said[0], said[5]] == [
        row | {"id": name}
        for row, name in zip(answers(cli("predict", finished, "lunch", "prize word1").out), "ae", strict=True)
    ]
    assert ":2: " in said[1]["error"]
    out.unlink()
    assert ":2: " in refused("predict", finished, "--input", data, "-o", out, "--strict")
    assert not out.exists()
    nothing = cli("predict", finished, "", "\u2028")
    assert (nothing.code, [row["id"] for row in answers(nothing.out)]) == (1, ["1", "2"])


def test_lines_of_stdin_end_at_line_feeds_and_carriage_returns_alone(finished, cli, monkeypatch):
    separators = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    lines = ["lunch", *(f"lunch{mark}prize" for mark in separators), "word1"]
    for end, encoding in (("\n", "utf-8"), ("\r\n", "utf-8-sig"), ("\r", "utf-16")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(end.join(lines).encode(encoding))))
        assert [row["id"] for row in answers(cli("predict", finished, "--input", "-").out)] == [
            str(number) for number in range(1, len(lines) + 1)
        ]
