"""tools/export.py loses nothing: modules with everything that PyTorch's own exporter leaves out train as they do in PyTorch, which the tool
itself compares; and where they would not, it says so.

  export_test.py ROOT BIN    77 where no python here has PyTorch; one that PYTHON names serves, or the environment of tests/bench/against-torch
"""
import dataclasses
import importlib.util
import io
import pathlib
import random
import sys
import tempfile
import types
from contextlib import contextmanager, nullcontext, redirect_stderr
from unittest import mock

from own_process import find_python

NEEDED = ["torch", "onnx", "onnxscript", "safetensors"]
ROOT, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])


find_python(ROOT, NEEDED)
sys.path.insert(0, str(ROOT / "tools"))
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch.utils.checkpoint  # noqa: E402
from export import NotExported, export  # noqa: E402
from exporter.equivalents import EQUIVALENTS, instance_norm  # noqa: E402
from exporter.programs import train_in_piper  # noqa: E402
from torch import nn  # noqa: E402


class Lossy(nn.Module):
    """A target without gradient, a frozen weight, dropout, a batch norm that trains, equal fresh norms and a Linear that is frozen in part."""

    def __init__(self):
        super().__init__()
        self.first, self.target, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)])
        self.statistics, self.dropout = nn.BatchNorm1d(4), nn.Dropout(0.1)
        self.last.bias.requires_grad_(False)

    def forward(self, x):
        h = self.dropout(self.first(x))
        with torch.no_grad():
            wanted = self.target(h).sigmoid()
            with torch.enable_grad():
                wanted = wanted + self.norms[0](h)
        h = self.statistics(self.last(self.norms[1](h) + h.detach()))
        return F.mse_loss(h, wanted) + F.mse_loss(h * wanted, x)


class SameNames(nn.Module):
    """Two inputs whose names are one, as a list has its name and a number."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, x_0):
        return F.mse_loss(self.fc(x[0]), x_0)


class Tied(nn.Module):
    """A head that is the embedding, a buffer that forward changes, a parameter that nothing reads, and a dict of results."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Parameter(torch.zeros(3))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, ids, labels, scale=2.0):
        h = self.table(ids)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * h.mean((0, 1)))
        return {"loss": F.cross_entropy(self.head(h - self.mean).flatten(0, 1) * scale, labels.flatten()), "hidden": h}


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * (x.abs() <= 0.5)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


class Stepped(torch.autograd.Function):
    """Rounds to steps of a size that is learned (Esser et al., 2020), one for all or one for each column: the gradient of the size is a sum."""

    @staticmethod
    def forward(ctx, x, size):
        ctx.save_for_backward(x, size)
        return (x / size).round().clamp(-2, 1) * size

    @staticmethod
    def backward(ctx, gradient):
        x, size = ctx.saved_tensors
        steps = x / size
        within = (steps >= -2) & (steps <= 1)
        each = gradient * torch.where(within, steps.round() - steps, steps.round().clamp(-2, 1)) / 2
        return gradient * within, each.sum(0) if size.dim() else each.sum().reshape(size.shape) * 1.0


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.size, self.sizes = nn.Linear(4, 4), nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.rand(4) / 4 + 0.1)

    def forward(self, x):
        return F.mse_loss(Stepped.apply(Stepped.apply(self.fc(x), self.sizes), self.size), x)


class Swish(torch.autograd.Function):
    """Whose backward is the derivative of its forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * x.sigmoid() * (1 + x * (1 - x.sigmoid()))


class Mixed(torch.autograd.Function):
    """Whose backward is no factor of each element."""

    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.roll(1, 0)


class Clipped(torch.autograd.Function):
    """Whose backward is the derivative for small gradients."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-100, 100)


class Quantised(nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.first, self.last, self.functions = nn.Linear(4, 4), nn.Linear(4, 4), functions

    def forward(self, x):
        h = self.first(x)
        for function in self.functions:
            h = function(h)
        return F.mse_loss(self.last(h), x)


class Windows(nn.Module):
    """Attention within windows, of five dims, a slope that training draws, and sums into a tensor of float32, which forward makes; what it takes is checked."""

    def __init__(self):
        super().__init__()
        self.qkv, self.bias = nn.Linear(8, 24), nn.Parameter(torch.randn(3, 1, 2, 2))

    def forward(self, x):
        torch._check_tensor_all(x.isfinite())
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).unflatten(1, (3, 2)).permute(3, 0, 1, 4, 2, 5)  # [batch, windows, heads, tokens, 4]
        v = v.clone()
        v[x.unflatten(1, (3, 2))[..., 0] > 1] = 0.5  # [batch, windows, heads]
        v[x.unflatten(1, (3, 2))[..., 1] > 1] = self.bias[0, 0].flatten()[:2].repeat(4).view(2, 4)
        y = F.rrelu(F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)).flatten(2)
        return torch.zeros(2, y.shape[0], 16).index_add(0, torch.tensor([1, 0, 1]), y.transpose(0, 1)).square().mean()


class Still(nn.Module):
    """A loss that nothing changes: the gradient is rounding errors."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return F.normalize(self.fc(x), dim=-1).square().sum(-1).mean()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + gradient.flip(0)


class Small(nn.Module):
    """Gradients a billion times smaller than the others, which the file has half of."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return F.mse_loss(self.large(x), x) + 1e-9 * Twice.apply(self.small(x)).square().mean()


class Zeros(nn.Module):
    """Gradients that are zero but for rounding, in front of norms and softmax and of an attention's keys, and zero for certain."""

    def __init__(self, narrow):
        super().__init__()
        self.first, self.qkv, self.last = nn.Linear(8, 8), nn.Linear(8, 24), nn.Linear(8, 6)
        self.statistics, self.shift = nn.BatchNorm1d(8), nn.Parameter(torch.randn(1))
        self.down, self.up, self.narrow = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.zeros(2, 8)), narrow

    def forward(self, x):
        h = self.statistics(self.first(x).transpose(1, 2)).transpose(1, 2)
        q, k, v = self.qkv(h).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        h = h + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) + h @ self.down @ self.up
        z = self.last(h)
        z = z - z.sum(-1, keepdim=True) * (1 / 6)  # which float32 has not exactly
        loss = (z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-5)).pow(3).mean() + F.softmax(h + self.shift, -1).square().mean()
        return torch.zeros(2).index_add(0, torch.tensor([0]), loss[None]).sum() if self.narrow else loss


class EachSample(nn.Module):
    """A focal loss, normalised: cross-entropies of each sample, weighted by class, and a sum of what is made of them."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 3), nn.RMSNorm(4)  # whose epsilon is that of its type

    def forward(self, x, y):
        each = F.cross_entropy(self.fc(self.norm(x * 0.001)), y, torch.tensor([1.0, 2.0, 0.5]), reduction="none")
        share = (1 - torch.exp(-each)).detach()
        return (share / share.sum() * each).mean()


class Stateful(nn.Module):
    """Buffers that forward changes: numbers, counts of integer labels, statistics of an instance norm, the least of all inputs, which is infinite at first; and one that the loss is."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = torch.nn.utils.weight_norm(nn.Linear(4, 3)), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        for name, value in dict(steps=torch.zeros(()), counts=torch.ones(3), last=torch.zeros(()), least=torch.tensor(torch.inf)).items():
            self.register_buffer(name, value)

    def forward(self, x, y):
        with torch.no_grad():
            self.steps.add_(1)
            self.counts.mul_(0.9).add_(0.1 * F.one_hot(y, 3).sum(0))
            self.least.copy_(torch.minimum(self.least, x.min()))
        loss = F.cross_entropy(self.fc(self.norm(x).pow(3).mean(-1)) / self.counts, y) * self.least.abs() / self.steps
        with torch.no_grad():
            self.last.copy_(loss)
        return loss


class Counters(nn.Module):
    """Buffers of integers and booleans that forward changes: those of a batch norm, that of a queue's place, on which the loss depends, counts of
    labels, and one that is set to a constant; where `reads`, it is read, too."""

    def __init__(self, reads=False, large=False):
        super().__init__()
        self.fc, self.norm, self.reads = nn.Linear(4, 4), nn.BatchNorm1d(4), reads
        self.register_buffer("steps", torch.tensor(2**25 if large else 1000))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int32))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.long))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        self.steps.add_(1)
        self.place[0] = (self.place[0] + 3) % 7
        self.counts.add_(F.one_hot((x[:, 0] > 0).long(), 3).sum(0))
        h = self.norm(self.fc(x)) * (2 if not self.reads else self.ready + 1)
        self.ready.fill_(True)
        return h.pow(3).mean() * 1000 / self.steps + (self.fc(x) * self.place).mean()


class Queue(nn.Module):
    """Rows, or columns, of earlier batches, at a place that a buffer counts, of which forward makes a number; where `turns`, it goes another way at the end."""

    def __init__(self, turns=False):
        super().__init__()
        self.fc, self.turns = nn.Linear(4, 3), turns
        self.register_buffer("rows", torch.randn(8, 3))
        self.register_buffer("columns", torch.randn(2, 3, 8))
        self.register_buffer("sums", torch.zeros(3))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        h = self.fc(x)
        loss = F.cross_entropy(h @ self.rows.clone().T, torch.arange(len(h))) + (h @ self.columns[1].clone()).sin().mean() + (h.mean(0) * self.sums.clone()).sum()
        place, step = int(self.place), self.steps.item()
        if self.turns and place + len(h) > 6:
            place = 0
        self.rows[place:place + len(h)] = h.detach()
        self.columns[1, :, place:place + len(h)] = h.detach().T
        self.sums[step % 3] = self.columns[1, :, place + 1].detach().sum() + self.rows[place:place + 2].sum()
        self.place[0] = (place + len(h)) % len(self.rows)
        self.steps.fill_(0).add_(step + 1)
        return loss


class Ways(nn.Module):
    """Takes another way for many samples."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x.contiguous() if x.shape[0] >= 64 else x).square().mean()


class Momentum(nn.Module):
    """A frozen teacher that follows its pupil; with `clamp`, forward changes what is trained."""

    def __init__(self, clamp=False):
        super().__init__()
        self.pupil, self.teacher, self.clamp = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False), clamp

    def forward(self, x):
        with torch.no_grad():
            for own, followed in zip(self.teacher.parameters(), self.pupil.parameters()):
                if own.dim() > 1:
                    own.mul_(0.9).add_(followed, alpha=0.1)
                else:
                    own.data = own.data * 0.9 + followed.data * 0.1
            if self.clamp:
                self.pupil.weight.clamp_(-0.1, 0.1)
        return F.mse_loss(self.pupil(x), self.teacher(x.flip(-1)))


class Counts(nn.Module):
    """A number that is no buffer, on which the loss depends where `used`; and results that it keeps, from one forward to the next where `cached`."""

    def __init__(self, used=False, cached=False, momentum=0.1):
        super().__init__()
        self.fc, self.norm, self.steps, self.used, self.cached, self.kept = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum), 0, used, cached, {}

    def forward(self, x):
        self.steps += 1
        if not self.cached or "weight" not in self.kept:
            self.kept["weight"] = self.fc.weight * 2
        y = self.norm(F.linear(x, self.kept["weight"])).pow(3).mean()
        return y / self.steps if self.used else y


class Otherwise(nn.Module):
    """What it does only while it is traced does not run; it converts itself, and counts with bits."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, ids):
        mask = None if torch.compiler.is_compiling() else torch.ones(4)
        self.fc = self.fc.to(x.dtype)
        bits = (ids & (x > 0)) + (ids | (x > 0)) * 2
        return (self.fc(x) * mask[None, :] * bits).square().mean()


