"""Every benchmark from its plan to its tables, on tiny models."""

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch

from foretoken.bench import BENCHMARKS
from foretoken.bench.names import NONE
from foretoken.bench.padding import batches, padded_tokens
from foretoken.bench.run.plan import Options, Part, read_lengths
from foretoken.bench.run.worker import measured
from foretoken.bench.show.sections import SECTIONS
from foretoken.errors import ConfigError
from foretoken.methods import METHODS

TINY = Options(quick=True, shape="tiny", rounds=1, threads=1)


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def parts(name, options=TINY):
    return import_module(f"foretoken.bench.{name}").plan(options)


SLOW = ("export", "predict", "serve")  # graphs are made, texts are written to files, requests come as they come


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in BENCHMARKS]
)
def test_every_part_is_measured_and_shown(name):
    results = [json.loads(json.dumps(measured(part))) for part in parts(name)]
    assert not any(result.get("failed") for result in results)
    section = SECTIONS[name](results)
    assert all(table.rows for table in section.tables)
    assert all(len(row) == len(table.header) for table in section.tables for row in table.rows)
    assert any(chart.series or chart.bars for chart in section.charts)


def test_requests_are_counted():
    asked = {part.title: part.settings.get("requests") for part in parts("serve", Options(requests=100_000))}
    assert asked["equal to one at a time"] == 100_000
    assert sum(count is not None for count in asked.values()) == 1
    with pytest.raises(ConfigError, match="requests"):
        Options(requests=0)


def test_methods_are_chosen_by_name():
    both = parts("methods", Options(method=["inducer-tuning", "bitfit"]))
    labels = [[one["label"] for one in part.settings["cases"]] for part in both]
    peers = [NONE, "inducer-tuning"]
    assert labels == [[NONE, "inducer-tuning", "bitfit"], peers, peers]
    assert len(parts("methods", Options(method=["bitfit"]))) == 1  # not measured beside peft
    with pytest.raises(ConfigError, match="no method 'lor'"):
        parts("methods", Options(method=["lor"]))


GRID = Options(
    quick=True,
    shape="tiny",
    rounds=1,
    threads=1,
    grid=True,
    layers=2,
    prefix_length=[4, 2],
    rank=[3],
    grid_size=["2x24"],
)


def test_the_grid_of_ahead_of_time_measures_every_length_and_rank_and_draws_them():
    (part,) = parts("aot", GRID)
    result = json.loads(json.dumps(measured(part)))
    labels = [f"P-tuning {v}, p = {p}" for v in ("v1", "v2") for p in (2, 4)] + [
        "AoT FC, r = 3",
        "AoT Kronecker, r = 3",
    ]
    assert set(result["timings"]["forward"]) == {NONE, "AoT, fused", *labels}
    assert not result["skipped"]
    held = {name: memory["adapter"] for name, memory in result["memory"].items()}
    assert held[NONE] == 0
    assert held["AoT, fused"] < held["AoT FC, r = 3"]  # its table is a file
    assert held["P-tuning v1, p = 4"] - held["P-tuning v1, p = 2"] == 2 * 32 * 4
    assert held["P-tuning v2, p = 4"] - held["P-tuning v2, p = 2"] == 2 * 2 * 2 * 32 * 4
    section = SECTIONS["aot"]([result])
    assert len(section.tables[0].rows) == 2 + len(labels)
    by_length, by_rank = section.charts[0].series, section.charts[2].series
    assert [x for x, _ in by_length["P-tuning v2"]] == [2, 4]
    assert {name: [x for x, _ in line] for name, line in by_rank.items()} == {
        name: [3] for name in (NONE, "AoT, fused", "AoT FC", "AoT Kronecker")
    }


def test_the_full_grid_is_the_papers():
    (first, *_) = found = parts("aot", Options(grid=True))
    assert [(part.settings["batch"], part.settings["n"]) for part in found] == [(1, 16), (16, 128), (16, 384)]
    assert first.settings["layers"] == 12
    assert len(first.settings["cases"]) == 2 + 2 * 5 + 2 * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": [8]}, "--rank is for the grid; give --grid too"),
        ({"grid": True, "family": ["gpt2"]}, "expected `roberta` or `longformer`"),
    ],
)
def test_options_of_the_grid_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        Options(**options)


@pytest.mark.parametrize("text", ["16", "16x", "0x128", "x", "ax3"])
def test_a_size_of_the_grid_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="--grid-size: got"):
        parts("aot", Options(grid=True, grid_size=[text]))


