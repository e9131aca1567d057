"""Encoder-decoders: generation, padding, adapters by document, LED as transformers has it, a naive T5."""

import math

import pytest
import torch
from peft import get_peft_model
from transformers.models.t5.modeling_t5 import T5LayerNorm

from foretoken import AoTPTuningConfig, BitFitConfig, BottleneckAdapterConfig, InducerTuningConfig, StackConfig
from foretoken.backbones.seq2seq import MASK_IN_BIAS
from foretoken.errors import BackboneError, ConfigError
from foretoken.tuner.speed import use_fast_attention

from support import tiny
from support.table import ROWS, adapted

LM = "SEQ_2_SEQ_LM"
GENERATING = ("prefix-propagation", "prefix-tuning", "aot-p-tuning, fc", "stack, of every site")
GREEDY = {"max_new_tokens": 6, "do_sample": False, "no_repeat_ngram_size": 1}  # every step brings another token
BEAMS = GREEDY | {"num_beams": 3}


def language_model(family, method=None, **changes):
    model = tiny.model(family, LM, **changes)
    model.generation_config.eos_token_id = None  # as long as it is told to
    return model if method is None else tiny.shaken(adapted(model, method, task_type=LM))


def documents(family, **options):
    """Return a padded batch without the decoder's part."""
    inputs = tiny.batch(family, LM, labels=False, **options)
    return {name: tensor for name, tensor in inputs.items() if not name.startswith("decoder_")}


def generated(model, inputs, options, **more):
    """Return the tokens, and the logits of each step (or the beams' scores)."""
    out = model.generate(
        **inputs, **options, **more, return_dict_in_generate=True, output_logits=True, output_scores=True
    )
    return out.sequences, torch.stack(out.logits) if "num_beams" not in options else out.sequences_scores


def by_hand(model, inputs, steps):
    """Decode greedily, the whole text anew in each step, no token twice."""
    tokens = torch.full((inputs["input_ids"].shape[0], 1), model.config.decoder_start_token_id)
    for _ in range(steps):
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=tokens, use_cache=False).logits[:, -1]
        best = logits.scatter(1, tokens, float("-inf")).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, best], dim=1)
    return tokens


def close(a, b, atol=2e-5):
    torch.testing.assert_close(a, b, atol=atol, rtol=2e-5)


def close_encoded(a, b, mask, atol=2e-5):
    """Compare the encoder's states of real tokens: LED packs a batch, and those of padding are zeros then."""
    real = mask.bool()
    close(a.encoder_last_hidden_state[real], b.encoder_last_hidden_state[real], atol)


