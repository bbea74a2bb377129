"""Writes init/*: exports of fresh modules, the state_dict of others of their kind for `piperc --init`, and what PyTorch makes of
the latter: batch/K/INPUT, losses, and after/P for each parameter P after plain steps of SGD with momentum in float64.

    pip install torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2 safetensors numpy
    python tests/data/make_init.py
"""
import copy
import pathlib
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from torch import nn

OUT = pathlib.Path(__file__).parent / "init"
STEPS, BATCH, VOCAB, TIME = 5, 4, 24, 6
KEEP = {"pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes"}


class Language(nn.Module):
    """Weights that the file has transposed, a tied head, a table of which it has the first rows, a buffer, norms that are merged."""
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCAB, 16), nn.Embedding(10, 16)
        self.norm, self.last = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, VOCAB, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 16))

    def forward(self, ids, labels):
        x = self.words(ids) * self.scale + self.positions(torch.arange(TIME).expand(ids.shape))
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return F.cross_entropy(self.head(self.last(x)).flatten(0, 1), labels.flatten())


class Relative(nn.Module):
    """Tables that the exporter looked up at places that are not in the file: of rows, then turned, of single numbers, and of columns; a
    table that is repeated."""
    def __init__(self):
        super().__init__()
        self.bias, self.near = nn.Embedding(16, 2), nn.Parameter(torch.randn(11))
        self.columns, self.tile = nn.Parameter(torch.randn(4, 11)), nn.Parameter(torch.randn(2, 4))
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x, y):
        places = torch.arange(TIME)
        apart = places[:, None] - places[None] + TIME - 1
        b = x.shape[0]
        q, k, v = self.qkv(x).view(b, TIME, 3, 2, 4).permute(2, 0, 3, 1, 4)
        v = v + self.tile.repeat(TIME // 2, 1) + self.columns[:, apart[1]].t()
        scores = q @ k.transpose(-1, -2) + self.bias(apart.abs().clamp(max=8)).permute(2, 0, 1).unsqueeze(0) + self.near[apart]
        return F.mse_loss(self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, TIME, 8)), y)


class Gates(nn.Module):
    """Functions of parameters that the exporter computes and that have no inverse: the values of the file show which."""
    def __init__(self):
        super().__init__()
        self.open, self.mix, self.sign = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))
        self.parts, self.noise, self.rate = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(8))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, y):
        x = x * F.relu(self.open) + x * self.mix.softmax(0) + x * self.sign.abs()
        part = self.parts.softmax(0)
        x = part[0] * x + part[1] * x.sin() + part[2] * x.cos()
        x = x * torch.exp(-self.noise[0]) + x.tanh() * torch.exp(-self.noise[1])
        x = x * (1.0 / (torch.exp(self.rate)[None, :, None].squeeze(2) + 1e-2))
        return F.mse_loss(self.down(F.gelu(self.up(x))), y)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (self.weight * 2)


class Computed(nn.Module):
    """What the older exporter computes of parameters, whose names are in the file no more: the values of the file show which."""
    def __init__(self):
        super().__init__()
        self.a, self.b, self.scale = nn.Parameter(torch.zeros(3, 8)), nn.Parameter(torch.zeros(8, 3)), nn.Parameter(torch.zeros(8))
        self.sink, self.table, self.unused = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(5, 4)), nn.Parameter(torch.zeros(2))
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 4), Twice()

    def forward(self, x, y):
        x = x + self.norm(x) @ self.a.T @ self.b.T
        x = (x.view(-1, 2, 4) * self.sink.reshape(1, 2, 1) + self.table[1:3]).flatten(1) * (2 - self.scale)
        return F.mse_loss(self.down(F.gelu(self.up(x))), y)


def rows(g):
    return {"x": torch.randn(BATCH, 8, generator=g), "y": torch.randn(BATCH, 4, generator=g)}


def sequences(g):
    return {"x": torch.randn(BATCH, TIME, 8, generator=g), "y": torch.randn(BATCH, TIME, 4, generator=g)}


def tokens(g):
    ids = torch.randint(0, VOCAB, (BATCH, TIME + 1), generator=g)
    return {"ids": ids[:, :-1].clone(), "labels": ids[:, 1:].clone()}


def randomise(module, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)


# fresh: the export of a module before it has the state.
def write(name, kind, batch_of, fresh=True, older=False):
    torch.manual_seed(2)
    module = kind().eval()
    if not fresh:
        randomise(module, 11)
    g = torch.Generator().manual_seed(4)
    batches = [batch_of(g) for _ in range(STEPS)]
    file = str(OUT / f"{name}.onnx")
    options = dict(dynamo=False, opset_version=17) if older else dict(dynamo=True, opset_version=18, external_data=False)
    torch.onnx.export(module, tuple(batches[0].values()), file, input_names=list(batches[0]), output_names=["loss"], verbose=False, **options)
    proto = onnx.load(file)
    for node in proto.graph.node:
        kept = [(p.key, p.value) for p in node.metadata_props if p.key in KEEP]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
        node.doc_string = ""
    onnx.save(proto, file)
    randomise(module, 11)
    state = {n: v.detach().numpy().copy() for n, v in module.state_dict().items()}
    save_file(state, str(OUT / f"{name}-state.safetensors"))
    exact = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(exact.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = exact(*[v.double() if v.is_floating_point() else v for v in batch.values()])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    out = {f"batch/{k}/{n}": v.numpy() for k, b in enumerate(batches) for n, v in b.items()}
    out |= {f"after/{n}": p.detach().float().numpy() for n, p in exact.named_parameters() if p.grad is not None}
    save_file({k: np.ascontiguousarray(v) for k, v in {**out, "losses": np.array(losses)}.items()}, str(OUT / f"{name}.safetensors"))


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    write("language", Language, tokens)
    write("gates", Gates, rows, fresh=False)
    write("relative", Relative, sequences, fresh=False)
    write("older", Computed, rows, fresh=False, older=True)
