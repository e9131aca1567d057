"""The tf-idf baseline against scikit-learn's own pipeline, and against damage."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from datasets import Dataset
from safetensors.numpy import load_file, save_file
from scipy.optimize import minimize_scalar
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from foretoken.errors import AdapterError, ConfigError
from foretoken.training.baseline.options import TfidfOptions, tfidf_options
from foretoken.training.baseline.tfidf import VOCABULARY, WEIGHTS, Tfidf, check_problem, fit, load, texts_of
from foretoken.training.problems import make_problem

WORDS = [f"w{number}" for number in range(30)]


def rows(count, labels, seed=0, pairs=False):
    """Documents in which some words are likelier with some labels."""
    chance = np.random.default_rng(seed)
    truth = chance.integers(labels, size=count)
    texts = [
        " ".join(chance.choice(WORDS, p=np.roll(np.r_[[0.1] * 5, [0.02] * 25], 7 * label), size=12)) for label in truth
    ]
    columns = {"text": texts, "label": truth.tolist()}
    return Dataset.from_dict(columns | ({"text_pair": texts[::-1]} if pairs else {}))


def classes(count):
    return make_problem("classification", [str(label) for label in range(count)])


def vectorizer(**options):
    return TfidfVectorizer(**({"ngram_range": (1, 2), "min_df": 2, "sublinear_tf": True} | options))


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize(
    ("options", "changes", "strength"),
    [(TfidfOptions(), {}, 1.0), (TfidfOptions(ngrams=1, min_df=4, C=0.1), {"ngram_range": (1, 1), "min_df": 4}, 0.1)],
)
def test_margins_are_those_of_scikit_learns_pipeline(labels, options, changes, strength):
    train, validation, test = (rows(count, labels, seed) for seed, count in enumerate((90, 40, 40)))
    found = fit(options, classes(labels), train, validation)
    oracle = make_pipeline(vectorizer(**changes), LinearSVC(C=strength, random_state=0)).fit(
        train["text"], train["label"]
    )
    margins = oracle.decision_function(test["text"])
    expected = np.stack([-margins, margins], axis=1) if labels == 2 else margins
    logits = found.logits(test["text"])
    np.testing.assert_allclose(logits, found.slope * expected, atol=1e-9)
    assert (logits.argmax(axis=1) == oracle.predict(test["text"])).all()
    assert found.num_weights == labels * (len(oracle[0].vocabulary_) + 1)


def test_the_slope_is_the_likeliest_on_validation():
    train, validation = rows(90, 3), rows(60, 3, seed=1)
    found = fit(TfidfOptions(), classes(3), train, validation)
    margins = found.logits(validation["text"]) / found.slope
    truth = np.asarray(validation["label"])

    def loss(slope):
        exponents = np.exp(slope * margins)
        probabilities = exponents / exponents.sum(axis=1, keepdims=True)
        return -np.log(probabilities[np.arange(60), truth]).sum() + (slope - 1) ** 2 / 2

    assert found.slope == pytest.approx(minimize_scalar(loss, bounds=(0.05, 50), method="bounded").x, rel=1e-3)


def test_numbers_are_those_of_ridge_regression():
    train, test = rows(60, 5), rows(20, 5, seed=1)
    train = train.remove_columns("label").add_column("label", [value / 7 for value in train["label"]])
    found = fit(TfidfOptions(C=0.5), make_problem("regression", []), train, test)
    oracle = make_pipeline(vectorizer(), Ridge(alpha=2.0)).fit(train["text"], train["label"])
    np.testing.assert_allclose(found.logits(test["text"])[:, 0], oracle.predict(test["text"]), atol=1e-9)


@pytest.mark.parametrize("present", [(0, 2), (0, 1, 3)])
def test_a_class_without_training_documents_is_never_the_answer(present):
    train = rows(90, 4).filter(lambda row: row["label"] in present)
    found = fit(TfidfOptions(), classes(4), train, rows(40, 4, seed=1))
    oracle = make_pipeline(vectorizer(), LinearSVC(random_state=0)).fit(train["text"], train["label"])
    test = rows(40, 4, seed=2)["text"]
    logits = found.logits(test)
    assert logits.shape == (40, 4)
    assert (logits[:, [label for label in range(4) if label not in present]] == -found.slope).all()
    assert (logits[:, list(present)].argmax(axis=1) == np.searchsorted(present, oracle.predict(test))).all()


def test_the_texts_of_a_pair_are_read_together():
    train = rows(90, 2, pairs=True)
    joined = [f"{one} [SEP] {other}" for one, other in zip(train["text"], train["text_pair"], strict=True)]
    assert texts_of(train) == joined
    found = fit(TfidfOptions(min_df=1), classes(2), train, train)
    assert "sep" in found.terms
    first, second = joined[0].split()[11], joined[0].split()[13]
    assert f"{first} sep" in found.terms
    assert f"sep {second}" in found.terms


def test_what_is_saved_predicts_the_same(tmp_path):
    train, test = rows(90, 3), rows(40, 3, seed=1)["text"]
    found = fit(TfidfOptions(), classes(3), train, train)
    found.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {VOCABULARY, WEIGHTS}
    assert (load(tmp_path).logits(test) == found.logits(test)).all()


def test_what_cannot_be_fitted_is_said_in_one_line():
    train = rows(20, 2)
    with pytest.raises(ConfigError, match=r"no term is in 21 documents .*; lower method\.min_df"):
        fit(TfidfOptions(min_df=21), classes(2), train, train)
    with pytest.raises(ConfigError, match="regression, got data for token-classification"):
        check_problem(make_problem("token-classification", ["O", "B-x"]))
    with pytest.raises(ConfigError, match="one label alone"):
        fit(TfidfOptions(), classes(2), train.filter(lambda row: row["label"] == 1), train)
    errors = []
    assert tfidf_options({"name": "tf-idf", "ngrams": 0, "minimum": 2}, errors) is None
    assert errors == [
        "method.minimum: no such key; known: C, min_df, ngrams",
        "method.ngrams: got 0, expected at least 1",
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    train = rows(90, 3)
    fit(TfidfOptions(), classes(3), train, train).save(folder)
    return folder


def change_json(folder, **changes):
    values = json.loads((folder / VOCABULARY).read_text())
    (folder / VOCABULARY).write_text(json.dumps(values | changes))


def change_tensors(folder, change):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: np.ascontiguousarray(value) for name, value in change(tensors).items()}, folder / WEIGHTS)


DAMAGE = {
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "vocabulary cut short": lambda folder: (folder / VOCABULARY).write_text('{"terms": ["a"'),
    "a term too few": lambda folder: change_json(folder, terms=["a", "b"]),
    "no slope": lambda folder: change_json(folder, slope=None),
    "not a number": lambda folder: change_tensors(folder, lambda t: t | {"bias": t["bias"] * np.nan}),
    "a tensor too few": lambda folder: change_tensors(folder, lambda t: {"bias": t["bias"]}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_refused(saved, tmp_path, damage):
    folder = shutil.copytree(saved, tmp_path / "copy")
    DAMAGE[damage](folder)
    with pytest.raises(AdapterError, match=r"tfidf\.(json|safetensors)"):
        load(folder)


@pytest.mark.parametrize("classes", [2, 30])
def test_its_bytes_are_what_it_takes_in_memory(classes, tmp_path):
    terms = tuple(f"word{number}" + " of two" * (number % 3) for number in range(20_000))
    random = np.random.default_rng(0)
    weights = random.random(len(terms)), random.random((classes, len(terms))), random.random(classes)
    Tfidf(TfidfOptions(), terms, *weights).save(tmp_path)
    load(tmp_path).logits(["word1"])  # imports
    tracemalloc.start()
    try:
        found = load(tmp_path)
        found.logits(["word1"])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.num_bytes == pytest.approx(taken, rel=0.05)
