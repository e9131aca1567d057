"""What foretoken replaces or reads of other libraries though it is not part of what they promise to keep.

``docs/patched.md`` is made of this table, and ``tests/unit/test_patched.py`` holds it against the code and against the
installed versions: a name that is gone, or that is used here and not listed, fails there.
"""

from __future__ import annotations

from dataclasses import dataclass

UNLOAD = "`unload()`"
ALWAYS = "never: other methods get what they got before"


@dataclass(frozen=True)
class Patch:
    """One attribute or class of another library.

    Attributes:
        path: where it is; of an attribute that only instances have, its class or module comes before it.
        how: ``class swapped``, ``replaced``, ``registered``, ``overridden`` or ``read``.
        why: what it is needed for.
        undone: when what is changed becomes as before; empty for what is only read, or overridden in a class of ours.
        since: the first version of the library that has it; empty for every version that foretoken runs with.
        until: the last version that has it.
    """

    path: str
    how: str
    why: str
    undone: str = ""
    since: str = ""
    until: str = ""

    @property
    def library(self) -> str:
        """The library's module."""
        return self.path.partition(".")[0]


def of_each(prefix: str, names: str, how: str, why: str, undone: str = "") -> tuple[Patch, ...]:
    """Return the same row for several names below one module or class."""
    return tuple(Patch(f"{prefix}.{name}", how, why, undone) for name in names.split())


MODELS = "transformers.models"
TUNERS = "peft.tuners.tuners_utils"
LOADED_AGAIN = "never: load the model again"
SPEED_UP = f"{UNLOAD}, `undo_speed_up()`"

