"""Writes evaluation/*: a model with dropout and batch norms, batches to train on, batches to evaluate on, and what PyTorch finds there:
the sum of the losses of all labels that are not ignored, by their number.

    pip install torch onnx safetensors numpy
    python tests/data/make_evaluation.py
"""
import pathlib
import warnings

import onnx
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

OUT = pathlib.Path(__file__).parent / "evaluation"
BATCH, TIME, WIDTH, VOCABULARY = 8, 6, 16, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3)
        for parameter in self.norm.parameters():  # of equal elements the exporter's merging cannot be told from sharing
            nn.init.uniform_(parameter, 0.5, 1.5)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x):
        y = self.norm(self.up(x).transpose(1, 2)).transpose(1, 2)
        return x + self.drop(self.down(F.gelu(y)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.h = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, labels):
        x = self.table(input_ids)
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


def batch(ignored):
    labels = torch.randint(0, VOCABULARY, (BATCH, TIME))
    labels[torch.rand(BATCH, TIME) < ignored] = -100
    return {"input_ids": torch.randint(0, VOCABULARY, (BATCH, TIME)), "labels": labels}


def main():
    warnings.filterwarnings("ignore")
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(5)
    module = Model().train()
    training, valid = [batch(0.2) for _ in range(6)], [batch(ignored) for ignored in (0, 0.9, 0.5)]
    torch.onnx.export(module, tuple(training[0].values()), str(OUT / "model.onnx"), input_names=["input_ids", "labels"],
                      output_names=["loss"], dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      opset_version=17)
    # To export is to run the model, which moves the statistics: those of the file count.
    stored = {i.name: torch.tensor(onnx.numpy_helper.to_array(i)) for i in onnx.load(OUT / "model.onnx").graph.initializer}
    module.load_state_dict(stored, strict=False)
    module = module.double().eval()
    with torch.no_grad():
        counts = [(one["labels"] >= 0).sum() for one in valid]
        losses = [module(**one) for one in valid]
    loss = sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)
    for name, batches, more in (("training", training, {}), ("valid", valid, {"loss": loss, "losses": torch.stack(losses)})):
        tensors = {f"batch/{k}/{key}": value for k, one in enumerate(batches) for key, value in one.items()}
        save_file(tensors | more, OUT / f"{name}.safetensors")


if __name__ == "__main__":
    main()
