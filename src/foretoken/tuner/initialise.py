"""What a prefix is at the start: what the frozen model computes for a text, or what another adapter has learnt.

Shapes: P prefix length, D model width, W width of an attention's keys (H_kv K).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from foretoken.errors import AdapterError, ConfigError, did_you_mean
from foretoken.methods import METHODS
from foretoken.methods.base import ForetokenConfig, Sites
from foretoken.methods.prefix import Prefix, PrefixConfig
from foretoken.methods.prefix_propagation import PropagatedRows
from foretoken.methods.prefix_tuning import PrefixBranch
from foretoken.methods.stack import plain
from foretoken.tuner.checks import check_same_backbone
from foretoken.tuner.folders import read_config, read_tensors
from foretoken.tuner.frozen import FrozenStates, frozen_states
from foretoken.tuner.sites import NAME
from foretoken.tuner.wiring import Wiring

SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask", "unk", "decoder_start")


def start(wiring: Wiring, adapter_name: str) -> None:
    """Give a new adapter's prefixes what their configs ask for.

    Raises:
        ConfigError: the text has no tokenizer, or no tokens.
        AdapterError: the adapter to start from is missing, or of another kind.
    """
    for config, sites in members(wiring, adapter_name):
        if not isinstance(config, PrefixConfig) or any(p.is_meta for p in parameters(sites)):
            continue
        if config.prefix_init == "adapter":
            copy_adapter(config, sites, wiring)
        elif config.prefix_init != "random":
            tokens = random_tokens if config.prefix_init == "vocabulary" else tokens_of_text
            start_as(tokens(config, wiring), config, sites, wiring)


def initialise_prefix(model: nn.Module, *, token_ids: Sequence[int] | Tensor, adapter_name: str = "default") -> None:
    """Let an adapter's prefix be what the frozen model computes for a text.

    Prompt tuning's rows, and those of the first layer in prefix-propagation, become what enters the first layer
    for the text; what prefix-propagation adds before later layers becomes 0. The keys and values of prefix-tuning become
    those of the text in every attention: the prefix starts as if the text stood before every document. An
    encoder-decoder reads the text in both stacks.

    Args:
        model: a model with an adapter that has a prefix; in a stack every such member is set.
        token_ids: the text's (N,) tokens, repeated or cut to the length of the prefix.
        adapter_name: which adapter.

    Raises:
        AdapterError: no such adapter, an adapter without a prefix or with a projected one, or unusable token ids.

    >>> from peft import get_peft_model
    >>> from transformers import BertConfig, BertModel
    >>> from foretoken import PromptTuningConfig, initialise_prefix
    >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> model = get_peft_model(BertModel(config), PromptTuningConfig(num_virtual_tokens=4))
    >>> initialise_prefix(model, token_ids=[2054, 2003, 2023])
    >>> rows = model.get_parameter("base_model.model.encoder.layer.0.foretoken.default.prefix.weight")
    >>> ids = torch.tensor([[2054, 2003, 2023, 2054]])  # repeated to four
    >>> bool(torch.allclose(rows, model.get_base_model().eval().embeddings(ids)[0], atol=1e-6))
    True
    """
    wiring = wiring_of(model, adapter_name)
    ids = checked_tokens(torch.as_tensor(token_ids).flatten().tolist(), wiring)
    found = [both for both in members(wiring, adapter_name) if isinstance(both[0], PrefixConfig)]
    if not found:
        raise AdapterError(f"adapter {adapter_name!r} has no prefix; {prefix_methods()} have one")
    for config, sites in found:
        assert isinstance(config, PrefixConfig)
        start_as(ids, config, sites, wiring)


def start_as(tokens: list[int], config: PrefixConfig, sites: Sites, wiring: Wiring) -> None:
    """Let one method's prefixes be what the frozen model computes for a text.

    Raises:
        AdapterError: the prefix is the output of a network.
    """
    if config.prefix_projection:
        raise AdapterError(
            "with prefix_projection the prefix is a network's output and starts as what that yields; "
            "make an adapter without it to start from a text"
        )
    text = torch.tensor(list(islice(cycle(tokens), config.num_virtual_tokens)))
    fill(sites, frozen_states(wiring, text))


def fill(sites: Sites, states: FrozenStates) -> None:
    """Write what the model computes for a text into the prefixes of one method."""
    for layer, entry in sites.layers.items():
        if isinstance(entry, PropagatedRows):
            write(entry.prefix, states.entering[layer] if entry.first else torch.zeros(()))
    for index, branch in sites.attention.items():
        if isinstance(branch, PrefixBranch):
            write(branch.prefix, states.attentions[index])


def write(prefix: nn.Module, value: Tensor) -> None:
    """Write a (P, width) value into a prefix."""
    assert isinstance(prefix, Prefix)
    with torch.no_grad():
        prefix.weight.copy_(value)


def random_tokens(config: PrefixConfig, wiring: Wiring) -> list[int]:
    """Return P random tokens of the vocabulary, none of them special; PyTorch's seed decides."""
    named = (getattr(wiring.body.config, f"{name}_token_id", None) for name in SPECIAL)
    special = {token for token in named if isinstance(token, int)}
    ordinary = [token for token in range(wiring.dimensions.vocab_size) if token not in special]
    drawn = torch.randint(len(ordinary), (config.num_virtual_tokens,))
    return [ordinary[place] for place in drawn.tolist()]


