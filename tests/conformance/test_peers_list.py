"""The checks that peft makes of each of its methods, made of ours. Their names are peft's, the tests are not.

More of that list for every cell of the table is in test_invariants.py (saving, low_cpu_mem_usage when loading, mixed
batches, disabling, unloading, gradient checkpointing); resuming and copies are in test_lifecycle.py, status in
test_ecosystem.py, generation in test_decoders.py and test_seq2seq.py, quantised backbones in test_quantised.py.
"""

import copy
import inspect
import io
import json
import pickle
import re

import pytest
import torch
from peft import (
    PeftConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    inject_adapter_in_model,
    set_peft_model_state_dict,
)
from transformers import AttentionInterface, AttentionMaskInterface

from foretoken import PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig
from foretoken.errors import AdapterError

from support import tiny
from support.table import EMPTY, METHODS, ROWS, adapted
from support.tiny import run
from support.tiny_run import make_tokenizer

FAMILIES = ("bert", "longformer", "llama", "t5")  # one per way of getting rows and columns into the attention
PREFIXES = ("prefix-propagation", "prefix-tuning")
EVERY_SITE = "stack, of every site"


CELLS = [
    (method, family)
    for family in FAMILIES
    for method in METHODS
    if (method, family) not in EMPTY and (family == "bert" or method == EVERY_SITE or "," not in method)
]


def made(method, family, task=None, **options):
    task = task or tiny.main_task(family)
    return tiny.shaken(adapted(tiny.model(family, task), method, task_type=tiny.peft_task(task), **options))


def close(one, other, atol=1e-6):
    torch.testing.assert_close(one, other, atol=atol, rtol=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize(("method", "family"), CELLS)
def test_the_whole_model_can_be_pickled(method, family, monkeypatch):
    """Also into a process that has never seen an adapter: attention registers itself again."""
    model, inputs = made(method, family), tiny.batch(family, labels=False)
    expected = run(model, inputs)
    file = io.BytesIO()
    torch.save(model, file)
    monkeypatch.delitem(AttentionInterface._global_mapping, "foretoken_sdpa", raising=False)
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, "foretoken_sdpa", raising=False)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(run(again, inputs), expected)
    again.unload()
    assert torch.equal(run(made(method, family), inputs), expected)


@pytest.mark.parametrize("method", ["aot-p-tuning, fc", EVERY_SITE])
def test_embeddings_instead_of_tokens_are_refused_where_tokens_are_looked_up(method):
    """Of other methods the outputs are those of tokens: test_invariants.py."""
    model = made(method, "bert", "FEATURE_EXTRACTION")
    with pytest.raises(AdapterError, match=r"looks up a vector for each token.*give it input_ids"):
        run(model, {"inputs_embeds": torch.zeros(2, 11, 32)})


@pytest.mark.parametrize("family", FAMILIES)
class TestSeveralAdapters:
    @pytest.mark.covering
    @pytest.mark.parametrize("method", [*PREFIXES, EVERY_SITE])
    def test_they_are_loaded_and_deleted(self, method, family, tmp_path):
        """Names that are parts of one another, without memory for the start values, deleted active and inactive."""
        inputs, seen = tiny.batch(family, labels=False), {}
        model = made(method, family)
        for name in ("new", "new_2"):
            tiny.shaken(model, seed=len(name))
            model.save_pretrained(tmp_path / name)
            seen[name] = run(model, inputs)
        for name in ("new_2", "new"):
            model.load_adapter(tmp_path / name, name, low_cpu_mem_usage=True)
        for name, expected in seen.items():
            model.set_adapter(name)
            close(run(model, inputs), expected)
            model.save_pretrained(tmp_path / "again", selected_adapters=[name])
            again = PeftModel.from_pretrained(tiny.model(family), tmp_path / "again" / name)
            close(run(again, inputs), expected)
        model.delete_adapter("new")
        assert list(model.peft_config) == ["default", "new_2"]
        close(run(model, inputs), seen["new_2"])
        for call in (model.set_adapter, model.delete_adapter):
            with pytest.raises(ValueError, match="new "):
                call("new")
        with pytest.warns(UserWarning, match="Setting active adapter to default"):
            model.delete_adapter("new_2")
        assert model.active_adapters == ["default"]
        assert not any(".new." in name or ".new_2." in name for name in model.state_dict())


