"""Prefix-propagation in kernel form (Li et al. 2023, section 3.3): text and prefix are attended to separately."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from foretoken.attention.kernels import PERFORMER, orthogonal_features
from foretoken.errors import BackboneError, ConfigError
from foretoken.methods.base import ForetokenConfig
from foretoken.methods.dimensions import AttentionShape, Dimensions
from foretoken.methods.prefixes.prefix import PrefixConfig
from foretoken.methods.prefixes.prefix_propagation import propagated_prefixes
from foretoken.methods.require import require_choice, require_int
from foretoken.methods.sites import SeparatePrefix, Sites

Kernel = Literal["exponential", "linear", "polynomial", "rbf", "performer"]
TextKernel = Literal["exponential", "linear", "polynomial", "rbf"]
Scope = Literal["fixed", "model", "layer", "head", "query", "lambda"]


@dataclass
class KernelPropagationConfig(PrefixConfig):
    """Kernel decomposition of prefix-propagation: one attention to the text, one to the prefix, added.

    Li et al. 2023, eq. 3 (7): ``H = Kern(cat(P, C) W_q, C W_k, C W_v) + alpha Kern(cat(P, C) W_q, P W_k, P W_v)``, each
    Kern normalised over its own keys (eq. 8). The prefix flows through the layers as in prefix-propagation. With
    ``alpha_scope="lambda"`` the two are weighted by the softmax's own lambda (eq. 5, 6): prefix-propagation itself.

    Args:
        kernel: the prefix's kernel; ``performer`` is the exponential one as random features estimate it (FAVOR+).
        text_kernel: the text's kernel; the frozen model knows ``exponential``.
        alpha: weight of the prefix's attention, or where it starts if it is trained.
        alpha_scope: ``fixed``; trained: one for the whole ``model``, per ``layer``, per ``head``, or a linear map of
            each ``query``; or ``lambda``.
        global_alpha: where a backbone attends in a window and to global tokens: attend to the global tokens of the
            text with a kernel of its own, of this weight. None: window and global tokens share one.
        num_random_features: R of the performer kernel.
        random_feature_seed: seed that its features are drawn from; they are not trained, nor saved.

    Raises:
        ConfigError: a value that cannot work, e.g. an unknown kernel.

    >>> KernelPropagationConfig(alpha=0.005, alpha_scope="head").kernel
    'exponential'
    >>> KernelPropagationConfig(kernel="gaussian")
    Traceback (most recent call last):
    ...
    foretoken.errors.ConfigError: kernel is 'gaussian'; expected exponential, linear, polynomial, rbf or performer
    """

    kernel: Kernel = field(default="exponential", metadata={"help": "kernel of the attention to the prefix"})
    text_kernel: TextKernel = field(default="exponential", metadata={"help": "kernel of the attention to the text"})
    alpha: float = field(default=0.01, metadata={"help": "weight of the attention to the prefix (at the start)"})
    alpha_scope: Scope = field(
        default="fixed",
        metadata={"help": "fixed, or trained per model, layer, head or query; lambda: as in the softmax"},
    )
    global_alpha: float | None = field(
        default=None, metadata={"help": "weight of a separate attention to global tokens (null: not separate)"}
    )
    num_random_features: int = field(default=64, metadata={"help": "random features of the performer kernel"})
    random_feature_seed: int = field(default=0, metadata={"help": "seed of the performer kernel's random features"})

    method_type: ClassVar[str] = "FORETOKEN_KERNEL_PROPAGATION"
    starts_from: ClassVar[str] = "vocabulary"

    def validate(self) -> None:
        """Raise ConfigError for values that cannot work."""
        super().validate()
        require_choice("kernel", self.kernel, get_args(Kernel))
        require_choice("text_kernel", self.text_kernel, get_args(TextKernel))
        require_int("num_random_features", self.num_random_features, minimum=1)
        require_int("random_feature_seed", self.random_feature_seed, minimum=0)
        require_choice("alpha_scope", self.alpha_scope, get_args(Scope))
        for name in ("alpha", "global_alpha"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise ConfigError(f"{name} is {value!r}; expected a number")
        if self.alpha_scope == "lambda" and (self.kernel, self.text_kernel) != ("exponential", "exponential"):
            raise ConfigError("alpha_scope 'lambda' is defined for exponential kernels; leave the kernels as they are")

    def with_plain_modules(self, sites: Sites) -> ForetokenConfig:
        """Put prefixes in the place of their network, and a number of each layer in the place of the model's."""
        config = super().with_plain_modules(sites)
        if self.alpha_scope != "model":
            return config
        for separate in sites.attention.values():
            if isinstance(separate, KernelPrefix) and isinstance(separate.alpha, SharedAlpha):
                separate.alpha = separate.alpha.copied()
        return replace(config, alpha_scope="layer")  # type: ignore[type-var, call-arg]

    def build(self, dimensions: Dimensions) -> Sites:
        """Return the entries of prefix-propagation, and a separate prefix for every self-attention.

        Raises:
            BackboneError: ``global_alpha`` is set and the backbone has no global tokens.
        """
        shapes = [shape for shape in dimensions.attentions if not shape.is_cross]
        if self.global_alpha is not None and not any(shape.has_global for shape in shapes):
            raise BackboneError(
                f"global_alpha is {self.global_alpha}, but {dimensions.model_type} models have no global tokens; "
                "leave it out, or use a sparse model such as Longformer"
            )
        shared = Alpha(self.alpha) if self.alpha_scope == "model" else None
        separate: dict[int, KernelPrefix] = {}
        for index, shape in enumerate(shapes):
            alpha = make_alpha(self, shape, shared, owner=index == 0)
            separate[index] = KernelPrefix(
                alpha,
                kernel=self.kernel,
                text_kernel=self.text_kernel,
                global_alpha=self.global_alpha if shape.has_global else None,
                projection=self.projection(shape),
            )
        # reference.kernel_propagation: the propagated rows, and what the tuner's decomposition does with their keys
        return Sites(layers=propagated_prefixes(self, dimensions), attention=separate)

    def projection(self, shape: AttentionShape) -> Tensor | None:
        """Return the performer kernel's random features of one attention, (R, K), all its heads'; else None."""
        if self.kernel != PERFORMER:
            return None
        return orthogonal_features(self.num_random_features, shape.head_dim, seed=self.random_feature_seed)


