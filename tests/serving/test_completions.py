"""Texts that go on from prompts over HTTP, beside what transformers generates from each prompt alone."""

import asyncio
import json
import time

import httpx
import pytest
import torch
from transformers import GenerationConfig

from foretoken.client import AsyncClient, Client, ServerError, Writing
from foretoken.serving.completion import Complete
from foretoken.serving.engine import Engine, Limits, Request
from foretoken.serving.generation import Continuation, Sampling
from foretoken.serving.http.settings import ServerSettings
from foretoken.serving.tasks import Document

from support.served import make_store, serving
from support.served_decoders import alone, save_decoder_adapters
from support.tiny_generation import tokenizer_of

PROMPTS = ["word1", "word2 word3 word4 word5 word6", "word7 copy word8", "subject word9 word0 word1"]
GREEDY = {"max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def decoders(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    return request.param, *save_decoder_adapters(root, request.param)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return "gpt2", *save_decoder_adapters(tmp_path_factory.mktemp("gpt2"), "gpt2")


@pytest.fixture(scope="module")
def server(gpt2):
    store = make_store(*gpt2[1:3])
    settings = ServerSettings(sources={}, limits=Limits(new_tokens=40))
    with (
        serving(store, settings=settings) as (address, service),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        client.service = service
        client.family, client.models = gpt2[0], gpt2[3]
        yield client


def expected(server, name, prompt, count=6, stop=()):
    """The text that transformers writes by itself, cut at the texts that end it, and how many tokens it has."""
    tokenizer = tokenizer_of(server.family)
    ids = tokenizer(prompt)["input_ids"]
    found = alone(server.models[name], ids, max_new_tokens=count, eos_token_id=2).sequences[0]
    whole, before = tokenizer.decode(found, skip_special_tokens=True), tokenizer.decode(ids, skip_special_tokens=True)
    text = whole[len(before) :]
    return text[: min([text.find(end) for end in stop if end in text], default=len(text))], len(found) - len(ids)


def ok(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_rows_of_one_batch_with_prefixes_of_their_own_are_what_each_is_alone(decoders):
    family, model, folders, models = decoders
    bank = make_store(model, folders).bank.together
    names = ["long", "__base__", "short", "lora", "wide", "short"]
    tokenizer = tokenizer_of(family)
    ids = [tokenizer(PROMPTS[number % 4])["input_ids"] for number in range(len(names))]
    width = max(map(len, ids))
    rows = torch.tensor([[0] * (width - len(one)) + one for one in ids])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in ids])
    settings = GenerationConfig(max_new_tokens=6, pad_token_id=0, output_logits=True, return_dict_in_generate=True)
    found = bank.generate(rows, mask, adapter_names=keys_of(bank, names), generation_config=settings)
    for row, name in enumerate(names):
        own = alone(models["model" if name == "__base__" else name], ids[row], max_new_tokens=6, eos_token_id=None)
        assert torch.equal(found.sequences[row, width:], own.sequences[0, len(ids[row]) :])
        torch.testing.assert_close(found.logits[0][row], own.logits[0][0], atol=1e-5, rtol=1e-5)


def keys_of(bank, names):
    known = {name.partition("@")[0]: name for name in bank.names}
    return [known.get(name, name) for name in names]


def test_every_prompt_is_answered_by_its_own_adapter(server):
    for name in ("short", "long", "wide", "lora", "model"):
        answer = ok(server.post("/v1/completions", json={"model": name, "prompt": PROMPTS, "user": "me"} | GREEDY))
        wanted = [expected(server, name, prompt) for prompt in PROMPTS]
        assert [choice["text"] for choice in answer["choices"]] == [text for text, _ in wanted]
        assert answer["usage"]["completion_tokens"] == sum(count for _, count in wanted)
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + sum(count for _, count in wanted)
        reasons = [
            "length" if count == 6 and not ended(server, name, prompt) else "stop"
            for prompt, (_, count) in zip(PROMPTS, wanted, strict=True)
        ]
        assert [choice["finish_reason"] for choice in answer["choices"]] == reasons
    ids = tokenizer_of(server.family)(PROMPTS[0])["input_ids"]
    given = ok(server.post("/v1/completions", json={"model": "short", "prompt": ids} | GREEDY))
    assert given["choices"][0]["text"] == expected(server, "short", PROMPTS[0])[0]


def ended(server, name, prompt):
    ids = tokenizer_of(server.family)(prompt)["input_ids"]
    return 2 in alone(server.models[name], ids, max_new_tokens=6, eos_token_id=2).sequences[0, len(ids) :].tolist()


def test_requests_of_different_adapters_and_lengths_share_a_batch(gpt2, monkeypatch):
    store = make_store(*gpt2[1:3])
    batches, run = [], store.bank.generate
    monkeypatch.setattr(store.bank, "generate", lambda rows, *given: batches.append(len(rows)) or run(rows, *given))
    with Engine(store) as engine:
        asked = [
            (name, prompt, count) for count in (2, 5) for name in ("short", "long", "lora") for prompt in PROMPTS[:2]
        ]

        def ask(name, prompt, count):
            task = Complete(Sampling(max_tokens=count, temperature=0))
            return engine.submit(Request(name, [Document(prompt)], task))

        alone_each = [ask(*one).result(60)[0] for one in asked]
        engine.call(lambda: time.sleep(0.5))
        together = [ask(*one) for one in asked]
        assert [future.result(60)[0] for future in together] == alone_each
    assert max(batches) > 4
    assert all(item.new_tokens <= count for item, (_, _, count) in zip(alone_each, asked, strict=True))


def test_a_long_prompt_and_a_long_text_run_out_of_no_positions(gpt2, caplog):
    with Engine(make_store(*gpt2[1:3])) as engine:
        asked = [("word1 " * 58, 6), ("word2", 60), ("word3 " * 30, 30)]

        def ask(prompt, count):
            return engine.submit(Request("short", [Document(prompt)], Complete(Sampling(count, temperature=0))))

        alone_each = [ask(*one).result(60)[0] for one in asked]
        engine.call(lambda: time.sleep(0.5))
        together = [ask(*one) for one in asked]
        assert [future.result(60)[0] for future in together] == alone_each
    assert "one by one" not in caplog.text


def test_stop_texts_end_a_text_and_are_left_out(server):
    whole = expected(server, "long", PROMPTS[1], 20)[0]
    words = whole.split()
    stop = f"{words[2]} {words[3]}"
    body = {"model": "long", "prompt": PROMPTS[1], "max_tokens": 20, "temperature": 0, "stop": ["nowhere", stop]}
    choice = ok(server.post("/v1/completions", json=body))["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.find(stop)], "stop")


def test_chance_is_the_rows_own_and_follows_the_temperature(server):
    body = {"model": "wide", "prompt": PROMPTS[:1], "max_tokens": 12, "temperature": 1.5, "seed": 7}
    one = ok(server.post("/v1/completions", json=body))["choices"][0]["text"]
    mixed = ok(server.post("/v1/completions", json=body | {"prompt": [PROMPTS[0], *PROMPTS]}))["choices"]
    assert mixed[0]["text"] == mixed[1]["text"] == one
    others = {ok(server.post("/v1/completions", json=body | {"seed": seed}))["choices"][0]["text"] for seed in range(5)}
    assert len(others) > 2
    likeliest = expected(server, "wide", PROMPTS[0], 12)[0]
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 0}):
        assert ok(server.post("/v1/completions", json=body | narrow))["choices"][0]["text"] == likeliest