@pytest.mark.slow
def test_all_methods_are_timed_beside_no_adapter():
    (part, *_) = parts("methods")
    result = measured(part)
    assert not result["skipped"]
    labels = result["timings"]["forward"]
    assert all(any(label.startswith(name) for label in labels) for name in set(METHODS) - {"stack"})
    assert all(timing["beside"] for timing in labels.values())
    assert NONE in labels
    assert not any("fused" in label for label in result["timings"]["step"])


def test_peft_is_timed_on_roberta():
    result = measured(parts("methods")[1])
    assert {"peft's prefix-tuning, P = 100", "transformers, no adapter"} <= set(result["timings"]["step"])


def test_the_full_plan_of_the_encoder_has_the_sizes_of_the_design():
    found = [part for part in parts("encoder", Options()) if part.settings["what"] == "time"]
    sizes = {(part.settings["n"], part.settings["batch"]) for part in found}
    assert sizes == {(n, 1) for n in (512, 1024, 2048, 4096, 8192, 16384)} | {(1024, b) for b in (2, 4, 8)}
    main = {(p.dtype, p.allocator) for p in found if (p.settings["n"], p.settings["layers"]) == (4096, 12)}
    assert main == {(dtype, allocator) for dtype in ("float32", "bfloat16") for allocator in ("default", "tuned")}
    assert all("transformers" not in p.settings["candidates"] for p in found if p.settings["n"] > 4096)


def test_options_reach_the_parts():
    options = Options(layers=5, threads=1, dtype="bfloat16", allocator="default", rounds=4, engine=["block"])
    main = parts("encoder", options)[0]
    assert (main.dtype, main.allocator) == ("bfloat16", "default")
    assert (main.settings["layers"], main.settings["threads"], main.settings["effort"]["rounds"]) == (5, 1, 4)
    tuned = parts("encoder", Options(engine=["gather-sdpa"], allocator="tuned"))[0]
    assert "foretoken, gather-sdpa" in tuned.settings["candidates"]


def test_on_a_gpu_there_is_no_allocator_to_compare():
    assert {part.allocator for part in parts("encoder", Options(device="cuda")) if part.settings["what"] == "time"} == {
        "tuned"
    }


@pytest.mark.parametrize("name", ["layers", "threads", "rounds", "batch_size"])
def test_numbers_below_one_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name}: got 0, expected at least 1"):
        Options(**{name: 0})


def test_an_engine_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"no attention engine 'blok' \(did you mean 'block'"):
        parts("encoder", Options(engine=["blok"]))


def test_batches_are_what_training_sees():
    lengths = list(range(1, 801))
    random, bucketed = (batches(lengths, order, 8, 5) for order in ("random", "bucketed"))
    spread = [max(max(batch) - min(batch) for batch in found) for found in (random, bucketed)]
    assert spread[1] < 40 < spread[0]
    assert all(len(batch) == 8 for batch in random + bucketed)


def test_padding_is_to_the_longest_and_to_whole_windows():
    assert padded_tokens([100, 504], window=512) == 2 * 512  # 8 rows in front
    assert padded_tokens([100, 505], window=512) == 2 * 1024


def test_the_users_own_lengths_are_taken(tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text("\n".join(["30"] * 16))
    found = parts("padding", Options(quick=True, shape="tiny", lengths=file, batch_size=4))
    assert found[0].settings["batches"] == [[30] * 4] * 2
    assert found[0].settings["source"] == str(file)


@pytest.mark.parametrize("text", ["", "12\nlong\n", "12\n0\n", "-3"])
def test_other_lengths_are_refused(text, tmp_path):
    file = tmp_path / "lengths.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match="expected one whole number above 0 a line"):
        read_lengths(file)


def test_a_missing_file_of_lengths_is_refused():
    with pytest.raises(ConfigError, match="cannot read"):
        read_lengths(Path("nowhere.txt"))


def test_a_difference_from_transformers_marks_the_part(monkeypatch):
    from foretoken.bench import candidates

    monkeypatch.setattr(candidates, "largest", lambda mine, theirs: 1.0)
    result = measured(parts("encoder")[0])
    assert "at most 1e-04 is rounding" in result["failed"]


def test_notes_say_what_is_going_on():
    notes = []
    measured(parts("attention")[0], notes.append)
    assert any("round 1: block" in note for note in notes)
    assert isinstance(parts("attention")[0], Part)


def test_parts_are_chosen_by_their_titles():
    found = Options(part=["cold"]).chosen(parts("serve"))
    assert [part.title for part in found] == ["cold adapters"]
    with pytest.raises(ConfigError, match="expected something of: adapters in memory"):
        Options(part=["nothing"]).chosen(parts("serve"))
