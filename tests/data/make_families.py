"""Writes families/NAME: exports of model families that no rule here was written for, and what PyTorch makes of them.

    pip install torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 transformers==5.23.0 safetensors numpy
    python tests/data/make_families.py

Each has model.onnx, its loss included, and reference.safetensors: batch/K/INPUT, losses, and after/P for each parameter P after
plain steps of SGD with momentum in float64.
"""
import copy
import pathlib
import numpy as np
import onnx
import torch
import torch.nn.functional as F
import transformers
from safetensors.numpy import save_file
from torch import nn

OUT = pathlib.Path(__file__).parent / "families"
STEPS, BATCH, VOCAB, TIME = 6, 4, 32, 8
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.GroupNorm(2, o)
        self.c2, self.n2 = nn.Conv2d(o, o, 3, 1, 1, groups=2), nn.GroupNorm(2, o)
        self.down = nn.Conv2d(i, o, 1, 2)

    def forward(self, x):
        return F.relu(self.n2(self.c2(F.relu(self.n1(self.c1(x))))) + self.down(x))


class ConvNet(nn.Module):
    """Strided, grouped and pointwise convolutions, group norms, pools, a PReLU."""
    def __init__(self):
        super().__init__()
        self.stem, self.act, self.block, self.head = nn.Conv2d(3, 4, 3, 1, 1), nn.PReLU(4), Block(4, 8), nn.Linear(8, 5)

    def forward(self, x, labels):
        x = self.block(F.max_pool2d(self.act(self.stem(x)), 2))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


class Twice(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(i, o, 3, 1, 1), nn.GroupNorm(2, o)
        self.c2, self.n2 = nn.Conv2d(o, o, 3, 1, 1), nn.InstanceNorm2d(o, affine=True)

    def forward(self, x):
        return F.silu(self.n2(self.c2(F.silu(self.n1(self.c1(x))))))


class UNet(nn.Module):
    """Down and up again: transposed convolutions, skips, instance norms, a smoothed loss for each pixel."""
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = Twice(3, 4), Twice(4, 8), Twice(8, 16)
        self.grow2, self.up2 = nn.ConvTranspose2d(16, 8, 2, 2), Twice(16, 8)
        self.grow1, self.up1 = nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), Twice(8, 4)
        self.head = nn.Conv2d(4, 3, 1)

    def forward(self, x, labels):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.middle(F.avg_pool2d(b, 2))
        y = self.up2(torch.cat([self.grow2(y), b], 1))
        y = self.up1(torch.cat([self.grow1(y), a], 1))
        return F.cross_entropy(self.head(y), labels, label_smoothing=0.2)


class Mixer(nn.Module):
    """Products over the patches, then over the channels; classes have weights, labels are smoothed, some ignored."""
    def __init__(self):
        super().__init__()
        self.patch, self.n1, self.n2 = nn.Conv2d(3, 16, 2, 2), nn.LayerNorm(16), nn.LayerNorm(16)
        self.patches = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 5)
        self.register_buffer("weights", torch.arange(1.0, 6.0))

    def forward(self, x, labels):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.patches(self.n1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.n2(x))
        return F.cross_entropy(self.head(x.mean(1)), labels, weight=self.weights, ignore_index=2, label_smoothing=0.1)


class Clicks(nn.Module):
    """Tables of categories beside numbers, and the products of each with each (DLRM)."""
    def __init__(self):
        super().__init__()
        self.numbers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))
        i, j = torch.tril_indices(4, 4, -1)
        self.register_buffer("i", i, False)
        self.register_buffer("j", j, False)

    def forward(self, dense, sparse, clicked):
        x = self.numbers(dense)
        all = torch.stack([x] + [table(sparse[:, k]) for k, table in enumerate(self.tables)], 1)
        pairs = torch.bmm(all, all.transpose(1, 2))[:, self.i, self.j]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([x, pairs], 1)).squeeze(1), clicked)


class Typed(nn.Module):
    """Tables of positions and of types, which the exporter looks up where the batch is of a fixed size."""
    def __init__(self):
        super().__init__()
        self.words, self.positions, self.types = nn.Embedding(VOCAB, 16), nn.Embedding(12, 16), nn.Embedding(2, 16)
        self.norm, self.mix, self.head = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, VOCAB)

    def forward(self, input_ids, labels):
        places = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
        x = self.norm(self.words(input_ids) + self.positions(places) + self.types(torch.zeros_like(input_ids)))
        x = x + torch.tanh(self.mix(x.mean(1, keepdim=True)))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


