"""One pretrained model for many adapters: each gets modules of its own around the same frozen tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from threading import RLock

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from foretoken.backbones import BACKBONES
from foretoken.data.problems import GENERATION
from foretoken.lengthening import resolve_source
from foretoken.training.model.load import load_config, load_errors, load_tokenizer, load_with_new_head, put_head
from foretoken.training.problems import Problem, make_problem
from foretoken.training.recipe.recipe import HeadOptions
from foretoken.training.tokens.new_tokens import add_to_tokenizer


class SharedBase:
    """A pretrained model that is read once for every kind of head, and held once for all adapters.

    Args:
        source: folder or hub name of the model, or ``minilm``.

    Raises:
        BackboneError: its config or its tokenizer cannot be loaded.

    Attributes:
        source: what that stands for.
        config: of the model.
        tokenizer: of the model; the adapters read documents with it.
        making: held while modules are made: libraries change what all threads' modules are made of meanwhile.
    """

    def __init__(self, source: str) -> None:
        self.source = resolve_source(source)
        self.making = RLock()
        with load_errors(source, "model"):
            self.config: PretrainedConfig = load_config(self.source)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(self.source, self.config)
        self._tokenizers: dict[tuple[str, ...], PreTrainedTokenizerBase] = {}
        self._made: dict[tuple[object, ...], tuple[PreTrainedModel, list[str]]] = {}
        self._first: PreTrainedModel | None = None

    @cached_property
    def writes(self) -> bool:
        """Whether it is a decoder that was saved with its output layer."""
        family = BACKBONES.get(self.config.model_type)
        if self.config.is_encoder_decoder or family is None or not family.stacks[0].is_causal:
            return False
        return not self.with_new_head(make_problem(GENERATION, ()))[1]

    def language_model(self) -> PreTrainedModel:
        """Return the decoder with its output layer."""
        return self.with_new_head(make_problem(GENERATION, ()))[0]

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a text of this decoder's, by its own settings and its tokenizer."""
        own = getattr(self.language_model().generation_config, "eos_token_id", None)
        ends = own if isinstance(own, list) else [own]
        return frozenset(int(end) for end in (*ends, self.tokenizer.eos_token_id) if end is not None)

    def tokenizer_with(self, tokens: Sequence[str]) -> PreTrainedTokenizerBase:
        """Return the tokenizer with more tokens, as training adds them for an adapter."""
        key = tuple(tokens)
        if not key:
            return self.tokenizer
        if key not in self._tokenizers:
            self._tokenizers[key] = copy.deepcopy(self.tokenizer)
            add_to_tokenizer(self._tokenizers[key], key)
        return self._tokenizers[key]

    def with_new_head(
        self, problem: Problem | None, *, head: HeadOptions | None = None
    ) -> tuple[PreTrainedModel, list[str]]:
        """Return what :func:`~foretoken.training.model.load.load_with_new_head` does, with the shared tensors."""
        with self.making:
            key = () if problem is None else (problem.task_type_of(self.config), repr(problem.head_options))
            if key not in self._made:
                self._made[key] = self._loaded(problem)
            model, random = self._made[key]
            tensors = chain(model.parameters(), model.buffers())
            copied = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
            if head is None:
                return copied, list(random)
            info = {"missing_keys": random, "unexpected_keys": [], "mismatched_keys": []}
            return copied, sorted(put_head(copied, head, info, ())["missing_keys"])

    def _loaded(self, problem: Problem | None) -> tuple[PreTrainedModel, list[str]]:
        model, random = load_with_new_head(self.source, problem)
        model.requires_grad_(False)
        if self._first is None:
            self._first = model
            return model, random
        known, prefix = dict(self._first.named_parameters()), f"{model.base_model_prefix}."
        for name, parameter in list(model.named_parameters()):
            if name.startswith(prefix) and name in known and known[name].shape == parameter.shape:
                owner, _, last = name.rpartition(".")
                setattr(model.get_submodule(owner), last, known[name])
        return model, random
