"""The papers' numbered equations, one small function each, for one head (and one query where the equation has one).

Each docstring names the paper and the number. Where a printed equation cannot be meant as it stands, the docstring says
what was read instead and why. Layers are counted from 0 (the papers count from 1).

Shapes: N text tokens, P prefix tokens, D model width, K head width, V vocabulary, R rank.
"""

import math

import torch
from torch import Tensor

from support.naive_functions import softmax

# --- prefix-propagation, Li et al. 2023 -------------------------------------------------------------------------------


def attn(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attn of all papers: softmax(Q K^T / sqrt(d_k)) V, query by query."""
    return torch.stack([softmax(keys @ q / math.sqrt(len(q))) @ values for q in query])


def propagation_1_input(layer: int, prefix: Tensor, x: Tensor) -> Tensor:
    """Prefix-propagation eq. 1, D^(l): cat(P, C) in the first layer, then cat(P + C[:j], C[j:])."""
    if layer == 0:
        return torch.cat([prefix, x])
    count = len(prefix)
    return torch.cat([prefix + x[:count], x[count:]])


def propagation_1(d: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """Prefix-propagation eq. 1 (eq. 4 in the first layer), H = Attn(D W_q, D W_k, D W_v)."""
    return attn(d @ w_q, d @ w_k, d @ w_v)


def propagation_2(c: Tensor, p_k: Tensor, p_v: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """Prefix-propagation eq. 2 (prefix-tuning), H = Attn(C W_q, cat(P_k, C W_k), cat(P_v, C W_v))."""
    return attn(c @ w_q, torch.cat([p_k, c @ w_k]), torch.cat([p_v, c @ w_v]))


def propagation_3(p: Tensor, c: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, *, alpha, kernel) -> Tensor:
    """Prefix-propagation eq. 3: Kern(cat(P,C) W_q, C W_k, C W_v) + alpha Kern(cat(P,C) W_q, P W_k, P W_v)."""
    rows = [
        propagation_7(q, c @ w_k, c @ w_v, p @ w_k, p @ w_v, alpha=alpha, kernel=kernel)
        for q in torch.cat([p, c]) @ w_q
    ]
    return torch.stack(rows)


def propagation_5(q: Tensor, keys: Tensor, values: Tensor, row_keys: Tensor, row_values: Tensor) -> Tensor:
    """Prefix-propagation eq. 5 for one query: (1 - lambda) Attn over the text + lambda Attn over the prefix rows."""
    weight = propagation_6(q, keys, row_keys)
    (text,), (rows,) = attn(q[None], keys, values), attn(q[None], row_keys, row_values)
    return (1 - weight) * text + weight * rows


def propagation_6(q: Tensor, keys: Tensor, row_keys: Tensor) -> Tensor:
    """Prefix-propagation eq. 6, lambda(C), the rows' share of the softmax.

    Printed without exp and 1/sqrt(d_k); eq. 5 holds only with both (as in He et al. 2022, eq. 7, which it cites).
    """
    rows = torch.exp(row_keys @ q / math.sqrt(len(q))).sum()
    text = torch.exp(keys @ q / math.sqrt(len(q))).sum()
    return rows / (rows + text)


def propagation_7(
    q: Tensor, keys: Tensor, values: Tensor, row_keys: Tensor, row_values: Tensor, *, alpha, kernel, text_kernel=None
) -> Tensor:
    """Prefix-propagation eq. 7 for one query: Kern over the text + alpha Kern over the rows; no keys, no term."""
    out = torch.zeros_like(q)
    if len(keys):
        out = out + propagation_8(q, keys, values, text_kernel or kernel)
    if len(row_keys):
        out = out + alpha * propagation_8(q, row_keys, row_values, kernel)
    return out


def propagation_8(q: Tensor, keys: Tensor, values: Tensor, kernel) -> Tensor:
    """Prefix-propagation eq. 8 for one query: sum_j k(q, K_j) / sum_j' k(q, K_j') V_j."""
    similarity = kernel(q, keys)
    return similarity / similarity.sum() @ values


def propagation_9(q: Tensor, keys: Tensor) -> Tensor:
    """Prefix-propagation eq. 9, the exponential kernel of a query and each key: exp(<q, k> / sqrt(d_k))."""
    return torch.exp(keys @ q / math.sqrt(len(q)))


# --- inducer-tuning, Chen et al. 2022 ---------------------------------------------------------------------------------


def inducer_5(q: Tensor, mlp_k: Tensor) -> Tensor:
    """Inducer-tuning eq. 5, the virtual key of one query: Q_i + MLP_k(Q_i)."""
    return q + mlp_k


def inducer_6(f: Tensor, mlp_v: Tensor) -> Tensor:
    """Inducer-tuning eq. 6, the virtual value of one query: f(Q_i) + MLP_v(Q_i)."""
    return f + mlp_v


def inducer_7_fraction(q: Tensor, p_k: Tensor, p_v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Inducer-tuning eq. 7, first line, with the factor 1/sqrt(p) that the paper leaves out for clarity."""
    own = torch.exp(q @ p_k / math.sqrt(len(q)))
    text = torch.exp(keys @ q / math.sqrt(len(q)))
    return (own * p_v + text @ values) / (own + text.sum())


def inducer_7_lambda(q: Tensor, p_k: Tensor, keys: Tensor) -> Tensor:
    """Inducer-tuning, the weight lambda_i of eq. 7: only keys that the query may see are given."""
    own = torch.exp(q @ p_k / math.sqrt(len(q)))
    return own / (own + torch.exp(keys @ q / math.sqrt(len(q))).sum())


