"""A prefix that starts from documents: means of what transformers itself computes for the nearest tokens."""

import numpy as np
import pytest
import torch
from peft import PeftModel, get_peft_model

from foretoken import (
    DecoupledPrefixConfig,
    PrefixPropagationConfig,
    PrefixTuningConfig,
    StackConfig,
    initialise_prefix_from_documents,
)
from foretoken.errors import AdapterError, ConfigError

from support import tiny

GENERATOR = torch.Generator().manual_seed(5)
TEXTS = [torch.randint(5, 100, (length,), generator=GENERATOR).tolist() for length in (9, 4, 12, 7, 10, 6)]
LABELS = [1, 0, 1, 0, 0, 1]


def started(family="bert", made=PrefixTuningConfig, *, labels=None, texts=TEXTS, length=4, seed=0, **options):
    """A float64 model whose prefix starts from documents."""
    config = made(num_virtual_tokens=length, prefix_dropout=0.0, **options)
    model = get_peft_model(tiny.model(family, "FEATURE_EXTRACTION").double(), config).double()
    initialise_prefix_from_documents(model, texts, labels, seed=seed)
    return model.eval()


def prefix_at(model, place):
    return model.get_parameter(f"base_model.model.{place}.foretoken.default.prefix.weight").detach().numpy()


def heard(family, module, texts=TEXTS):
    """What a module of transformers' own yields for each token of each text, one text at a time: (R, width)."""
    model, noted = tiny.model(family, "FEATURE_EXTRACTION").double().eval(), []
    model.get_submodule(module).register_forward_hook(lambda _, __, out: noted.append(out[0].numpy()))
    with torch.no_grad():
        for text in texts:
            model(input_ids=torch.tensor([text]))
    return np.concatenate(noted)


def keys_and_values(family, place, names=("key", "value"), texts=TEXTS):
    return [heard(family, f"{place}.{name}", texts) for name in names]


def assert_centres(centres, rows, beside=None):
    """Each centre is the mean of the rows that are nearer to it than to another: what k-means ends with.

    Returns which rows those are.
    """
    width = rows.shape[1]
    nearest = [min(range(len(centres)), key=lambda c: ((row - centres[c, :width]) ** 2).sum()) for row in rows]
    both = rows if beside is None else np.concatenate([rows, beside], axis=1)
    for number, centre in enumerate(centres):
        members = [row for row, owner in zip(both, nearest, strict=True) if owner == number]
        np.testing.assert_allclose(centre, sum(members) / len(members), atol=1e-5)
    return nearest


