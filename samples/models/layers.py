"""Layers that the families share. Each is a module of PyTorch: `g` is the graph, and results are [batch, tokens, width]."""


def linear(g, name, x, width, into, bias=False):
    """torch.nn.Linear: its weight lies as [into, width]."""
    with g.module(name):
        weight = g.op("Transpose", g.parameter("weight", into, width), perm=[1, 0])
        y = g.op("MatMul", x, weight)
        return g.op("Add", y, g.parameter("bias", into)) if bias else y


def embedding(g, name, tokens, rows, width):
    with g.module(name):
        return g.op("Gather", g.parameter("weight", rows, width), tokens, axis=0)


def layer_norm(g, name, x, width):
    with g.module(name):
        return g.op("LayerNormalization", x, g.parameter("weight", width, about=1.0), g.parameter("bias", width), axis=-1, epsilon=1e-5)


def rms_norm(g, name, x, width):
    with g.module(name):
        return g.op("RMSNormalization", x, g.parameter("weight", width, about=1.0), axis=-1, epsilon=1e-5)


def heads_of(g, x, heads, width):
    """[batch, tokens, heads * width] as [batch, heads, tokens, width]."""
    return g.op("Transpose", g.op("Reshape", x, [0, 0, heads, width]), perm=[0, 2, 1, 3])


def attention(g, q, k, v, heads, width, scale=None):
    """Causal attention of [batch, heads, tokens, width] as [batch, tokens, heads * width]; k and v may have fewer heads."""
    scaled = {} if scale is None else {"scale": scale}
    y = g.op("Attention", q, k, v, is_causal=1, **scaled)
    return g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), [0, 0, heads * width])


def rotary_tables(g, tokens, width, base):
    """Cosines and sines of each position's angles (Su et al., 2021), computed in the graph from the positions."""
    with g.module("rotary_emb"):
        positions = g.op("Cast", g.op("Range", 0, tokens, 1), to=1)
        frequencies = [[base ** (-2 * k / width) for k in range(width // 2)]]
        half = g.op("Mul", g.op("Unsqueeze", positions, [1]), frequencies)
        angles = g.op("Concat", half, half, axis=-1)
        return g.op("Cos", angles), g.op("Sin", angles)


def rotated(g, x, tables, width):
    """x of [batch, heads, tokens, width], each pair of its halves turned by its position's angle."""
    cos, sin = tables
    first, second = g.op("Split", x, outputs=2, axis=-1, num_outputs=2)
    turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))


def swiglu(g, gate, up):
    """silu(gate) * up (Shazeer, 2020)"""
    return g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up)


def swiglu_mlp(g, x, width, inner):
    gate, up = linear(g, "gate_proj", x, width, inner), linear(g, "up_proj", x, width, inner)
    return linear(g, "down_proj", swiglu(g, gate, up), inner, width)


def cross_entropy(g, logits, labels, vocabulary):
    """The mean over all labels that are not -100."""
    rows = g.op("Reshape", logits, [-1, vocabulary])
    return g.op("SoftmaxCrossEntropyLoss", rows, g.op("Reshape", labels, [-1]), reduction="mean", ignore_index=-100)
