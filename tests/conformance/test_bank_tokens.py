"""Trained embeddings of tokens in a bank: each document reads and writes with its own adapter's, new ones included."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from foretoken import AdapterBank, PrefixPropagationConfig, PrefixTuningConfig
from foretoken.errors import AdapterError, BackboneError

from support import tiny

TABLES = {"gpt2": None, "gemma3_text": None, "llama": {"model.embed_tokens": 0, "lm_head": 0}}  # None: tied
MAPS = {"gpt2": ["c_attn"], "llama": ["q_proj"], "gemma3_text": ["q_proj"]}
OWN = {  # by adapter: tokens that the model has, and how many new ones
    "old": ([7, 9], 0),
    "new": ([], 2),
    "both": ([7, 30], 3),
    "lora": ([9], 1),
}


def base_of(family):
    return tiny.model(family, "CAUSAL_LM")


def adapted(family, name, size):
    """Return a model of its own with an adapter that trains tokens, and how large its vocabulary is."""
    known, new = OWN[name]
    model = copy.deepcopy(base_of(family))
    if new:
        model.resize_token_embeddings(size + new, mean_resizing=False)
    tokens = [*known, *range(size, size + new)]
    given = {"trainable_token_indices": tokens if TABLES[family] is None else dict.fromkeys(TABLES[family], tokens)}
    if name == "lora":
        fan = {"fan_in_fan_out": family == "gpt2"}
        config = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=MAPS[family], **fan, **given)
    else:
        kind = PrefixTuningConfig if name == "old" else PrefixPropagationConfig
        config = kind(task_type="CAUSAL_LM", num_virtual_tokens=2, prefix_dropout=0.0, **given)
    model = get_peft_model(model, config).eval()
    tiny.shaken(model, scale=0.3, seed=len(name))
    generator = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "trainable_tokens_delta" in path:
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def state_of(model):
    return get_peft_model_state_dict(model, save_embedding_layers=False)


def prompts(size):
    """Return a document for each adapter, with its own tokens in it, and one for the model alone."""
    ids = torch.randint(5, 60, (len(OWN) + 1, 8), generator=torch.Generator().manual_seed(2))
    for row, (known, new) in enumerate(OWN.values()):
        own = [*known, *range(size, size + new)]
        ids[row, 1 : 1 + len(own)] = torch.tensor(own)
    return ids


@pytest.fixture(params=["gpt2", pytest.param("gemma3_text", marks=pytest.mark.slow), "llama"])
def filled(request):
    """A bank with all adapters, the models that each of them is in, and the size of the vocabulary."""
    base = base_of(request.param)
    size = base.get_input_embeddings().weight.shape[0]
    models, bank = {name: adapted(request.param, name, size) for name in OWN}, AdapterBank(base)
    for name, model in models.items():
        bank.add(name, model.peft_config["default"], state_of(model))
    return bank, models | {"__base__": base_of(request.param)}, size


def test_logits_are_those_of_each_model_by_itself(filled):
    bank, models, size = filled
    ids, names = prompts(size), [*OWN, "__base__"]
    with torch.no_grad():
        found = bank(ids, adapter_names=names).logits
        for row, name in enumerate(names):
            expected = models[name](input_ids=ids[row : row + 1]).logits[0]
            torch.testing.assert_close(found[row][:, : expected.shape[1]], expected, rtol=1e-5, atol=2e-5)
            assert (found[row][:, expected.shape[1] :] < -1e30).all()  # other adapters' tokens


def test_texts_are_those_of_each_model_by_itself(filled):
    bank, models, size = filled
    ids, names = prompts(size), [*OWN, "__base__"]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    with torch.no_grad():
        found = bank.generate(ids, torch.ones_like(ids), adapter_names=names, **options)
        for row, name in enumerate(names):
            own = models[name].generate(input_ids=ids[row : row + 1], attention_mask=torch.ones(1, 8).long(), **options)
            assert found[row].tolist() == own[0].tolist(), name


def test_beams_have_their_documents_tokens(filled):
    bank, models, size = filled
    ids = prompts(size)[[1, 2]]
    options = {"max_new_tokens": 4, "num_beams": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": -1}
    with torch.no_grad():
        found = bank.generate(ids, torch.ones_like(ids), adapter_names=["new", "both"], **options)
        for row, name in enumerate(("new", "both")):
            own = models[name].generate(input_ids=ids[row : row + 1], attention_mask=torch.ones(1, 8).long(), **options)
            assert found[row].tolist() == own[0].tolist()


def test_hidden_states_are_those_of_each_model_by_itself(filled):
    bank, models, size = filled
    ids, names = prompts(size), [*OWN, "__base__"]
    with torch.no_grad():
        found = bank.hidden_states(ids, adapter_names=names)
        for row, name in enumerate(names):
            inner = models[name] if name == "__base__" else models[name].get_base_model()
            expected = inner.base_model(input_ids=ids[row : row + 1]).last_hidden_state[0]
            torch.testing.assert_close(found[row], expected, rtol=1e-5, atol=2e-5)


def test_a_token_that_a_documents_adapter_does_not_have_is_refused(filled):
    bank, _, size = filled
    for name, token in (("old", size), ("new", size + 2), ("__base__", size)):
        with pytest.raises(AdapterError, match=f"no token {token}: the model has {size}"):
            bank(torch.tensor([[5, token]]), adapter_names=[name])
    assert bank(torch.tensor([[5, 6]]), adapter_names=["__base__"]).logits[0].shape == (2, size)


def test_the_model_outside_of_the_bank_is_as_it_was(filled):
    bank, models, _ = filled
    ids = torch.tensor([[5, 7, 9]])
    with torch.no_grad():
        torch.testing.assert_close(bank.model(input_ids=ids).logits, models["__base__"](input_ids=ids).logits)


def test_adapters_with_other_tokens_share_a_form(filled):
    bank, _, _ = filled
    assert bank.entries["new"].form is bank.entries["both"].form
    assert bank.info("both").bytes > bank.info("new").bytes


@pytest.mark.parametrize("family", ["bert", pytest.param("longformer", marks=pytest.mark.slow)])
def test_encoders_read_their_own_tokens(family):
    ids = torch.randint(5, 60, (3, 8), generator=torch.Generator().manual_seed(2))
    ids[:2, 2:4] = torch.tensor([7, 9])
    bank, expected = AdapterBank(tiny.model(family, "SEQ_CLS").base_model), []
    for seed, tokens in enumerate(([7, 9], [9])):
        config = PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2, trainable_token_indices=tokens)
        model = get_peft_model(tiny.model(family, "SEQ_CLS"), config).eval()
        tiny.shaken(model, scale=0.3, seed=seed)
        bank.add(f"a{seed}", config := model.peft_config["default"], state_of(model))
        with torch.no_grad():
            expected.append(model(input_ids=ids[seed : seed + 1]).logits[0])
    with torch.no_grad():
        found = bank(ids[:2], adapter_names=["a0", "a1"]).logits
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-5, atol=2e-5)


def test_what_does_not_fit_the_model_is_one_line():
    model = adapted("gpt2", "both", 100)
    size = base_of("gpt2").get_input_embeddings().weight.shape[0]
    model = adapted("gpt2", "both", size)
    config, state = model.peft_config["default"], state_of(model)
    bank = AdapterBank(base_of("gpt2"))
    delta = next(name for name in state if "trainable_tokens_delta" in name)
    with pytest.raises(AdapterError, match=r"is \(4, 32\) in the adapter file, expected \(5, 32\)"):
        bank.add("a", config, state | {delta: state[delta][:4]})
    with pytest.raises(AdapterError, match="lacks the embeddings of the tokens"):
        bank.add("a", config, {name: tensor for name, tensor in state.items() if name != delta})
    gap = copy.deepcopy(config)
    gap.trainable_token_indices = [7, 30, size, size + 1, size + 5]
    with pytest.raises(AdapterError, match="expected the next ones"):
        bank.add("a", gap, state)
    other = copy.deepcopy(config)
    other.backbone = config.backbone | {"vocab_size": size + 9}
    with pytest.raises(BackboneError, match="vocab_size"):
        bank.add("a", other, state)
    assert bank.names == []