@pytest.mark.parametrize("family", tiny.SEQ2SEQ)
class TestEncoder:
    def test_tokens_are_looked_up_in_the_stack_that_reads_them(self, family):
        config = AoTPTuningConfig(task_type=LM, variant="kronecker", rank=3)
        model = get_peft_model(language_model(family), config).eval()
        inputs = tiny.batch(family, LM, labels=False)
        inputs["input_ids"] = inputs["input_ids"].clamp(max=49)
        inputs["decoder_input_ids"] = inputs["decoder_input_ids"].clamp(min=50)
        inputs["decoder_input_ids"][0] = 49
        tiny.shaken(model)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith(".a"):  # token x has row x div b of A: tokens from 50 on alone keep theirs
                    p[:5] = 0
            changed = model(**inputs)
            with model.disable_adapter():
                frozen = model(**inputs)
        close_encoded(changed, frozen, inputs["attention_mask"])
        close(changed.logits[0], frozen.logits[0])
        assert (changed.logits[1:] - frozen.logits[1:]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("family", tiny.SEQ2SEQ)
class TestGenerate:
    @pytest.mark.covering
    @pytest.mark.parametrize("method", GENERATING)
    def test_decoding_with_and_without_cache_and_by_hand_agree(self, family, method):
        model, inputs = language_model(family, method), documents(family)
        tokens, logits = generated(model, inputs, GREEDY)
        again, logits_again = generated(model, inputs, GREEDY, use_cache=False)
        assert torch.equal(tokens, again)
        close(logits, logits_again)
        assert torch.equal(tokens, by_hand(model, inputs, GREEDY["max_new_tokens"]))
        with model.disable_adapter():
            assert not torch.equal(tokens, generated(model, inputs, GREEDY)[0])
        beams, fresh_beams = generated(model, inputs, BEAMS), generated(model, inputs, BEAMS, use_cache=False)
        assert torch.equal(beams[0], fresh_beams[0])
        close(beams[1], fresh_beams[1])

    @pytest.mark.covering
    @pytest.mark.parametrize("method", GENERATING)
    def test_padding_and_company_never_matter(self, family, method):
        model, inputs = language_model(family, method), documents(family)
        for options in (GREEDY, BEAMS):
            tokens, scores = generated(model, inputs, options)
            own, own_scores = generated(model, tiny.cut(inputs, 1, 14), options)
            assert torch.equal(tokens[1], own[0])
            close(scores[:, 1:2] if options is GREEDY else scores[1:2], own_scores)

    @pytest.mark.covering
    @pytest.mark.parametrize("options", [GREEDY, BEAMS], ids=["greedy", "beams"])
    @pytest.mark.parametrize("method", GENERATING)
    def test_each_document_uses_its_own_adapter(self, family, method, options):
        model, inputs = language_model(family, method), documents(family)
        model.add_adapter("other", ROWS[method](task_type=LM))
        tiny.shaken(model, seed=5)
        names = ["other", "default", "__base__"]
        mixed, scores = generated(model, inputs, options, adapter_names=names)
        for row, name in enumerate(names[:2]):
            model.set_adapter(name)
            tokens, own = generated(model, inputs, options)
            assert torch.equal(mixed[row], tokens[row])
            close(scores[:, row] if options is GREEDY else scores[row], own[:, row] if options is GREEDY else own[row])
        with model.disable_adapter():
            assert torch.equal(mixed[2], generated(model, inputs, options)[0][2])


@pytest.mark.parametrize("family", ["bart", "led"])
class TestTwoEditsOfOneMap:
    """A bias of `fc1` is an edit of its output; a bottleneck adapter goes from its input to the output of `fc2`."""

    def test_in_one_stack(self, family):
        with pytest.raises(ConfigError, match="two members of the stack act at one module in different ways"):
            get_peft_model(language_model(family), StackConfig(configs=[BitFitConfig(), BottleneckAdapterConfig()]))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("t5", {}),
        ("t5", {"feed_forward_proj": "gated-gelu", "is_gated_act": True, "dense_act_fn": "gelu_new", "d_kv": 6}),
        ("bart", {"scale_embedding": True}),
        ("led", {}),
    ],
    ids=["t5", "t5 v1.1", "bart", "led"],
)
class TestNeutral:
    """Inducer-tuning starts at the frozen model, and every attention goes through our functions."""

    def test_outputs_and_generation_are_transformers_own(self, family, changes):
        inputs = tiny.batch(family, LM, labels=False)
        plain = language_model(family, **changes)
        with torch.no_grad():
            expected = plain(**inputs)
            tokens = plain.generate(**documents(family), **BEAMS)
            config = InducerTuningConfig(key_bottleneck_size=3, value_bottleneck_size=2, task_type=LM)
            model = get_peft_model(plain, config).eval()
            out = model(**inputs)
        close(out.logits, expected.logits, atol=1e-5)
        close_encoded(out, expected, inputs["attention_mask"], atol=1e-5)
        assert torch.equal(model.generate(**documents(family), **BEAMS), tokens)


class TestPartsOfAModel:
    @pytest.mark.parametrize("family", ["bart", "led"])
    @pytest.mark.parametrize("name", ["encoder_layerdrop", "decoder_layerdrop"])
    def test_dropping_whole_layers_is_refused(self, family, name):
        plain = tiny.model(family, LM, **{name: 0.1})
        with pytest.raises(BackboneError, match=rf"{name} is 0\.1.*{name}=0\.0"):
            adapted(plain, "prefix-propagation", task_type=LM)
        assert not any("foretoken" in key for module in plain.modules() for key in module.__dict__)


