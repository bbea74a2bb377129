"""GPT-2 and GPT-3 (Radford et al., 2019; Brown et al., 2020), with the names of the transformers library."""
from dataclasses import dataclass

from layers import attention, cross_entropy, embedding, heads_of, layer_norm


@dataclass
class Gpt:
    layers: int
    hidden: int
    heads: int
    tokens: int = 2048
    vocab: int = 50257


SIZES = {
    "gpt2": Gpt(12, 768, 12, tokens=1024),
    "gpt2-xl": Gpt(48, 1600, 25, tokens=1024),
    "gpt3-6.7b": Gpt(32, 4096, 32),
    "gpt3-175b": Gpt(96, 12288, 96),
}


def conv1d(g, name, x, width, into):
    """The library's linear layer, whose weight lies as [width, into]."""
    with g.module(name):
        return g.op("Add", g.op("MatMul", x, g.parameter("weight", width, into)), g.parameter("bias", into))


def block(g, x, c):
    width = c.hidden // c.heads
    h = layer_norm(g, "ln_1", x, c.hidden)
    with g.module("attn"):
        joined = conv1d(g, "c_attn", h, c.hidden, 3 * c.hidden)
        q, k, v = (heads_of(g, part, c.heads, width) for part in g.op("Split", joined, outputs=3, axis=-1, num_outputs=3))
        x = g.op("Add", x, conv1d(g, "c_proj", attention(g, q, k, v, c.heads, width), c.hidden, c.hidden))
    h = layer_norm(g, "ln_2", x, c.hidden)
    with g.module("mlp"):
        h = g.op("Gelu", conv1d(g, "c_fc", h, c.hidden, 4 * c.hidden), approximate="tanh")
        return g.op("Add", x, conv1d(g, "c_proj", h, 4 * c.hidden, c.hidden))


def build(g, c):
    """The loss. The head is the embedding: one parameter."""
    tokens, labels = (g.input(name, "batch", c.tokens) for name in ("tokens", "labels"))
    with g.module("transformer"):
        x = g.op("Add", embedding(g, "wte", tokens, c.vocab, c.hidden), embedding(g, "wpe", g.op("Range", 0, c.tokens, 1), c.tokens, c.hidden))
        for layer in range(c.layers):
            with g.module(f"h.{layer}"):
                x = block(g, x, c)
        x = layer_norm(g, "ln_f", x, c.hidden)
    with g.module("lm_head"):
        logits = g.op("MatMul", x, g.op("Transpose", "transformer.wte.weight", perm=[1, 0]))
    return cross_entropy(g, logits, labels, c.vocab)
