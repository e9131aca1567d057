"""Causal decoders in every way of use: padding, caches, generation, positions, sliding windows, heads."""

import copy

import pytest
import torch
from peft import get_peft_model
from torch.nn import functional
from transformers import CompileConfig, DynamicCache, StaticCache

from foretoken import PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig

from support import tiny
from support.table import CHANGING, EMPTY, ROWS, adapted

FAMILIES = tiny.DECODERS
QUICK = [f if f in ("gpt2", "llama", "mistral") else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES]
SLIDING = ("mistral", "gemma3_text")
CELLS = [(method, family) for family in FAMILIES for method in CHANGING if (method, family) not in EMPTY]
METHODS = ("prefix-propagation", "prefix-tuning", "kernel-propagation", "stack", "stack, of every site")
LENGTHS = (9, 5, 12)
NEW = 5  # tokens: the text grows beyond the window of 4
VARIANTS = {
    "qwen2, sliding window": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, one head per key": ("llama", {"num_key_value_heads": 4}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama, dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    "llama, yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 16,
            }
        },
    ),
}


def causal(family, method, **changes):
    return tiny.shaken(adapted(tiny.model(family, "CAUSAL_LM", **changes), method, task_type="CAUSAL_LM"))


def variant(name, method):
    """Return a decoder whose config differs from the family's usual one, from the start."""
    family, changes = VARIANTS[name]
    values = tiny.CONFIGS[family]().to_dict() | changes
    if "sliding_window" in changes:
        values.pop("layer_types", None)
    torch.manual_seed(1)
    model = tiny.TASKS["CAUSAL_LM"].from_config(type(tiny.CONFIGS[family]())(**values)).eval()
    return tiny.shaken(adapted(model, method, task_type="CAUSAL_LM"))


def documents():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(5, 100, (length,), generator=generator) for length in LENGTHS]


def padded(side):
    """Return the documents as one batch, padded on one side."""
    rows = {"input_ids": [], "attention_mask": []}
    for ids in documents():
        missing = max(LENGTHS) - len(ids)
        pad = (missing, 0) if side == "left" else (0, missing)
        rows["input_ids"].append(functional.pad(ids, pad, value=0))
        rows["attention_mask"].append(functional.pad(torch.ones_like(ids), pad))
    return {name: torch.stack(values) for name, values in rows.items()}


def counted(mask):
    return (mask.cumsum(1) - 1).clamp_min(0)


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits


def generate(model, *args, new=NEW, **kwargs):
    """Return the new tokens (B, N) and the logits they were chosen by, (B, N, V)."""
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "return_dict_in_generate": True}
    out = model.generate(*args, **(options | {"output_logits": True} | kwargs))
    return out.sequences[:, -new:], torch.stack(out.logits, dim=1)