@pytest.mark.parametrize("method", ROWS)
class TestEveryConfig:
    def test_it_survives_every_way_of_writing_it(self, method, tmp_path):
        config = ROWS[method](task_type="SEQ_CLS")
        config.save_pretrained(tmp_path)
        kinds = type(config)
        for again in (
            PeftConfig.from_pretrained(tmp_path),
            kinds.from_pretrained(tmp_path),
            kinds(**{k: v for k, v in config.to_dict().items() if k not in ("peft_type", "auto_mapping")}),
            kinds.from_peft_type(**json.loads((tmp_path / "adapter_config.json").read_text())),
            pickle.loads(pickle.dumps(config)),
            copy.deepcopy(config),
        ):
            assert type(again) is kinds
            assert again.peft_type == config.peft_type
            written = again.to_dict() | {"inference_mode": False, "peft_version": None}
            assert written == config.to_dict() | {"inference_mode": False, "peft_version": None}

    def test_merging_and_averaging_are_refused(self, method):
        model = made(method, "bert")
        before = run(model, tiny.batch("bert", labels=False))
        for call in (model.merge_adapter, model.merge_and_unload):
            with pytest.raises(AdapterError, match=r"no weights to merge into.*unload\(\)"):
                call()
        with pytest.raises(AdapterError, match="cannot be averaged; use adapter_names"):
            model.add_weighted_adapter(["default"], [1.0], "mean")
        assert torch.equal(run(model, tiny.batch("bert", labels=False)), before)
        assert not model.base_model.model.bert.encoder.layer[0].attention.self.query.__dict__.get("merged")


