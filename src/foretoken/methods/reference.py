"""The methods' equations, one function each: what a method computes, read from top to bottom.

No other file is needed to understand this one. It has no masks, dropout or packing, and nothing in ``src`` calls it:
tests compare the fast ways with it, and a comment ``reference.NAME`` elsewhere says whose work is done there.

Shapes: B documents, L layers, H heads, N queries, M keys, P virtual tokens, D model width, K head width, R rank,
V vocabulary. Everywhere

- ``states`` (B, M, D) enter a layer; ``prefix`` (P, D) is one layer's;
- ``q`` (B, H, N, K) are queries, ``k`` and ``v`` (B, H, M, K) the keys and values that they may see;
- ``p_k`` and ``p_v`` (H, P, K) are one attention's virtual keys and values;
- ``x`` (B, N, D_in) enters a module, and ``y`` (B, N, D_out) is what the frozen module makes of it.

A ``stack`` applies its members in turn; ``head-only`` and ``full`` have no equation: nothing is added to the model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Return ``<q, k> / sqrt(K)``: (B, H, N, M)."""
    return q @ k.mT / q.shape[-1] ** 0.5


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return what the frozen model does, ``softmax(q k^T / sqrt(K)) v``: (B, H, N, K).

    >>> one = torch.ones(1, 1, 1, 1)
    >>> attention(one, torch.zeros(1, 1, 2, 1), torch.tensor([[1.0], [3.0]])).item()
    2.0
    """
    return scores(q, k).softmax(dim=-1) @ v


# Hidden states: rows before the text


def propagated(states: Tensor, prefix: Tensor, layer: int) -> Tensor:
    """Li et al. 2023, eq. 1, the input of a layer: ``cat(P, C)`` of the first, ``cat(P + C[:P], C[P:])`` of later ones.

    (B, M, D) -> (B, P + M, D) in layer 0, (B, M, D) -> (B, M, D) afterwards. The prefix leaves before the head.

    >>> rows = propagated(torch.tensor([[1.0], [2.0]]), torch.tensor([[5.0]]), 0).flatten()
    >>> rows.tolist(), propagated(rows[:, None], torch.tensor([[0.5]]), 1).flatten().tolist()
    ([5.0, 1.0, 2.0], [5.5, 1.0, 2.0])
    """
    if layer == 0:
        return torch.cat([prefix.expand(*states.shape[:-2], -1, -1), states], dim=-2)
    length = len(prefix)
    return torch.cat([prefix + states[..., :length, :], states[..., length:, :]], dim=-2)


def prefix_propagation(states: Tensor, prefix: Tensor, layer: int, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """Li et al. 2023, eq. 1: ``Attn(D W_q, D W_k, D W_v)`` of the propagated rows, W (H, D, K); (B, H, P + N, K).

    All rows see each other; in a sparse model the prefix's are global tokens. They have no position, the text its own.
    """
    rows = propagated(states, prefix, layer).unsqueeze(-3)
    return attention(rows @ w_q, rows @ w_k, rows @ w_v)


def prompt_tuning(states: Tensor, prefix: Tensor) -> Tensor:
    """Lester et al. 2021: rows before the text where it enters layer 0, and nothing afterwards; (B, P + N, D).

    >>> prompt_tuning(torch.zeros(2, 5, 4), torch.ones(3, 4)).shape
    torch.Size([2, 8, 4])
    """
    return propagated(states, prefix, 0)


# Attention: virtual keys and values beside the text's


def prefix_tuning(q: Tensor, k: Tensor, v: Tensor, p_k: Tensor, p_v: Tensor) -> Tensor:
    """Li & Liang 2021 (Li et al. 2023, eq. 2): one softmax over [prefix; text], ``Attn(q, [P_k; k], [P_v; v])``.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> prefix_tuning(one, 0 * one, one, torch.zeros(1, 1, 1), torch.full((1, 1, 1), 3.0)).item()
    2.0
    """
    weights = torch.cat([scores(q, p_k), scores(q, k)], dim=-1).softmax(dim=-1)
    of_prefix, of_text = weights.split([p_k.shape[-2], k.shape[-2]], dim=-1)
    return of_prefix @ p_v + of_text @ v


def prefix_share(q: Tensor, k: Tensor, p_k: Tensor) -> Tensor:
    """Li et al. 2023, eq. 6, lambda: the prefix's share of that softmax, (B, H, N, 1). The paper leaves out the exp."""
    prefix, text = (scores(q, keys).exp().sum(dim=-1, keepdim=True) for keys in (p_k, k))
    return prefix / (prefix + text)