class KernelPrefix(SeparatePrefix):
    """The attention to the prefix: its kernel, and its weight beside the attention to the text."""

    def __init__(
        self,
        alpha: nn.Module | None,
        *,
        kernel: str,
        text_kernel: str,
        global_alpha: float | None,
        projection: Tensor | None,
    ) -> None:
        super().__init__()
        self.projection = projection  # no buffer: it follows from the config, and a model on "meta" has it as well
        self.alpha = alpha
        self.kernel = kernel
        self.text_kernel = text_kernel
        self.global_alpha = global_alpha

    def weight(self, query: Tensor) -> Tensor | None:
        """(B, H, N, K) -> alpha, broadcastable to (B, H, N, 1); None for lambda."""
        return None if self.alpha is None else self.alpha(query)


def make_alpha(
    config: KernelPropagationConfig, shape: AttentionShape, shared: Alpha | None, *, owner: bool
) -> nn.Module | None:
    """Return the weight of one attention's prefix part; None for lambda."""
    match config.alpha_scope:
        case "lambda":
            return None
        case "fixed":
            return FixedAlpha(config.alpha)
        case "layer":
            return Alpha(config.alpha)
        case "head":
            return Alpha(config.alpha, shape.num_heads)
        case "query":
            return QueryAlpha(config.alpha, shape.num_heads, shape.head_dim)
    assert shared is not None
    return shared if owner else SharedAlpha(shared)


class FixedAlpha(nn.Module):
    """A number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, query: Tensor) -> Tensor:
        """Return it, in the query's type."""
        return query.new_tensor(self.value)


class Alpha(nn.Module):
    """A trained number, or one per head."""

    def __init__(self, value: float, heads: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((heads, 1, 1), float(value)))

    def forward(self, query: Tensor) -> Tensor:
        """Return (1 or H, 1, 1)."""
        return self.weight.to(query.dtype)


class SharedAlpha(nn.Module):
    """Another attention's number."""

    def __init__(self, owner: Alpha) -> None:
        super().__init__()
        self._owner = (owner,)  # in a tuple: not registered a second time

    def forward(self, query: Tensor) -> Tensor:
        """Return (1, 1, 1)."""
        return self._owner[0](query).to(query.device)

    def copied(self) -> Alpha:
        """Return a number of its own of the same value."""
        made = Alpha(0.0)
        made.weight = nn.Parameter(self._owner[0].weight.detach().clone())
        return made


class QueryAlpha(nn.Module):
    """``<w_h, q> + b_h`` per head h and query q; w starts at zero."""

    def __init__(self, value: float, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, width, 1))
        self.bias = nn.Parameter(torch.full((heads, 1, 1), float(value)))

    def forward(self, query: Tensor) -> Tensor:
        """(B, H, N, K) -> (B, H, N, 1)."""
        return query @ self.weight.to(query.dtype) + self.bias.to(query.dtype)
