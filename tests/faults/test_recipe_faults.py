"""Recipes, sweep files and command lines with nonsense in them: each is refused quickly, in one line."""

import itertools
import json

import pytest
import yaml

from support.faults.forked import SCREENFUL, assert_done_or_refused

LAUGHS = "a0: &a0 [x, x]\n" + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))
QUICK = 15  # seconds; each takes a tenth of one, the largest files five on a busy machine
TOO_DEEP, TOO_MANY = "more than 50 lists and groups within each other", "more than 1,000,000 characters and values"


@pytest.fixture
def refused(forked, tiny_files, tmp_path):
    """Run a verb; return the lines that it was refused with."""

    def run(*words, verb="train", **changes):
        words = words or ("recipe.yaml",)
        if changes or not (tmp_path / "recipe.yaml").exists():
            tiny_files.recipe(tmp_path, **changes)
        ended = forked(verb, *words, cwd=tmp_path, seconds=QUICK)
        assert not assert_done_or_refused(ended, lines=SCREENFUL), ended.out
        return ended.error

    return run


@pytest.fixture
def done(forked, tiny_files, tmp_path):
    """Train with some changes; return the warnings."""

    def run(*words, **changes):
        tiny_files.recipe(tmp_path, **changes)
        ended = forked("train", "recipe.yaml", *words, cwd=tmp_path)
        assert assert_done_or_refused(ended), ended.err
        record = json.loads((tmp_path / "runs" / "run" / "run.json").read_text())
        assert record["status"] == "finished"
        return [line for line in ended.err.splitlines() if line.startswith("foretoken: warning: ")]

    return run


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("model: " + "[" * 100_000, TOO_DEEP, id="nested flow"),
        pytest.param(LAUGHS, TOO_MANY, id="aliases of aliases"),
        pytest.param("a: &a [*a]", "an alias stands for nothing that has ended before it", id="recursive alias"),
        pytest.param("# " + "x" * 1_100_000, "longer than 1,000,000 characters", id="a large file"),
        pytest.param("model: " + "9" * 10_000, "a number of 10,000 digits", id="digits"),
        pytest.param("model: !!python/object/apply:os.getcwd []", "expected a value without one", id="code"),
        pytest.param("{[model]: x}", "a key is a list, a group or an alias", id="a list for a key"),
        pytest.param("", "the recipe is empty", id="empty"),
    ],
)
def test_yaml_that_cannot_be_held(text, said, refused, tmp_path):
    (tmp_path / "recipe.yaml").write_text(text)
    (error,) = refused()
    assert said in error
    (error,) = refused("recipe.yaml", verb="sweep")
    assert said.replace("recipe is empty", "sweep is empty") in error


def test_values_of_overrides_have_the_same_limits(refused):
    assert TOO_DEEP in refused("recipe.yaml", "--method", "[" * 1000)[0]
    assert "digits" in refused("recipe.yaml", "--method.num_virtual_tokens", "1" * 5000)[0]
    assert "more than 50 groups" in refused("recipe.yaml", "--" + "a." * 1000 + "b", "1")[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "a\0b"}, r"model: got 'a\x00b', which holds the character '\x00'"),
        ({"model": "x" * 300}, "which is longer than a path or a name in it can be"),
        ({"data": {"path": "x\0"}}, r"data.path: got 'x\x00'"),
        ({"method": {"name": "lora", "target_modules": ["\x00"]}}, "method.target_modules[0]"),
        ({"ece_bins": 10**9}, "ece_bins: got 1000000000, expected at most 10,000"),
        ({"training": {"num_threads": 10**6}}, "training.num_threads: got 1000000, expected at most 1,024"),
        ({"training": {"batch_size": 10**9}}, "expected at most 100,000"),
        ({"generation": {"max_new_tokens": 10**9}}, "expected at most 100,000"),
        ({"training": {"epochs": 1e29}}, "training.epochs: got 1e+29, expected a number between -2^63 and 2^63"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate: got nan, expected a number between"),
        ({"method": {"name": "stack", "configs": [{"name": "lora", "lora_dropout": 1}]}}, "method.configs[0].lora_dr"),
        ({"training": {"learning_rate": "1:30"}}, "got '1:30' (a text), expected `auto` or a number"),
        ({"data": {"path": "mail.csv", "test_fraction": float("nan")}}, "test_fraction: got nan, expected a number"),
        (
            {"data": {"path": "mail.csv", "labels": ["a", 1]}},
            "data.labels: got ['a', 1] (a list), expected a list (each item a text)",
        ),
    ],
)
def test_values_beyond_use_are_refused_by_their_key(changes, said, refused):
    head, *errors = refused(**changes)
    assert head.startswith("recipe.yaml: ")
    assert any(said in error for error in errors), errors


