"""Targets and reports of results that are given, not measured."""

import copy
import json

import pytest

from foretoken.bench.show.page import markdown, present, read_results
from foretoken.bench.show.targets import MISSED, REACHED, TARGETS, UNMEASURED, targets_table
from foretoken.errors import DataError


def timing(*seconds, foreign=0.0, **more):
    samples = [[value, foreign] for value in seconds]
    ordered = sorted(seconds)
    return {
        "median": ordered[len(ordered) // 2],
        "fastest": ordered[0],
        "clean": len(samples),
        "samples": samples,
    } | more


def part(dtype="float32", allocator="tuned", **values):
    settings = {"shape": "base", "device": "cpu", **values.pop("settings")}
    return {"title": "a part", "dtype": dtype, "allocator": allocator, "settings": settings, "threads": 2, **values}


def encoder_part(dtype, allocator, theirs, ours, **settings):
    sizes = {"what": "time", "n": 4096, "batch": 1, "layers": 12} | settings
    return part(
        dtype,
        allocator,
        settings=sizes,
        limit={"flops_per_second": 200e9, "shapes": {}},
        work={"step": {"needed": 1600e9, "whole": 1700e9}, "forward": {"needed": 700e9, "whole": 800e9}},
        timings={
            "step": {"transformers": timing(theirs), "foretoken": timing(ours)},
            "forward": {"transformers": timing(7.0), "foretoken": timing(4.0)},
        },
        differences={"foretoken, step": {"outputs": 2e-7, "gradients": 1e-6, "gradients_relative": 3e-5}},
        failed=None,
    )


def run(benchmark, *results, **values):
    return {
        "format": 1,
        "benchmark": benchmark,
        "status": "finished",
        "started": "2026-01-01T00:00:00+00:00",
        "settings": {},
        "hardware": {"cpu": "a CPU", "cores": 2, "gpu": None, "system": "Linux"},
        "versions": {"torch": "2.13.0"},
        "results": list(results),
    } | values


def verdicts(**runs):
    return {row[0].text: (row[1].text, row[3].text) for row in targets_table(runs).rows}


def of(found, *words):
    (name,) = [name for name in found if all(word in name for word in words)]
    return found[name]


def test_nothing_measured_reaches_nothing():
    assert {verdict for _, verdict in verdicts().values()} == {UNMEASURED}
    assert len(verdicts()) == len(TARGETS)


def test_the_headline_is_judged_by_type_and_allocator():
    found = verdicts(
        encoder=[encoder_part("float32", "default", 35.0, 10.0), encoder_part("float32", "tuned", 16.0, 10.0)]
    )
    assert of(found, "step, 12 layers", "default", "fp32") == ("3.50x", REACHED)
    assert of(found, "step, 12 layers", "tuned", "fp32") == ("1.60x", MISSED)
    assert of(found, "step, 12 layers", "tuned", "bf16") == ("", UNMEASURED)
    assert of(found, "GEMM limit", "fp32") == ("80 %", REACHED)
    assert of(found, "outputs") == ("2.0e-07", REACHED)
    assert of(found, "gradients") == ("3.0e-05", MISSED)


@pytest.mark.parametrize("settings", [{"n": 512}, {"layers": 2}, {"batch": 2}, {"shape": "tiny"}])
def test_other_sizes_are_not_the_headline(settings):
    found = verdicts(encoder=[encoder_part("float32", "tuned", 16.0, 1.0, **settings)])
    assert of(found, "step, 12 layers", "tuned", "fp32") == ("", UNMEASURED)


def test_the_last_of_several_runs_counts():
    found = verdicts(
        encoder=[encoder_part("float32", "tuned", 16.0, 1.0), encoder_part("float32", "tuned", 16.0, 16.0)]
    )
    assert of(found, "step, 12 layers", "tuned", "fp32") == ("1.00x", MISSED)


def test_activations():
    kept = part(
        settings={"what": "activations", "n": 4096}, bytes_per_layer={"transformers": 519e6, "foretoken": 142e6}
    )
    assert of(verdicts(encoder=[kept]), "activations") == ("0.27", REACHED)


def padding_part(order, theirs, ours):
    timings = {"transformers": timing(theirs), "foretoken": timing(ours)}
    batch = {"lengths": [700, 300], "real": 1000, "padded": 2048, "timings": timings}
    return part(
        settings={"order": order, "longest": 4096, "layers": 2},
        batches=[batch, batch],
        differences={"foretoken": {"outputs": 1e-7}},
    )


def test_padding():
    found = verdicts(padding=[padding_part("random", 20.0, 2.0), padding_part("bucketed", 4.0, 2.0)])
    assert of(found, "steps over", "random") == ("10.00x", REACHED)
    assert of(found, "steps over", "bucketed") == ("2.00x", MISSED)


def methods_part(family, n, **seconds):
    forward = {"no adapter": timing(1.0, 2.0, 3.0, beside=[[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])}
    forward |= {
        name: timing(1.0 * cost, 2.0 * cost, 30.0, beside=forward["no adapter"]["samples"])
        for name, cost in seconds.items()
    }
    return part(
        settings={"family": family, "n": n},
        timings={"forward": forward, "step": {}},
        skipped={"peft's prefix-tuning, P = 100": "RuntimeError: no"},
    )


def test_an_overhead_is_the_median_of_rounds_not_of_times():
    found = verdicts(methods=[methods_part("longformer", 4096, **{"prefix-propagation, P = 8": 1.03})])
    assert of(found, "prefix-propagation, forward") == ("+3.0 %", REACHED)
    other = verdicts(methods=[methods_part("roberta", 128, **{"prefix-tuning, P = 100": 1.10})])
    assert of(other, "P-tuning v2") == ("+10.0 %", MISSED)
    assert of(other, "prefix-propagation, forward") == ("", UNMEASURED)


def test_a_step_is_beside_another_methods():
    measured = methods_part("longformer", 4096)
    measured["timings"]["step"] = {"prefix-propagation, P = 8": timing(2.0), "lora": timing(2.5), "bitfit": timing(4.0)}
    found = verdicts(methods=[measured])
    assert of(found, "LoRA", "beside prefix-propagation") == ("1.25x", REACHED)
    assert of(found, "BitFit", "beside prefix-propagation") == ("2.00x", MISSED)


def family_part(name, theirs, ours):
    both = {"transformers": timing(theirs), "foretoken": timing(ours)}
    return part(settings={"family": name, "layers": 6}, timings={"forward": both, "step of LoRA": both})


def test_bert_and_the_slowest_of_the_other_families():
    found = verdicts(
        families=[family_part("bert", 2.8, 1.0), family_part("gpt2", 3.0, 1.0), family_part("led", 1.9, 1.0)]
    )
    assert of(found, "BERT, real lengths", "forward") == ("2.80x", REACHED)
    assert of(found, "BERT, real lengths", "LoRA's step") == ("2.80x", MISSED)
    assert of(found, "other packed families", "forward") == ("1.90x", MISSED)


def test_peak_memory_of_long_documents():
    memory = {"before": 1e9, "peak": 3.5e9, "cuda_before": None, "cuda_peak": None}
    settings = {"what": "peak", "n": 16384, "layers": 12, "candidate": "foretoken, gradient checkpointing"}
    found = verdicts(encoder=[part(dtype, settings=settings, memory=memory) for dtype in ("float32", "bfloat16")])
    assert of(found, "peak memory", "fp32") == ("2.5 GB", REACHED)
    assert of(found, "peak memory", "bf16") == ("2.5 GB", MISSED)


def test_the_last_serving_run_that_has_a_number_counts():
    cold = [part(settings={}, latency={"cold": {"p99": seconds}}) for seconds in (0.9, 0.04)]
    found = verdicts(serve=[*cold, part(settings={}, largest_difference=3e-7)])
    assert of(found, "cold adapter") == ("40 ms", REACHED)
    assert of(found, "mixed requests") == ("3.0e-07", REACHED)


def test_a_part_that_failed_is_named_and_the_rest_is_shown():
    broken = {"title": "n 4096", "dtype": "float32", "allocator": "tuned", "settings": {}, "error": "out of memory"}
    text = markdown([run("encoder", encoder_part("float32", "tuned", 16.0, 10.0), broken)])
    assert "n 4096: **failed**: out of memory" in text
    assert (
        "| 4096 | 1 | 12 | float32 | tuned | step | foretoken | 10 s | 1/1 | 1.60x | 80 % | 2.0e-07 | 3.0e-05 |" in text
    )
    assert "a CPU, 2 cores, 2 threads, no GPU" in text
    assert "float32 200 GFLOP/s" in text


def test_several_runs_make_one_report_with_one_table_of_targets():
    runs = [
        run("encoder", encoder_part("float32", "tuned", 17.0, 10.0)),
        run("padding", padding_part("random", 20.0, 2.0)),
        run("methods", methods_part("longformer", 4096, lora=1.5)),
    ]
    text = markdown(runs)
    assert text.count("## Targets") == 1
    assert text.count(REACHED) == 4  # the step, of the limit, outputs, random batches
    assert "| lora |" in text
    assert "Not measured: peft's prefix-tuning, P = 100: RuntimeError: no" in text


def test_a_report_is_written_with_its_plot(tmp_path):
    results = [
        run("encoder", encoder_part("float32", "tuned", 17.0, 10.0)),
        run("padding", padding_part("random", 2, 1)),
    ]
    text = present(results, tmp_path / "report")
    assert (tmp_path / "report.md").read_text().startswith(text)
    assert "![plot](report.png)" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "benchmark": "encoder"}', '{"format": 1, "benchmark": "x"}'])
def test_other_files_are_refused(text, tmp_path):
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(DataError, match=str(file)):
        read_results(file)


def test_a_file_that_lacks_something_is_refused(tmp_path):
    whole = run("padding", padding_part("random", 2, 1))
    file = tmp_path / "results.json"
    file.write_text(json.dumps(whole))
    assert read_results(file) == whole
    del whole["results"][0]["differences"]
    file.write_text(json.dumps(whole))
    with pytest.raises(DataError, match=r"lacks something.*differences"):
        read_results(file)


def test_reports_leave_the_results_alone():
    runs = [run("encoder", encoder_part("float32", "tuned", 17.0, 10.0))]
    before = copy.deepcopy(runs)
    markdown(runs)
    assert runs == before