class TestKeysAndValues:
    @pytest.mark.parametrize(
        ("family", "place", "names"),
        [
            ("bert", "encoder.layer.1.attention.self", ("key", "value")),
            ("gpt2", "h.1.attn", None),
            ("llama", "layers.1.self_attn", ("k_proj", "v_proj")),  # before they are rotated: as at position 0
        ],
    )
    def test_they_are_means_of_the_documents(self, family, place, names):
        if names is None:
            _, keys, values = np.split(heard(family, f"{place}.c_attn"), 3, axis=1)
        else:
            keys, values = keys_and_values(family, place, names)
        centres = prefix_at(started(family), place)
        assert centres.shape == (4, keys.shape[1] + values.shape[1])
        assert len(set(assert_centres(centres, keys, values))) == 4

    @pytest.mark.parametrize(("length", "shares"), [(4, (2, 2)), (5, (3, 2))])
    def test_every_class_has_its_share(self, length, shares):
        place = "encoder.layer.0.attention.self"
        centres = prefix_at(started(labels=LABELS, length=length), place)
        for label, part in enumerate(np.split(centres, [shares[0]])):
            assert len(part) == shares[label]
            texts = [text for text, own in zip(TEXTS, LABELS, strict=True) if own == label]
            assert_centres(part, *keys_and_values("bert", place, texts=texts))

    def test_a_prefix_shorter_than_the_classes_are_many_is_of_all(self):
        place = "encoder.layer.0.attention.self"
        centres = prefix_at(started(labels=[0, 1, 2, 3, 4, 5], length=3), place)
        assert_centres(centres, *keys_and_values("bert", place))

    def test_fewer_tokens_than_rows_are_repeated(self):
        place = "encoder.layer.0.attention.self"
        centres = prefix_at(started(texts=[[7, 8]], length=5), place)
        keys, values = keys_and_values("bert", place, texts=[[7, 8]])
        expected = {tuple(row.round(4)) for row in np.concatenate([keys, values], axis=1)}
        assert {tuple(row.round(4)) for row in centres.astype(float)} == expected

    def test_the_seed_decides(self):
        one, same, other = (prefix_at(started(seed=s), "encoder.layer.1.attention.self") for s in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_of_many_tokens_some_are_read(self):
        """And of a document no more than the model's 64 positions."""
        texts = [TEXTS[0] * 40] * 300
        centres = prefix_at(started(texts=texts), "encoder.layer.0.attention.self")
        keys, _ = keys_and_values("bert", "encoder.layer.0.attention.self", texts=[texts[0][:64]])
        distance = ((centres[:, None, : keys.shape[1]] - keys) ** 2).sum(-1).min(1)
        assert distance.max() < ((keys - keys.mean(0)) ** 2).sum(-1).mean()


class TestOtherMethods:
    def test_hidden_states_are_means_of_what_enters_the_first_layer(self):
        model = started(made=PrefixPropagationConfig)
        assert_centres(prefix_at(model, "encoder.layer.0"), heard("bert", "embeddings"))
        assert not prefix_at(model, "encoder.layer.1").any()

    def test_a_decoupled_prefix_takes_the_keys(self):
        place = "encoder.layer.1.attention.self"
        keys, values = np.split(prefix_at(started(made=DecoupledPrefixConfig, key_scale=4.0), place), 2, axis=1)
        assert_centres(4 * keys, keys_and_values("bert", place)[0])
        assert not values.any()

    def test_every_member_of_a_stack_starts_so(self):
        members = [kind(num_virtual_tokens=4) for kind in (PrefixTuningConfig, PrefixPropagationConfig)]
        model = get_peft_model(tiny.model("bert", "FEATURE_EXTRACTION"), StackConfig(configs=members))
        before = {name: p.clone() for name, p in model.named_parameters() if "foretoken" in name}
        initialise_prefix_from_documents(model, TEXTS)
        changed = {name for name, rows in before.items() if not torch.equal(model.get_parameter(name), rows)}
        assert changed == {name for name in before if ".attention.self." in name or ".layer.0." in name}


def test_loading_asks_for_no_documents(tmp_path):
    config = PrefixTuningConfig(prefix_init="documents", num_virtual_tokens=4, task_type="SEQ_CLS")
    model = get_peft_model(tiny.model("bert"), config)
    initialise_prefix_from_documents(model, TEXTS)
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(tiny.model("bert"), tmp_path)
    for name, parameter in again.named_parameters():
        if ".foretoken." in name:
            assert torch.equal(parameter, model.get_parameter(name)), name


class TestRefusals:
    @pytest.mark.parametrize(
        ("texts", "labels", "options", "message"),
        [
            ([], None, {}, "got no documents to start a prefix from"),
            ([[5], [100]], None, {}, "expected token ids from 0 to 99"),
            (TEXTS, [0, 1], {}, "got 2 labels of 6 documents; give one for each"),
            (TEXTS, None, {"prefix_projection": True}, "the prefix is a network's output"),
        ],
    )
    def test_what_cannot_be_read(self, texts, labels, options, message):
        with pytest.raises(AdapterError, match=message):
            started(texts=texts, labels=labels, **options)

    def test_a_projected_prefix_cannot_ask_for_it(self):
        with pytest.raises(ConfigError, match="'documents', but with prefix_projection the initial prefix"):
            PrefixTuningConfig(prefix_init="documents", prefix_projection=True)