def inducer_7(weight: Tensor, p_v: Tensor, f: Tensor) -> Tensor:
    """Inducer-tuning eq. 7, second line: lambda_i P_v,i + (1 - lambda_i) f(Q_i)."""
    return weight * p_v + (1 - weight) * f


def inducer_8(weight: Tensor, mlp_v: Tensor, f: Tensor) -> Tensor:
    """Inducer-tuning eq. 8: f(Q_i) + lambda_i MLP_v(Q_i)."""
    return f + weight * mlp_v


def inducer_9(f: Tensor, w_o: Tensor) -> Tensor:
    """Inducer-tuning eq. 9, the complete output of one head, (N, K) and the head's block (K, D) of W_o: f W_o^(h)."""
    return f @ w_o


def inducer_10(w_q: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Inducer-tuning eq. 10: W_q + B A."""
    return w_q + b @ a


def inducer_11(q: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """Inducer-tuning eq. 11, the extended value of one head, without b_2: tanh(Q W1 + b1) W2.

    b_2 belongs to all heads and is added once and unweighted, as b_o is in eq. 4 (appendix B.3).
    """
    return torch.tanh(q @ w1 + b1) @ w2


# --- selective prefix tuning, Zhang et al. 2024 -----------------------------------------------------------------------


def selective_4(q: Tensor, p_k: Tensor) -> Tensor:
    """SPT eq. 4: s_tr = x_t^T W_q^T (P_k)_r / sqrt(d), of one head and query, d the head's width; all r."""
    return p_k @ q / math.sqrt(len(q))


def selective_5(s: Tensor, alpha: float) -> Tensor:
    """SPT eq. 5: m(x) = sigmoid(alpha x)."""
    return 1 / (1 + torch.exp(-alpha * s))


def selective_6(prefix_scores: Tensor, scores: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """SPT eq. 6: m(s) exp(s) of the prefix tokens and exp(s) of the text's, over their common sum."""
    prefix = selective_5(prefix_scores, alpha) * torch.exp(prefix_scores)
    text = torch.exp(scores)
    total = prefix.sum() + text.sum()
    return prefix / total, text / total


def selective_7(p: Tensor) -> Tensor:
    """SPT eq. 7 (keys) and eq. 8 (values): the mean of |cos| over the pairs i < j; 0 without a pair."""
    count, total = len(p), p.new_zeros(())
    for i in range(count):
        for j in range(i + 1, count):
            total = total + (p[i] @ p[j]).abs() / (torch.sqrt(p[i] @ p[i]) * torch.sqrt(p[j] @ p[j]))
    return total if count == 1 else 2 / (count * (count - 1)) * total


def selective_9(keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """SPT eq. 9: half the sum over the layers of KSL + VSL."""
    return sum(selective_7(k) + selective_7(v) for k, v in zip(keys, values, strict=True)) / 2


def selective_10(task_loss: Tensor, weight: float, selective_loss: Tensor) -> Tensor:
    """SPT eq. 10: L_ori + lambda SL."""
    return task_loss + weight * selective_loss


# --- ahead-of-time P-tuning, Gavrilov & Balagansky --------------------------------------------------------------------


def ahead_2(prompt: Tensor, hidden: Tensor) -> Tensor:
    """AoT eq. 2 (P-tuning v1): concat(P, H^0)."""
    return torch.cat([prompt, hidden])


def ahead_3(query: Tensor, keys: Tensor, values: Tensor, p_k: Tensor, p_v: Tensor) -> Tensor:
    """AoT eq. 3 (P-tuning v2): attention(Q, concat(P_K, K), concat(P_V, V))."""
    return attn(query, torch.cat([p_k, keys]), torch.cat([p_v, values]))


def ahead_4(query: Tensor, keys: Tensor, values: Tensor, p_k: Tensor, p_v: Tensor) -> Tensor:
    """AoT eq. 4: the same as a sum over the prefix's values and a sum over the text's, with the weights a_j."""
    rows, count = [], len(p_k)
    for q in query:
        a = softmax(torch.cat([p_k, keys]) @ q / math.sqrt(len(q)))
        rows.append(sum(a[j] * p_v[j] for j in range(count)) + sum(a[k + count] * v for k, v in enumerate(values)))
    return torch.stack(rows)


def ahead_5(hidden: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """AoT eq. 5: H + {P_x1, ..., P_xn}."""
    return torch.stack([h + table[int(x)] for h, x in zip(hidden, ids, strict=True)])


def ahead_6(a: Tensor, b: Tensor, c: Tensor, token: int) -> Tensor:
    """AoT eq. 6, row ``token`` of (A kron B) C: sum_{i,j} A[x div b, i] B[x mod b, j] C[i R + j]."""
    first, second = divmod(token, len(b))
    rank = a.shape[1]
    return sum(a[first, i] * b[second, j] * c[i * rank + j] for i in range(rank) for j in range(rank))


def ahead_7(embedding: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation) -> Tensor:
    """AoT eq. 7: f(E W1 + b1) W2 + b2, for one row of E or for all."""
    return activation(embedding @ w1 + b1) @ w2 + b2


def ahead_8(hidden: Tensor, shift: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """AoT eq. 8: sum_j a_j(Q', K') P_xj V + sum_j a_j(Q', K') V_j, the weights from the shifted queries and keys."""
    query, keys, rows = (hidden + shift) @ q, (hidden + shift) @ k, []
    for one in query:
        a = softmax(keys @ one / math.sqrt(len(one)))
        both = zip(a, shift, hidden, strict=True)
        rows.append(sum(weight * (p @ v) + weight * (h @ v) for weight, p, h in both))
    return torch.stack(rows)