def by_hand(model, inputs, **kwargs):
    """Generate greedily with whole forward passes."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    steps = []
    for _ in range(NEW):
        steps.append(logits(model, input_ids=ids, attention_mask=mask, **kwargs)[:, -1])
        chosen = steps[-1].index_fill(-1, torch.tensor([2]), float("-inf")).argmax(-1, keepdim=True)
        ids, mask = torch.cat([ids, chosen], 1), functional.pad(mask, (0, 1), value=1)
    return ids[:, -NEW:], torch.stack(steps, dim=1)


def assert_same(one, other, atol=3e-5):
    """Compare what :func:`generate` returns."""
    assert torch.equal(one[0], other[0])
    torch.testing.assert_close(one[1], other[1], atol=atol, rtol=2e-5)


@pytest.mark.parametrize(("method", "family"), CELLS)
class TestEveryMethod:
    @pytest.mark.covering
    def test_the_side_of_the_padding_does_not_matter(self, method, family):
        model = causal(family, method)
        for side in ("left", "right"):
            inputs = padded(side)
            for given in (inputs, inputs | {"position_ids": counted(inputs["attention_mask"])}):
                out = logits(model, **given)
                for row, ids in enumerate(documents()):
                    alone = logits(model, input_ids=ids[None])[0]
                    mine = out[row, -len(ids) :] if side == "left" else out[row, : len(ids)]
                    torch.testing.assert_close(mine, alone, atol=3e-5, rtol=2e-5)

    @pytest.mark.covering
    def test_generation_with_and_without_cache_is_the_loop(self, method, family):
        model = causal(family, method)
        inputs = padded("left")
        expected = by_hand(model, inputs)
        assert_same(generate(model, **inputs), expected)
        assert_same(generate(model, **inputs, use_cache=False), expected)
        with model.disable_adapter():
            assert not torch.allclose(generate(model, **inputs)[1], expected[1], atol=1e-3)


@pytest.mark.parametrize("family", QUICK)
@pytest.mark.parametrize("method", METHODS)
class TestGeneration:
    @pytest.mark.covering
    def test_padding_on_the_right(self, method, family):
        """What follows padding is no text that anybody wants, but cache or not is no difference."""
        model = causal(family, method)
        inputs = padded("right")
        expected = generate(model, **inputs, use_cache=False)
        assert_same(generate(model, **inputs), expected)
        assert_same([x[2:] for x in expected], generate(model, documents()[2][None]))

    @pytest.mark.covering
    def test_every_kind_of_cache(self, method, family):
        model = causal(family, method)
        inputs = padded("left")
        expected = by_hand(model, inputs)
        assert_same(generate(model, **inputs, cache_implementation="static"), expected)
        size = max(LENGTHS) + NEW
        caches = (DynamicCache(), DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=size))
        for cache in caches:
            assert_same(generate(model, **inputs, past_key_values=cache), expected)

    @pytest.mark.covering
    def test_a_cache_serves_again_after_a_reset(self, method, family):
        model = causal(family, method)
        ids = documents()[0][None]
        expected = generate(model, ids)
        cache = StaticCache(model.config, max_cache_len=40)
        for _ in range(2):
            assert_same(generate(model, ids, past_key_values=cache), expected)
            cache.reset()

    @pytest.mark.covering
    def test_a_conversation_goes_on_with_its_cache(self, method, family):
        """The second turn's text is several tokens at once, behind those in the cache."""
        model = causal(family, method)
        first, second = documents()[0][None], documents()[1][None]
        cache = DynamicCache()
        turn = torch.cat([first, generate(model, first, past_key_values=cache)[0]], dim=1)
        both = torch.cat([turn, second], dim=1)
        expected = generate(model, both)
        branched = copy.deepcopy(cache)
        assert_same(generate(model, both, past_key_values=cache), expected)
        assert_same(generate(model, both, past_key_values=branched), expected)

    @pytest.mark.covering
    def test_beams(self, method, family):
        model = causal(family, method)
        inputs = padded("left")
        options = {"num_beams": 3, "max_new_tokens": NEW, "min_new_tokens": NEW, "num_return_sequences": 2}
        options |= {"return_dict_in_generate": True, "output_scores": True}
        cached = model.generate(**inputs, **options)
        uncached = model.generate(**inputs, **options, use_cache=False)
        assert torch.equal(cached.sequences, uncached.sequences)
        torch.testing.assert_close(cached.sequences_scores, uncached.sequences_scores, atol=3e-5, rtol=2e-5)
        alone = model.generate(documents()[1][None], **options)
        assert torch.equal(cached.sequences[2:4, -NEW:], alone.sequences[:, -NEW:])
        torch.testing.assert_close(cached.sequences_scores[2:4], alone.sequences_scores, atol=3e-5, rtol=2e-5)

    @pytest.mark.covering
    def test_guesses_that_are_looked_up(self, method, family):
        """Prompt lookup verifies several tokens per step and cuts wrong ones off the cache again."""
        model = causal(family, method)
        ids = documents()[2].repeat(2)[None]
        assert_same(generate(model, ids, prompt_lookup_num_tokens=3), generate(model, ids))

    @pytest.mark.covering
    def test_every_document_has_its_adapter(self, method, family):
        """Greedily and with beams: as with the adapter alone."""
        model = adapted(tiny.model(family, "CAUSAL_LM"), method, task_type="CAUSAL_LM")
        model.add_adapter("other", ROWS[method](task_type="CAUSAL_LM"))
        tiny.shaken(model)
        names, inputs = ["other", "default", "__base__"], padded("left")
        mixed = generate(model, **inputs, adapter_names=names)
        beams = {"num_beams": 2, "max_new_tokens": NEW, "min_new_tokens": NEW}
        mixed_beams = model.generate(**inputs, **beams, adapter_names=names)
        for row, name in enumerate(names[:2]):
            model.set_adapter(name)
            assert_same([x[row] for x in generate(model, **inputs)], [x[row] for x in mixed])
            assert torch.equal(model.generate(**inputs, **beams)[row], mixed_beams[row])
        with model.disable_adapter():
            assert_same([x[2] for x in generate(model, **inputs)], [x[2] for x in mixed])

    def test_half_precision(self, method, family):
        """In bfloat16 the steps with a cache are those of the whole pass, up to its rounding."""
        model = tiny.shaken(
            adapted(tiny.model(family, "CAUSAL_LM").bfloat16(), method, task_type="CAUSAL_LM"), scale=0.1
        )
        inputs = padded("left")
        tokens, steps = generate(model, **inputs)
        assert steps.dtype == torch.float32  # generate's own
        ids = torch.cat([inputs["input_ids"], tokens[:, :-1]], dim=1)
        mask = functional.pad(inputs["attention_mask"], (0, NEW - 1), value=1)
        whole = logits(model, input_ids=ids, attention_mask=mask)
        assert whole.dtype == torch.bfloat16
        assert (whole[:, -NEW:] - steps).abs().max() < 0.1 * steps.abs().max()