class Quantised(nn.Module):
    """The nearest of a table's rows in place of a vector; gradients pass as if it had not been, and a teacher gets none."""
    def __init__(self):
        super().__init__()
        self.inner, self.table, self.outer = nn.Linear(8, 6), nn.Parameter(torch.randn(10, 6)), nn.Linear(6, 8)

    def forward(self, x):
        z = self.inner(x)
        q = self.table[((z[:, None] - self.table) ** 2).sum(-1).argmin(-1)]
        y = self.outer(z + (q - z).detach())
        teacher = F.linear(z.detach(), self.outer.weight.detach())
        kept = ((2 * z - 2 * q.detach()) ** 2).mean()
        return F.mse_loss(y, x) + F.mse_loss(z.detach(), q) + 0.1 * kept + 0.1 * F.mse_loss(y, teacher)


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 16, bias=False))
        self.scale = nn.Parameter(torch.ones(16) / 4)

    def forward(self, x):
        return x + self.scale * self.steps(x)


class Fresh(nn.Module):
    """Copies of a layer, a block called three times, adapters that begin with zeros, modules that have no scope, a tied head."""
    def __init__(self):
        super().__init__()
        self.words, self.first, self.places = nn.Embedding(VOCAB, 16), nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.zeros(1, TIME + 1, 16))
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, 0.0, batch_first=True), 2, enable_nested_tensor=False)
        self.again, self.other = Again(), Again()
        self.mixed = nn.ModuleDict({"a-b": nn.Linear(16, 16), "c": nn.Sequential(nn.Tanh(), nn.Linear(16, 16))})
        self.down = nn.ModuleList(nn.Linear(16, 2, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(2, 16, bias=False) for _ in range(2))
        for up in self.up:
            nn.init.zeros_(up.weight)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, VOCAB, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids, labels):
        x = self.words(input_ids)
        x = self.layers(torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places)
        x = self.again(self.other(self.again(self.again(x))))
        for down, up in zip(self.down, self.up):
            x = x + torch.tanh(up(down(x)))
        x = x + self.mixed["c"](self.mixed["a-b"](x))
        return F.cross_entropy(self.head(self.norm(x[:, 1:])).flatten(0, 1), labels.flatten(), ignore_index=-100)


class FreshImages(nn.Module):
    """Norms and activations of channels, all alike at first."""
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else 4, 4, 3, 1, 1, bias=False) for i in range(4))
        self.norms = nn.ModuleList([nn.GroupNorm(2, 4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.InstanceNorm2d(4, affine=True)])
        self.acts, self.head = nn.ModuleList(nn.PReLU(4) for _ in range(4)), nn.Linear(4, 5)

    def forward(self, x, labels):
        for conv, norm, act in zip(self.convs, self.norms, self.acts):
            x = act(norm(conv(x)))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Norm(nn.Module):
    """Multiplies by 1 + w, which the exporter computes."""
    def __init__(self, zero):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8) if zero else torch.randn(8) / 4)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.weight)


class Adapter(nn.Module):
    """A matrix and a product of two, of which the second is zeros, all of them transposed by the exporter."""
    def __init__(self):
        super().__init__()
        self.whole, self.a, self.b = nn.Linear(8, 8), nn.Parameter(torch.randn(2, 8) / 2), nn.Parameter(torch.zeros(8, 2))

    def forward(self, x):
        return self.whole(x) + x @ self.a.T @ self.b.T


class Experts(nn.Module):
    """Stacked weights that are indexed along their first dim, or their second."""
    def __init__(self):
        super().__init__()
        self.up, self.down, self.sinks = nn.Parameter(torch.randn(3, 8, 6) / 3), nn.Parameter(torch.randn(6, 3, 8) / 3), nn.Parameter(torch.randn(8))

    def forward(self, x, which):
        h = F.silu(torch.einsum("btd,btdf->btf", x, self.up[which]))
        return torch.einsum("btf,fbtd->btd", h, self.down[:, which]) + self.sinks.view(1, 1, 8)


