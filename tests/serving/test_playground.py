"""The page at / in a browser: desktop and phone, light and dark."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from foretoken.serving.http.settings import ServerSettings
from foretoken.training.baseline.options import TfidfOptions
from foretoken.training.baseline.tfidf import Tfidf

from support.served import make_store, serving
from support.served_questions import ASKED, CHOSEN, save

CHROMIUM = Path("/usr/bin/chromium")
VIEWS = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as runner:
        browser = runner.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """A server that answers questions and chooses."""
    card = {"question_answering": {"max_answer_tokens": 4}}
    adapters = {
        "asked": ("prefix-tuning", "QUESTION_ANS", {}, ASKED | {"no_answer": False, "recipe": card}),
        "chosen": ("prefix-tuning", "SEQ_CLS", {"num_labels": 1}, CHOSEN),
    }
    with serving(make_store(*save(tmp_path_factory.mktemp("questions"), "bert", adapters))) as (address, _):
        yield address


@contextmanager
def opened(browser, address, view, scheme):
    """A page that raises no error and fits its window."""
    context, problems = browser.new_context(viewport=VIEWS[view], color_scheme=scheme), []
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    page.locator("#adapter option").nth(1).wait_for(state="attached")
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert not problems
    context.close()


def send(page, until, **fields):
    """Fill in fields, send, and wait for the answer."""
    for name, value in fields.items():
        page.locator(f"#{name}").fill(value)
    page.locator("#send").click()
    page.locator(until).first.wait_for()


@pytest.mark.parametrize(("view", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_the_page_predicts(server, browser, view, scheme):
    with opened(browser, str(server.base_url), view, scheme) as page:
        choose = page.locator("#adapter")
        assert page.locator("#about").inner_text() == "classification, calibrated, reads 64 tokens at a time"

        send(page, ".bar", text="word1 lunch " * 60)
        expected = server.post("/classify", json={"model": "spam", "input": "word1 lunch " * 60}).json()["data"][0]
        shown = [text.split()[0] for text in page.locator(".bar .value").all_inner_texts()]
        assert shown == [f"{100 * value:.1f}" for value in sorted(expected["probs"], reverse=True)]
        assert "64 tokens read; the rest of the text was cut off" in page.locator("#result").inner_text()

        send(page, ".error", limit="0.1")
        refused = server.post("/classify", json={"model": "spam", "input": "word1", "max_error": 0.1}).json()["error"]
        assert page.locator(".error").inner_text() == refused["message"]
        page.locator("#limit").fill("")

        choose.select_option("names")
        text = "\U0001f600 lunch word1 <b>prize</b>"
        send(page, ".text", text=text)
        found = server.post("/models/names", json={"inputs": text}).json()
        marked = page.locator(".text mark").all_inner_texts()
        letters = list(text)
        assert marked == ["".join(letters[item["start"] : item["end"]]) + item["entity_group"] for item in found]

        choose.select_option("topics")
        assert page.locator("#about").inner_text().startswith("multi-label-classification, calibrated")
        send(page, ".bar", text="word1 lunch")
        (row,) = server.post("/classify", json={"model": "topics", "input": "word1 lunch"}).json()["data"]
        assert page.locator(".bar.best .name").all_inner_texts() == row["labels"]
        likeliest = sorted(range(90), key=lambda number: -row["probs"][number])[:10]
        assert page.locator(".bar").count() == len({*row["labels"], *(f"topic {number}" for number in likeliest)})
        first = int(row["labels"][0].split()[1])  # the name is "topic N", its threshold 0.4 + N / 300
        assert f"from {40 + first / 3:.1f} %" in page.locator(".bar.best .value").first.inner_text()

        choose.select_option("rare")
        page.locator("#send").click()
        page.locator(".bar.best", has_text="refund").wait_for()
        assert page.locator(".bar").count() == 2

        choose.select_option("stars")
        send(page, ".error", text="   ")
        assert "the document is empty" in page.locator(".error").inner_text()


@pytest.mark.parametrize(("view", "scheme"), [("desktop", "dark"), ("phone", "light")])
def test_the_page_asks(questions, browser, view, scheme):
    with opened(browser, questions, view, scheme) as page:
        choose = page.locator("#adapter")
        text = "word1 \U0001f600 lunch word2"
        with httpx.Client(base_url=questions) as client:
            found = client.post("/models/asked", json={"inputs": {"question": "word3", "context": text}}).json()
            given = {"text": "word3", "choices": ["word1", "lunch word2"]}
            chosen = client.post("/models/chosen", json={"inputs": given}).json()
        choose.select_option("asked")
        send(page, ".text mark", question="word3", text=text)
        assert page.locator(".text mark").inner_text() == found["answer"]
        assert page.locator(".text").inner_text() == text

        choose.select_option("chosen")
        assert page.locator("#what").inner_text() == "Choices, one a line"
        send(page, ".bar", text="word1\n\nlunch word2\n")
        shown = [text.split()[0] for text in page.locator(".bar .value").all_inner_texts()]
        assert shown == [f"{100 * value:.1f}" for value in chosen["probabilities"]]
        assert page.locator(".bar.best .name").inner_text() == chosen["choice"]


def test_the_page_marks_what_an_answer_rests_on(adapters, browser):
    settings = ServerSettings(port=0, explain=64)
    with (
        serving(make_store(*adapters), settings=settings) as (address, _),
        opened(browser, address, "phone", "dark") as page,
    ):
        text = "\U0001f600 lunch word1 <b>prize</b>"
        page.locator("#text").fill(text)
        page.locator("#why").check()
        page.locator("#send").click()
        page.locator(".text mark").first.wait_for()
        body = {"model": "spam", "input": text, "explain": True}
        (item,) = httpx.post(f"{address}/classify", json=body, timeout=60).json()["data"]
        letters = list(text)
        spans = sorted((span["start"], span["end"], span["score"] > 0) for span in item["evidence"])
        assert page.locator(".text mark").all_inner_texts() == ["".join(letters[a:b]) for a, b, _ in spans]
        assert page.locator(".text mark.for").count() == sum(is_for for _, _, is_for in spans)
        assert page.locator(".text").inner_text() == text
        assert page.locator(".bar").count() == 2
        page.locator("#adapter").select_option("names")
        assert page.locator("#why").is_hidden()


def test_the_page_says_that_words_are_beside_and_which(adapters, browser, tmp_path):
    folder = shutil.copytree(adapters[1]["spam"], tmp_path / "spam")
    card = json.loads((folder / "foretoken.json").read_text())
    (folder / "foretoken.json").write_text(json.dumps(card | {"recipe": {"words": True}}))
    (folder / "words").mkdir()
    weights = np.ones(2), np.array([[-9.0, 0.0], [9.0, 0.0]]), np.zeros(2)
    Tfidf(TfidfOptions(), ("lunch", "prize"), *weights).save(folder / "words")
    store = make_store(adapters[0], {"spam": folder, "topic": adapters[1]["topic"]})
    settings = ServerSettings(port=0, explain=64)
    with serving(store, settings=settings) as (address, _), opened(browser, address, "desktop", "light") as page:
        about = page.locator("#about").inner_text()
        assert about.endswith("reads 64 tokens at a time, TF-IDF of the words beside it")
        page.locator("#text").fill("word1 lunch")
        page.locator("#why").check()
        page.locator("#send").click()
        assert page.locator(".words").inner_text() == "TF-IDF beside the model: lunch +9.0"