class TestAnotherAdapterGoesOnWithACache:
    """The cache holds the text's keys, which in a first layer do not depend on rows; the rows are the new adapter's."""

    def model(self, family):
        changes = {"num_hidden_layers": 1}
        if family == "gemma3_text":
            changes["layer_types"] = ["sliding_attention"]
        model = tiny.model(family, "CAUSAL_LM", **changes)
        model = get_peft_model(model, PrefixPropagationConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
        model.add_adapter("other", PrefixPropagationConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
        return tiny.shaken(model.eval())

    def begun(self, model, ids):
        cache = DynamicCache()
        logits(model, input_ids=ids[:, :-1], past_key_values=cache, use_cache=True)
        return cache

    def step(self, model, ids, cache, **kwargs):
        return logits(model, input_ids=ids[:, -1:], past_key_values=cache, use_cache=True, **kwargs)[:, -1]

    @pytest.mark.parametrize("family", FAMILIES)
    def test_by_set_adapter(self, family):
        model, ids = self.model(family), documents()[0][None]
        cache = self.begun(model, ids)
        model.set_adapter("other")
        expected = logits(model, input_ids=ids)[:, -1]
        torch.testing.assert_close(self.step(model, ids, cache), expected, atol=2e-5, rtol=2e-5)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_by_name(self, family):
        model, ids = self.model(family), torch.stack([documents()[0]] * 2)
        cache = self.begun(model, ids)
        names = ["other", "default"]
        with torch.no_grad():
            expected = model(input_ids=ids, adapter_names=names).logits[:, -1]
        got = self.step(model, ids, cache, adapter_names=names)
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)
        assert not torch.allclose(expected[0], expected[1], atol=1e-3)


@pytest.mark.parametrize("config", [PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig])
def test_s5_generation_goes_on_up_to_the_last_position(config):
    model = get_peft_model(tiny.model("gpt2", "CAUSAL_LM"), config(task_type="CAUSAL_LM", num_virtual_tokens=9)).eval()
    ids = torch.randint(5, 100, (1, 65 - NEW), generator=torch.Generator().manual_seed(2))
    assert generate(model, ids)[0].shape == (1, NEW)


class TestS6SlidingWindows:
    """Every token of every layer sees every row, however far it is and however long the prefix."""

    def model(self, family, config, **changes):
        model = tiny.model(family, "CAUSAL_LM", **changes)
        model.set_attn_implementation("eager")
        return tiny.shaken(get_peft_model(model, config).eval(), scale=0.3)

    @pytest.mark.parametrize("rows", [3, 9])
    @pytest.mark.parametrize("family", SLIDING)
    @pytest.mark.parametrize("config", [PrefixPropagationConfig, PrefixTuningConfig])
    def test_every_token_feels_every_row(self, config, family, rows):
        """The last layer's prefix has no other way to a token's logits than that layer's attention."""
        model = self.model(family, config(task_type="CAUSAL_LM", num_virtual_tokens=rows))
        ids = torch.randint(5, 100, (1, 40), generator=torch.Generator().manual_seed(2))
        last = [p for name, p in model.named_parameters() if ".layers.2." in name and ".foretoken." in name]
        out = model(input_ids=ids).logits[0]
        for token in (0, 3, 4, 20, 39):
            (gradient,) = torch.autograd.grad(out[token].square().sum(), last, retain_graph=True)
            assert gradient.shape[0] == rows
            assert (gradient.abs().amax(-1) > 1e-7).all(), token

    @pytest.mark.parametrize("family", SLIDING)
    def test_rows_see_all_rows_before_them(self, family):
        """With a single token of text the window can only matter to rows that run out of it."""
        config = PrefixPropagationConfig(task_type="CAUSAL_LM", num_virtual_tokens=9)
        narrow = self.model(family, config)
        wide = self.model(family, copy.deepcopy(config), sliding_window=64)
        wide.load_state_dict(narrow.state_dict())
        ids = torch.tensor([[7]])
        torch.testing.assert_close(logits(narrow, input_ids=ids), logits(wide, input_ids=ids), atol=2e-5, rtol=2e-5)


@pytest.mark.covering
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", METHODS)
def test_s7_classification_does_not_depend_on_the_side_of_the_padding(method, family):
    model = tiny.shaken(adapted(tiny.model(family, "SEQ_CLS"), method, task_type="SEQ_CLS"))
    left, right = (logits(model, **padded(side)) for side in ("left", "right"))
    alone = torch.cat([logits(model, input_ids=ids[None]) for ids in documents()])
    torch.testing.assert_close(left, alone, atol=3e-5, rtol=2e-5)
    torch.testing.assert_close(right, alone, atol=3e-5, rtol=2e-5)


@pytest.mark.covering
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning", "stack"])
def test_variants_of_the_config(method, name):
    model = variant(name, method)
    inputs = padded("left")
    expected = by_hand(model, inputs)
    assert_same(generate(model, **inputs), expected)
    for row, ids in enumerate(documents()):
        alone = logits(model, input_ids=ids[None])[0]
        torch.testing.assert_close(logits(model, **inputs)[row, -len(ids) :], alone, atol=3e-5, rtol=2e-5)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("family", [pytest.param("gpt2", marks=pytest.mark.slow), "llama"])
@pytest.mark.parametrize("method", ["prefix-propagation", pytest.param("stack, of every site", marks=pytest.mark.slow)])
def test_steps_with_a_static_cache_compile_without_a_graph_break(method, family):
    """As ``generate`` compiles them on a GPU by itself."""
    model, ids = causal(family, method), documents()[0][None]
    expected = generate(model, ids)
    torch._dynamo.reset()
    compiling = CompileConfig(backend="aot_eager", mode=None, fullgraph=True)
    compiling._compile_all_devices = True
    assert_same(generate(model, ids, cache_implementation="static", compile_config=compiling), expected)