class Hidden(nn.Module):
    """Attention of a sample of which a mask of the lowest number hides all."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x, mask):
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        mask = (1 - mask[:, None, None].to(x.dtype)) * torch.finfo(torch.float32).min
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).square().mean()


class Asks(nn.Module):
    """Branches on constants; on the inputs, where `values`. Its weights are exponentials of matrices and solutions; its dims part complex numbers."""

    def __init__(self, values=False):
        super().__init__()
        self.fc, self.values = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="matrix_exp"), values
        self.last = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley")

    def forward(self, x):
        if (x if self.values else torch.ones(3)).sum() > -99:
            x = x * torch.tensor([2.0, 3.0]).max().item() + x.mean(torch.arange(1, x.dim()).tolist(), keepdim=True)
        turned = torch.view_as_complex(self.fc(x).unflatten(-1, (2, 2))).unsqueeze(1) * torch.polar(torch.ones(2), torch.tensor([0.1, 0.2]))
        return F.mse_loss(self.last(torch.view_as_real(turned).flatten(1)), x)


class Speech(nn.Module):
    """A loss over alignments, a distribution, whose numbers are looked at, correlations, and a weight without its gradient."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 5)

    def forward(self, x, y, lengths):
        x = x + self.fc.weight.data[0]
        logs = self.fc(x).log_softmax(-1).transpose(0, 1)
        aligned = F.ctc_loss(logs, y, torch.full_like(lengths, 6), lengths, zero_infinity=True)
        likely = torch.distributions.Normal(x.mean(-1), F.softplus(self.fc.weight[0, 0])).log_prob(x[..., 0]).mean()
        return aligned - likely + torch.cov(logs[0].T).square().mean() + torch.corrcoef(logs[1].T)[0, 1]


class Longest(nn.Module):
    """As many steps as the longest has, which an input of integers decides; where `of_floats`, as the largest number does."""

    def __init__(self, of_floats=False):
        super().__init__()
        self.fc, self.of_floats = nn.Linear(4, 4), of_floats

    def forward(self, x, lengths):
        longest = int(((x[:, 0, 0].sign().long() if self.of_floats else lengths).max() + 1).item())
        counts = torch.arange(longest) < lengths[:, None]
        return (self.fc(x[:, :longest]).square().mean(-1) * counts).sum() / counts.sum()


class FirstRun(nn.Module):
    """A membrane whose shape forward finds, kept from step to step or begun anew in each, and a norm that the first batch scales."""

    def __init__(self, kind):
        super().__init__()
        self.fc, self.kind, self.ready = nn.Linear(4, 4), kind, False
        self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.register_buffer("membrane", torch.tensor(0.5) if kind == "number" else torch.zeros(0))
        self.register_buffer("begun", torch.tensor(0, dtype=torch.uint8))

    def forward(self, x):
        h = self.fc(x)
        if self.kind == "scaled" and not (self.ready and self.begun.item()):
            with torch.no_grad():
                self.shift.data.copy_(-h.mean(0))
                self.scale.copy_(1 / h.std(0))
                self.begun.fill_(1)
                self.ready = True
        if self.kind in ("kept", "random") and self.membrane.shape != h.shape:
            self.membrane = torch.randn_like(h) if self.kind == "random" else torch.zeros_like(h)
        if self.kind == "anew":
            self.membrane = torch.zeros(0) if len(self.membrane) else self.membrane
            self.membrane = h if self.membrane.shape != h.shape else self.membrane + h
        elif self.kind != "scaled":
            self.membrane = 0.9 * self.membrane.detach() + h
        return ((h + self.shift) * self.scale * (1 if self.kind == "scaled" else self.membrane.sigmoid())).square().mean()


@dataclasses.dataclass
class Found:
    loss: torch.Tensor
    rest: object = None


class Returns(nn.Module):
    """Takes and returns objects of classes of its own, numbers and words."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, given, scale=2):
        h = self.fc(given.loss * scale)
        return Found(F.mse_loss(h, given.rest["y"][0]), types.SimpleNamespace(logits=h, count=3, words=["a", h], none=None))


class Asked(nn.Module):
    """Takes a way that inputs decide."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, mask, y):
        h = self.fc(x if torch.equal(x, y) else x + y)
        if mask.all():
            h = h.exp()
        return (h * mask.float()).square().mean() if x.max() < 50 else h.mean()


class Watched(nn.Module):
    """Hooks that know the module, integers of a few bits, which wrap."""

    def __init__(self):
        super().__init__()
        self.fc, self.last, self.found = nn.Linear(4, 4), nn.Linear(4, 4), {}
        self.fc.register_forward_hook(lambda part, given, out: self.found.update(out=out))
        self.last.register_forward_pre_hook(lambda part, given: (given[0] * self.fc.weight.mean(),))

    def forward(self, x, small):
        same = (small[:, :1] == small[:, 1:2].T).byte()
        same.fill_diagonal_(1)
        pairs = same.unsqueeze(2) * (same ^ 1).unsqueeze(1)
        wrapped = (small * 3 + small - 200).float() + (~small).float() + (small.to(torch.int8) // 3 * 7).float() + (small.short() << 8).float() / 256
        small = small.clone()
        small += 100
        x.mul_(0.5)
        h = self.last(self.fc(x))
        h = torch.vstack([h[0], torch.hstack([h[1:, :2], h[1:, 2:]])]) + torch.column_stack([h[:, 0], h[:, 1:]]) + torch.block_diag(h[:2, :2], h[2:, 2:])
        return (h * (wrapped + small / 3) / 255).square().mean() + self.found["out"].square().mean() + (h.sum() * pairs).mean()


class Pairs(nn.Module):
    """Pairs of samples with the same label, or with others, which matrices are made of, in a way that a frozen number decides."""

    def __init__(self):
        super().__init__()
        self.fc, self.curve = nn.Linear(4, 4), nn.Parameter(torch.tensor(0.5), requires_grad=False)

    def forward(self, x, labels):
        h = self.fc(x)
        likeness = h @ h.T if self.curve > 0 else -torch.cdist(h, h)
        same = labels[:, None] == labels
        masks = []
        for pairs in same & ~torch.eye(len(same), dtype=torch.bool), ~same:
            mask, (first, second) = torch.zeros_like(likeness), torch.where(pairs)
            mask[first, second] = 1
            masks.append(mask)
        weighed = torch.zeros_like(likeness)
        weighed[first, second] = (h[first] - h[second]).square().sum(-1)
        assert not torch.any((masks[0] == 1) & (masks[1] == 1)), "a pair is of either kind"
        return (likeness * masks[0]).square().mean() + F.softplus(likeness * masks[1]).sum() / masks[1].sum() + weighed.mean()


@torch.library.custom_op("piper_test::twice", mutates_args=())
def twice_of_library(value: torch.Tensor) -> torch.Tensor:
    return value * 2


twice_of_library.register_fake(torch.empty_like)
twice_of_library.register_autograd(lambda context, gradient: gradient * 3)


class Thrice(torch.autograd.Function):
    """The same as a function."""

    @staticmethod
    def forward(context, value):
        return value * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 3


class OfLibrary(nn.Module):
    """An operator of a library with a gradient of its own, in all ways or in compiled ones."""

    def __init__(self, always):
        super().__init__()
        self.fc, self.always = nn.Linear(4, 4), always

    def forward(self, x):
        h = self.fc(x)
        return (twice_of_library(h) if self.always or torch.compiler.is_compiling() else Thrice.apply(h)).square().mean()


class Strides(nn.Module):
    """Windows of what lies in memory otherwise than its dims say."""

    def forward(self, x):
        lying = self.fc(x).transpose(1, 2)
        batch, rows, step = lying.stride()
        return lying.as_strided((len(x), 3, 2, 3), (batch, rows, step, step)).pow(3).mean()

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)


class Labels(nn.Module):
    """A loss that torch.onnx writes wrong."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x, y):
        return F.multilabel_margin_loss(self.fc(x), y)


class Experts(nn.Module):
    """A model of the transformers library whose tokens choose two of four experts, which the library multiplies in groups of rows."""

    def __init__(self):
        super().__init__()
        from transformers import MixtralConfig, MixtralForCausalLM
        self.model = MixtralForCausalLM(MixtralConfig(
            vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
            num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=8, use_cache=False))

    def forward(self, ids, labels):
        return F.cross_entropy(self.model(input_ids=ids).logits.flatten(0, 1), labels.flatten())


class Hooked(nn.Module):
    """Has something called with gradients, or with what a layer returns."""

    def __init__(self, kind):
        super().__init__()
        self.fc, self.last, self.kind, nothing = nn.Linear(4, 4), nn.Linear(4, 4), kind, lambda *values: None
        if kind == "post":
            self.fc.weight.register_post_accumulate_grad_hook(nothing)
        if kind == "layer":
            self.fc.register_full_backward_hook(nothing)
        if kind == "forward":
            self.fc.register_forward_hook(lambda layer, args, out: out * 2)
        if kind in ("weight", "gone"):
            hook = self.fc.weight.register_hook(self.halved)
            if kind == "gone":
                hook.remove()

    @staticmethod
    def halved(gradient):
        return gradient / 2

    def forward(self, x):
        h = self.fc(x)
        if self.kind == "result":
            h.register_hook(self.halved)
        return F.mse_loss(self.last(h).tanh(), x)


class Drawn(nn.Module):
    """Takes numbers in an order that is drawn."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return (self.fc(x).gather(1, torch.rand_like(x).argsort(1)) * torch.arange(4)).square().mean()


class HostDrawn(nn.Module):
    """Leaves out a layer by a number that Python draws; or scales by one of numpy's, or of a generator of its own; or draws one that nothing reads."""

    def __init__(self, kind):
        super().__init__()
        self.fc, self.kind, self.generator = nn.Linear(4, 4), kind, np.random.default_rng(1)

    def forward(self, x):
        number = {"numpy": np.random.rand, "own": self.generator.random}.get(self.kind, random.random)()
        if self.kind == "layer" and number < 0.25:
            return x.mean() + self.fc.bias.mean()
        return (self.fc(x) * (number if self.kind in ("numpy", "own") else 1)).square().mean()


class Clamped(nn.Module):
    """Bounds that are tensors and equal what they bound."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.0, 1, 1, -1, 1, 0]))

    def forward(self, x):
        return (x * self.weight.clamp(self.weight.roll(1), max=self.weight.roll(2)).clip(min=-2)).square().mean()


@torch.jit.script
def dropped_out_of_sight(x):
    return F.dropout(x, 0.5, True)


class Unscaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with torch.no_grad():
            return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(0)


class Packs(nn.Module):
    """A recurrent layer over packed sequences, which a loss reads packed, padded, and by its last states."""

    def __init__(self, kind, **options):
        super().__init__()
        self.part = getattr(nn, kind)(4, 3, **options)
        self.head = nn.Linear(options.get("proj_size") or (6 if self.part.bidirectional else 3), 5)

    def forward(self, x, lengths, labels):
        pack = nn.utils.rnn.pack_padded_sequence
        packed, last = self.part(pack(x, lengths, self.part.batch_first, enforce_sorted=False))
        padded, counts = nn.utils.rnn.pad_packed_sequence(packed, self.part.batch_first, -0.5, x.shape[1 if self.part.batch_first else 0])
        wanted = pack(labels if self.part.batch_first else labels.T, lengths, self.part.batch_first, enforce_sorted=False)
        last = last if isinstance(last, torch.Tensor) else last[0] + last[1][..., :last[0].shape[-1]]
        return F.cross_entropy(self.head(packed.data), wanted.data) + (self.head(padded).sum(-1).sum(1 if self.part.batch_first else 0) / counts).square().mean() + last.sum(0).square().mean()


class Named(nn.Module):
    """Parts that are called as words of Python are, and arguments that forward takes by their names, some of them by no name of its own."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"in": nn.Linear(4, 4), "is": nn.Linear(4, 4)})

    def forward(self, x, y=None, z=None, **more):
        return F.mse_loss(self.parts["in"](x) - z.tanh() + 2 * self.parts["is"](more["weights"]), y - more["shift"])