def test_sizes_are_counted_against_memory_before_anything_is_made(forked, tiny_files, tmp_path):
    words = ("lengthen", tiny_files.model, "-o", "long", "--max-length", "9000000")
    ended = forked(*words, cwd=tmp_path, seconds=QUICK, more_mb=800)
    assert not assert_done_or_refused(ended, lines=1)
    assert "the table of 9,000,001 positions x 16 numbers x 4 bytes" in ended.error[0]
    assert "GB are free; lower max_length" in ended.error[0]
    assert not (tmp_path / "long").exists()


def test_yaml_is_read_as_version_1_2_has_it(tmp_path):
    from foretoken.training.recipe.reading import parse_yaml

    read = parse_yaml(
        "{a: 1:30, b: 010, c: 0o10, d: yes, e: no, f: On, g: 2024-01-01, h: 1_000, i: true, j: ~, k: 1e-3, l: .5, "
        "m: =, n: 0x1F, o: -0, 8: x, true: y, null: z}"
    )
    assert read == {
        "a": "1:30",
        "b": 10,
        "c": 8,
        "d": "yes",
        "e": "no",
        "f": "On",
        "g": "2024-01-01",
        "h": "1_000",
        "i": True,
        "j": None,
        "k": 0.001,
        "l": 0.5,
        "m": "=",
        "n": 31,
        "o": 0,
        "8": "x",
        "true": "y",
        "null": "z",
    }
    merged = parse_yaml("{outer: {b: &b {<<: {x: 1, y: 2}, x: 3}}, c: {<<: *b, z: 4}}")
    assert merged["c"] == {"x": 3, "y": 2, "z": 4}


def test_many_errors_are_a_screenful_of_short_lines(refused):
    head, *errors = refused(**{f"wrong{n}\x1b{'x' * 1000}": n for n in range(500)})
    assert head == "recipe.yaml: 1,000 errors"  # no such key, and a character in its name
    assert len(errors) == 21
    assert errors[-1] == "  ... and 980 more"


IDLE = {
    "training.epochs": {"training": {"epochs": 3}},
    "training.batch_size": {"training": {"batch_size": 4, "tokens_per_batch": 100}},
    "training.early_stopping_patience": {"training": {"early_stopping_patience": 3}},
    "training.attention_engine": {"training": {"attention_engine": "block"}},
    "method.encoder_hidden_size": {"method": {"name": "prefix-tuning", "encoder_hidden_size": 8}},
    "method.position_free": {"method": {"name": "prefix-tuning", "position_free": True}},
    "method.configs[1].encoder_hidden_size": {
        "method": {"name": "stack", "configs": ["lora", {"name": "prompt-tuning", "encoder_hidden_size": 8}]}
    },
}


@pytest.mark.parametrize("key", IDLE)
def test_options_without_effect_are_said(key, done):
    (warning,) = done(**IDLE[key])
    assert warning.startswith(f"foretoken: warning: {key} has no effect: ")


