"""Writes experts/looked_up.onnx: a mixture of experts as libraries write them, whose matrices are looked up for each token.

    pip install torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2
    python tests/data/make_experts.py
"""
import pathlib
import onnx
import torch
import torch.nn.functional as F
from torch import nn

OUT = pathlib.Path(__file__).parent / "experts"
VOCAB, TIME, WIDTH, EXPERTS, TOP = 12, 4, 8, 4, 2
KEEP = {"pkg.torch.onnx.fx_node", "pkg.torch.onnx.name_scopes"}


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) / 3)
        self.bias = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 3)

    def forward(self, x, top):
        rows, index = x.repeat_interleave(TOP, dim=0), top.reshape(-1)
        gate, up = ((self.up[index] @ rows.unsqueeze(-1)).squeeze(-1) + self.bias[index]).chunk(2, dim=-1)
        return (self.down[index] @ (F.silu(gate) * up).unsqueeze(-1)).squeeze(-1)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), Experts()

    def forward(self, ids, labels):
        x = self.words(ids)
        flat = x.reshape(-1, WIDTH)
        weights, top = self.router(flat).softmax(-1).topk(TOP, dim=-1)
        made = self.experts(flat, top) * weights.reshape(-1, 1)
        x = x + made.reshape(-1, TOP, WIDTH).sum(1).reshape(x.shape)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def main():
    torch.manual_seed(0)
    ids, labels = torch.randint(VOCAB, (8, TIME)), torch.randint(VOCAB, (8, TIME))
    program = torch.onnx.export(Mixture(), (ids, labels), dynamo=True, optimize=False)
    model = program.model_proto
    for node in model.graph.node:
        kept = [p for p in node.metadata_props if p.key in KEEP]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    OUT.mkdir(exist_ok=True)
    onnx.save(model, OUT / "looked_up.onnx")


if __name__ == "__main__":
    main()
