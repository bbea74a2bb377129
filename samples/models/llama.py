"""Llama 3 (Grattafiori et al., 2024), with the names of the transformers library."""
from dataclasses import dataclass

from layers import attention, cross_entropy, embedding, heads_of, linear, rms_norm, rotary_tables, rotated, swiglu_mlp


@dataclass
class Llama:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    tokens: int = 8192
    vocab: int = 128256


SIZES = {
    "llama3-8b": Llama(32, 4096, 32, 8, 14336),
    "llama3-70b": Llama(80, 8192, 64, 8, 28672),
    "llama3-405b": Llama(126, 16384, 128, 8, 53248),
}


def layer(g, x, tables, c):
    width = c.hidden // c.heads
    h = rms_norm(g, "input_layernorm", x, c.hidden)
    with g.module("self_attn"):
        q = heads_of(g, linear(g, "q_proj", h, c.hidden, c.hidden), c.heads, width)
        k = heads_of(g, linear(g, "k_proj", h, c.hidden, c.kv_heads * width), c.kv_heads, width)
        v = heads_of(g, linear(g, "v_proj", h, c.hidden, c.kv_heads * width), c.kv_heads, width)
        y = attention(g, rotated(g, q, tables, width), rotated(g, k, tables, width), v, c.heads, width)
        y = linear(g, "o_proj", y, c.hidden, c.hidden)
    x = g.op("Add", x, y)
    h = rms_norm(g, "post_attention_layernorm", x, c.hidden)
    with g.module("mlp"):
        h = swiglu_mlp(g, h, c.hidden, c.inner)
    return g.op("Add", x, h)


def build(g, c):
    """The loss."""
    tokens, labels = (g.input(name, "batch", c.tokens) for name in ("tokens", "labels"))
    with g.module("model"):
        x = embedding(g, "embed_tokens", tokens, c.vocab, c.hidden)
        tables = rotary_tables(g, c.tokens, c.hidden // c.heads, 500000.0)
        for k in range(c.layers):
            with g.module(f"layers.{k}"):
                x = layer(g, x, tables, c)
        x = rms_norm(g, "norm", x, c.hidden)
    return cross_entropy(g, linear(g, "lm_head", x, c.hidden, c.vocab), labels, c.vocab)