def tokens_of_text(config: PrefixConfig, wiring: Wiring) -> list[int]:
    """Return the tokens of the config's text, without special ones.

    Raises:
        ConfigError: there is no tokenizer, or the text has no tokens.
    """
    source = config.tokenizer_name_or_path or getattr(wiring.body, "name_or_path", "")
    if not source:
        raise ConfigError(
            "prefix_init is 'text' and the model does not say which tokenizer is its own; set tokenizer_name_or_path"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"no tokenizer at {source!r} ({reason}); set tokenizer_name_or_path to a folder or a hub name"
        ) from error
    tokens = tokenizer(config.prefix_init_text, add_special_tokens=False)["input_ids"]
    if not tokens:
        raise ConfigError(f"prefix_init_text is {config.prefix_init_text!r}, which has no tokens; give a longer text")
    return checked_tokens(tokens, wiring)


def checked_tokens(tokens: list[int], wiring: Wiring) -> list[int]:
    """Return the tokens if the model knows them.

    Raises:
        AdapterError: there are none, or one that the model does not know.
    """
    size = wiring.dimensions.vocab_size
    if not tokens or not all(isinstance(token, int) and 0 <= token < size for token in tokens):
        got = next((token for token in tokens if not (isinstance(token, int) and 0 <= token < size)), "no token")
        raise AdapterError(f"got {got} to start a prefix from; expected token ids from 0 to {size - 1}")
    return tokens


def copy_adapter(config: PrefixConfig, sites: Sites, wiring: Wiring) -> None:
    """Copy every tensor of a saved adapter of the same method; prefixes are repeated or cut to their new length.

    Raises:
        AdapterError: there is no such adapter, it is of another method, or its options differ.
        BackboneError: it was made for another backbone.
    """
    source = str(config.prefix_init_adapter)
    saved = saved_config(source, config)
    check_same_backbone(saved, wiring.dimensions)
    prefix = f"{wiring.body.base_model_prefix}."
    given = {key.removeprefix("base_model.model.").removeprefix(prefix): x for key, x in read_tensors(source).items()}
    given = {key: x for key, x in given.items() if f"{NAME}." in key}
    wanted = dict(named_parameters(sites, wiring))
    if differing := sorted(wanted.keys() ^ given.keys()):
        raise AdapterError(
            f"{source} and the new adapter differ by {len(differing)} tensors, e.g. {differing[0]}; "
            "give both the same options"
        )
    lengths = saved.num_virtual_tokens, config.num_virtual_tokens
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(fitted(given[name], parameter.shape, *lengths, name=f"{source}: {name}"))


def saved_config(source: str, config: PrefixConfig) -> PrefixConfig:
    """Return the config of a saved adapter of the same method as ``config``.

    Raises:
        AdapterError: it is of another method.
    """
    fields = read_config(source)
    if plain(fields.pop("peft_type")) != config.method_type:
        name = next((m.name for m in METHODS.values() if isinstance(config, m.config or int)), config.method_type)
        raise AdapterError(f"{source} is not an adapter of {name}; a prefix starts from one of its own method")
    fields |= {"prefix_init": "random", "prefix_init_text": None, "prefix_init_adapter": None}
    return type(config).from_peft_type(peft_type=config.peft_type, **{**fields, "tokenizer_name_or_path": None})


def fitted(x: Tensor, shape: Sequence[int], length: int, wanted: int, *, name: str) -> Tensor:
    """Return a tensor in this shape, the rows of a prefix repeated or cut.

    Raises:
        AdapterError: the shapes differ in anything else.

    >>> fitted(torch.tensor([[1.0], [2.0]]), (3, 1), 2, 3, name="prefix").tolist()
    [[1.0], [2.0], [1.0]]
    """
    if tuple(x.shape) == tuple(shape):
        return x
    if (x.shape[0], shape[0]) == (length, wanted) and tuple(x.shape[1:]) == tuple(shape[1:]):
        return x[torch.arange(wanted) % length]
    raise AdapterError(f"{name} is {tuple(x.shape)}; the new adapter has {tuple(shape)} there: their options differ")


def members(wiring: Wiring, adapter_name: str) -> Sequence[tuple[ForetokenConfig, Sites]]:
    """Return the methods of an adapter with what they built: the members of a stack, or the adapter itself."""
    config, sites = wiring.built[adapter_name]
    return sites.members or ((config, sites),)


def modules(sites: Sites) -> Iterator[nn.Module]:
    """Yield every module of one method."""
    yield from (*sites.layers.values(), *sites.attention.values(), *sites.outputs.values())


def parameters(sites: Sites) -> Iterator[nn.Parameter]:
    """Yield every parameter of one method."""
    for module in modules(sites):
        yield from module.parameters()


def named_parameters(sites: Sites, wiring: Wiring) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of one method as they are called in a file, below the body."""
    paths = {module: path for path, module in wiring.body.named_modules()}
    for key, module in [*sites.layers.items(), *sites.attention.items(), *sites.outputs.items()]:
        path = paths[wiring.target(key, module).holder]
        for name, parameter in module.named_parameters():
            yield f"{path}.{NAME}.{name}", parameter


def prefix_methods() -> str:
    """Return the names of the methods that have a prefix."""
    names = [m.name for m in METHODS.values() if m.config is not None and issubclass(m.config, PrefixConfig)]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def wiring_of(model: nn.Module, adapter_name: str) -> Wiring:
    """Return the wiring of a model with this adapter.

    Raises:
        AdapterError: the model has no such adapter of foretoken's.
    """
    from foretoken.tuner.tuner import find_wiring

    wiring = find_wiring(model)
    built = {} if wiring is None else wiring.built
    if wiring is None or adapter_name not in built:
        hint = did_you_mean(adapter_name, built)
        raise AdapterError(f"no adapter {adapter_name!r} of foretoken{hint}; the model has: {', '.join(built) or 'none'}")
    return wiring