class Folded(nn.Module):
    """What the exporter computes from parameters, fresh (equal results are merged) or as training left it."""
    def __init__(self, fresh):
        super().__init__()
        self.table, self.positions = nn.Embedding(VOCAB, 8), nn.Parameter(torch.randn(1, 12, 8))
        self.norms, self.adapters = nn.ModuleList(Norm(fresh) for _ in range(3)), nn.ModuleList(Adapter() for _ in range(3))
        self.experts, self.scale, self.decay = Experts(), nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.randn(8) / 2)
        self.gate, self.penalty = nn.Parameter(torch.full((8,), 0.25) if fresh else torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, input_ids, labels):
        x = self.table(input_ids) + self.positions[:, :input_ids.shape[1]]
        for norm, adapter in zip(self.norms, self.adapters):
            x = x + adapter(norm(x))
        x = x * -torch.exp(self.decay) + torch.tanh(self.gate) * self.experts(x, input_ids % 3) * self.penalty + self.penalty.abs().sum() / 8
        logits = x @ self.table.weight.t() * self.scale.exp()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class Equal(nn.Module):
    """Parameters of equal elements, read several times by calls that are several nodes."""
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.full((8,), v)) for v in (0.0, 1.0, 0.0, 0.5))

    def forward(self, x):
        y = (F.silu(self.a) + x) * self.d
        return (torch.addcmul(self.c, y, self.b) - x * F.gelu(self.b)).pow(2).mean()


class Language(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        logits = self.model(input_ids=input_ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def images(g):
    return {"x": torch.randn(BATCH, 3, 8, 8, generator=g), "labels": torch.randint(0, 5, (BATCH,), generator=g)}


def pixels(g):
    return {"x": torch.randn(BATCH, 3, 8, 8, generator=g), "labels": torch.randint(0, 3, (BATCH, 8, 8), generator=g)}


def clicks(g):
    return {"dense": torch.randn(BATCH, 5, generator=g), "sparse": torch.randint(0, 20, (BATCH, 3), generator=g),
            "clicked": torch.randint(0, 2, (BATCH,), generator=g).float()}


def vectors(g):
    return {"x": torch.randn(BATCH, 8, generator=g)}


def tokens(g):
    ids = torch.randint(0, VOCAB, (BATCH, TIME + 1), generator=g)
    labels = ids[:, 1:].clone()
    for i in range(BATCH):
        labels[i, TIME - i:] = -100
    return {"input_ids": ids[:, :-1].clone(), "labels": labels}


def gptj():  # rotary positions of interleaved pairs, attention and MLP in parallel
    return Language(transformers.GPTJForCausalLM(transformers.GPTJConfig(
        vocab_size=VOCAB, n_positions=TIME, n_embd=16, n_layer=2, n_head=2, rotary_dim=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=1, initializer_range=0.1)))


def falcon():  # multi-query attention, weights transposed by the exporter under the names of calls
    return Language(transformers.FalconForCausalLM(transformers.FalconConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, hidden_dropout=0.0, attention_dropout=0.0,
        bos_token_id=0, eos_token_id=1, initializer_range=0.1)))


class Doubled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 2.0


class OnePlus(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.weight)


class Converted(OnePlus):
    """In a type of its own, and the weight too."""
    def forward(self, x):
        wide = x.to(torch.float32)
        return (self.weight.to(torch.float32) * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6))).to(x.dtype)


class Router(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) * 0.5)

    def forward(self, x):
        return torch.topk(F.linear(x, self.weight).softmax(-1), 2)


class Ruled(nn.Module):
    """What the older exporter computes of parameters beside which the file says what it was: norms, a router, 1 - w of a w that is read too;
    a table under three names; parts of values that are written over; a row for each sample."""
    def __init__(self, norm):
        super().__init__()
        self.shared, self.left, self.right = (Doubled(VOCAB, 16) for _ in range(3))
        self.left.weight = self.right.weight = self.shared.weight
        self.norm, self.last, self.router, self.mix = norm(16), norm(16), Router(16, 3), nn.Parameter(torch.rand(16))
        self.experts, self.head = nn.Parameter(torch.randn(3, 16, 16) * 0.3), nn.Linear(16, VOCAB)

    def forward(self, ids, labels):
        x = self.left(ids) * self.mix + self.right(ids.flip(1)) * (1 - self.mix)
        weights, places = self.router(self.norm(x))
        x = x + (weights.unsqueeze(-1) * (x[:, :, None, None] @ self.experts[places]).squeeze(-2)).sum(2)
        y = torch.zeros_like(x)
        y[:, 0] = x[:, 0]
        y[:, 1:, :8] = x[:, :-1, 8:]
        y[:, ::3, 1::4] = 0.5
        y[..., -1] = 0.0
        y = self.last(x + y)
        own = torch.arange(ids.shape[0])
        row = y[own, ids.argmax(-1)] + y[own[:, None], labels % TIME].mean(1)
        return F.cross_entropy(self.head(y).flatten(0, 1), labels.flatten()) + F.cross_entropy(self.head(row), labels[:, 0])