@pytest.mark.parametrize("family", FAMILIES)
class TestOneModel:
    def test_modes_and_dropout(self, family):
        """Dropout acts in training only, and an adapter leaves the modes of the model's own modules alone."""
        assert not get_peft_model(tiny.model(family), PrefixTuningConfig()).get_base_model().training
        inputs = tiny.batch(family)
        for config in (PrefixPropagationConfig, PrefixTuningConfig, PromptTuningConfig):
            model = tiny.shaken(get_peft_model(tiny.model(family), config(prefix_dropout=0.5)))
            assert torch.equal(run(model, inputs), run(model, inputs))
            model.train()
            assert not torch.equal(model(**inputs).logits, model(**inputs).logits)

    def test_start_values_without_memory(self, family):
        """low_cpu_mem_usage when attaching: parameters have no memory until their values are loaded."""
        method, task = EVERY_SITE, tiny.main_task(family)
        model, inputs = made(method, family), tiny.batch(family, labels=False)
        state = get_peft_model_state_dict(model)
        lean = get_peft_model(tiny.model(family), ROWS[method](task_type=task), low_cpu_mem_usage=True)
        injected = inject_adapter_in_model(ROWS[method](task_type=task), tiny.model(family), low_cpu_mem_usage=True)
        for new in (lean, injected):
            assert all(p.is_meta for name, p in new.named_parameters() if ".foretoken." in name)
        set_peft_model_state_dict(lean, state, low_cpu_mem_usage=True)
        assert not any(p.is_meta for p in lean.parameters())
        assert torch.equal(run(lean, inputs), run(model, inputs))

    def test_one_adapter_config_for_several_models(self, family, tmp_path):
        """The user's object is not what a model keeps: the next model is of another family and has another head."""
        config = ROWS["prefix-tuning"](task_type=tiny.main_task(family))
        model = get_peft_model(tiny.model(family), config)
        other = get_peft_model(tiny.model("roberta"), config)
        assert (model.peft_config["default"].backbone["model_type"], config.backbone["model_type"]) == (
            tiny.CONFIGS[family]().model_type,
            "roberta",
        )
        expected = get_peft_model(tiny.model("roberta"), ROWS["prefix-tuning"](task_type="SEQ_CLS"))
        assert set(get_peft_model_state_dict(other)) == set(get_peft_model_state_dict(expected))
        tiny.shaken(model).save_pretrained(tmp_path)
        inputs = tiny.batch(family, labels=False)
        close(run(PeftModel.from_pretrained(tiny.model(family), tmp_path), inputs), run(model, inputs))

    def test_one_backbone_config_for_several_models(self, family):
        """Unloading one model leaves the others' adapters at work."""
        first = tiny.model(family)
        second = type(first)(first.config).eval()
        second.load_state_dict(first.state_dict())
        inputs, task = tiny.batch(family, labels=False), tiny.main_task(family)
        frozen = run(first, inputs)
        one, other = (tiny.shaken(adapted(m, "prefix-tuning", task_type=task)) for m in (first, second))
        expected = run(one, inputs)
        close(run(one.unload(), inputs), frozen, atol=1e-5)
        close(run(other, inputs), expected)
        close(run(other.unload(), inputs), frozen, atol=1e-5)
        assert "foretoken" not in first.config._attn_implementation

    @pytest.mark.parametrize("method", PREFIXES)
    def test_forward_called_past_the_hooks(self, method, family):
        """sentence-transformers calls ``model.forward(...)``; trainers read its signature."""
        model = tiny.model(family, "FEATURE_EXTRACTION")
        signature = inspect.signature(model.forward)
        model.add_adapter(ROWS[method]())
        assert inspect.signature(model.forward) == signature
        tiny.shaken(model)
        inputs = tiny.batch(family, "FEATURE_EXTRACTION")
        expected = run(model, inputs)
        with torch.no_grad():
            assert torch.equal(tiny.first(model.forward(**inputs)), expected)
            model.disable_adapters()
            assert not torch.allclose(tiny.first(model.forward(**inputs)), expected, atol=1e-3)

    @pytest.mark.covering
    @pytest.mark.parametrize("method", [*PREFIXES, "aot-p-tuning, kronecker"])
    def test_device_maps(self, method, family, tmp_path):
        """All on the CPU, and the body on disk: accelerate fetches each module's weights when it runs."""
        task, inputs = tiny.main_task(family), tiny.batch(family, labels=False)
        expected = run(made(method, family), inputs)
        tiny.model(family).save_pretrained(tmp_path)
        body = tiny.model(family).base_model_prefix
        heads = {name: "cpu" for name, _ in tiny.model(family).named_children() if name != body}
        for places in ({"": "cpu"}, {body: "disk"} | heads):
            plain = tiny.TASKS[task].from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "disk")
            model = tiny.shaken(adapted(plain, method, task_type=task))
            assert any(p.is_meta for p in model.parameters()) == ("" not in places)
            close(run(model, inputs), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("method", "name", "why"),
    [
        ("prefix-tuning", "1", ": names of parameters have this part"),
        ("prefix-tuning", "encoder", ": names of parameters have this part"),
        ("aot-p-tuning, kronecker", "a", ": names of parameters have this part"),
        ("prefix-tuning", "scores.v2", ""),
    ],
)
def test_names_that_peft_would_lose_tensors_for_are_refused(method, name, why):
    """peft saves nothing that has another adapter's name in its own: beside an adapter ``1``, no second layer."""
    model = made(method, "bert")
    expected = run(model, tiny.batch("bert", labels=False))
    with pytest.raises(AdapterError, match=re.escape(f"cannot be called '{name}'{why}")):
        model.add_adapter(name, ROWS[method](task_type="SEQ_CLS"))
    assert list(model.peft_config) == ["default"]
    assert torch.equal(run(model, tiny.batch("bert", labels=False)), expected)