def test_options_of_data_without_effect_are_said(done, tiny_files):
    file = str(tiny_files.data)
    data = {"train": file, "validation": file, "test": file, "config_name": "x", "split_seed": 3, "test_fraction": 0.2}
    warnings = done(data=data)
    for key in ("data.config_name", "data.split_seed", "data.test_fraction"):
        assert sum(f"{key} has no effect: " in warning for warning in warnings) == 1


def test_options_with_an_effect_are_not_said(done):
    training = {"batch_size": 4, "warmup_ratio": 0.5, "attention_engine": "sdpa", "early_stopping_patience": 1}
    method = {"name": "prefix-tuning", "prefix_projection": True, "encoder_hidden_size": 8}
    assert done(training=training | {"eval_every": 1}, method=method, ece_bins=5) == []


def test_more_threads_than_the_machine_starts(done):
    (warning,) = done(training={"num_threads": 1024})
    assert "training.num_threads is 1024; on this machine" in warning


def sweep_file(folder, base, **changes):
    values = {"recipe": base, "compare": {"method": ["bitfit", "lora"]}} | changes
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values))
    return folder


AXES = {f"{group}.k{n}": list(range(10)) for group, n in itertools.product(("data", "training"), range(6))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compare": AXES}, "combinations; expected at most 1,000 variants"),
        ({"compare": {"max_length": list(range(2, 5000))}}, "got 4,998 values, expected at most 1,000"),
        ({"seeds": list(range(60_000))}, "2 variants x 60,000 seeds are 120,000 runs; expected at most 100,000"),
        ({"seeds": [-1]}, "seeds: got [-1], expected whole numbers from 0"),
        ({"search": {"strategy": "random", "trials": 10**9, "space": {}}}, "expected at most 10,000"),
        (
            {"search": {"space": {"training.learning_rate": {"low": 0, "high": 1, "step": 1e-12}}}},
            "1,000,000,000,001 of training.learning_rate x 1 seeds are 2,000,000,000,002 runs",
        ),
        ({"search": {"space": AXES}}, "x 1 seeds are 2,000,000,000,000 runs; expected at most 100,000"),
        ({"search": {"space": {"max_length": list(range(5000))}}}, "has 5,000 choices, expected at most 1,000"),
        ({"name": ".."}, "name: got '..', which begins with a dot"),
        ({"compare": {"method": {"a/b": "lora"}}}, "compare: method: got 'a/b', which holds the character '/'"),
        ({"per": [{"when": {"max_length": 1}, "seeds": [2**40]}]}, "seeds: got [1099511627776]"),
    ],
)
def test_sweeps_beyond_use_are_refused_before_anything_is_made(changes, said, refused, tiny_files, tmp_path):
    sweep_file(tmp_path, tiny_files.values(), **changes)
    errors = refused("sweep.yaml", "--dry-run", verb="sweep")
    assert any(said in error for error in errors), errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", "x", "--batch-size", "1e9"), "--batch-size: got '1e9', expected a whole number from 1 to 100,000"),
        (("predict", "x", "--tokens-per-batch", "9" * 5000), "expected a whole number from 1 to 100,000,000"),
        (("predict", "x", "--precision", "fp8"), "no choice 'fp8'"),
        (("evaluate", "x", "y", "--ece-bins", "1000000000"), "expected a whole number from 1 to 10,000"),
        (("sweep", "x", "--workers", "10000"), "expected a whole number from 1 to 256"),
        (("report", "x", "--out\x1b[2J"), r"unrecognized arguments: --out\x1b[2J"),
        (("x" * 5000,), "no verb"),
        (("train", "a.yaml", "--restart=3"), "ignored explicit argument"),
        (("fuse", "a", "-o", "b", "--dtype", "int8"), "no choice 'int8'"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(words, said, forked, tmp_path):
    ended = forked(*words, cwd=tmp_path, seconds=QUICK)
    assert not assert_done_or_refused(ended, lines=1)
    assert said in ended.error[0]
