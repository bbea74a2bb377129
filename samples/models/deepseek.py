"""A mixture of experts in the form of DeepSeek-V3 (DeepSeek-AI, 2024), with the names of the transformers library: latent
attention, a shared expert, experts chosen by sigmoids and a bias that no gradient trains. Left out: choosing among groups of experts first,
the scaling of rotary positions for long texts, and the module that predicts a second token."""
from dataclasses import dataclass

from layers import attention, cross_entropy, embedding, heads_of, linear, rms_norm, rotary_tables, rotated, swiglu, swiglu_mlp


@dataclass
class DeepSeek:
    layers: int
    hidden: int
    heads: int
    inner: int  # of the dense layers' MLP
    experts: int
    top: int  # experts for a token
    expert_inner: int
    dense: int  # layers without experts, at the front
    q_rank: int = 1536
    kv_rank: int = 512
    plain_width: int = 128  # of a head of q and k: without positions
    rotary_width: int = 64  # and with
    value_width: int = 128
    tokens: int = 4096
    vocab: int = 129280


SIZES = {
    "deepseek-v3-like": DeepSeek(61, 7168, 128, 18432, 256, 8, 2048, 3),
    "deepseek-16b-like": DeepSeek(27, 2048, 16, 10944, 64, 6, 1408, 1, q_rank=768),
}
SCALE = 2.5  # of the chosen experts' weights


def latent_attention(g, x, tables, c):
    """Queries, keys and values come from two narrow values; all heads share one rotary key."""
    plain, rotary, value = c.plain_width, c.rotary_width, c.value_width
    narrow = rms_norm(g, "q_a_layernorm", linear(g, "q_a_proj", x, c.hidden, c.q_rank), c.q_rank)
    q = heads_of(g, linear(g, "q_b_proj", narrow, c.q_rank, c.heads * (plain + rotary)), c.heads, plain + rotary)
    q_plain, q_rotary = g.op("Split", q, [plain, rotary], outputs=2, axis=-1)
    kept, k_rotary = g.op("Split", linear(g, "kv_a_proj_with_mqa", x, c.hidden, c.kv_rank + rotary), [c.kv_rank, rotary], outputs=2, axis=-1)
    narrow = rms_norm(g, "kv_a_layernorm", kept, c.kv_rank)
    kv = heads_of(g, linear(g, "kv_b_proj", narrow, c.kv_rank, c.heads * (plain + value)), c.heads, plain + value)
    k_plain, v = g.op("Split", kv, [plain, value], outputs=2, axis=-1)
    k_rotary = rotated(g, heads_of(g, k_rotary, 1, rotary), tables, rotary)
    q = g.op("Concat", q_plain, rotated(g, q_rotary, tables, rotary), axis=-1)
    k = g.op("Concat", k_plain, g.op("Expand", k_rotary, [1, c.heads, 1, 1]), axis=-1)
    return linear(g, "o_proj", attention(g, q, k, v, c.heads, value, (plain + rotary) ** -0.5), c.heads * value, c.hidden)


def choose(g, rows, c):
    """The experts of each row, and their weights: the bias decides only which are chosen."""
    with g.module("gate"):
        scores = g.op("Sigmoid", g.op("MatMul", rows, g.op("Transpose", g.parameter("weight", c.experts, c.hidden), perm=[1, 0])))
        bias = g.parameter("e_score_correction_bias", c.experts, spread=0.0, trained=False)
        _, chosen = g.op("TopK", g.op("Add", scores, bias), [c.top], outputs=2, axis=-1)
        weights = g.op("GatherElements", scores, chosen, axis=-1)
        return chosen, g.op("Mul", g.op("Div", weights, g.op("ReduceSum", weights, [-1], keepdims=1)), SCALE)


def experts(g, rows, chosen, c):
    """What each chosen expert makes of its row, one below the other."""
    with g.module("experts"):
        index = g.op("Reshape", chosen, [-1])
        up = g.parameter("gate_up_proj", c.experts, 2 * c.expert_inner, c.hidden)
        down = g.parameter("down_proj", c.experts, c.hidden, c.expert_inner)
        repeated = g.op("Expand", g.op("Unsqueeze", rows, [1]), [1, c.top, 1])
        x = g.op("Reshape", repeated, [-1, c.hidden, 1])
        both = g.op("Squeeze", g.op("MatMul", g.op("Gather", up, index, axis=0), x), [-1])
        gate, value = g.op("Split", both, outputs=2, axis=-1, num_outputs=2)
        made = g.op("Unsqueeze", swiglu(g, gate, value), [-1])
        return g.op("Squeeze", g.op("MatMul", g.op("Gather", down, index, axis=0), made), [-1])


def mixture(g, x, c):
    rows = g.op("Reshape", x, [-1, c.hidden])
    chosen, weights = choose(g, rows, c)
    made = g.op("Mul", experts(g, rows, chosen, c), g.op("Reshape", weights, [-1, 1]))
    summed = g.op("ReduceSum", g.op("Reshape", made, [-1, c.top, c.hidden]), [1], keepdims=0)
    with g.module("shared_experts"):
        shared = swiglu_mlp(g, x, c.hidden, c.expert_inner)
    return g.op("Add", g.op("Reshape", summed, [-1, c.tokens, c.hidden]), shared)


def build(g, c):
    """The loss."""
    tokens, labels = (g.input(name, "batch", c.tokens) for name in ("tokens", "labels"))
    with g.module("model"):
        x = embedding(g, "embed_tokens", tokens, c.vocab, c.hidden)
        tables = rotary_tables(g, c.tokens, c.rotary_width, 10000.0)
        for k in range(c.layers):
            with g.module(f"layers.{k}"):
                h = rms_norm(g, "input_layernorm", x, c.hidden)
                with g.module("self_attn"):
                    x = g.op("Add", x, latent_attention(g, h, tables, c))
                h = rms_norm(g, "post_attention_layernorm", x, c.hidden)
                with g.module("mlp"):
                    x = g.op("Add", x, swiglu_mlp(g, h, c.hidden, c.inner) if k < c.dense else mixture(g, h, c))
        x = rms_norm(g, "norm", x, c.hidden)
    return cross_entropy(g, linear(g, "lm_head", x, c.hidden, c.vocab), labels, c.vocab)
