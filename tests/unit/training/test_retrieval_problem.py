"""The loss of retrieval beside plain loops and sentence-transformers', batches, rankings, and adapters of queries."""

import math

import numpy as np
import pytest
import torch
from peft import get_peft_model

from foretoken import PrefixPropagationConfig
from foretoken.data.examples import RetrievalExample
from foretoken.data.problems import RETRIEVAL
from foretoken.data.schemas import table
from foretoken.inference.retrieval import search
from foretoken.training.problems import make_problem
from foretoken.training.problems.base import FILL
from foretoken.training.problems.retrieval import ranked, ranking_loss
from foretoken.training.recipe.recipe import RetrievalOptions
from foretoken.training.tokens.encode import EncodeSettings, TokenRules, padded

from support import tiny
from support.tiny_run import make_tokenizer

ROWS = [
    RetrievalExample("a", "word1 word2", ("word3 word4", "word5"), ("word6",), "made"),
    RetrievalExample("b", "word7", ("word5",), (), "made"),
    RetrievalExample("c", "word8 word9 word10", ("word11",), ("word3 word4", "word12"), "made"),
]
TABLE = table(RETRIEVAL, ROWS, [])
TOKENIZER = make_tokenizer()
SETTINGS = EncodeSettings(TOKENIZER, 64, TokenRules())


def batch_of(problem, split, columns=None):
    found = problem.encode(split, SETTINGS)[0] | (columns or {})
    rows = [{name: values[row] for name, values in found.items()} for row in range(len(split))]
    return problem.collator(TOKENIZER, None)(rows)


def naive_loss(texts, right, vectors, scale):
    """One softmax per query, over the passages of all rows that do not answer it, in float64."""
    total = 0.0
    for row, (query, *passages) in enumerate(texts):

        def similarity(text, query=query):
            a, b = vectors[query], vectors[text]
            return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))

        own = similarity(passages[0])
        others = [text for _, *found in texts for text in found if text not in right[row]]
        total += math.log(sum(math.exp(scale * similarity(text)) for text in others) + math.exp(scale * own))
        total -= scale * own
    return total / len(texts)


def test_the_loss_leaves_out_what_answers_the_query_too():
    problem = make_problem(RETRIEVAL, [])
    split = problem.training_rows(TABLE)
    assert split["id"][:] == ["a/0", "a/1", "b/0", "c/0"]
    columns, _ = problem.encode(split, SETTINGS)
    texts = [[row["query"], *row["passages"], *row["negatives"]] for row in split.to_list()]
    right = [set(row["passages"]) | set(row["others"]) for row in split.to_list()]
    assert right[0] == right[1] == {"word3 word4", "word5"}  # word5 is b's passage, and none of a's negatives
    chance = np.random.default_rng(0)
    vectors = {text: chance.normal(size=8) for row in texts for text in row}
    width = max(map(len, texts))
    rows = torch.zeros(len(texts), width, 8, dtype=torch.float64)
    for number, row in enumerate(texts):
        rows[number, : len(row)] = torch.tensor(np.stack([vectors[text] for text in row]))
    loss = ranking_loss(rows, padded(columns["labels"], FILL), padded(columns["others"], FILL), scale=7.0)
    assert float(loss) == pytest.approx(naive_loss(texts, right, vectors, 7.0), abs=1e-5)


def test_without_repeated_passages_the_loss_is_multiple_negatives_ranking():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 4, 8, generator=chance)  # a query, its passage, two negatives
    labels = torch.tensor([[1, row, 10 + row, 20 + row] for row in range(5)])
    found = ranking_loss(rows, labels, torch.empty(5, 0, dtype=torch.long), scale=20.0)
    theirs = losses.MultipleNegativesRankingLoss(torch.nn.Identity())
    expected = theirs.compute_loss_from_embeddings([rows[:, place] for place in range(4)], None)
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_a_row_has_the_vectors_of_its_texts_whatever_stands_beside_them():
    problem = make_problem(RETRIEVAL, [])
    model = tiny.model("bert", "FEATURE_EXTRACTION", vocab_size=len(TOKENIZER)).eval()
    with torch.no_grad():
        _, rows = problem.forward(model, batch_of(problem, TABLE))
        for number, example in enumerate(ROWS):
            for place, text in enumerate((example.query, *example.passages, *example.negatives)):
                states = model(**TOKENIZER(text, return_tensors="pt")).last_hidden_state
                torch.testing.assert_close(rows[number, place], states[0].mean(0), atol=1e-5, rtol=1e-5)
    assert (rows[1, 2:] == FILL).all()