def test_a_stream_comes_in_parts_that_are_the_whole_text(server):
    body = {"model": "long", "prompt": PROMPTS, "max_tokens": 8, "temperature": 0}
    whole = ok(server.post("/v1/completions", json=body))
    given = body | {"stream": True, "stream_options": {"include_usage": True}}
    with server.stream("POST", "/v1/completions", json=given) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    parts = [json.loads(line) for line in lines[:-1]]
    texts, reasons = [""] * 4, [None] * 4
    for choice in (choice for part in parts for choice in part["choices"]):
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    assert len(parts) > 8
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole["usage"]


def test_a_client_that_leaves_a_stream_stops_the_text(server, monkeypatch):
    bank, steps = server.service.engine.store.bank, []
    run = bank.together.model.forward
    monkeypatch.setattr(
        bank.together.model, "forward", lambda *a, **k: (steps.append(1), time.sleep(0.1), run(*a, **k))[2]
    )
    body = {"model": "model", "prompt": "word1", "max_tokens": 40, "temperature": 1, "seed": 3, "stream": True}
    with server.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    assert ok(server.post("/v1/completions", json={"model": "short", "prompt": "word1"} | GREEDY))
    assert len(steps) < 35


def test_clients_complete_and_stream(server):
    writing = Writing(max_tokens=6, temperature=0)
    address = str(server.base_url)
    with Client(address) as client:
        whole = client.complete(PROMPTS[:2], model="short", writing=writing)
        parts = list(client.stream(PROMPTS[:2], model="short", writing=writing))
        with pytest.raises(ServerError, match="at most 40 here") as refused:
            list(client.stream("word1", model="short", writing=Writing(max_tokens=41)))
    assert refused.value.status == 413
    assert [choice.text for choice in whole.choices] == [expected(server, "short", text)[0] for text in PROMPTS[:2]]
    assert parts[-1].usage == whole.usage

    async def both():
        async with AsyncClient(address) as client:
            found = await client.complete(PROMPTS[:2], model="short", writing=writing)
            return found, [part async for part in client.stream(PROMPTS[:2], model="short", writing=writing)]

    found, others = asyncio.run(both())
    assert found.choices == whole.choices
    assert [part.choices for part in others[-1:]] == [[]]
    for number in range(2):
        told = (choice.text for part in parts for choice in part.choices if choice.index == number)
        assert "".join(told) == whole.choices[number].text