def test_lora_on_disk_is_refused(tmp_path):
    """peft leaves such a LoRA without values: what it computes is not a number."""
    tiny.model("bert").save_pretrained(tmp_path)
    places = {"bert": "disk", "classifier": "cpu", "dropout": "cpu"}
    plain = tiny.TASKS["SEQ_CLS"].from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "disk")
    with pytest.raises(AdapterError, match="LoRA cannot be attached to weights that are offloaded to disk"):
        adapted(plain, "stack", task_type="SEQ_CLS")


def test_embeddings_on_disk_cannot_be_read_by_token(tmp_path):
    tiny.model("bert").save_pretrained(tmp_path)
    places = {"bert": "disk", "classifier": "cpu", "dropout": "cpu"}
    options = {"device_map": places, "offload_folder": tmp_path / "disk"}
    model = adapted(tiny.TASKS["SEQ_CLS"].from_pretrained(tmp_path, **options), "aot-p-tuning, fc", task_type="SEQ_CLS")
    with pytest.raises(AdapterError, match=r"reads the frozen token embeddings.*offloaded.*variant='kronecker'"):
        run(model, tiny.batch("bert", labels=False))


def test_sentence_transformers(tmp_path):
    """An adapter changes the embeddings, is saved with the model, and comes back with it."""
    reason = "sentence-transformers is not installed"
    library = pytest.importorskip("sentence_transformers", reason=reason)
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules", reason=reason)
    tiny.model("bert", "FEATURE_EXTRACTION").save_pretrained(tmp_path / "base")
    make_tokenizer(words=list("abcdefgh")).save_pretrained(tmp_path / "base")
    parts = [modules.Transformer(str(tmp_path / "base")), modules.Pooling(32)]
    model, documents = library.SentenceTransformer(modules=parts), ["a b c", "d e f g h"]
    frozen = model.encode(documents)
    model.add_adapter(ROWS["prefix-propagation"](task_type="FEATURE_EXTRACTION"))
    tiny.shaken(model)
    adapted_embeddings = model.encode(documents)
    assert abs(adapted_embeddings - frozen).max() > 1e-2
    model.save_pretrained(str(tmp_path / "saved"))
    again = library.SentenceTransformer(str(tmp_path / "saved"))
    assert abs(again.encode(documents) - adapted_embeddings).max() < 1e-6
    again.disable_adapters()
    assert abs(again.encode(documents) - frozen).max() < 1e-6


@pytest.mark.filterwarnings("ignore")  # of another library
@pytest.mark.parametrize("method", PREFIXES)
def test_trl_trains_every_prefix(method, tmp_path):
    trl = pytest.importorskip("trl", reason="trl is not installed")
    datasets = pytest.importorskip("datasets")
    options = {"max_steps": 1, "learning_rate": 0.1, "gradient_checkpointing": True, "bf16": False, "use_cpu": True}
    options |= {"report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    trainer = trl.SFTTrainer(
        model=tiny.model("llama", "CAUSAL_LM"),
        args=trl.SFTConfig(str(tmp_path), **options),
        train_dataset=datasets.Dataset.from_dict({"text": ["a b c d e", "f g h", "a a b", "c d"]}),
        processing_class=make_tokenizer(words=list("abcdefgh"), eos_token="[SEP]"),
        peft_config=ROWS[method](task_type="CAUSAL_LM"),
    )
    prefixes = {name: p for name, p in trainer.model.named_parameters() if ".foretoken." in name}
    before = {name: p.detach().clone() for name, p in prefixes.items()}
    trainer.train()
    assert prefixes
    for name, parameter in prefixes.items():
        assert (parameter - before[name]).abs().max() > 1e-2, name