class Halves(nn.Module):
    """Columns that masks choose which are alike in all steps: of a buffer, and made in forward. In the other order a buffer changes."""

    def __init__(self, moves=False):
        super().__init__()
        self.first, self.last, self.moves = nn.Linear(3, 5), nn.Linear(5, 3), moves
        self.register_buffer("mask", torch.arange(6) % 2 == 0)

    def forward(self, x):
        others, made = torch.nonzero(~self.mask).squeeze(-1), torch.arange(x.shape[1]) < 3
        if self.moves:
            self.mask.logical_not_()
        kept = x[..., self.mask] if not self.moves else x.index_select(1, others)
        h = self.last(self.first(kept).tanh())
        return (h - x[:, others] - x[:, made] * torch.where(made)[0]).square().mean()


class Odd(nn.Module):
    """One part, or a few steps of forward, of each kind that is not exported, or that is by others."""

    def __init__(self, kind, part=None):
        super().__init__()
        self.fc, self.kind, self.part = nn.Linear(4, 4), kind, part
        self.head = lambda h: h @ self.fc.weight
        if kind == "complex":
            self.turn = nn.Parameter(torch.randn(4, dtype=torch.cfloat))
        if kind == "rotates":
            self.register_buffer("turns", torch.polar(torch.ones(4, 2), torch.arange(8.0).view(4, 2)))
        if kind == "sparse":
            self.register_buffer("links", torch.eye(4).to_sparse())
        if kind in ("flagged", "turned"):
            self.register_buffer("begun", torch.tensor(True))

    def forward(self, x):
        x = x.to(self.fc.weight.dtype)
        return getattr(self, self.kind)(self.fc(x), x)

    def through(self, h, x):
        states = [(h.unsqueeze(0).expand(4, -1, -1)[..., :2], h.unsqueeze(0).expand(4, -1, -1))] if getattr(self.part, "proj_size", 0) else []
        h = self.part(h if isinstance(self.part, nn.Dropout) else torch.stack([h, x]) if states else h.unsqueeze(1), *states)
        return ((h[0].transpose(0, 1).flatten(1) if states else h[0].flatten(1) if isinstance(h, tuple) else h).sum(-1) + self.fc(x).sum(-1)).square().mean()

    def alike(self, h, x):
        """Asks whether two are equal that are made alike, as kernels of Gaussian processes do."""
        first, second = x / self.fc.weight[0], x / self.fc.weight[0]
        return ((h if torch.equal(first, second) else h * 3) * first).pow(3).mean()

    def unlike(self, h, x):
        first, second = x / self.fc.weight[0], x / self.fc.weight[0]
        second.add_(h.detach().relu())
        return (h if torch.equal(first, second) else h * 3).pow(3).mean()

    def halved(self, h, x):
        """By a part whose weights have 16 bits."""
        return self.part(h.to(torch.bfloat16)).float().square().mean()

    def rooted(self, h, x):
        """Asks whether a matrix has a root."""
        matrix = h.T @ h + 4 * torch.eye(4, dtype=h.dtype)
        root, failed = torch.linalg.cholesky_ex(matrix)
        if torch.any(failed):
            root = torch.linalg.cholesky(matrix + 1e3 * torch.eye(4, dtype=h.dtype))
        return (root.sin() + torch.linalg.inv_ex(matrix)[0]).sum()

    def spectral(self, h, x):
        """By singular values, eigenvalues and their vectors."""
        U, S, Vh = torch.linalg.svd(h.view(-1, 2, 2).mT.flatten(0, 1), full_matrices=False)
        values, vectors = torch.linalg.eigh(h.T @ h + torch.eye(4, dtype=h.dtype))
        whitened = h @ vectors @ torch.diag(values.rsqrt()) @ vectors.T
        return torch.linalg.matrix_norm(h, "nuc") + (U @ Vh).sin().sum() + S.cos().sum() + whitened.sin().sum() + torch.svd(h.view(-1, 2, 2).mean(0))[1].sum()

    def endless(self, h, x):
        return torch.linalg.svdvals((h.T @ h).repeat(17, 17) + torch.eye(68, dtype=h.dtype)).sum()

    def bags(self, h, x):
        kinds = (x > -0.5).long() + (x > 0.5).long()
        return (h * self.part(kinds)).pow(3).mean()

    def complex(self, h, x):
        return (h * self.turn).abs().mean()

    def rotates(self, h, x):
        """By a buffer of complex numbers, as rotary embeddings do."""
        turned = torch.view_as_complex(h.view(-1, 1, 2, 2)) * self.turns
        return torch.view_as_real(turned).flatten(1).pow(3).mean()

    def modes(self, h, x):
        """Some frequencies, which a tensor of complex zeros takes, as Fourier operators do."""
        turned = torch.fft.rfft(h)
        kept = torch.zeros_like(turned)
        kept[:, :2] = turned[:, :2] * torch.complex(self.fc.weight[0, :2], self.fc.weight[1, :2])
        kept[:, 2] = h[:, 0]
        return torch.fft.irfft(kept, n=4).pow(3).mean()

    def headless(self, h, x):
        """Attention of three dims, with a mask for each sample and with one for all."""
        h, attend = h.view(-1, 2, 2), F.scaled_dot_product_attention
        mask = torch.stack([x > -9, x.sin() > -2], -1)[:, :2]
        return (attend(h, h, h.sin(), attn_mask=x.view(-1, 2, 2)) + attend(h, h, h, mask) + attend(h, h, h, is_causal=True)).pow(3).mean()

    def cond(self, h, x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (h,)).mean()

    def flagged(self, h, x):
        """A buffer that forward leaves as it is, as those of codebooks that are begun; and a mask of bytes."""
        return (torch.where((x > 0).to(torch.uint8), h, -x) * (2 if self.begun else 3)).square().mean()

    def counted(self, h, x):
        """By len(), of which Python makes a number."""
        return F.cross_entropy(h @ x.T, torch.arange(len(h))) + (h * torch.ones(len(x), 1)).square().sum() / len(x)

    def grown(self, h, x):
        """Joined one by one to a tensor that is empty at first, and to one that stays so."""
        rows, none = torch.tensor([]), torch.empty(0).to(h)
        for part in h, x:
            rows = torch.concat([rows, part], axis=0)
        return torch.cat([none, rows, none]).square().mean() + torch.cat([h, x, none]).sin().mean() + torch.cat([none, h]).cos().mean()

    def multiplied(self, h, x):
        return torch.einsum("bi,ij,bj->b", h, self.fc.weight, x).square().mean()

    def turned(self, h, x):
        factor = 2 if self.begun else 3
        self.begun.data.logical_not_()
        return (h * factor).square().mean()

    def tiny(self, h, x):
        return (h * 1e-30).mean() + x.mean()

    def bytes(self, h, x):
        return h.square().mean() / 255

    def shifts(self, h, x):
        return (h * (((x > 0).long() << 2) >> 1) * (1 << (x > 1).long())).square().mean()

    def written(self, h, x):
        """Into tensors of their own without a gradient, as advantages are, and what was there before keeps its own; one is not finite before."""
        held, kept, part = torch.full_like(x, -torch.inf), h.sin(), h.cos()
        with torch.no_grad():
            held[:, 1] = h[:, 0] * 2
            held[:, 2:] = held[:, 1:2] + h[:, 2:]
            kept.mul_(h)
            part[:, 0].add_(h[:, 1])
        held[:, 0] = h[:, 3]
        return ((h * held).pow(3) + (h * kept).sin() + part.pow(3)).mean()

    def decayed(self, h, x):
        """By parameters that are in a list, too, of which forward takes them."""
        return h.sin().mean() + sum(weight * held.square().sum() for weight, held in self.part)

    def penalty(self, h, x):
        """Gradients of gradients, through a convolution, of what is detached in part, and one that is taken as a constant."""
        x = x.requires_grad_(True)
        energy = F.silu(F.conv1d(self.fc(x).unsqueeze(1), self.fc.weight.view(2, 1, 8)[:, :, :3], stride=2)).sum((1, 2)) * (x * x.detach()).sum(1)
        slope, = torch.autograd.grad(energy.sum(), x, create_graph=True)
        second, = torch.autograd.grad(slope[:, 0], x, torch.ones_like(x[:, 0]), retain_graph=True)
        curve = torch.autograd.grad(F.layer_norm(slope, (4,)).pow(3).sum(), [x, self.fc.bias], create_graph=True)
        return energy.mean() + slope.square().mean() + (second * h).mean() + sum(one.square().mean() for one in curve)

    def masked(self, h, x):
        """Zero where the slope has the mask of the dropout itself."""
        x = x.requires_grad_(True)
        kept = F.dropout(x * self.fc.bias, 0.5)
        return (torch.autograd.grad(kept.sum(), x, create_graph=True)[0] * x - kept).square().sum()

    def some(self, h, x):
        """What is done with elements that a mask chooses, if there are any: the last batch has none."""
        mask = (x > 0.5) & (x < 3)
        if mask.any() and not mask.all():
            h[mask] = h[mask].square() + 1
        return h.square().mean() + self.fc.bias.clamp(-1, 0.5).square().sum()

    def four(self, h, x):
        """Of four samples, and it asks a constant."""
        return (h @ h.mT * torch.eye(4).to(h) * torch.tensor(2.0).item()).mean()

    def none(self, h, x):
        return (h.square() if (x > 100).any() else h).mean()

    def jacobian(self, h, x):
        """Gradients by transforms: of each sample, with respect to weights that all of them have, too, and of gradients."""
        layer = lambda held, row: torch.func.functional_call(self.fc, held, (row,)).tanh()  # noqa: E731
        held = dict(self.fc.named_parameters())
        each = torch.func.vmap(torch.func.grad(lambda held, row: layer(held, row).sum()), in_dims=(None, 0))(held, x)
        step, value = torch.func.grad_and_value(lambda held: layer(held, x).square().mean())(held)
        turned = layer({name: one - 0.1 * step[name] for name, one in held.items()}, x).mean() + value
        slopes = torch.func.vmap(torch.func.jacrev(lambda row: layer(held, row)))(x)
        pulled, = torch.func.vjp(lambda held: layer(held, x).sin(), held)[1](x)
        return each["weight"].square().mean() + turned + slopes.square().mean() + pulled["weight"].pow(3).sum()

    def forwards(self, h, x):
        return torch.func.vmap(torch.func.jacfwd(lambda row: self.fc(row).tanh()))(x).square().mean()

    def again(self, h, x):
        """What runs twice, of a tensor that has a gradient, and of one that has none, and so has nothing within; and what is computed for inference."""
        run = lambda value: torch.utils.checkpoint.checkpoint(lambda one: F.linear(one, self.fc.weight).tanh(), value, use_reentrant=True)  # noqa: E731
        with torch.inference_mode():
            wanted = self.fc(x.sin()).clone()
        return (run(h) * run(x) * wanted.clone()).square().mean()

    def lengths(self, h, x):
        """How many elements a mask chooses, as forward asks for it."""
        few, ones = h[x[:, 0] > -0.5], h[x > 0]
        out = few.sum() / len(few) + few.square().sum() / max(1, few.shape[0] - 1) + ones.sin().sum() / max(len(ones), 1) + (torch.ones(len(few), 4) * few).cos().mean()
        if few.shape[0] > 0 and ones.numel():
            out = out + (few * x[0]).mean() * few.size(0)
        return out if len(ones) == 0 else out + ones.mean() / ones.numel()

    def inner(self, h, x):
        copied = h.detach().requires_grad_(True)
        copied.square().sum().backward()
        return (copied.grad * h).mean()

    def function(self, h, x):
        return Unscaled.apply(h).square().mean()

    def rolls(self, h, x):
        """By a size, and by functions that torch.onnx does not write."""
        turned = torch.roll(h, x.shape[0] // 2, 0) * x + torch.fft.fftshift(torch.fft.fft(h, dim=1), 1).real
        likely = F.gaussian_nll_loss(h, x, turned.square()) + (torch.hypot(h, x).copysign(x) + torch.erfinv(h.tanh() * 0.9) + torch.frexp(h)[0]).square().mean()
        groups = torch.tensor([0, 2, 0, 2])[:, None].expand(4, 4)
        products = h.new_ones(3, 4).scatter_reduce(0, groups, self.fc.weight, "prod") + h.new_ones(3, 4).index_reduce(0, groups[:, 0], self.fc.weight, "amax")
        products = products + h.new_zeros(3, 4).scatter_reduce(0, groups, h - h.detach(), "amax", include_self=False)  # equal ones, also beside
        return likely + products.square().mean() + products.sin().mean() + (torch.linalg.qr(self.fc.weight)[0] @ x.mT).tanh().mean()

    def chosen(self, h, x):
        """Losses and sums of what masks choose, of which some have neither a logarithm nor a quotient elsewhere, and elements that are put back."""
        mask, rows = x > 0, x[:, 0] > -0.5
        labels = torch.where(x[:, 1] > 0, 3, 1)
        losses = F.mse_loss(h[mask], x[mask]) + F.cross_entropy(h[rows], labels[rows]) + F.smooth_l1_loss(h[rows] * 2, x[rows], reduction="sum")
        back = torch.zeros_like(h)
        back[mask] = (h[mask] - x[mask]).square()
        depth = x.clamp(min=0)
        off = h.exp()[mask].log() - depth[mask].log()
        losses = losses + F.l1_loss(h[~(x > 0)], x[~(x > 0)]) + off.square().mean() - off.mean().square() / 2 + (h[mask] / depth[mask]).tanh().sum() + (h.square() * depth)[mask].sqrt().sum()
        return losses + back.sin().mean() + (h[mask].sigmoid() + 1).log().sum() + F.log_softmax(h[rows], -1).mean()

    def rows(self, h, x):
        """What becomes of rows that a mask chooses, of which others have labels that are none."""
        rows = x[:, 0] > -0.5
        labels = torch.where(rows, 2, -100)
        few, wanted = h[rows], labels[rows]
        logs = few.log_softmax(-1).gather(1, wanted.unsqueeze(1)).squeeze(1).mean() + F.embedding(wanted, self.fc.weight).square().mean()
        logs = logs + F.normalize(few, dim=-1).sum(0).sin().sum() + F.cosine_similarity(few, x[rows]).mean() + (F.one_hot(wanted, 4) * few).sum() / few.numel()
        logs = logs + torch.cat([few, x[rows]], -1).remainder(0.7).mean(0).square().sum() + h[rows, 1:3].square().mean() + few[:, 1].exp().mean() + few[..., -1].amax() + torch.max(few, x[rows]).square().mean()
        logs = logs + (few.view(-1, 2, 2) * few[:, None, :2]).sum(dim=1).softmax(dim=1).square().mean()
        logs = logs + few.mean(0, keepdim=True).square().sum() + few.var(0).sum() + few.std(0).sum() + few.amax(0).sin().sum() + torch.linalg.norm(few, dim=1).mean()
        above = (few > 0) & ~torch.isnan(x[rows]) | (x[rows] > 1).logical_not()
        logs = logs + torch.lerp(few.masked_fill(above, 0.3), x[rows], 0.2).clamp_min(-0.5).atan2(x[rows]).square().mean() + few.clone().masked_fill_(above, 0).sinh().mean()
        few = few.clone()
        few[above[:, 0]] -= 0.3
        few[x[rows, 2] > 0] = 0.1
        logs = logs + few.tan().mean() + h.index_copy(0, rows.nonzero().view(-1), few.cos()).sin().mean()
        put = h.index_put((rows,), self.fc.bias)
        put[rows, 1:3] = x[0, :2]
        put[rows, wanted] = few[:, 0]
        logs = logs + (few * self.fc.bias[None]).tanh().mean() + h[rows, wanted].square().sum() / max(1, rows.sum()) + max((x > 9).sum(), 1) * few.mean() + min(rows.sum(), 2) * few.mean()
        put[x[:, 1] > 0, 0] = 0.3
        logs = logs + put.sin().sum()
        logs = logs + (few @ self.fc.weight).norm() + few.std() + few.var() + few.min() + h.amax() + h.masked_select(x > 0).square().mean() + few.norm(dim=-1).mean() + F.rms_norm(few, (4,)).sin().mean()
        return logs + F.kl_div(few.log_softmax(-1), x[rows].softmax(-1), reduction="batchmean") + F.binary_cross_entropy_with_logits(
            few, x[rows].sigmoid(), pos_weight=torch.arange(1.0, 5.0))

    def routed(self, h, x):
        """Experts that get the rows whose labels they have, and masks of what masks choose."""
        scores, labels = x.softmax(-1).topk(2, -1)
        out, rows = torch.zeros_like(h), x[:, 0] > -0.5
        for expert in range(3):
            row, choice = torch.where(labels == expert)
            out.index_add_(0, row, F.linear(h[row], self.fc.weight * (expert + 1)).relu() * scores[row, choice, None])
            alone = (labels[:, 0] == expert).nonzero().squeeze(1)
            out = out.index_add(0, alone, h[alone].sin())
        few, above = h[rows], x[rows] > 0
        few = few.view(-1, 2, 2).softmax(-1).sum() + few.flatten().square().mean() + few[above].mean() + torch.dot(few[:, 0], x[rows][:, 1])
        return out.square().mean() + few + h[rows.nonzero(as_tuple=True)].exp().mean()

    def stable(self, h, x):
        """Orders in which equal numbers are, by which all elements are weighed."""
        weights, equal = torch.arange(16.0), (x.flatten() > 0.3).to(torch.int64)
        orders = equal.argsort(stable=True), (equal == 0).argsort(descending=True, stable=True), torch.sort(equal.float(), stable=True, descending=True)[1]
        return sum((h.flatten()[order] * weights[: order.shape[0]]).sin().mean() for order in orders) + x.sort(dim=0, stable=True)[0].mul(h).mean()

    def edges(self, h, x):
        """Edges of a graph without those from a node to itself, and with one for each node, as layers of graphs make them."""
        every = torch.stack([(x > 0).long() + (x > 1).long(), (x < 0.3).long()]).flatten(1)
        kept, loops = every[0] != every[1], torch.arange(3)
        edges, added = torch.cat([every[:, kept], loops.repeat(2, 1)], 1), h[:3, 1].clone()
        added[every[0][~kept]] = h.flatten()[~kept]
        weights = torch.cat([h.flatten()[kept], added])
        row, column = edges
        if row.numel() == 0:
            return h.sum()
        messages = h.index_select(0, row) * weights.exp().view(weights.size(0), -1)
        rows = column.view(-1, 1).expand_as(messages)
        sums, counts = h.new_zeros(3, 4).scatter_add_(0, rows, messages), h.new_zeros(3).scatter_add_(0, column, h.new_ones(messages.size(0)))
        largest = h.new_zeros(3, 4).scatter_reduce_(0, edges.flip(0)[0].view(-1, 1).expand_as(messages), messages, "amax", include_self=False)
        weighed = h.new_zeros(3).scatter_add_(0, row, torch.ones((edges.size(1),), dtype=h.dtype))
        return (sums / counts.clamp(min=1).view(-1, 1)).square().mean() + largest.sin().mean() + (weighed * weighed * h[:3, 0]).mean()

    def splines(self, h, x):
        """Pieces of curves within an interval, as flows have them."""
        inside = (x > -1) & (x < 1)
        assert (x[inside].abs() < 1).all()
        values, widths = x[inside], h.unsqueeze(-1).expand(-1, -1, 4)[inside, :].mul(torch.arange(4)).softmax(-1)
        edges = F.pad(widths.cumsum(-1), (1, 0), value=0.0) * 2 - 1
        edges[..., -1] = 1.0
        edges[..., -1] += 1e-6
        place = ((values[..., None] >= edges).sum(-1) - 1)[..., None]
        out = x.clone()
        out[inside] = (values - edges.gather(-1, place)[..., 0]) / (edges[..., 1:] - edges[..., :-1]).gather(-1, place)[..., 0]
        return (out * h).square().mean()

    def skips(self, h, x):
        """A layer that is left out with a probability of 0."""
        return (h if torch.rand(1) < 0.0 or torch.rand([]) >= 1 else h.sin()).square().mean()

    def seldom(self, h, x):
        return (h if torch.rand(1) < 0.1 else h.sin()).square().mean()

    def unread(self, h, x):
        """A norm whose statistics change and of whose results nothing is read."""
        self.part(h.sin())
        return h.square().mean()

    def dropped(self, h, x):
        return F.dropout(h[x > 0], 0.3).square().mean()

    def summed(self, h, x):
        return (h[x > 0].cumsum(0) * x[0, 0]).mean()

    def mixed(self, h, x):
        return torch.cat([h[x > 0], x.flatten()]).square().mean()

    def diagonals(self, h, x):
        squares = (h.unsqueeze(-1) * x.unsqueeze(1)).clone()
        squares.diagonal(dim1=-2, dim2=-1).mul_(2)
        alike = h @ x.T
        alike.fill_diagonal_(-9.0)
        wide = torch.diagonal_scatter(squares, h[:, :3], 1, 1, 2).tanh().mean() + torch.diagonal_scatter(squares[:, :3], h[:, :2], -1, 1, 2).sin().mean()
        return wide + F.cross_entropy(alike, torch.arange(x.shape[0]).roll(1)) + squares[:, 0].softmax(-1).square().mean()

    def modulated(self, h, x):
        """A kernel for each sample, as a convolution of as many groups."""
        kernels, images = (h.unsqueeze(1) * self.fc.weight.unsqueeze(0)).reshape(-1, 1, 2, 2), x.reshape(1, -1, 2, 2)
        up = F.conv_transpose2d(images, kernels[::4].repeat(1, 3, 1, 1), stride=2, padding=1, output_padding=1, groups=x.shape[0])
        up = up.tanh().mean() + F.conv1d(images.flatten(2), kernels.flatten(2)[..., :3], self.fc.bias.repeat(x.shape[0]), 2, 1, groups=x.shape[0]).cos().mean()
        return F.conv2d(images, kernels, padding=1, stride=(2, 1), groups=x.shape[0]).square().mean() + F.conv2d(images, kernels, padding="same", groups=x.shape[0]).sin().mean() + up

    def counted_labels(self, h, x):
        return (torch.bincount(x.argmax(-1), minlength=4) * h).mean() + (torch.bincount(x.argmax(-1), x[:, 0], 5)).square().sum() * h.mean()

    def clusters(self, h, x):
        return self.part(h, x.argmax(-1) * 2).loss + self.part(h, x.argmin(-1) + 3).output.exp().mean()

    def clamped(self, h, x):
        return h.clamp(x.min(), x.max()).square().mean()

    def picked(self, h, x):
        return h[x > 0].sort()[0].square().mean()

    def gammas(self, h, x):
        return torch.polygamma(1, h.exp()).mean()

    def scripted(self, h, x):
        return dropped_out_of_sight(h).square().mean()

    def checked(self, h, x):
        if x.max() > 1e3:
            raise ValueError("too large")
        assert not x.isnan().any() and (x > -1e3).all()
        return h.square().mean()

    def kept(self, h, x):
        """A check whose answer goes on is no check alone."""
        assert (most := x.max().item()) < 1e3
        return (h * most).square().mean()

    def beside(self, h, x):
        most = x.max().item(); assert most < 1e3  # noqa: E702
        return (h * most).square().mean()

    def joined(self, h, x):
        """Labels that are joined to one dim, as models of speech give them to a loss over alignments."""
        labels = torch.stack([(x[:, 0] > 0).long() + 1, torch.where(x[:, 1] > 0, 3, -100)], 1)
        chosen, logs = labels >= 0, h[:, None].expand(-1, 6, -1).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(logs, labels.masked_select(chosen), torch.full_like(labels[:, 0], 6), chosen.sum(-1)) + F.ctc_loss(
            logs, labels.abs().clamp(max=3).reshape(-1), torch.full_like(labels[:, 0], 6), torch.full_like(labels[:, 0], 2))

    def twice(self, h, x):
        return h[torch.where(h[x[:, 0] > -0.5, 1] > 0)[0]].mean()

    def sized(self, h, x):
        longest = int(torch.max((x[:, 0] > 0).long() + 2).item())
        return (h * (torch.arange(longest).expand(4, longest)[:, :1] + 1)).square().mean()

    def finite(self, h, x):
        if not torch.isfinite(h).all() or (torch.isnan(h) | torch.isinf(h)).any():
            h = h.clamp(-1e3, 1e3)
        return h.square().mean()

    def parts(self, h, x):
        """Functions of complex numbers, as layers of state spaces use them."""
        turn = torch.complex(-h.exp(), x)
        powers = turn[:, None].expand(-1, 3, -1).exp() ** torch.arange(1, 4)[:, None]
        mixed = torch.einsum("bij,bj->bi", powers, turn.sqrt() * torch.log(turn)).cumsum(-1)
        mixed = torch.where(x[:, :3] > 0, mixed, mixed[:, [2, 0, 1]]) + F.pad(mixed[:, 1:], (0, 1))
        mixed = x[:, :3] * (h[:, :3] + 1j * h[:, 1:]) / (2 - 1j) + mixed * 2j
        return torch.view_as_real(mixed).square().mean() + mixed[:, 0].abs().mean() + torch.einsum("bi,bi->b", turn, torch.complex(x, h)).abs().mean()

    def places(self, h, x):
        """Functions by equivalents: where numbers lie, and the largest of them."""
        grows, edges = x.detach().cumsum(-1).sort(-1).values, torch.linspace(-1, 1, 4).to(x)
        weight = torch.searchsorted(grows, x, right=True) + torch.searchsorted(edges, x) + torch.isin(x.round(), edges.round())
        chosen = torch.cat([torch.combinations(h[0], 2).prod(-1), F.adaptive_max_pool1d(h, 3).flatten(), F.adaptive_max_pool2d(h[:, None], (3, 2)).flatten()])
        return (torch.cummax(h, 1).values * weight + torch.cummin(h, 0)[0]).square().mean() + chosen.square().mean()

    def likely(self, h, x):
        """A likelihood of Student's t, windows in front of a Fourier transform, and a sum of a sparse matrix, as models of time series and adapters have them."""
        degrees = F.softplus(h) + 2
        likelihood = torch.distributions.StudentT(degrees, x, degrees.sqrt()).log_prob(x.flip(0)).mean() + torch.digamma(degrees).mean()
        weight = self.fc.weight + torch.sparse_coo_tensor(torch.tensor([[0, 2, 2], [1, 3, 3]]), h[0, :3], (4, 4))
        heard = [torch.stft(h, 4, 2, window=window(4, dtype=h.dtype), return_complex=True).conj() for window in (torch.hann_window, torch.hamming_window)]
        return likelihood + sum(one.imag.square().mean() for one in heard) + F.linear(x, weight).square().mean()

    def solved(self, h, x):
        square = h.mT @ h + torch.eye(4).to(h)
        factor = torch.linalg.cholesky(square)
        normal = torch.distributions.MultivariateNormal(x.mean(0), scale_tril=factor).log_prob(x).mean()
        normal = normal + torch.linalg.lstsq(h, x[:, :2]).solution.square().mean() + torch.linalg.pinv(h[:3]).square().mean() * 1e-3
        return (normal + torch.linalg.det(square) + torch.logdet(square) + torch.linalg.slogdet(h)[1] + torch.cholesky_solve(x.mT, factor).square().mean()
                + torch.linalg.solve_triangular(square.triu(), x, upper=True, left=False).square().mean())

    def pooled(self, h, x):
        """The largest, the smallest and the mean of groups, as layers of graphs take them; and products of numbers of two types."""
        groups = torch.tensor([0, 2, 0, 2])
        rows = groups[:, None].expand(4, 4)
        out = [h.new_zeros(3, 4).scatter_reduce_(0, rows, h.relu(), kind, include_self=kind == "amin") for kind in ("amax", "amin", "mean")]
        turns = torch.einsum("i,j->ij", torch.arange(4), h[0])
        return torch.cat(out).square().mean() + turns.sin().mean()

    def closes(self, h, x):
        return self.head(h).square().mean()

    def registers(self, h, x):
        if not hasattr(self, "slopes"):
            self.register_buffer("slopes", torch.arange(4) / 4, persistent=False)
        return (h * self.slopes).square().mean()

    def keyed(self, h, x):
        return (h * len(set((x > 0).sum(1).tolist()))).square().mean()

    def negated(self, h, x):
        """What a mask has chosen stays as it was when the mask is changed in place."""
        mask, wide = x[:, 0] > 0, x > 0
        rows, (places,), picked = x[mask], torch.where(mask), torch.masked_select(x, wide)
        mask.logical_not_()
        wide.logical_not_()
        return self.fc(rows).square().sum() + h[places].sin().sum() + (self.fc.bias[0] * picked).square().sum() + h[mask].pow(3).sum() + h[wide].cos().sum()

    def tied(self, h, x):
        """Which of equal numbers are found decides the loss."""
        return (h.repeat(1, 5).gather(1, torch.zeros_like(x).repeat(1, 5).topk(3).indices) * torch.arange(3)).square().mean()

    def untied(self, h, x):
        found = torch.zeros_like(x).repeat(1, 5).topk(3)
        return (h[:, :1] * (found.values.gather(1, found.indices * 0) + 1)).square().mean()

    def hides(self, h, x):
        """Rows of what lies otherwise in memory than its shape says, changed in place."""
        rows = self.fc(torch.cat([x, -x])).view(2, -1, 4).transpose(0, 1)
        rows[x[:, :2] > 0] = 0
        return rows.cos().mean()

    def fails(self, h, x):
        """Steps that lead to an error alone, and a choice of one, as torchvision's detectors take."""
        large = (x > 100).any(dim=1)
        if large.any():
            at = torch.where(large)[0][0]
            torch._assert(False, f"row {at} is large")
        return h[:, int(torch.empty(1).uniform_(0.0, 1.0).item()):].square().mean()

    def dice(self, h, x):
        return h[:, int(torch.empty(1).uniform_(0.0, 3.0).item()):].square().mean()

    def loaded(self, h, x):
        return h[:, int(torch.empty(1).uniform_(0.0, 1.0).mul_(3).item()):].square().mean()

    def raises(self, h, x):
        return h.view(3, 9).mean()


class Modes(nn.Module):
    """Does otherwise when it is evaluated; where `drops`, dropout of channels, which is none then; where `clamps`, by a function that the exporter replaces."""

    def __init__(self, drops=False, clamps=False):
        super().__init__()
        self.fc, self.drops, self.clamps = nn.Linear(4, 4), drops, clamps

    def forward(self, x):
        h = self.fc(x.unsqueeze(1))
        if self.drops:
            return F.dropout1d(h, 0.3, self.training, True).square().mean() + F.alpha_dropout(h).mean()
        if self.clamps:
            return (h if self.training else h.clamp(max=-0.1)).square().mean()
        return (h * 2 if self.training else h).square().mean()


class Fixed(nn.Module):
    """Of a number of samples that Python has: a loop over them."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return sum(row.square().mean() for row in self.fc(x)) / len(x)


@contextmanager
def plans_of_products():
    """PyTorch asks a library, such as opt_einsum is, in which order to multiply: it compares the sizes."""
    def contract_path(equation, *operands, shapes=False, optimize=None):
        sizes = operands if shapes else [one.shape for one in operands]
        return ([(1, 2), (0, 1)] if sizes[0][0] == 4 else [(0, 1), (0, 1)]), None

    library = types.SimpleNamespace(contract_path=contract_path)
    with mock.patch.multiple(torch.backends.opt_einsum.m, enabled=True, is_available=lambda: True, get_opt_einsum=lambda: library):
        yield


def assert_ctc_is_that_of_torch(case):
    """Its value and its gradient, of labels of all lengths, in logarithms that are those of a softmax or are not."""
    generator = torch.Generator().manual_seed(case)
    some = lambda low, high, shape=(): torch.randint(low, high, shape, generator=generator)  # noqa: E731
    steps, batch, kinds, longest = (some(low, high).item() for low, high in ((2, 9), (1, 5), (2, 6), (1, 4)))
    x = torch.randn(steps, batch, kinds, dtype=torch.float64, generator=generator).requires_grad_()
    blank = some(0, kinds).item()
    labels = some(0, kinds - 1, (batch, longest))
    given = (x.log_softmax(-1) if case % 2 else x, labels + (labels >= blank), some(1, steps + 1, (batch,)), some(0, longest + 1, (batch,)), blank,
             ("none", "mean", "sum")[case % 3], True)
    wanted, got = F.ctc_loss(*given), EQUIVALENTS["ctc_loss"](*given)
    gradients = [torch.autograd.grad(loss.sum(), x, retain_graph=True)[0] for loss in (wanted, got)]
    assert torch.allclose(wanted, got) and torch.allclose(*gradients), f"ctc_loss of case {case}"


def assert_products_count():
    """Whole numbers and booleans are multiplied as int64."""
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.float32):
        x = torch.tensor([[1, 0, 1], [1, 1, 1]]).to(dtype)
        wanted, got = x.cumprod(1), EQUIVALENTS["cumprod"](x, 1)
        assert wanted.dtype == got.dtype and torch.equal(wanted, got), f"cumprod of {dtype}"


def assert_instance_norms_have_either():
    """A norm whose statistics are kept may have a weight, a bias, both or neither."""
    x, scale, shift = torch.randn(2, 3, 5), torch.randn(3), torch.randn(3)
    for weight in (scale, None):
        for bias in (shift, None):
            wanted, got = (norm(x, torch.zeros(3), torch.ones(3), weight, bias, True) for norm in (F.instance_norm, instance_norm))
            assert torch.allclose(wanted, got, atol=1e-5), "instance_norm"


def assert_vectors_are_those_of_torch():
    """Those of singular values and of eigenvalues, but for their signs, and their gradients, in float64."""
    of_values = lambda U, S, Vh: (S, U @ Vh, U.square(), Vh.square(), (U * S.sin().unsqueeze(-2)) @ Vh)  # noqa: E731
    of_svd = [lambda A, find=find: of_values(*find(A, full_matrices=False)) for find in (torch.linalg.svd, EQUIVALENTS["linalg_svd"])]
    of_eigh = [lambda A, find=find: (lambda values, vectors: (values, vectors.square(), (vectors * values.sin()) @ vectors.mT))(*find(A)) for find in (torch.linalg.eigh, EQUIVALENTS["linalg_eigh"])]
    generator = torch.Generator().manual_seed(0)
    for functions, shapes in (of_svd, [(1, 1), (5, 3), (2, 6), (8, 8)]), (of_eigh, [(1, 1), (2, 2), (5, 5), (12, 12)]):
        for shape in shapes:
            A = torch.randn(*shape, generator=generator, dtype=torch.float64)
            results = []
            for function in functions:
                taken = A.clone().requires_grad_()
                found = function(taken)
                results.append([*found, *torch.autograd.grad(sum((one * torch.arange(one.numel()).view(one.shape).cos()).sum() for one in found), taken)])
            assert all(map(torch.allclose, *results)), f"vectors of {shape}"


def assert_equivalents_are_those_of_torch():
    """Values and gradients, in float64."""
    x, squares = torch.randn(3, 4, 7).double(), torch.randn(3, 4, 4).double()
    positive = squares @ squares.mT + torch.eye(4)
    uneven = positive + 1e-3 * torch.randn(4, 4).double()  # of which one triangle is read
    numbers = torch.cat([torch.linspace(-5.3, 12.1, 40), torch.tensor([1.0, 2.0, 100.0, 1e5])]).double()
    cases = [("lgamma", torch.lgamma, (numbers,), {}), ("digamma", torch.digamma, (numbers,), {}), ("combinations", torch.combinations, (x[0, 0], 3), {}),
             ("combinations", torch.combinations, (x[0, 0], 2, True), {}), ("linalg_det", torch.linalg.det, (squares,), {}), ("linalg_householder_product", torch.linalg.householder_product, (x.mT, torch.rand(3, 4).double()), {}),
             ("linalg_inv", torch.linalg.inv, (torch.cat([positive, positive[:1] + 1]),), {}), ("logdet", torch.logdet, (squares,), {}),
             ("linalg_slogdet", torch.linalg.slogdet, (squares,), {}), ("cholesky_solve", torch.cholesky_solve, (x, torch.linalg.cholesky(positive)), {}),
             ("adaptive_max_pool1d", F.adaptive_max_pool1d, (x, 5), {}), ("adaptive_max_pool2d", F.adaptive_max_pool2d, (x, (3, None)), {}),
             *(("adaptive_avg_pool3d", F.adaptive_avg_pool3d, (x[None], size), {}) for size in (1, (2, 3, 5), (None, 4, 1))),
             ("fill_diagonal_", lambda value, *by: value.clone().fill_diagonal_(*by), (x[0], 0.3), {}), ("adaptive_max_pool3d", F.adaptive_max_pool3d, (x[None], (2, 3, 5)), {}), ("erfinv", torch.erfinv, (torch.linspace(-1, 1, 41).double()[1:-1],), {}),
             ("median", torch.median, (x.round(),), {}), ("hypot", torch.hypot, (x, x.flip(0)), {}), ("fft_fftshift", torch.fft.fftshift, (x,), {}), ("fft_ifftshift", torch.fft.ifftshift, (x, (1, -1)), {}),
             ("frexp", torch.frexp, (torch.tensor([0.0, 1, 2, 0.5, -8, 0.3, 1e-30, 1e30]).double(),), {}), ("roll", torch.roll, (x, 5), {}),
             ("roll", torch.roll, (x, (1, -2), (0, 2)), {}), ("gaussian_nll_loss", F.gaussian_nll_loss, (x, x.flip(0), x.square()), dict(full=True)),
             ("gaussian_nll_loss", F.gaussian_nll_loss, (x, x.flip(0), x[..., 0].abs()), dict(reduction="sum")),
             ("gaussian_nll_loss", F.gaussian_nll_loss, (x, x.flip(0), 0.3), dict(reduction="none"))]
    cases += [("linalg_qr", torch.linalg.qr, (matrix,), {}) for matrix in (x, x.mT, squares, squares.triu())]
    cases += [("index_reduce", torch.index_reduce, (x, dim, torch.tensor([0, 2, 0]), x.flip(dim).narrow(dim, 0, 3), kind), dict(include_self=include))
              for dim in (1, -1) for kind in ("amax", "amin", "mean", "prod") for include in (False, True)]
    cases += [("scatter_reduce", torch.scatter_reduce, (x[1], 0, torch.tensor([0, 2, 0, 2])[:, None].expand(4, 5), x[0, :, :5], "prod"), {})]
    cases += [(name, getattr(torch, name), (values, dim), {}) for name in ("cummax", "cummin") for values in (x, x.round()) for dim in (0, 1, -1)]
    index = torch.tensor([0, 2, 0, 2])[:, None].expand(4, 7)
    cases += [("scatter_reduce", torch.scatter_reduce, (value, 0, index, x[0].round(), kind), dict(include_self=include))
              for value in (x[1].round(), x[1]) for kind in ("mean", "amax", "amin", "sum", "prod") for include in (False, True)]
    cases += [("linalg_svdvals", torch.linalg.svdvals, (matrix,), {}) for matrix in (x, x.mT, squares)]
    cases += [("linalg_eigvalsh", torch.linalg.eigvalsh, (uneven,), dict(UPLO=triangle)) for triangle in ("L", "U")]
    cases += [("linalg_matrix_norm", torch.linalg.matrix_norm, (x, kind), dict(dim=(0, 2), keepdim=keeps)) for kind in ("nuc", 2, -2, "fro") for keeps in (False, True)]
    cases += [("linalg_norm", torch.linalg.norm, (x[0], 2), {}), ("linalg_norm", torch.linalg.norm, (x, 2), dict(dim=1))]
    several, begins = torch.tensor([0, 2, 1, 2, 3, 0, 2]), torch.tensor([0, 2, 2, 5])
    bag = lambda weight, *args, **options: F.embedding_bag(args[0], weight, *args[1:], **options)  # noqa: E731
    cases += [("embedding_bag", bag, (x[1], several, begins), dict(mode=mode, padding_idx=pad)) for mode in ("sum", "mean", "max") for pad in (None, 0, -2)]
    cases += [("embedding_bag", bag, (x[1], several[:6].view(3, 2)), dict(mode=mode, padding_idx=2)) for mode in ("sum", "mean", "max")]
    cases += [("embedding_bag", bag, (x[1], several, begins), dict(mode="sum", include_last_offset=True, per_sample_weights=x[0, 0]))]
    cases += [("linalg_cholesky", torch.linalg.cholesky, (uneven,), dict(upper=upper)) for upper in (False, True)]
    cases += [("linalg_solve_triangular", torch.linalg.solve_triangular, (squares, x if left else x.mT), dict(upper=upper, left=left, unitriangular=unit))
              for upper in (False, True) for left in (False, True) for unit in (False, True)]
    for name, own, args, options in cases:
        results = []
        for function in own, EQUIVALENTS[name]:
            taken = args[0].clone().requires_grad_()
            out = function(taken.clone(), *args[1:], **options)
            out = [out] if isinstance(out, torch.Tensor) else [*out]
            weighted = [(one * torch.arange(1, one.numel() + 1).view(one.shape)).nansum() for one in out if one.requires_grad]
            results.append([*out, *torch.autograd.grad(sum(weighted), taken)])
        for wanted, got in zip(*results):
            assert wanted.dtype == got.dtype and torch.allclose(wanted, got, rtol=1e-7, atol=1e-8, equal_nan=True), f"{name} {options}"
    grows = x.sort(-1).values
    for rows, wanted in (grows, x), (grows[0, 0], x), (grows[0, 0], 0.2):
        for right in False, True:
            assert torch.equal(torch.searchsorted(rows, wanted, right=right), EQUIVALENTS["searchsorted"](rows, wanted, right=right)), "searchsorted"
    for name in "hann_window", "hamming_window", "blackman_window":
        for periodic in False, True:
            for length in 1, 6, 7:
                wanted, got = (function(length, periodic, dtype=torch.float64) for function in (getattr(torch, name), EQUIVALENTS[name]))
                assert torch.allclose(wanted, got, atol=1e-12), name
    assert torch.equal(torch.isin(x.round(), torch.arange(2), invert=True), EQUIVALENTS["isin"](x.round(), torch.arange(2), invert=True)), "isin"


def assert_tensors_are_joined():
    """Of no dim to three, as torch joins them."""
    for shape in (), (3,), (3, 3), (3, 3, 3):
        parts = [torch.randn(shape) for _ in range(3)]
        for name in "atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "column_stack", "dstack", "hstack", "row_stack", "vstack":
            if name == "block_diag" and len(shape) > 2:
                continue
            several = name.startswith("atleast") or name == "block_diag"
            wanted, got = (function(*parts) if several else function(parts) for function in (getattr(torch, name), EQUIVALENTS[name]))
            wanted, got = ([one] if isinstance(one, torch.Tensor) else one for one in (wanted, got))
            assert all(torch.equal(a, b) for a, b in zip(wanted, got)) and len(wanted) == len(got), f"{name} of {shape}"


def assert_long_exports_say_so(path):
    with mock.patch("export.PATIENCE", 0), redirect_stderr(io.StringIO()) as told:
        said(nn.Linear(4, 4), (torch.randn(4, 4),), path, check=False)
    assert told.getvalue() == f"{path}: forward of Linear is traced and written …\n", told.getvalue()


class NotTraced(nn.Linear):
    """Whose forward is not to be called."""

    def forward(self, x):
        raise AssertionError("forward was called before the place of the file was checked")


def assert_places_are_checked_first(folder):
    """That of the file, of the values beside it, and their room."""
    batch, small, large = (torch.randn(4, 4),), NotTraced(4, 4), NotTraced(4, 2**17)
    (folder / "large.onnx.data").mkdir()
    for path, module, wanted in [(folder, small, "it is a directory"), (folder / "none/a.onnx", small, "is not a directory one can write to"),
                                 (folder / "large.onnx", large, "large.onnx.data: it is a directory")]:
        text = said(module, batch, path, check=False)
        assert text.startswith("refused: cannot write") and wanted in text, text
    with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=79)):
        text = said(small, batch, folder / "a.onnx", check=False)
        assert text == f"refused: the values take 80 bytes, and the disk of {folder.resolve()} has room for 79", text


def listed(path):
    import json
    model = onnx.load(str(path), load_external_data=False)
    return {entry["name"]: entry for pair in model.graph.metadata_props if pair.key == "piper.parameters" for entry in json.loads(pair.value)}


def said(module, args, path, kwargs=None, **options):
    """What the tool says, or how it refuses."""
    lines = []
    try:
        export(module, args, path, kwargs, programs=BIN, log=lines.append, **options)
    except NotExported as error:
        lines.append(f"refused: {error}")
    return "\n".join(lines)


def said_of_batch(path, batch):
    """Whether a step of Piper on another batch than the example is one, or why not."""
    try:
        train_in_piper(BIN, path, path.parent, batch, 4, 0.1, True)
    except NotExported as error:
        return f"refused: {error}"
    return "trained"


def differences_after(module, batches, path, rtol=1e-6):
    """The names of what Piper and PyTorch, both in float64, have otherwise after a step on each batch, by the scale of each tensor."""
    inputs = {f"batch/{k}/x": batch for k, batch in enumerate(batches)}
    _, saved = train_in_piper(BIN, path, path.parent, inputs, len(batches[0]), 0.1, True)
    module = module.double()
    optimizer = torch.optim.SGD([value for value in module.parameters() if value.requires_grad], lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        module(batch.double()).backward()
        optimizer.step()
    return [name for name, value in module.state_dict().items() if name not in saved or not largest(saved[name].double() - value.double()) <= rtol * largest(value) + 1e-9]


def largest(value):
    return value.double().abs().max().item() if value.numel() else 0.0


def main():
    torch.manual_seed(0)
    ids = dict(ids=torch.randint(0, 10, (4, 5)), labels=torch.randint(0, 10, (4, 5)))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        whole = Lossy().train()
        state = {name: value.clone() for name, value in whole.state_dict().items()}
        cases = [(said(whole, (torch.randn(6, 4),), path), ["1 frozen", "stop gradients", "is one of PyTorch, with its dropout off"])]
        entries = listed(path)
        assert not entries["last.bias"]["trained"] and entries["norms.1.weight"] == {"name": "norms.1.weight", "shape": [4], "trained": True}, entries
        assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items()), "the module has changed"
        cases.append((said(Tied(), (), path, ids), ["1 that nothing reads", "1 further names", "changes the buffers mean", "is one of PyTorch: loss"]))
        assert listed(path)["table.weight"]["also"] == ["head.weight"]
        straight = Quantised([Swish.apply, lambda h: Reversed.apply(h, 0.3), Straight.apply])
        cases.append((said(straight, (torch.randn(4, 4),), path), ["the backward of Reversed, Straight (torch.autograd.Function) is no derivative", "is one of PyTorch: loss"]))
        stepped = Steps()
        cases.append((said(stepped, (torch.randn(4, 4),), path), ["the backward of Stepped (torch.autograd.Function) is no derivative", "is one of PyTorch: loss"]))
        assert differences_after(stepped, [torch.randn(4, 4) for _ in range(3)], path) == []
        cases.append((said(Quantised([Clipped.apply]), (torch.randn(4, 4),), path), ["refused: the backward of Clipped (torch.autograd.Function) is no linear function"]))
        cases.append((said(Quantised([Mixed.apply]), (torch.randn(4, 4),), path), ["would train another model", "'first.weight'", "Mixed (torch.autograd.Function)"]))
        cases.append((said(Quantised([Mixed.apply]), (torch.randn(4, 4),), path, check=False), ["the backward of Mixed (torch.autograd.Function) is not in the file"]))
        cases.append((said(Tied(), (ids["ids"][:1], ids["labels"][:1]), path), ["refused: the example has one sample"]))
        cases.append((said(Tied(), (ids["ids"],), path), ["refused: Tied.forward does not take these arguments"]))
        cases.append((said(Tied(), (), path, ids, batch={"id": 0}), ["refused: batch names 'id', which is no input; inputs are ids, labels"]))
        cases.append((said(Windows().eval(), (torch.randn(3, 6, 8),), path), ["3 parameters to train", "is one of PyTorch, in float32"]))
        cases.append((said(EachSample(), (torch.randn(4, 4), torch.tensor([0, 2, -100, 1])), path), ["3 parameters to train", "is one of PyTorch"]))
        cases.append((said(Stateful(), (torch.randn(4, 4, 5), torch.tensor([0, 2, 2, 1])), path),
                      ["5 parameters to train", "buffers steps, counts, last, least, norm.running_mean, norm.running_var", "is one of PyTorch"]))
        batches = [torch.randn(4, 4) for _ in range(3)]
        follower = Momentum()
        cases.append((said(follower, (batches[0],), path), ["2 parameters to train", "buffers teacher.weight, teacher.bias", "is one of PyTorch"]))
        assert differences_after(follower, batches, path) == []
        frozen = Lossy().train()
        frozen.statistics.eval()
        said(frozen, (torch.randn(6, 4),), path)
        assert frozen.training and frozen.norms.training and not frozen.statistics.training, "the modes of parts have changed"
        cases.append((said(SameNames(), ([batches[0]], batches[0]), path), ["refused: two inputs of SameNames.forward would be called 'x_0'"]))
        counters = Counters()
        cases.append((said(counters, (batches[0],), path), ["buffers steps, place, counts, norm.num_batches_tracked", "4 of them hold integers", "is one of PyTorch"]))
        assert differences_after(counters, batches, path) == []
        cases.append((said(Counters(reads=True), (batches[0],), path), ["refused: forward reads the buffer 'ready' and sets it to a constant"]))
        cases.append((said(Counters(large=True), (batches[0],), path), ["refused: forward changes the buffer 'steps', which has integers beyond 16777216"]))
        queue = Queue()
        cases.append((said(queue, (batches[0],), path), ["buffers rows, columns, sums, place, steps", "is one of PyTorch: loss"]))
        assert "the batch stays" not in cases[-1][0] and differences_after(queue, batches, path) == []
        cases.append((said(Queue(turns=True), (batches[0],), path), ["refused: torch.export does not trace Queue: what it does there depends on values", "A place that a buffer counts"]))
        cases.append((said(Ways(), (batches[0],), path), ["takes another way for batches of more than 63 samples", "is one of PyTorch"]))
        cases.append((said(Momentum(clamp=True), (batches[0],), path), ["refused: forward changes the parameter 'pupil.weight', which is trained"]))
        cases.append((said(Counts(), (batches[0],), path), ["is one of PyTorch"]))
        cases.append((said(Counts(used=True), (batches[0],), path), ["refused: what forward returns depends on steps", "register_buffer"]))
        counts = Counts(cached=True)
        cases.append((said(counts, (batches[0],), path), ["is one of PyTorch"]))
        assert counts.steps == 0 and not counts.kept, "the module has changed"
        counts(batches[0])
        cases.append((said(counts, (batches[0],), path), ["refused: the module holds 'kept', a result of an earlier forward"]))
        averages = Counts(momentum=None)
        cases.append((said(averages, (batches[0],), path), ["buffers norm.running_mean, norm.running_var, norm.num_batches_tracked", "is one of PyTorch"]))
        assert "warning" not in cases[-1][0] and differences_after(averages, batches, path) == []
        given = dict(weights=torch.randn(4, 4), z=torch.randn(4, 4), shift=torch.randn(4, 4), y=torch.randn(4, 4), x=batches[0])
        for batch in ("auto", None):  # in whatever order they are given
            cases.append((said(Named(), (), path, given, batch=batch), ["4 parameters to train", "is one of PyTorch: loss"]))
        halves = Halves()
        cases.append((said(halves, (torch.randn(4, 6),), path), ["4 parameters to train", "is one of PyTorch: loss"]))
        assert "the batch stays" not in cases[-1][0] and differences_after(halves, [torch.randn(4, 6) for _ in range(3)], path) == []
        cases.append((said(Halves(moves=True), (torch.randn(4, 6),), path), ["refused: torch.export does not trace Halves"]))
        cases.append((said(Otherwise(), (batches[0], torch.randint(0, 4, (4, 4))), path), ["is one of PyTorch"]))
        hidden = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
        cases.append((said(Hidden(), (torch.randn(4, 3, 4), hidden), path), ["is one of PyTorch: loss"]))
        cases.append((said(EachSample(), (torch.randn(4, 4), torch.full((4,), -100)), path), ["refused: nothing is compared: in PyTorch itself its loss is not finite"]))
        steps, lengths = torch.randn(4, 6, 4), torch.tensor([2, 4, 1, 3])
        cases.append((said(Longest(), (steps, lengths), path), ["forward asks inputs for numbers, such as how long the longest is", "export_test.py:", "is one of PyTorch: loss"]))
        cases.append((said_of_batch(path, {"batch/0/x": steps, "batch/0/lengths": lengths}), ["trained"]))
        cases.append((said_of_batch(path, {"batch/0/x": steps, "batch/0/lengths": lengths - 1}), ["refused: piper-run does not run it", "the loss is nan"]))
        cases.append((said(Longest(of_floats=True), (steps, lengths), path), ["refused: torch.export does not trace Longest: what it does there depends on values"]))
        cases.append((said(Asks(), (torch.randn(4, 4),), path), ["is one of PyTorch: loss"]))
        for batch in ("auto", None):
            cases.append((said(Asks(True), (torch.randn(4, 4),), path, batch=batch), ["or which way to go (", "export_test.py:", "is one of PyTorch: loss"]))
        cases.append((said_of_batch(path, {"batch/0/x": torch.full((4, 4), -9.0)}), ["refused: piper-run does not run it", "the loss is nan"]))
        masks = torch.rand(4, 4) > 0.5
        cases.append((said(Asked(), (batches[0], masks, batches[1]), path), ["or which way to go (", "export_test.py:", "is one of PyTorch: loss"]))
        for x, mask, y, answer in ((batches[1], ~masks, batches[0], "trained"), (batches[1], masks, batches[1], "the loss is nan"), (batches[1], masks | True, batches[0], "the loss is nan"),
                                   (batches[1] + 50, masks, batches[1], "the loss is nan")):
            cases.append((said_of_batch(path, {"batch/0/x": x, "batch/0/mask": mask, "batch/0/y": y}), [answer]))
        for kind, words in dict(kept=["gives the buffers membrane the shapes that they have for 4 samples", "is one of PyTorch: loss"], number=["gives the buffers membrane", "is one of PyTorch: loss"], anew=["is one of PyTorch: loss"],
                                scaled=["gives scale, shift their values in its first run", "is one of PyTorch: loss"], random=["refused: what the first run of forward makes of the buffer 'membrane' is not supported"]).items():
            first = FirstRun(kind)
            state = {name: value.clone() for name, value in first.state_dict().items()}
            cases.append((said(first, (batches[0],), path), words))
            assert all(torch.equal(value, state[name]) for name, value in first.state_dict().items()) and not first.ready, "the module has changed"
            differ = differences_after(first, batches, path, 1e-4) if kind in ("kept", "number", "scaled") else []
            assert differ == [], (kind, differ)
        given = batches[0].clone()
        cases.append((said(Watched(), (batches[0], torch.randint(0, 256, (4, 4), dtype=torch.uint8)), path), ["4 parameters to train", "forward changes its input x in place", "is one of PyTorch: loss"]))
        assert torch.equal(batches[0], given), "the exporter runs forward on copies of what it is given"
        cases.append((said(OfLibrary(False), (batches[0],), path), ["2 parameters to train", "is one of PyTorch: loss"]))
        cases.append((said(OfLibrary(True), (batches[0],), path, check=False), ["refused: forward calls the operator piper_test::twice of a library", "torch.autograd.Function"]))
        pairs = Pairs()
        for labels in ([0, 1, 0, 2], [0, 1, 2, 3]):
            cases.append((said(pairs, (batches[0], torch.tensor(labels)), path), ["2 parameters to train", "is one of PyTorch: loss"]))
        cases.append((said(Returns(), (Found(batches[0], {"y": [batches[1]]}),), path), ["2 parameters to train", "is one of PyTorch: loss"]))
        labels = torch.tensor([[1, 1], [2, 3], [4, 1], [1, 2]])
        cases.append((said(Speech(), (torch.randn(4, 6, 4), labels, torch.tensor([2, 1, 0, 2])), path), ["elements\n  one step", "is one of PyTorch: loss"]))
        cases.append((said(Fixed(), (torch.randn(4, 4),), path), ["the batch stays 4", "as a loop over the samples does, and x.shape[0] does not", "is one of PyTorch"]))
        for kind, words in dict(weight="'Hooked.halved' on 'fc.weight'", post="on 'fc.weight'", layer="on 'fc'", result="'Hooked.halved' on a tensor of forward").items():
            cases.append((said(Hooked(kind), (batches[0],), path), ["refused: the hook", words, "requires_grad_(False)"]))
        several = torch.randn(4, 6, 4), torch.tensor([3, 6, 1, 4]), torch.randint(0, 5, (4, 6))
        for kind, options in ("LSTM", dict(num_layers=2, bidirectional=True)), ("GRU", dict(bidirectional=True)), ("RNN", dict(bias=False)):
            cases.append((said(Packs(kind, batch_first=True, **options), several, path), ["keeps all steps that were packed", "is one of PyTorch: loss"]))
        cases.append((said(Packs("LSTM", proj_size=2, batch_first=True), several, path), ["refused: ", "forward gives packed sequences to an LSTM with proj_size"]))
        last = said(Packs("RNN", nonlinearity="relu"), (several[0].transpose(0, 1), *several[1:]), path, batch={"x": 1, "lengths": 0, "labels": 0})
        cases.append((last, ["elements\n  pad_packed_sequence keeps", "is one of PyTorch: loss"]))
        for kind in "forward", "gone":
            cases.append((said(Hooked(kind), (batches[0],), path), ["is one of PyTorch: loss"]))
        cases.append((said(Modes(), (batches[0],), path), ["is one of PyTorch", "warning: piperc --eval evaluates another model than Modes is after eval()"]))
        cases.append((said(Modes().eval(), (batches[0],), path), ["is one of PyTorch"]))
        cases.append((said(Drawn(), (batches[0],), path), ["not compared with PyTorch: forward draws", "it cannot be evaluated: piperc --eval", "reads random numbers"]))
        dropped = said(Modes(drops=True), (batches[0],), path)
        cases.append((dropped, ["is one of PyTorch, with its dropout off"]))
        assert not any("warning" in text for text in (cases[-3][0], dropped)), "evaluated otherwise"
        cases.append((said(HostDrawn("layer"), (batches[0],), path), ["refused: what forward returns depends on random numbers of Python's random", "torch.rand"]))
        cases.append((said(HostDrawn("numpy"), (batches[0],), path), ["refused: what forward returns depends on random numbers of numpy.random"]))
        cases.append((said(HostDrawn("own"), (batches[0],), path), ["refused: what forward returns depends on random numbers of a generator of its own"]))
        cases.append((said(HostDrawn("unread"), (batches[0],), path), ["draws random numbers of Python's random, which change nothing here", "is one of PyTorch: loss"]))
        off = ["is one of PyTorch, with its dropout off: loss"]
        parts = [(nn.LSTM(4, 4, 2, proj_size=2, bidirectional=True), ["is one of PyTorch: loss"]),
                 (nn.LSTM(4, 4, 2, dropout=0.4), off), (nn.Dropout(1.0), off), (nn.TransformerEncoderLayer(4, 2, 8, 0.3, batch_first=True), off), (nn.LazyLinear(4), ["refused: 'part' is a LazyLinear whose 'weight' has no shape yet"]),
                 (nn.Embedding(4, 4, max_norm=1.0), ["refused: 'part' is an Embedding with max_norm"]),
                 (torch.jit.script(nn.Linear(4, 4)), ["refused: 'part' is a RecursiveScriptModule, made by torch.jit.script", "not supported"])]
        for part, words in parts:
            odd = Odd("through", part)
            cases.append((said(odd, (batches[0],), path), words))
            assert not isinstance(part, nn.Dropout) or differences_after(odd, batches, path) == []
        few = dict(alike=["is one of PyTorch: loss"], unlike=["what aten.equal.default returns depends on values"], halved=["is one of PyTorch, in the types that the parameters of its parts have: loss"],
                   spectral=["is one of PyTorch: loss"], endless=["refused: ", "singular values, or eigenvalues, of 68 columns are not supported (", "export_test.py:"],
                   rooted=["is one of PyTorch: loss", "forward asks whether numbers are finite"], bags=["is one of PyTorch: loss"],
                   complex=["refused: the module is a Odd whose parameter 'turn' has complex numbers: that is not supported"],
                   cond=["refused: forward compiles parts of itself while it runs", "torch.where"], tiny=["is one of PyTorch: loss"], shifts=["is one of PyTorch: loss"],
                   counted=["is one of PyTorch: loss"], grown=["is one of PyTorch: loss"], multiplied=["is one of PyTorch: loss"], flagged=["is one of PyTorch: loss"], turned=["depends on values that inputs or parameters decide: factor = 2 if self.begun else 3"],
                   finite=["is one of PyTorch: loss", "forward asks whether numbers are finite"], parts=["is one of PyTorch: loss"],
                   modes=["is one of PyTorch: loss"], sparse=["refused: the module is a Odd whose 'links' is a sparse tensor"], decayed=["is one of PyTorch: loss"], written=["3 results of torch.no_grad() stop gradients", "is one of PyTorch: loss"],
                   twice=["refused: where() of elements that a mask chooses is not supported (", "export_test.py:", "by both masks"],
                   sized=["what it does there depends on values that inputs or parameters decide (", "int(torch.max("],
                   checked=["is one of PyTorch: loss", "forward checks values and raises errors (", "export_test.py:"], joined=["is one of PyTorch: loss"],
                   kept=["is one of PyTorch: loss"], rotates=["is one of PyTorch: loss"], headless=["is one of PyTorch: loss"], beside=["is one of PyTorch: loss"], registers=["is one of PyTorch: loss"],
                   pooled=["is one of PyTorch: loss"], closes=["is one of PyTorch: loss"], places=["is one of PyTorch: loss"], likely=["is one of PyTorch: loss"], solved=["is one of PyTorch: loss"],
                   penalty=["is one of PyTorch: loss"], inner=["is one of PyTorch: loss"], masked=off, four=["the batch stays 4: the module does not take another (The size of tensor a (8)", "is one of PyTorch: loss"], some=["is one of PyTorch: loss", "forward asks whether a mask has such an element (", "export_test.py:"],
                   none=["or which way to go (", "is one of PyTorch: loss"], jacobian=["is one of PyTorch: loss"], forwards=["refused: forward calls torch.func.jacfwd", "export_test.py:"],
                   again=["is one of PyTorch: loss"], lengths=["is one of PyTorch: loss", "forward asks whether a mask has such an element ("],
                   function=["refused: piperc does not take the file", "= note: the module's gradient is that of Unscaled (torch.autograd.Function)"],
                   rolls=["is one of PyTorch: loss"], chosen=["is one of PyTorch: loss"], rows=["is one of PyTorch: loss"], dropped=off, routed=["is one of PyTorch: loss"], stable=["is one of PyTorch: loss"], modulated=["is one of PyTorch: loss"], clusters=["is one of PyTorch: loss"],
                   counted_labels=["bincount returns `minlength` counts", "is one of PyTorch: loss"], diagonals=["is one of PyTorch: loss"],
                   edges=["is one of PyTorch: loss", "forward asks whether a mask has such an element ("], splines=["is one of PyTorch: loss", "forward checks values"], skips=["is one of PyTorch: loss"], seldom=["refused: torch.export does not trace Odd", "if torch.rand(1) < 0.1"],
                   unread=["buffers part.running_mean, part.running_var, part.num_batches_tracked", "is one of PyTorch: loss"],
                   mixed=["is one of PyTorch: loss"], summed=["refused: piperc does not take the file", "how many elements x[mask] has depends on values"], picked=["refused: ", "not supported", "choose by torch.where"], gammas=["refused: torch.onnx does not write Odd: aten.polygamma (", "export_test.py:", "ONNX has no such function"], scripted=["refused: nothing is compared: forward does not do the same twice"],
                   keyed=["refused: torch.export does not trace Odd: it compares sizes or numbers that values or the batch decide", "export_test.py:", "by a mask"],
                   negated=["is one of PyTorch: loss"], untied=["is one of PyTorch: loss"], hides=["is one of PyTorch: loss"],
                   tied=["refused: what forward returns depends on the order of equal numbers, which PyTorch leaves open (", "export_test.py:", "stable=True"],
                   fails=["is one of PyTorch: loss", "forward checks values and raises errors (", "export_test.py:"], dice=["depends on values that inputs or parameters decide"],
                   loaded=["depends on values that inputs or parameters decide"],
                   raises=["refused: Odd is not exported: shape '[3, 9]' is invalid"])
        for kind, words in few.items():
            parts = dict(bags=nn.EmbeddingBag(3, 4, padding_idx=0), halved=nn.Linear(4, 2).to(torch.bfloat16), clusters=nn.AdaptiveLogSoftmaxWithLoss(4, 8, [2, 5], div_value=1.0), unread=nn.BatchNorm1d(4))
            odd = Odd(kind, parts.get(kind))
            if kind == "decayed":
                odd.part = [(0.5, odd.fc.weight), (0.25, odd.fc.bias)]
            with plans_of_products() if kind == "multiplied" else nullcontext():
                cases.append((said(odd, (batches[0],), path), words))
            assert kind != "masked" or train_in_piper(BIN, path, path.parent, {"batch/0/x": batches[0]}, 4, 0.1, True)[0] < 1e-12
            assert kind != "some" or differences_after(odd, [batches[0], -batches[0].abs(), batches[1]], path) == []
            assert kind != "lengths" or differences_after(odd, [batches[0], batches[1].abs(), batches[0].flip(0)], path) == []
            assert kind not in ("counted", "multiplied") or "the batch stays" not in cases[-1][0], cases[-1][0]
            assert kind not in ("kept", "written", "beside", "flagged", "inner", "penalty", "jacobian", "edges", "splines", "unread", "mixed", "negated", "hides") or differences_after(odd, batches, path) == []
        frequent = Odd("bags", nn.EmbeddingBag(3, 4, scale_grad_by_freq=True, mode="sum"))
        cases.append((said(frequent, (batches[0],), path), ["refused: embedding_bag with max_norm or scale_grad_by_freq is not supported (", "leave it out"]))
        with mock.patch.dict(EQUIVALENTS, clamp=lambda input, *bounds, **named: input):  # with which the file evaluates as the module seems to
            cases.append((said(Modes(clamps=True), (batches[0],), path), ["is one of PyTorch", "warning: piperc --eval evaluates another model than Modes is after eval()"]))
        with mock.patch.dict(EQUIVALENTS, clamp=lambda input, *bounds: input * 2):
            cases.append((said(Odd("clamped"), (batches[0],), path), ["refused: ", "another model"]))
        with mock.patch.dict(EQUIVALENTS, clamp=lambda input, *bounds: input.view(3, 9)):
            cases.append((said(Odd("clamped"), (batches[0],), path), ["refused: a way in which forward goes on", "though PyTorch runs it: shape '[3, 9]' is invalid", "export_test.py:"]))
        with mock.patch("exporter.model.change_copies", lambda program: None):
            cases.append((said(Odd("hides"), (batches[0],), path), ["refused: torch.onnx does not write Odd: (", "export_test.py:", "Cannot view a tensor"]))
        cases.append((said(Odd("tiny"), (batches[0],), path, batch=None), ["is one of PyTorch: loss"]))
        cases.append((said(Odd("bytes"), (torch.randint(0, 256, (4, 4), dtype=torch.uint8),), path), ["is one of PyTorch: loss"]))
        assert_products_count()
        assert_tensors_are_joined()
        assert_long_exports_say_so(path)
        assert_places_are_checked_first(path.parent)
        assert_instance_norms_have_either()
        assert_equivalents_are_those_of_torch()
        assert_vectors_are_those_of_torch()
        for case in range(12):
            assert_ctc_is_that_of_torch(case)
        cases.append((said(Clamped(), (torch.randn(4, 6),), path), ["is one of PyTorch: loss"]))
        for batch in ("auto", None):  # None: the batch is that of the example
            cases.append((said(Strides(), (torch.randn(4, 4, 3),), path, batch=batch), ["is one of PyTorch: loss"]))
        several = torch.randn(4, 4), torch.tensor([[0, 2, -1], [1, -1, 0], [-1, -1, -1], [2, 1, 0]])
        cases.append((said(Labels(), several, path), ["is one of PyTorch: loss"]))
        own = EQUIVALENTS.pop("multilabel_margin_loss")
        cases.append((said(Labels(), several, path), ["torch.onnx wrote another model than Labels", "write that one by others in forward"]))
        EQUIVALENTS["multilabel_margin_loss"] = own
        cases.append((said(Small(), (torch.randn(4, 4),), path), ["would train another model", "the gradient of 'small.weight' differs", "Twice"]))
        cases.append((said(Zeros(False), (torch.randn(4, 5, 8),), path), ["is one of PyTorch: loss", "11 gradients, 3 of them zero but for rounding"]))
        cases.append((said(Zeros(True), (torch.randn(4, 5, 8),), path), ["is one of PyTorch, in float32", "11 gradients, 3 of them zero but for rounding"]))
        cases.append((said(Still(), (torch.randn(3, 4),), path), ["is one of PyTorch: loss 1, 2 gradients, 2 of them zero but for rounding"]))
        if importlib.util.find_spec("transformers"):
            experts = Experts().eval()
            way = experts.model.config._experts_implementation
            cases.append((said(experts, (ids["ids"], ids["labels"]), path), ["12 parameters to train", "is one of PyTorch: loss"]))
            assert experts.model.config._experts_implementation == way, "the module's configuration has changed"
    wrong = [(text, word) for text, words in cases for word in words if word not in text]
    for text, word in wrong:
        print(f"not said: {word}\n{text}\n")
    print(f"{len(cases) - len({text for text, _ in wrong})} of {len(cases)} as they should be")
    sys.exit(1 if wrong else 0)


main()