def test_rankings_are_of_all_passages_of_the_split():
    problem = make_problem(RETRIEVAL, [])
    labels = padded(problem.encode(TABLE, SETTINGS)[0]["labels"], FILL).numpy()
    numbers = {"word3 word4": 0, "word5": 1, "word11": 2, "word6": 3, "word12": 4}
    chance = np.random.default_rng(1)
    vectors = {text: chance.normal(size=6).astype(np.float32) for text in (*numbers, *TABLE["query"][:])}
    logits = np.full((*labels.shape, 6), FILL, dtype=np.float32)
    for row, example in enumerate(ROWS):
        for place, text in enumerate((example.query, *example.passages, *example.negatives)):
            logits[row, place] = vectors[text]
    outputs, right = problem.decode(logits, labels)
    assert right == [[0, 1], [1], [2]] == problem.labels_of(TABLE)
    for example, found in zip(ROWS, outputs, strict=True):
        query = vectors[example.query]
        cosines = {number: float(query @ vectors[t] / np.sqrt((query @ query) * (vectors[t] @ vectors[t])))
                   for t, number in numbers.items()}  # fmt: skip
        assert found.numbers == sorted(cosines, key=cosines.__getitem__, reverse=True)
        assert found.scores == pytest.approx(sorted(cosines.values(), reverse=True), abs=1e-6)


def test_an_adapter_of_queries_leaves_passages_as_the_pretrained_model_has_them():
    problem = make_problem(RETRIEVAL, [], retrieval=RetrievalOptions(adapt="queries"))
    plain = tiny.model("bert", "FEATURE_EXTRACTION", vocab_size=len(TOKENIZER)).eval()
    inputs = batch_of(problem, TABLE)
    with torch.no_grad():
        _, frozen = problem.forward(plain, inputs)
    config = PrefixPropagationConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    model = tiny.shaken(get_peft_model(plain, config)).eval()
    with torch.no_grad(), problem.reading_passages(model):
        torch.testing.assert_close(problem.forward(model, inputs)[1], frozen)
    whole = problem.encode(TABLE, SETTINGS)[0]["sequences"]
    vectors = frozen[:, 1:].numpy()
    documents = [vectors[row, : len(texts) - 1] for row, texts in enumerate(whole)]
    given = batch_of(problem, TABLE, {"sequences": [texts[:1] for texts in whole], "documents": documents})
    loss, rows = problem.forward(model, given)
    torch.testing.assert_close(rows[:, 1:].detach(), frozen[:, 1:])
    assert (rows[:, 0] - frozen[:, 0]).abs().max() > 1e-2
    loss.backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if ".foretoken." in name)


def test_usearch_finds_what_looking_at_all_passages_finds():
    pytest.importorskip("usearch")
    chance = np.random.default_rng(2)
    passages = chance.normal(size=(400, 16)).astype(np.float32)
    queries = passages[:20] + 0.1 * chance.normal(size=(20, 16)).astype(np.float32)
    exact = ranked(queries, passages, top=5)
    assert [one.numbers[0] for one in exact] == list(range(20))
    for some in (queries, queries[:1]):
        found = search(some, passages, "usearch", top=5)
        assert [one.numbers for one in found] == [one.numbers for one in exact[: len(some)]]
        assert np.allclose([one.scores for one in found], [one.scores for one in exact[: len(some)]], atol=1e-5)