def weighed_attentions(q: Tensor, k: Tensor, v: Tensor, p_k: Tensor, p_v: Tensor) -> Tensor:
    """Li et al. 2023, eq. 5 (He et al. 2022, eq. 7): the same as ``(1 - lambda) Attn(text) + lambda Attn(prefix)``.

    With trained keys and values it is prefix-tuning, with those of the propagated rows prefix-propagation.
    """
    share = prefix_share(q, k, p_k)
    return (1 - share) * attention(q, k, v) + share * attention(q, p_k, p_v)


def decoupled_prefix(q: Tensor, k: Tensor, v: Tensor, p_k: Tensor, p_v: Tensor, gate: Tensor | float = 1.0) -> Tensor:
    """Return ``Attn(text) + g Attn(prefix)``: two softmaxes. The gate g is 1, or ``tanh(w)`` per head, (H, 1, 1).

    Compare Prefix-Tuning+ (Wang et al. 2025) and LLaMA-Adapter (Zhang et al. 2023).

    >>> one = torch.ones(1, 1, 1, 1)
    >>> decoupled_prefix(one, one, one, torch.ones(1, 1, 1), torch.full((1, 1, 1), 3.0)).item()
    4.0
    """
    return attention(q, k, v) + gate * attention(q, p_k, p_v)


def exponential(q: Tensor, k: Tensor) -> Tensor:
    """Li et al. 2023, eq. 9: ``exp(s)``, s the scores: with it kernel attention is attention."""
    return scores(q, k).exp()


def polynomial(q: Tensor, k: Tensor) -> Tensor:
    """Return ``s^2``; the linear kernel is s itself."""
    return scores(q, k) ** 2