# static: as the exporter is by default, the batch of the example's size; of tables it keeps the rows that are looked up.
# older: the opset for the older exporter, which folds constants and merges what is equal. plain: nothing is computed, merged or fused.
class Scattered(nn.Module):
    """Messages along the edges of a graph, added where they arrive; rows that are written over; sums at places of the data."""
    def __init__(self):
        super().__init__()
        self.message, self.update, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.register_buffer("sources", torch.tensor([1, 2, 3, 4, 5, 0, 3, 5]), False)
        self.register_buffer("targets", torch.tensor([0, 1, 2, 3, 4, 5, 0, 2]), False)

    def forward(self, x, places, y):
        h = x + torch.zeros_like(x).index_add(1, self.targets, torch.tanh(self.message(x))[:, self.sources])
        h, rows = h.clone(), self.update(h)[:, 1:3]
        h[:, 1:3] = rows
        sums = torch.zeros_like(h).scatter_add(1, places[..., None].expand_as(h), h)
        return F.mse_loss(self.head(torch.tanh(sums)), y)


class Offset(nn.Module):
    """Of channels in the middle, as norms of images are: scales and offsets have another shape where they are used."""
    def __init__(self):
        super().__init__()
        self.scale, self.offset = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return torch.tanh(self.scale[:, None] * (x - x.mean(1, keepdim=True)) + self.offset[:, None])


class Attend(nn.Module):
    """Queries of one input, keys and values of another, by parts of one weight and one bias."""
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(24, 8) * 0.3), nn.Parameter(torch.zeros(24))

    def forward(self, q, x):
        (a, b), (c, d) = self.weight.split([8, 16]), self.bias.split([8, 16])
        k, v = F.linear(x, b, d).chunk(2, -1)
        return torch.softmax(F.linear(q, a, c) @ k.transpose(1, 2), -1) @ v


class FreshParts(nn.Module):
    """Equal before any training: tokens beside each other, parts of biases, scales and offsets of two modules; queries that are repeated."""
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 1, 8))
        self.queries = nn.Embedding(3, 8)
        self.one, self.two, self.near, self.far = Attend(), Attend(), Offset(), Offset()
        self.mix, self.out = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, y):
        b = x.shape[0]
        x = torch.cat([self.first.expand(b, -1, -1), x, self.last.expand(b, -1, -1)], 1)
        x = x + self.mix(self.near(x.transpose(1, 2)).transpose(1, 2)) * torch.linspace(0.5, 1.2, 8)[:, None]
        q = self.queries.weight.unsqueeze(0).repeat(b, 1, 1)
        q = q + self.one(q, x)
        q = q + self.two(self.far(q.transpose(1, 2)).transpose(1, 2), x)
        return F.mse_loss(self.out(q.mean(1)), y)


class FreshDecoder(nn.Module):
    """Attention to oneself reads the whole of its bias, attention to others parts of one that is equal; a bias of zeros is read twice."""
    def __init__(self):
        super().__init__()
        self.layer, self.twice = nn.TransformerDecoderLayer(8, 2, 8, 0.0, batch_first=True), nn.Linear(8, 8)
        nn.init.zeros_(self.twice.bias)

    def forward(self, x, y):
        h = self.twice(torch.tanh(self.twice(x.flatten(0, 1)))).unflatten(0, (-1, 6))
        return F.mse_loss(self.layer(h, x.flip(1)).mean(1)[:, :4], y)


class Grouped(nn.Module):
    def __init__(self, width=16, heads=4, kv=2):
        super().__init__()
        self.heads, self.kv = heads, kv
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, width * kv // heads), nn.Linear(width, width * kv // heads)

    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, h, -1).transpose(1, 2) for y, h in ((self.q(x), self.heads), (self.k(x), self.kv), (self.v(x), self.kv)))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, -1))


