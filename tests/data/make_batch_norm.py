"""Writes batch_norm/*: models with batch norms in training mode, five batches, and what PyTorch makes of them in five steps:
losses, and parameters with running statistics after the last.

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


def main():
    warnings.filterwarnings("ignore")
    OUT.mkdir(exist_ok=True)
    for name, kind in {"residual": Residual, "twice": Twice}.items():
        torch.manual_seed(3)
        module = kind().train()
        batches = [{"x": torch.randint(-8, 9, (BATCH, 2, 4, 4)) / 4.0, "y": torch.randint(0, 3, (BATCH,))} for _ in range(STEPS)]
        torch.onnx.export(module, tuple(batches[0].values()), str(OUT / f"{name}.onnx"), input_names=["x", "y"], output_names=["loss"],
                          dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17)
        # To export is to run the model, which moves the statistics: training begins with those of the file.
        stored = {i.name: torch.tensor(onnx.numpy_helper.to_array(i)) for i in onnx.load(OUT / f"{name}.onnx").graph.initializer}
        module.load_state_dict(stored, strict=False)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            loss = module(**batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        tensors = {f"batch/{k}/{key}": value for k, batch in enumerate(batches) for key, value in batch.items()}
        tensors |= {f"after/{key}": value for key, value in module.state_dict().items() if value.is_floating_point()}
        save_file(tensors | {"losses": torch.stack(losses)}, OUT / f"{name}.safetensors")


if __name__ == "__main__":
    main()