class TestLed:
    def batch(self, length):
        torch.manual_seed(length)
        mask = torch.ones(3, length, dtype=torch.long)
        mask[1, length - 5 :] = 0
        everywhere = torch.zeros_like(mask)
        everywhere[0, [0, 3, length - 1]] = 1
        everywhere[1, [0]] = 1
        return {
            "input_ids": torch.randint(5, 100, (3, length)),
            "attention_mask": mask,
            "global_attention_mask": everywhere,
            "decoder_input_ids": torch.randint(5, 100, (3, 6)),
            "labels": torch.randint(5, 100, (3, 6)),
        }

    @pytest.mark.parametrize("length", [9, 16, 30, 63])
    def test_without_adapter_it_is_transformers_own(self, length):
        inputs, found = self.batch(length), []
        for fast in (False, True):
            model = tiny.model("led", LM)
            if fast:
                use_fast_attention(model)
            out = model(**inputs)
            out.loss.backward()
            found.append((out, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
        (theirs, their_gradients), (ours, our_gradients) = found
        close(ours.logits, theirs.logits, atol=1e-5)
        close_encoded(ours, theirs, inputs["attention_mask"], atol=1e-5)
        assert our_gradients.keys() == their_gradients.keys()
        for name, gradient in their_gradients.items():
            assert (our_gradients[name] - gradient).abs().max() <= 1e-5 * max(1, gradient.abs().max()), name

    def test_attention_maps_are_refused(self):
        with pytest.raises(BackboneError, match="does not return attention maps"):
            language_model("led", "prefix-tuning")(**tiny.batch("led", LM), output_attentions=True)


def bucket(distance, *, buckets, farthest, both_ways):
    """Return T5's bucket of a distance ``key - query`` (Raffel et al. 2020, section 2.1)."""
    start = 0
    if both_ways:
        buckets //= 2
        start, distance = (buckets if distance > 0 else 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return start + distance
    far = exact + int(math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact))
    return start + min(far, buckets - 1)


def naive_attention(module, queries, keys, *, rows, causal, prefix=None):
    """(N, D) and (M, D) -> (N, D), one query and head at a time; the first ``rows`` of both have no position."""
    heads, width = module.n_heads, module.key_value_proj_dim
    q, k, v = (
        (x @ linear.weight.T).view(-1, heads, width)
        for x, linear in ((queries, module.q), (keys, module.k), (keys, module.v))
    )
    out = torch.zeros(len(queries), heads, width, dtype=queries.dtype)
    for h in range(heads):
        for i in range(len(queries)):
            scores, values = [], []
            for j in range(len(keys)):
                if causal and j > i:
                    continue
                bias = 0.0
                if module.has_relative_attention_bias and i >= rows and j >= rows:
                    number = bucket(
                        j - i,
                        buckets=module.relative_attention_num_buckets,
                        farthest=module.relative_attention_max_distance,
                        both_ways=not causal,
                    )
                    bias = module.relative_attention_bias.weight[number, h]
                scores.append(q[i, h] @ k[j, h] + bias)
                values.append(v[j, h])
            if prefix is not None:
                prefix_keys, prefix_values = prefix.view(-1, 2, heads, width).unbind(1)
                scores.extend(q[i, h] @ key for key in prefix_keys[:, h])
                values.extend(prefix_values[:, h])
            weights = torch.stack(scores).exp()
            out[i, h] = (weights / weights.sum()) @ torch.stack(values)
    return out.flatten(1) @ module.o.weight.T


def norm(module, x):
    return x * (x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt() * module.weight


def naive_stack(stack, text, *, rows=None, states=None, prefixes=False):
    """One-layer stack: (N, D) embeddings -> (N, D); ``rows`` (P, D) stand in front, ``states`` are the encoder's."""

    def attend(module, queries, keys, **options):
        prefix = module.foretoken["default"].prefix.weight if prefixes else None
        return naive_attention(module, queries, keys, prefix=prefix, **options)

    (block,) = stack.block
    front = 0 if rows is None else len(rows)
    x = text if rows is None else torch.cat([rows, text])
    own = block.layer[0]
    normed = norm(own.layer_norm, x)
    x = x + attend(own.SelfAttention, normed, normed, rows=front, causal=states is not None)
    if states is not None:
        normed = norm(block.layer[1].layer_norm, x)
        x = x + attend(block.layer[1].EncDecAttention, normed, states, rows=0, causal=False)
    feed_forward = block.layer[-1]
    inner = (norm(feed_forward.layer_norm, x) @ feed_forward.DenseReluDense.wi.weight.T).clamp(min=0)
    return norm(stack.final_layer_norm, x + inner @ feed_forward.DenseReluDense.wo.weight.T)[front:]


@pytest.mark.parametrize("method", ["prefix-propagation", "prefix-tuning"])
def test_t5_is_what_it_is_written_down_as(method, monkeypatch):
    """Rows have bias 0 with everything in the encoder and see only rows in the decoder; a prefix has no bias."""
    monkeypatch.setattr(T5LayerNorm, "forward", norm)  # transformers' own takes the mean in float32
    # where an attention has no adapter, the older T5 takes its own softmax, in float32
    exact = 1e-6 if MASK_IN_BIAS and method == "prefix-propagation" else 1e-10
    plain = tiny.model("t5", "FEATURE_EXTRACTION", num_layers=1, num_decoder_layers=1).double()
    model = tiny.shaken(adapted(plain, method))
    t5, rows = model.get_base_model(), method == "prefix-propagation"
    ids, decoder_ids = torch.randint(5, 100, (1, 12)), torch.randint(5, 100, (1, 7))
    with torch.no_grad():
        out = model(input_ids=ids, decoder_input_ids=decoder_ids)
        states = None
        for stack, tokens, found in (
            (t5.encoder, ids, out.encoder_last_hidden_state),
            (t5.decoder, decoder_ids, out.last_hidden_state),
        ):
            front = stack.block[0].foretoken["default"].prefix.weight if rows else None
            expected = naive_stack(stack, t5.shared(tokens[0]), rows=front, states=states, prefixes=not rows)
            torch.testing.assert_close(found[0], expected, atol=exact, rtol=exact)
            states = expected