def rbf(q: Tensor, k: Tensor) -> Tensor:
    """Return ``exp(-|q - k|^2 / (2 sqrt(K)))``."""
    distances = (q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(dim=-1)
    return torch.exp(-distances / (2 * q.shape[-1] ** 0.5))


def performer(q: Tensor, k: Tensor, directions: Tensor) -> Tensor:
    """Choromanski et al. 2021, lemma 1: an estimate of exp(s) by random directions W (R, K), ``<phi(q), phi(k)>``."""

    def phi(x: Tensor) -> Tensor:
        x = x / x.shape[-1] ** 0.25
        half_square = x.square().sum(dim=-1, keepdim=True) / 2
        return torch.exp(x @ directions.T - half_square) / len(directions) ** 0.5

    return phi(q) @ phi(k).mT


def kernel_attention(q: Tensor, k: Tensor, v: Tensor, kernel: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Li et al. 2023, eq. 8: ``sum_j k(q, k_j) v_j / sum_j k(q, k_j)``."""
    weights = kernel(q, k)
    return weights / weights.sum(dim=-1, keepdim=True) @ v


def kernel_propagation(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p_k: Tensor,
    p_v: Tensor,
    alpha: Tensor | float,
    kernel: Callable[[Tensor, Tensor], Tensor] = exponential,
    text_kernel: Callable[[Tensor, Tensor], Tensor] = exponential,
) -> Tensor:
    """Li et al. 2023, eq. 3 and 7: ``Kern(text) + alpha Kern(prefix)``, the prefix's keys those of the propagated rows.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> kernel_propagation(one, one, one, torch.ones(1, 1, 1), torch.full((1, 1, 1), 3.0), alpha=0.5).item()
    2.5
    """
    return kernel_attention(q, k, v, text_kernel) + alpha * kernel_attention(q, p_k, p_v, kernel)


def selective_prefix_tuning(q: Tensor, k: Tensor, v: Tensor, p_k: Tensor, p_v: Tensor, alpha: float) -> Tensor:
    """Zhang et al. 2024, eq. 4 to 6: prefix-tuning whose prefix weights ``exp(s)`` become ``sigmoid(alpha s) exp(s)``.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> half = selective_prefix_tuning(one, 0 * one, one, torch.zeros(1, 1, 1), torch.full((1, 1, 1), 4.0), alpha=8.0)
    >>> half.item()  # at a score of 0 the mask is 1/2: (0.5 * 4 + 1 * 1) / 1.5
    2.0
    """
    of_prefix = scores(q, p_k)  # eq. 4
    of_prefix = torch.sigmoid(alpha * of_prefix) * of_prefix.exp()  # eq. 5, and the numerators of eq. 6
    of_text = scores(q, k).exp()
    total = of_prefix.sum(dim=-1, keepdim=True) + of_text.sum(dim=-1, keepdim=True)
    return (of_prefix @ p_v + of_text @ v) / total


def selective_loss(keys: Tensor, values: Tensor) -> Tensor:
    """Zhang et al. 2024, eq. 7 to 9, of the (L, P, D) virtual keys and values; the loss is task + lambda SL (eq. 10).

    ``SL = 1/2 sum_l (KSL_l + VSL_l)``, each the mean of ``|cos|`` over the pairs of a layer's tokens; 0 without a pair.

    >>> round(selective_loss(torch.eye(2)[None], torch.ones(1, 2, 2)).item(), 4)
    0.5
    """
    first, second = torch.triu_indices(keys.shape[1], keys.shape[1], offset=1)
    ksl, vsl = (torch.cosine_similarity(p[:, first], p[:, second], dim=-1).abs().sum() for p in (keys, values))
    return (ksl + vsl) / max(1, len(first)) / 2


# Inducer-tuning: a virtual key and value made from each query


def network(x: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor) -> Tensor:
    """Return ``tanh(x W_1 + b_1) W_2`` per head: W_1 (H, K, R), b_1 (H, 1, R), W_2 (H, R, K or D).

    MLP_k, and the MLP_v of ``adaptive``, add a bias b_2 (H, 1, K) to it.
    """
    return torch.tanh(x @ w_1 + b_1) @ w_2


def inducer_share(q: Tensor, k: Tensor, p_k: Tensor) -> Tensor:
    """Chen et al. 2022, lambda of eq. 7, (B, H, N, 1): the share of each query's own virtual key, (B, H, N, K)."""
    own = torch.exp((q * p_k).sum(dim=-1, keepdim=True) / q.shape[-1] ** 0.5)
    return own / (own + scores(q, k).exp().sum(dim=-1, keepdim=True))


def adaptive_inducer(q: Tensor, k: Tensor, v: Tensor, mlp_v: Tensor) -> Tensor:
    """Chen et al. 2022, eq. 8 with ``P_k = q``, what enters W_o: ``f(q) + lambda MLP_v(q)``; all (B, H, N, K).

    It is the attention to one more key q and its value ``f(q) + MLP_v(q)`` (eq. 5 to 7).
    """
    return attention(q, k, v) + inducer_share(q, k, q) * mlp_v


def inducer_tuning(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_o: Tensor,
    b_o: Tensor,
    mlp_k: Tensor | float,
    w_1: Tensor,
    b_1: Tensor,
    w_2: Tensor,
    b_2: Tensor,
    *,
    gating: bool = False,
) -> Tensor:
    """Chen et al. 2022, eq. 8, 9 and 11: the output of the whole attention, (B, N, D).

    ``sum_h (f_h W_o,h + lambda_h tanh(q_h W_1,h + b_1,h) W_2,h) + b_o + b_2``, W_o (H, K, D), ``mlp_k`` = MLP_k(q). The
    variant ``extension`` has an ``mlp_k`` of 0; ``gating`` has ``(1 - lambda) f`` in the place of f.
    """
    share = inducer_share(q, k, q + mlp_k)  # eq. 5, 7
    f = attention(q, k, v)
    if gating:
        f = (1 - share) * f
    return (f @ w_o + share * network(q, w_1, b_1, w_2)).sum(dim=-3) + b_o + b_2


# Hidden states: a vector per token


def aot_p_tuning(states: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """Gavrilov & Balagansky 2023, eq. 5, before every layer: ``H + T[x]``, T (V, D) of the layer, x (B, N) token ids.

    >>> aot_p_tuning(torch.ones(1, 2, 1), torch.tensor([[0.0], [5.0]]), torch.tensor([[1, 0]])).flatten().tolist()
    [6.0, 1.0]
    """
    return states + table[ids]


def aot_fc(embeddings: Tensor, w_1: Tensor, b_1: Tensor, w_2: Tensor, b_2: Tensor) -> Tensor:
    """Gavrilov & Balagansky 2023, eq. 7, T of ``fc``: ``gelu(E W_1 + b_1) W_2 + b_2``, E (V, D), W_1 (D, R)."""
    return gelu(embeddings @ w_1 + b_1) @ w_2 + b_2


def aot_kronecker(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Gavrilov & Balagansky 2023, eq. 6, T of ``kronecker``: ``(A (x) B) C``, A (a, R), B (b, R), C (R^2, D).

    >>> aot_kronecker(torch.ones(3, 1), torch.ones(2, 1), torch.ones(1, 4)).shape
    torch.Size([6, 4])
    """
    return torch.kron(a, b) @ c


# Linear maps and blocks


def lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Hu et al. 2021: ``W x + s B A x``, A (R, D_in), B (D_out, R), s = alpha / r. Eq. 10 of inducer-tuning has s = 1.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> lora(one, one, torch.full((1, 1), 2.0), torch.full((1, 1), 3.0), scale=0.5).item()
    4.0
    """
    return y + scale * x @ a.T @ b.T


def query_value_lora(
    q: Tensor, k: Tensor, v: Tensor, x: Tensor, a_q: Tensor, b_q: Tensor, a_v: Tensor, b_v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Hu et al. 2021: updates of the queries and values (B, N, D) that x is projected to; keys stay as they are."""
    return lora(q, x, a_q, b_q, scale), k, lora(v, x, a_v, b_v, scale)


def bottleneck_adapter(
    y: Tensor, z: Tensor, w_down: Tensor, b_down: Tensor, w_up: Tensor, b_up: Tensor, *, scale: float = 1.0
) -> Tensor:
    """Houlsby et al. 2019 (Chen et al. 2022, eq. 1): ``y + s (relu(z W_down + b_down) W_up + b_up)``, W_down (D, R).

    z is y, after a block (``houlsby``: after every block), or x, beside a feed-forward block (``parallel``).
    """
    return y + scale * (torch.relu(z @ w_down + b_down) @ w_up + b_up)


def mam_adapter(
    q: Tensor, k: Tensor, v: Tensor, p_k: Tensor, p_v: Tensor, y: Tensor, x: Tensor, *adapter: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """He et al. 2022: prefix-tuning in every attention, and an adapter from x to y of every feed-forward block."""
    return prefix_tuning(q, k, v, p_k, p_v), bottleneck_adapter(y, x, *adapter, scale=scale)


def bitfit(y: Tensor, d: Tensor) -> Tensor:
    """Ben Zaken et al. 2022: ``W x + b + d``, a vector d (D_out,) beside every bias of the body.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> bitfit(one, torch.ones(1)).item()
    2.0
    """
    return y + d
