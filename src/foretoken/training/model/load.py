"""The pretrained model of a recipe: found, lengthened if asked, with a head for the labels of the data."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from foretoken.errors import BackboneError, ConfigError, ForetokenError, cut, quoted
from foretoken.lengthening import lengthen, resolve_source
from foretoken.limits import check_memory
from foretoken.options import Errors, Values, build
from foretoken.quiet import quiet_transformers
from foretoken.training.options import HeadOptions, LengthenOptions
from foretoken.training.problems import Problem
from foretoken.training.tokens.encode import token_rules
from foretoken.tuner.heads import HEAD_KEY, replace_head
from foretoken.tuner.tuner import head_names

log = logging.getLogger(__name__)
_SET_PADDING = "set tokenizer.pad_token to a token that the model knows, and save the tokenizer there"
_AUTO: dict[str, tuple[str, Any, str]] = {
    "SEQ_CLS": ("classify documents", AutoModelForSequenceClassification, "longformer, modernbert or llama"),
    "TOKEN_CLS": ("tag words", AutoModelForTokenClassification, "longformer, bert or modernbert"),
    "QUESTION_ANS": ("answer questions", AutoModelForQuestionAnswering, "longformer, bert or modernbert"),
    "SEQ_2_SEQ_LM": ("generate texts", AutoModelForSeq2SeqLM, "led, bart or t5"),
    "CAUSAL_LM": ("generate texts", AutoModelForCausalLM, "gpt2, llama or qwen3"),
    "FEATURE_EXTRACTION": ("embed texts", AutoModel, "bert, mpnet or longformer"),
}
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")
MOST = {  # far beyond any model; a layer is a Python object, and a damaged number of them would be made one by one
    "num_hidden_layers": 1000,
    "num_layers": 1000,
    "num_decoder_layers": 1000,
    "encoder_layers": 1000,
    "decoder_layers": 1000,
    "num_attention_heads": 100_000,
    "hidden_size": 10**7,
    "vocab_size": 10**9,
    "max_position_embeddings": 10**9,
}


@dataclass(frozen=True)
class ParameterCount:
    """Parameters that are trained, apart for the adapter and the head, and all there are."""

    adapter: int
    head: int
    total: int

    @property
    def trainable(self) -> int:
        """Parameters that are trained."""
        return self.adapter + self.head

    @property
    def percent(self) -> float:
        """Trained parameters in percent of all."""
        return 100 * self.trainable / self.total


def base_model_folder(model: str, options: LengthenOptions | None, runs: str) -> str:
    """Return what the model loads from; a lengthened one is made once and kept beside the runs."""
    source = resolve_source(model)
    source = str(Path(source).resolve()) if Path(source).is_dir() else source
    if options is None:
        return source
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    name = f"{Path(model).name}-{options.max_length}-w{options.attention_window}-{digest}"
    folder = Path(runs).resolve().parent / "models" / name
    if (folder / "config.json").exists():
        log.info("lengthened model found in %s", folder)
        return str(folder)
    log.info("lengthening %s to %d tokens, window %d", source, options.max_length, options.attention_window)
    with quiet_transformers():
        lengthen(source, max_length=options.max_length, attention_window=options.attention_window, output=folder)
    return str(folder)


def load_tokenizer(source: str, config: PretrainedConfig | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer; one without a padding token pads with the token that the model names, or with its end token.

    Raises:
        BackboneError: it cannot be loaded, or has nothing to pad with.
    """
    with load_errors(source, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        # without a vocabulary file transformers makes up a tokenizer that knows the special tokens only
        if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
            raise BackboneError(f"{source} has no tokenizer; save one there with tokenizer.save_pretrained(...)")
        if not isinstance(longest := tokenizer.model_max_length, int | float):
            raise BackboneError(f"the tokenizer of {source} has model_max_length {quoted(longest)}; expected a number")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = _padding_of(tokenizer, config)
        if tokenizer.pad_token_id is None:
            raise BackboneError(f"the tokenizer {source!r} has neither a padding nor an end token; {_SET_PADDING}")
        log.info("the tokenizer has no padding token; documents are padded with %r", tokenizer.pad_token)
    embeddings = token_rules(config).vocab_size if config is not None else None
    if embeddings is not None and tokenizer.pad_token_id >= embeddings:
        raise BackboneError(
            f"the padding token of {source!r}, {tokenizer.pad_token!r}, is number {tokenizer.pad_token_id}, "
            f"and the model has {embeddings} embeddings; {_SET_PADDING}"
        )
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer that neither truncates nor pads by itself, whatever its file said or its last call was."""
    if isinstance(backend := getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(str(folder))


def load_model(
    source: str,
    problem: Problem,
    *,
    head: HeadOptions | None = None,
    attention_dropout: Literal["model"] | float = "model",
) -> PreTrainedModel:
    """Load a model with a head for the problem; the head of a fresh one is random (seed before calling).

    Args:
        source: folder or hub name of the model.
        problem: what is to be predicted.
        head: the head in the place of transformers' own.
        attention_dropout: of attention probabilities; ``model``: as the model's config says.

    Raises:
        BackboneError: there is no such model, or its family has none for the problem.
    """
    model, random = load_with_new_head(source, problem, head=head, attention_dropout=attention_dropout)
    heads = head_names(model)
    body = [name for name in random if heads and heads.isdisjoint(name.split(".")) and ".pooler." not in f".{name}"]
    if body:
        log.warning("%s lacks %d tensors besides the head, which start at random, e.g. %s", source, len(body), body[0])
    return model


def load_with_new_head(
    source: str,
    problem: Problem | None,
    *,
    head: HeadOptions | None = None,
    attention_dropout: Literal["model"] | float = "model",
) -> tuple[PreTrainedModel, list[str]]:
    """Return a model with a head for the problem (None: its own head), and the names of its random tensors.

    Args:
        source: folder or hub name of the model.
        problem: what is to be predicted.
        head: the head in the place of transformers' own.
        attention_dropout: of attention probabilities; ``model``: as the model's config says.

    Raises:
        BackboneError: there is no such model, or its family has none for the problem.
        ConfigError: it has no place for such a head.
    """
    with load_errors(source, "model"), quiet_transformers():
        config = load_config(source, **(problem.head_options if problem else {}))
        if attention_dropout != "model":
            config.update({name: attention_dropout for name in ATTENTION_DROPOUTS if hasattr(config, name)})
        task_type = problem.task_type_of(config) if problem else "SEQ_CLS"
        if head is not None and problem is not None and task_type != "SEQ_CLS":
            wanted = "classification, regression and multiple choice"
            raise ConfigError(f"head is for {wanted}, got data for {problem.name}; leave it out")
        model, info = load_weights(
            source, task_type, config=config, ignore_mismatched_sizes=problem is not None, output_loading_info=True
        )
    if head is not None:
        info = put_head(model, head, info, sorted(Path(source).glob("*.safetensors")))
    other_sizes = [name for name, *_ in info["mismatched_keys"]]
    return model, sorted({*info["missing_keys"], *other_sizes})


def load_whole(source: Path, problem: Problem | None) -> tuple[PreTrainedModel, Values]:
    """Load a model that was trained whole, with its head, and what transformers says of its tensors."""
    config = load_config(source)
    task_type = "SEQ_CLS" if problem is None else problem.task_type_of(config)
    model, info = load_weights(source, task_type, config=config, use_safetensors=True, output_loading_info=True)
    head = head_options(getattr(config, HEAD_KEY, None))
    return model, info if head is None else put_head(model, head, info, sorted(source.glob("*.safetensors")))


def put_head(model: PreTrainedModel, head: HeadOptions, info: Values, files: Iterable[Path]) -> Values:
    """Replace a model's head, and take up its weights where the model was saved with such a head.

    Args:
        model: as transformers loaded it.
        head: the head.
        info: what transformers said of the loaded tensors.
        files: what the model was loaded from.

    Returns:
        The same of the model with its new head.

    Raises:
        ConfigError: the model has no place for such a head.
    """
    is_saved = head_options(getattr(model.config, HEAD_KEY, None)) == head
    replace_head(model, pool=head.pool, hidden=head.hidden)
    state = model.state_dict()
    names = {name for name in state if is_head(name, model)}
    saved: dict[str, Tensor] = {}
    for file in files if is_saved else ():
        with safe_open(file, framework="pt") as tensors:
            saved |= {name: tensors.get_tensor(name) for name in names & set(tensors.keys())}
    saved = {name: tensor for name, tensor in saved.items() if tensor.shape == state[name].shape}
    model.load_state_dict(saved, strict=False)
    body = state.keys() - names
    return {
        "missing_keys": (body & set(info["missing_keys"])) | (names - saved.keys()),
        "unexpected_keys": set(info["unexpected_keys"]) - saved.keys(),
        "mismatched_keys": [row for row in info["mismatched_keys"] if row[0] in body],
    }


def head_options(values: object) -> HeadOptions | None:
    """Return the head that a config names; None for transformers' own.

    Raises:
        BackboneError: it names none that there is.
    """
    errors: Errors = []
    head = build(HeadOptions, values, errors) if isinstance(values, Mapping) else None
    if head is None and values is not None:
        raise BackboneError(f"the config's head is {quoted(values)}, expected pool and hidden; copy the file again")
    return head


def load_config(source: str | Path, **options: object) -> PretrainedConfig:
    """Load a model's config; code that lies beside it is never run, nor is anybody asked whether it may be."""
    return AutoConfig.from_pretrained(source, trust_remote_code=False, **options)


def load_weights(source: str | Path, task_type: str = "SEQ_CLS", **options: Any) -> Any:
    """Load a model for peft's task type in float32, whatever it was saved in.

    transformers keeps the type of the file, most often bfloat16 for decoders. In that type the small steps
    of training are lost in rounding, and the two precisions of a recipe would be the same.
    """
    config = options.pop("config", None) or load_config(source)
    what, auto, families = _AUTO[task_type]
    if type(config) not in auto._model_mapping:
        raise BackboneError(
            f"cannot {what} with {str(source)!r}: transformers has no model for it of the family "
            f"{config.model_type}; take a model of another family, e.g. {families}"
        )
    check_model_fits(config, auto, source=str(source))
    return auto.from_pretrained(source, config=config, dtype=torch.float32, trust_remote_code=False, **options)


def count_parameters(model: nn.Module) -> ParameterCount:
    """Count what is trained and what there is, without the untrained originals of trained heads."""
    kept = {name: item for name, item in model.named_parameters() if ".original_module." not in name}
    trained = {name: item.numel() for name, item in kept.items() if item.requires_grad}
    head = sum(size for name, size in trained.items() if is_head(name, model))
    return ParameterCount(sum(trained.values()) - head, head, sum(item.numel() for item in kept.values()))


def is_head(name: str, model: nn.Module) -> bool:
    """Tell the parameters of the head from those of the adapter (or of the whole model)."""
    if isinstance(model, PeftModel):
        return "modules_to_save." in name
    if getattr(model, "base_model", None) is model:
        return False  # a body alone
    parts = name.split(".")
    return parts[0] != model.base_model_prefix or not head_names(model).isdisjoint(parts)


def _padding_of(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig | None) -> str | None:
    """Return the token to pad with where the tokenizer names none."""
    named: int | None = getattr(config, "pad_token_id", None)
    if named is None or not 0 <= named < len(tokenizer):
        return tokenizer.eos_token
    return str(tokenizer.convert_ids_to_tokens(named))


@contextmanager
def load_errors(source: str, what: str) -> Iterator[None]:
    """Say in one line why something cannot be loaded: damaged files bring about errors of every kind."""
    try:
        yield
    except ForetokenError:
        raise
    except Exception as error:
        raise BackboneError(
            f"cannot load the {what} {source!r}: {reason(error)}; expected a folder saved by save_pretrained, "
            "a hub name, or `minilm`"
        ) from error


def reason(error: Exception) -> str:
    """Return what an error of another library says, in one line; its remedies that are none here are left out."""
    said = "".join(letter if letter.isprintable() else " " for letter in " ".join(str(error).split()))
    if "trust_remote_code" in said:
        return "it comes with code of its own, which is never run; take a model of a family that transformers has"
    if "weights_only" in said:
        return "its pickle holds more than tensors, and code in it is never run; save the model as safetensors"
    if isinstance(error, KeyError):
        return f"{said} is missing"
    return cut(said, 300) or type(error).__name__


def check_model_fits(config: PretrainedConfig, auto: Any, *, source: str) -> None:
    """Refuse a model with impossible sizes, or one that would not fit into memory.

    The model is made on PyTorch's meta device, where tensors have shapes and no numbers, which takes a few hundredths
    of a second.

    Raises:
        BackboneError: a number of the config is none that a model can have.
        ConfigError: the model would not fit.
    """
    for name, most in MOST.items():
        value = getattr(config.get_text_config(), name, None)
        if isinstance(value, list | tuple) or value is None:  # per layer, or not of this family
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BackboneError(
                f"{source}: {name} is {quoted(value)} in config.json, expected a whole number from 1 to {most:,}; "
                "the file is damaged, copy it again"
            )
    if getattr(config, "quantization_config", None) is not None:  # takes less, and only its library knows how much
        return
    with torch.device("meta"):
        model = auto.from_config(deepcopy(config), trust_remote_code=False)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    check_memory(size, what=f"the model {source} (config.json)", remedy="take a smaller model, or correct its config")
