"""Writes batch_norm/*: models with batch norms in training mode, and with other buffers that forward changes, five batches, and what
PyTorch makes of them in five steps: losses, and parameters with running statistics after the last.

    pip install torch onnx safetensors numpy
    python tests/data/make_batch_norm.py
"""
import pathlib
import warnings

import onnx
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

OUT = pathlib.Path(__file__).parent / "batch_norm"
BATCH, STEPS = 8, 5


class Residual(nn.Module):
    """Norms over images and over rows, with momenta of their own."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, momentum=0.3)
        self.fc, self.bn3 = nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)

    def forward(self, x, y):
        h = F.relu(self.bn1(self.conv1(x)))
        h = h + F.relu(self.bn2(self.conv2(h)))
        return F.cross_entropy(self.bn3(self.fc(h.mean((2, 3)))), y)


class Twice(nn.Module):
    """One norm in two places: its statistics follow both, one after the other."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.fc = nn.BatchNorm2d(4), nn.Linear(4, 3)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)  # of equal elements the exporter's merging cannot be told from sharing
        nn.init.uniform_(self.norm.bias, -0.5, 0.5)

    def forward(self, x, y):
        h = F.gelu(self.norm(self.conv1(x)))
        return F.cross_entropy(self.fc(self.norm(self.conv2(h)).mean((2, 3))), y)


class Centred(nn.Module):
    """A running mean that is read when it has changed."""

    def __init__(self):
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("centre", torch.linspace(-0.5, 0.5, 8))

    def forward(self, x, y):
        h = self.mid(F.gelu(self.up(x)))
        with torch.no_grad():
            self.centre.mul_(0.8).add_(0.2 * h.mean(0))
        return F.cross_entropy(self.down(F.gelu(h - self.centre)), y)


class Codes(nn.Module):
    """A table whose rows follow the means of what they stand for (VQ-VAE); read first, changed then, and so an output."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 6)
        self.register_buffer("table", torch.randn(5, 4))
        self.register_buffer("counts", torch.ones(5))
        self.register_buffer("sums", self.table.clone())

    def forward(self, x, y):
        z = self.inner(x)
        nearest = ((z[:, None] - self.table) ** 2).sum(-1).argmin(-1)
        chosen = (nearest[:, None] == torch.arange(5)).float()
        q = chosen @ self.table
        with torch.no_grad():
            self.counts.mul_(0.9).add_(0.1 * chosen.sum(0))
            self.sums.mul_(0.9).add_(0.1 * (chosen.transpose(0, 1) @ z))
            self.table.copy_(self.sums / (self.counts[:, None] + 1e-3))
        loss = F.mse_loss(self.outer(z + (q - z).detach()), x) + 0.25 * F.mse_loss(z, q) + 0.1 * F.cross_entropy(z, y)
        return loss, self.table


class Spectral(nn.Module):
    """A weight over its largest singular value, whose vectors are buffers."""

    def __init__(self):
        super().__init__()
        self.up = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.mid, self.down = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 3)

    def forward(self, x, y):
        return F.cross_entropy(self.down(F.gelu(self.mid(F.gelu(self.up(x))))), y)


class Router(nn.Module):
    """A bias on the scores of experts, which the sign of what each has too few moves (Wang et al., 2024), and a counter of steps."""

    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(6, 8), nn.Linear(8, 4, bias=False), nn.Linear(4, 3)
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x, y):
        scores = self.gate(torch.tanh(self.up(x))).sigmoid()
        chosen = F.one_hot((scores + self.bias).topk(2, -1)[1], 4).to(scores.dtype).sum(1)
        with torch.no_grad():
            counts = chosen.sum(0)
            self.bias.add_(0.05 * torch.sign(counts.mean() - counts))
            self.steps.add_(1)
        weights = chosen * scores / (chosen * scores).sum(-1, keepdim=True)
        return F.cross_entropy(self.down(weights * (1 + 0.1 * self.steps)), y), self.bias


def images():
    return {"x": torch.randint(-8, 9, (BATCH, 2, 4, 4)) / 4.0, "y": torch.randint(0, 3, (BATCH,))}


def rows():
    return {"x": torch.randint(-8, 9, (BATCH, 6)) / 4.0, "y": torch.randint(0, 3, (BATCH,))}


def write_older(name, module, batches):
    torch.onnx.export(module, tuple(batches[0].values()), str(OUT / f"{name}.onnx"), input_names=["x", "y"], output_names=["loss"],
                      dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17)
    # To export is to run the model, which moves the statistics: training begins with those of the file.
    stored = {i.name: torch.tensor(onnx.numpy_helper.to_array(i)) for i in onnx.load(OUT / f"{name}.onnx").graph.initializer}
    module.load_state_dict(stored, strict=False)


def write_program(name, module, batches):
    kept = {key: value.clone() for key, value in module.state_dict().items()}
    torch.onnx.export(module, tuple(batches[0].values()), str(OUT / f"{name}.onnx"), dynamo=True, optimize=False, external_data=False)
    module.load_state_dict(kept)
    file = onnx.load(OUT / f"{name}.onnx")
    for node in file.graph.node:
        kept = [(p.key, p.value) for p in node.metadata_props if p.key in ("pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes")]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
    onnx.save(file, OUT / f"{name}.onnx")


MODELS = {"residual": (Residual, images, write_older), "twice": (Twice, images, write_older), "centred": (Centred, rows, write_program),
          "codes": (Codes, rows, write_program), "spectral": (Spectral, rows, write_program),
          "router": (Router, rows, write_program)}


def main():
    warnings.filterwarnings("ignore")
    OUT.mkdir(exist_ok=True)
    for name, (kind, batch_of, write) in MODELS.items():
        torch.manual_seed(3)
        module = kind().train()
        batches = [batch_of() for _ in range(STEPS)]
        write(name, module, batches)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            out = module(**batch)
            loss = out[0] if isinstance(out, tuple) else out
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        tensors = {f"batch/{k}/{key}": value for k, batch in enumerate(batches) for key, value in batch.items()}
        tensors |= {f"after/{key}": value for key, value in module.state_dict().items() if value.is_floating_point()}
        save_file(tensors | {"losses": torch.stack(losses)}, OUT / f"{name}.safetensors")


if __name__ == "__main__":
    main()
