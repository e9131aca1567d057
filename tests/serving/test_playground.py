"""The page at / in a browser: desktop and phone, light and dark."""

import os
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOTS = os.environ.get("FORETOKEN_SCREENSHOTS")  # a folder, to look at what the page looks like
VIEWS = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as runner:
        browser = runner.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


def shoot(page, name):
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)


@pytest.mark.parametrize(("view", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_the_page_predicts(server, browser, view, scheme):
    context = browser.new_context(viewport=VIEWS[view], color_scheme=scheme)
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(str(server.base_url))
    choose = page.locator("#adapter")
    choose.locator("option").nth(3).wait_for(state="attached")
    assert page.locator("#about").inner_text() == "classification, calibrated, reads 64 tokens at a time"
    shoot(page, f"{view}-{scheme}-empty")

    page.locator("#text").fill("word1 lunch " * 60)
    page.locator("#send").click()
    page.locator(".bar").first.wait_for()
    expected = server.post("/classify", json={"model": "spam", "input": "word1 lunch " * 60}).json()["data"][0]
    shown = [text.split()[0] for text in page.locator(".bar .value").all_inner_texts()]
    assert shown == [f"{100 * value:.1f}" for value in sorted(expected["probs"], reverse=True)]
    assert "64 tokens read; the rest of the text was cut off" in page.locator("#result").inner_text()
    shoot(page, f"{view}-{scheme}-classes")

    choose.select_option("names")
    text = "\U0001f600 lunch word1 <b>prize</b>"
    page.locator("#text").fill(text)
    page.locator("#send").click()
    page.locator(".text").wait_for()
    found = server.post("/models/names", json={"inputs": text}).json()
    marked = page.locator(".text mark").all_inner_texts()
    letters = list(text)
    assert marked == ["".join(letters[item["start"] : item["end"]]) + item["entity_group"] for item in found]
    shoot(page, f"{view}-{scheme}-entities")

    choose.select_option("stars")
    page.locator("#text").fill("   ")
    page.locator("#send").click()
    page.locator(".error").wait_for()
    assert "the document is empty" in page.locator(".error").inner_text()
    shoot(page, f"{view}-{scheme}-error")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert not problems
    context.close()