def test_refusals_have_the_status_of_the_other_routes(server):
    good = {"model": "short", "prompt": "word1"}
    cases = [
        (404, good | {"model": "shrot"}, "did you mean 'short'"),
        (413, good | {"prompt": "word1 " * 60, "max_tokens": 10}, "together"),
        (413, good | {"max_tokens": 41}, "at most 40"),
        (422, good | {"n": 2}, "n: "),
        (422, good | {"best_of": 2}, "best_of"),
        (422, good | {"logprobs": 1}, "logprobs"),
        (422, good | {"echo": True}, "echo"),
        (422, good | {"presence_penalty": 0.5}, "presence_penalty"),
        (422, good | {"repetition_penalty": 1.2}, "repetition_penalty"),
        (422, good | {"logit_bias": {"5": 1.0}}, "logit_bias"),
        (422, good | {"prompt": ""}, "prompt"),
        (422, good | {"temperature": -1}, "temperature"),
    ]
    for status, body, message in cases:
        for stream in (False, True):
            answer = server.post("/v1/completions", json=body | {"stream": stream})
            assert answer.status_code == status, (body, answer.text)
            assert message in answer.json()["error"]["message"]
    classes = server.post("/classify", json={"model": "short", "input": "word1"})
    assert classes.status_code == 422
    assert "ask for completions" in classes.json()["error"]["message"]
    assert ok(server.post("/v1/embeddings", json={"model": "short", "input": "word1"}))["data"]


def test_encoders_and_adapters_of_other_tasks_write_nothing(adapters):
    with serving(make_store(*adapters)) as (address, _), httpx.Client(base_url=address, timeout=60) as client:
        for name, task in (("spam", "classification"), ("names", "token-classification"), ("model", "regression")):
            answer = client.post("/v1/completions", json={"model": name, "prompt": "word1"})
            assert answer.status_code == 422
            assert f"writes no texts: it was trained for {task}" in answer.json()["error"]["message"]
        schema = client.get("/openapi.json").json()
    assert schema["components"]["schemas"]["CompletionRequest"]["examples"]


def test_damaged_numbers_fail_alone(gpt2):
    store = make_store(*gpt2[1:3])
    bank = store.bank.together
    with Engine(store) as engine:
        bad = bank.entries[store.get("long").key]
        with torch.no_grad():
            bad.form.store.values[bad.slot] = torch.nan
        task = Complete(Sampling(max_tokens=4, temperature=0))
        engine.call(lambda: time.sleep(0.3))
        good, damaged = (engine.submit(Request(name, [Document("word1")], task)) for name in ("short", "long"))
        assert good.result(60)[0].new_tokens
        assert "not finite" in str(damaged.exception(60))


def test_texts_are_whole_letters_and_hold_back_what_may_end_them():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {letter: number for number, letter in enumerate(["a", "b", "Ã", "¤", "<e>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    letters = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>")

    def steps(tokens, **options):
        text, found = Continuation(Sampling(**options), frozenset([4]), letters).text_of(), []
        for token in tokens:
            text.add(token)
            found.append((text.text, text.reason))
        return found

    assert steps([0, 2, 3, 4]) == [("a", None), ("a", None), ("aä", None), ("aä", "stop")]
    assert steps([0, 1, 0], stop=("ba",)) == [("a", None), ("a", None), ("a", "stop")]
    assert steps([0, 1, 1], stop=("ba",), max_tokens=3) == [("a", None), ("a", None), ("abb", "length")]
    assert steps([2, 4]) == [("", None), ("\ufffd", "stop")]