class Padded(nn.Module):
    """Grouped heads by scaled_dot_product_attention, masks of booleans: some queries see no key, and one sample has none at all."""
    def __init__(self):
        super().__init__()
        self.embedding, self.layers, self.head = nn.Embedding(VOCAB, 16), nn.ModuleList(Grouped() for _ in range(4)), nn.Linear(16, VOCAB)

    def forward(self, input_ids, mask, labels):
        seen = mask[:, None, None, :].bool() & torch.ones(TIME, TIME, dtype=torch.bool).tril()
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x, seen)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def padded(g):
    batch = tokens(g)
    mask = (torch.arange(TIME) >= torch.tensor([0, 3, TIME, 5])[:, None]).long()  # in front, and the whole third sample
    return {"input_ids": batch["input_ids"], "mask": mask, "labels": batch["labels"]}


def sequences(g):
    return {"x": torch.randn(BATCH, 6, 8, generator=g), "y": torch.randn(BATCH, 4, generator=g)}


def nodes(g):
    places = torch.randint(0, 6, (BATCH, 6), generator=g)
    return {"x": torch.randn(BATCH, 6, 8, generator=g), "places": places, "y": torch.randn(BATCH, 6, 4, generator=g)}


def write(name, build, batch_of, static=False, older=None, plain=False, opset=18):
    torch.manual_seed(5)
    model = build().eval()
    g = torch.Generator().manual_seed(6)
    batches = [batch_of(g) for _ in range(STEPS)]
    path = OUT / name
    path.mkdir(parents=True, exist_ok=True)
    file = str(path / "model.onnx")
    dim = torch.export.Dim("batch", min=1, max=4096)
    args = tuple(batches[0].values())
    names = dict(input_names=list(batches[0]), output_names=["loss"], verbose=False)
    if older:
        torch.onnx.export(model, args, file, dynamo=False, opset_version=older, dynamic_axes={n: {0: "batch"} for n in batches[0]}, **names)
    else:
        torch.onnx.export(model, args, file, dynamo=True, opset_version=opset, dynamic_shapes=None if static else tuple({0: dim} for _ in args),
                          external_data=False, optimize=not plain, **names)
    proto = onnx.load(file)
    keep = {"pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes", "pkg.onnxscript.rewriter.rule_name"}
    keep |= {"pkg.torch.onnx.class_hierarchy"} if name.startswith(("folded", "fresh-")) else set()
    for node in proto.graph.node:
        kept = [(p.key, p.value) for p in node.metadata_props if p.key in keep]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
        node.doc_string = ""
    onnx.save(proto, file)
    exact = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(exact.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = exact(*[v.double() if v.is_floating_point() else v for v in batch.values()])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    out = {f"batch/{k}/{n}": v.numpy() for k, b in enumerate(batches) for n, v in b.items()}
    kept = {"positions.weight": TIME, "types.weight": 1} if static else {}
    out |= {f"after/{n}": p.detach().float().numpy() for n, p in exact.named_parameters()}
    for n, rows in kept.items():
        out[f"after/{n}"] = out[f"after/{n}"][:rows]
    if name.startswith("folded"):
        out["after/positions"] = out["after/positions"][:, :TIME]
    save_file({k: np.require(v, requirements="C") for k, v in {**out, "losses": np.array(losses)}.items()}, str(path / "reference.safetensors"))


write("conv-group-norm", ConvNet, images)
write("unet", UNet, pixels)
write("mixer", Mixer, images)
write("dlrm", Clicks, clicks)
write("gptj", gptj, tokens)
write("falcon", falcon, tokens)
write("static-tables", Typed, tokens, static=True)
write("quantised", Quantised, vectors)
write("older-fresh", Fresh, tokens, older=17)
write("older-images", FreshImages, images, older=14)
write("older-norms", lambda: Ruled(OnePlus), tokens, older=17)
write("older-converted", lambda: Ruled(Converted), tokens, older=14)
write("folded", lambda: Folded(False), tokens)
write("folded-fresh", lambda: Folded(True), tokens)
write("equal", Equal, vectors, plain=True)
write("scattered", Scattered, nodes)
write("fresh-parts", FreshParts, sequences)
write("fresh-decoder", FreshDecoder, sequences)
write("padded", Padded, padded, opset=20)