PATCHED: tuple[Patch, ...] = (
    # attention and encoders of families that take no attention function by name
    Patch(
        f"{MODELS}.longformer.modeling_longformer.LongformerSelfAttention",
        "class swapped",
        "windowed attention block by block, with prefixes and score columns in it",
        SPEED_UP,
    ),
    *of_each(
        f"{MODELS}.longformer.modeling_longformer",
        "LongformerEncoder LongformerLayer",
        "class swapped",
        "a batch runs as one run of tokens without padding",
        SPEED_UP,
    ),
    Patch(
        f"{MODELS}.longformer.modeling_longformer.LongformerBaseModelOutput",
        "read",
        "what the encoder returns",
    ),
    *of_each(
        MODELS,
        "longformer.modeling_longformer.create_bidirectional_mask led.modeling_led._prepare_4d_attention_mask_inverted",
        "replaced",
        "of a mask (B, 1, N, N) the row is made that transformers reads",
        "never: every model reads the same values as before",
    ),
    *of_each(
        f"{MODELS}.led.modeling_led",
        "LEDEncoderSelfAttention LEDDecoderAttention",
        "class swapped",
        "as Longformer's; the decoder's attention lets adapters in",
        SPEED_UP,
    ),
    *of_each(
        f"{MODELS}.big_bird.modeling_big_bird",
        "BigBirdSelfAttention BigBirdBlockSparseAttention BigBirdAttention",
        "class swapped",
        "block-sparse attention with prefixes in it, full or sparse by each batch's own length",
        SPEED_UP,
    ),
    Patch(
        f"{MODELS}.big_bird.modeling_big_bird.BigBirdModel.set_attention_type",
        "replaced",
        "batches that are too short for the user's choice do not change it (on the body, not the class)",
        SPEED_UP,
    ),
    *of_each(
        f"{MODELS}.big_bird.modeling_big_bird.BigBirdBlockSparseAttention",
        "_bigbird_block_rand_mask _bigbird_block_rand_mask_with_head _get_rand_attn_plan",
        "read",
        "the random blocks are those that transformers draws",
    ),
    *of_each(
        f"{MODELS}.deberta_v2.modeling_deberta_v2",
        "DisentangledSelfAttention DebertaV2Encoder ConvLayer",
        "class swapped",
        "attention by distances with prefixes in it; a prefix has no neighbours in the convolution",
        SPEED_UP,
    ),
    Patch(
        "torch.nn.Conv1d", "class swapped", "the convolution of a DeBERTa yields (B, N, D), which adapters edit", UNLOAD
    ),
    Patch("transformers.activations.ACT2FN", "read", "DeBERTa's convolution names its activation"),
    Patch(
        f"{MODELS}.mpnet.modeling_mpnet.MPNetSelfAttention",
        "class swapped",
        "attention with a position bias and prefixes in it",
        UNLOAD,
    ),
    Patch(
        f"{MODELS}.t5.modeling_t5.T5Attention",
        "class swapped",
        "attention with a position bias and prefixes in it",
        UNLOAD,
    ),
    Patch(
        f"{MODELS}.t5.modeling_t5.eager_attention_forward",
        "read",
        "where T5 has it, the mask is no part of the position bias",
        since="5.15",
    ),
    Patch(
        f"{MODELS}.bert.modeling_bert.BertLayer",
        "class swapped",
        "the last layer computes first tokens alone",
        SPEED_UP,
    ),
    *(
        Patch(f"{MODELS}.{module}", "class swapped", "as `BertLayer`", SPEED_UP)
        for module in (
            "roberta.modeling_roberta.RobertaLayer",
            "xlm_roberta.modeling_xlm_roberta.XLMRobertaLayer",
            "camembert.modeling_camembert.CamembertLayer",
            "electra.modeling_electra.ElectraLayer",
            "distilbert.modeling_distilbert.TransformerBlock",
        )
    ),
    Patch(
        f"{MODELS}.modernbert.modeling_modernbert.ModernBertEncoderLayer",
        "class swapped",
        "the first layer packs a batch before gradient checkpointing notes what it is called with",
        SPEED_UP,
    ),
    *(
        Patch(f"{MODELS}.{path}", "class swapped", "the first layer packs a batch before the prefix enters", SPEED_UP)
        for path in (
            "mpnet.modeling_mpnet.MPNetLayer",
            "led.modeling_led.LEDEncoderLayer",
            "deberta_v2.modeling_deberta_v2.DebertaV2Layer",
            "big_bird.modeling_big_bird.BigBirdLayer",
        )
    ),
    *(
        Patch(
            f"{MODELS}.{path}",
            "class swapped",
            "the first layer packs a batch, the last one unpacks it; classes made of theirs, with their names",
            SPEED_UP,
        )
        for path in (
            "gpt2.modeling_gpt2.GPT2Block",
            "llama.modeling_llama.LlamaDecoderLayer",
            "qwen2.modeling_qwen2.Qwen2DecoderLayer",
            "qwen3.modeling_qwen3.Qwen3DecoderLayer",
            "mistral.modeling_mistral.MistralDecoderLayer",
            "gemma3.modeling_gemma3.Gemma3DecoderLayer",
        )
    ),
    # attention of the other families
    Patch(
        "transformers.AttentionInterface.register",
        "registered",
        "`foretoken_...` names an attention function that asks the adapters, around transformers' own",
        "never: models without an adapter do not name it",
    ),
    Patch(
        "transformers.AttentionMaskInterface.register",
        "registered",
        "these functions get the masks of the one that they surround",
        "never: models without an adapter do not name it",
    ),
    Patch(
        "transformers.PreTrainedConfig._attn_implementation",
        "replaced",
        "the model's attention goes through the registered function",
        SPEED_UP,
    ),
    Patch("transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS", "read", "the function that ours surrounds"),
    Patch(
        "transformers.PreTrainedModel._loss_function",
        "replaced",
        "the loss of a language model whose batch is packed leaves padding out (on the object, while it runs)",
        "after the pass",
    ),
    Patch(
        f"{MODELS}.bert.modeling_bert.eager_attention_forward",
        "read",
        "each family's own file has the function that `eager` names",
    ),
    # another head (`replace_head`), which is asked for on a model, and stays there
    *(
        Patch(f"{MODELS}.{path}.classifier", "replaced", "the head that a user asked for", LOADED_AGAIN)
        for path in (
            "bert.modeling_bert.BertForSequenceClassification",
            "roberta.modeling_roberta.RobertaForSequenceClassification",
            "xlm_roberta.modeling_xlm_roberta.XLMRobertaForSequenceClassification",
            "camembert.modeling_camembert.CamembertForSequenceClassification",
            "electra.modeling_electra.ElectraForSequenceClassification",
            "distilbert.modeling_distilbert.DistilBertForSequenceClassification",
            "longformer.modeling_longformer.LongformerForSequenceClassification",
            "big_bird.modeling_big_bird.BigBirdForSequenceClassification",
            "modernbert.modeling_modernbert.ModernBertForSequenceClassification",
            "deberta_v2.modeling_deberta_v2.DebertaV2ForSequenceClassification",
            "mpnet.modeling_mpnet.MPNetForSequenceClassification",
        )
    ),
    *(
        Patch(
            f"{MODELS}.{path}", "replaced", "layers and dropout before the classifier, which has its own", LOADED_AGAIN
        )
        for path in (
            "bert.modeling_bert.BertModel.pooler",
            "bert.modeling_bert.BertForSequenceClassification.dropout",
            "distilbert.modeling_distilbert.DistilBertForSequenceClassification.pre_classifier",
            "distilbert.modeling_distilbert.DistilBertForSequenceClassification.dropout",
            "modernbert.modeling_modernbert.ModernBertForSequenceClassification.head",
            "modernbert.modeling_modernbert.ModernBertForSequenceClassification.drop",
            "deberta_v2.modeling_deberta_v2.DebertaV2ForSequenceClassification.pooler",
            "deberta_v2.modeling_deberta_v2.DebertaV2ForSequenceClassification.dropout",
        )
    ),
    # what happens around a model's forward pass
    Patch(
        "torch.nn.Module.forward",
        "replaced",
        "callers that pass hooks by (`model.forward(...)`) reach them all the same, and frozen layers whose result is "
        "known hand on what they are given (on the body, its layers and a model with another head, not the class)",
        UNLOAD,
    ),
    Patch(
        "accelerate.hooks.add_hook_to_module._old_forward",
        "replaced",
        "offloaded modules call the forward method of the class that they have now",
        "never: it calls what accelerate's own would",
    ),
    Patch(
        "transformers.modeling_layers.GradientCheckpointingLayer._gradient_checkpointing_func",
        "replaced",
        "a layer is recomputed under the plan of its forward pass",
        UNLOAD,
    ),
    *of_each(
        "torch.nn.Module",
        "_forward_hooks _forward_pre_hooks",
        "read",
        "whether somebody else watches a module that would be passed by",
    ),
    *of_each("torch.nn.Module", "_parameters _modules", "read", "what a module itself holds"),
    Patch("torch.Tensor._version", "read", "whether a tensor was written to since a mask or a table was made of it"),
    Patch(
        "torch._softmax_backward_data",
        "read",
        "the gradient of the scores in one kernel; without it the same in three steps",
    ),
    Patch("torch.nn.Linear", "class swapped", "float32 goes to oneDNN where MKL leaves AVX-512 idle", SPEED_UP),
    Patch("transformers.pytorch_utils.Conv1D", "class swapped", "the same in GPT-2", SPEED_UP),
    Patch(
        "torch.ops.mkldnn._linear_pointwise",
        "read",
        "a linear map in oneDNN; without it PyTorch's own",
    ),
    *of_each(
        "torch",
        "_C._are_functorch_transforms_active autograd.forward_ad._current_level",
        "read",
        "what transforms or differentiates forwards gets PyTorch's own linear map",
    ),
    Patch("torch._int_mm", "read", "the product of whole numbers of 8 bits (`--precision int8`)"),
    Patch(
        "torch.nn.functional.scaled_dot_product_attention",
        "replaced",
        "training in bfloat16 on a CPU: short sequences in float32, ten times as fast",
        "after every step of the Trainer (`TorchFunctionMode`)",
    ),
    Patch(
        "torch.autograd.graph.save_on_cpu",
        "overridden",
        "activations go to the CPU, parameters stay where they are",
    ),
    Patch(
        "transformers.integrations.TensorBoardCallback",
        "read",
        "its files are kept in the run's folder, as checkpoints are deleted",
    ),
    # peft: registration, life cycle
    *of_each(
        "peft.mapping",
        "PEFT_TYPE_TO_CONFIG_MAPPING PEFT_TYPE_TO_TUNER_MAPPING PEFT_TYPE_TO_PREFIX_MAPPING",
        "registered",
        "peft finds foretoken's methods by a string ([decision 0002](decisions/0002-peft-registration.md))",
        ALWAYS,
    ),
    *of_each(
        f"{TUNERS}.BaseTuner",
        "_prepare_model _prepare_adapter_config _check_target_module_exists _create_and_replace _replace_module "
        "_check_merge_allowed _unload_and_optionally_merge _remove_adapter_name_from_key "
        "_remap_adapter_state_dict_for_load",
        "overridden",
        "the life cycle of an adapter",
    ),
    Patch(
        "peft.PeftModel._enable_peft_forward_hooks",
        "overridden",
        "each document of a batch may name its adapter; peft asks the tuner for the hooks",
    ),
    Patch(
        f"{TUNERS}.BaseTunerLayer", "overridden", "peft activates, disables and deletes adapters of foretoken's sites"
    ),
    Patch(
        f"{TUNERS}.BaseTunerLayer._disable_adapters",
        "replaced",
        "the frozen model is read without its adapters, and without telling the user's own settings",
        "after that pass",
    ),
    *of_each(
        f"{TUNERS}",
        "cast_adapter_dtype set_adapter",
        "read",
        "a plain model loads an adapter by the calls of `PeftModel.from_pretrained`",
    ),
    Patch(f"{TUNERS}.check_target_module_exists", "read", "which modules a LoRA has, before it is attached"),
    Patch("peft.utils.other.get_pattern_key", "read", "which rank a module's LoRA has, before it is attached"),
    Patch("peft.utils.constants.INCLUDE_LINEAR_LAYERS_SHORTHAND", "read", "how a LoRA names every linear map"),
    Patch("peft.utils.integrations.init_empty_weights", "read", "`low_cpu_mem_usage`"),
    Patch("peft.tuners.lora.layer.LoraLayer", "read", "a batch of several adapters, and the LoRA of a stack"),
    Patch("peft.tuners.lora.layer.Linear", "read", "its update moves with a projection to the queries' side"),
    Patch(
        "peft.utils.other.ModulesToSaveWrapper",
        "read",
        "heads that are trained in full, in a batch of several adapters",
    ),
    Patch("peft.utils.other.TrainableTokensWrapper", "read", "trained embeddings of single tokens"),
    Patch(
        "peft.tuners.trainable_tokens.layer.TrainableTokensLayer",
        "class swapped",
        "trained tokens without a copy of the whole table in every pass; parameters and outputs are the same",
        "never: it computes the same",
    ),
    *of_each(
        "peft.tuners.trainable_tokens.layer.TrainableTokensLayer",
        "_check_overlapping_tokens _get_embed_scale",
        "read",
        "trained tokens",
    ),
    # loading
    *of_each(
        "peft.PeftModel",
        "from_pretrained load_adapter",
        "replaced",
        "a file that cannot be read leaves the model as it was",
        ALWAYS,
    ),
    Patch(
        "peft.PeftModel.create_or_update_model_card",
        "replaced",
        "the card says how to load the adapter, and names no path of this machine",
        ALWAYS,
    ),
    Patch("peft.PeftConfig._get_peft_type", "read", "whether a saved adapter is one of foretoken's"),
    *of_each(
        "transformers.integrations.peft.PeftAdapterMixin",
        "load_adapter enable_adapters set_adapter",
        "replaced",
        "transformers' own calls load what `PeftModel.from_pretrained` loads: all of it or nothing, heads included",
        ALWAYS,
    ),
    Patch(
        "transformers.integrations.peft.PeftAdapterMixin._hf_peft_config_loaded",
        "replaced",
        "set where a plain model was given an adapter; taken back where attaching it failed",
        "where attaching fails",
    ),
    Patch("transformers.utils.loading_report.LoadStateDictInfo", "read", "what `load_adapter` returns"),
    Patch(
        "peft.PeftModel.save_pretrained",
        "replaced",
        "checkpoints of trained tokens leave out the table (on the object, while the Trainer saves)",
        "after saving",
    ),
    # training
    *of_each(
        "transformers.Trainer",
        "_get_train_sampler _save _save_checkpoint _load_best_model",
        "overridden",
        "batches by length, sealed checkpoints, errors in one line",
    ),
    Patch(
        "transformers.Trainer._prepare_inputs", "read", "texts are generated on the device that the loss is computed on"
    ),
    Patch("transformers.Trainer._load_callback_state", "read", "a run that was killed after its last step is taken up"),
    *of_each(
        "transformers.loss.loss_utils",
        "LOSS_MAPPING ForCausalLMLoss",
        "read",
        "how many items a loss is the mean of, counted as the Trainer counts them",
    ),
    Patch("accelerate.data_loader.prepare_data_loader", "read", "batches by tokens are shared out already"),
    Patch(f"{MODELS}.auto.modeling_auto", "read", "which families have which heads"),
    Patch(
        "transformers.AutoModelForSequenceClassification._model_mapping",
        "read",
        "whether a family has a head for the task (of every `AutoModelFor...` that a recipe can ask for)",
    ),
    # data
    Patch("sklearn.datasets._twenty_newsgroups", "read", "how 20 Newsgroups strips headers, footers and quotes"),
)
