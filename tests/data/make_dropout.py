"""Writes dropout/NAME.onnx: a small GPT exported as it trains, by both exporters: dropout of embeddings, attention and residuals,
noise on the embeddings, and whole samples that skip a block. Beside it, what the exporter takes for one draw: adapters that drop
one input, and an encoder that runs twice.

    pip install torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2
    python tests/data/make_dropout.py
"""
import pathlib
import onnx
import torch
import torch.nn.functional as F
from torch import nn

OUT = pathlib.Path(__file__).parent / "dropout"
VOCAB, TIME, WIDTH, HEADS = 24, 6, 16, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(WIDTH, -1))
        # Written out, for the older exporter: of scaled_dot_product_attention's dropout it writes one that does not train.
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + torch.full((TIME, TIME), -1e9).triu(1)
        a = F.dropout(scores.softmax(-1), 0.1, self.training) @ v
        x = x + self.drop(self.proj(a.transpose(1, 2).flatten(2)))
        y = self.drop(self.down(F.gelu(self.up(self.ln_2(x)))))
        keep = torch.bernoulli(torch.full_like(x[:, :1, :1], 0.75))
        return x + y * keep


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TIME, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Block() for _ in range(4))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, input_ids, labels):
        x = self.wte(input_ids) + self.wpe(torch.arange(TIME))
        x = self.drop(x + 0.05 * torch.randn_like(x) + 0.05 * torch.rand_like(x))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), labels.flatten(), ignore_index=-100)


class Attention(nn.Module):
    """scaled_dot_product_attention, causal and with a mask: the file has no dropout, the calls that the exporter notes do."""
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).split(WIDTH, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        y = F.scaled_dot_product_attention(y, k, v, torch.full((TIME, TIME), -1e9).triu(1), dropout_p=0.3)
        return y.square().mean()


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
        self.a, self.b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(self.drop(x)))


class Adapters(nn.Module):
    """Low-rank adapters of the three products of an attention, behind a dropout of all."""
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Dropout(0.2), nn.Dropout(0.3)
        self.q, self.k, self.v = Adapter(), Adapter(), Adapter()

    def forward(self, x):
        x = self.first(x)
        return self.last((self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1) @ self.v(x)).square().mean()


class Contrast(nn.Module):
    """One encoder, twice: the second run differs by its dropout alone."""
    def __init__(self):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)

    def encode(self, x):
        return x + self.down(self.drop(self.up(x).tanh()))

    def forward(self, x):
        return F.mse_loss(self.encode(x), self.encode(x))


def main():
    OUT.mkdir(exist_ok=True)
    torch.manual_seed(1)
    model = Gpt().train()
    args = (torch.randint(0, VOCAB, (8, TIME)), torch.randint(0, VOCAB, (8, TIME)))
    batch = {0: torch.export.Dim("batch")}
    torch.onnx.export(model, args, OUT / "dynamo.onnx", dynamo=True, dynamic_shapes=(batch, batch), external_data=False)
    torch.onnx.export(model, args, OUT / "torchscript.onnx", dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, opset_version=17, input_names=["input_ids", "labels"],
                      dynamic_axes={"input_ids": {0: "batch"}, "labels": {0: "batch"}})
    for opset in 18, 23:
        torch.onnx.export(Attention().train(), (torch.randn(8, TIME, WIDTH),), OUT / f"attention{opset}.onnx", dynamo=True, dynamic_shapes=(batch,),
                          external_data=False, opset_version=opset)
    for name, module in {"adapters": Adapters(), "contrast": Contrast()}.items():
        torch.onnx.export(module.train(), (torch.randn(8, TIME, WIDTH),), OUT / f"{name}.onnx", dynamo=True, dynamic_shapes=(batch,), external_data=False)
    for path in OUT.glob("*.onnx"):
        file = onnx.load(path)
        for node in file.graph.node:
            for item in [p for p in node.metadata_props if p.key == "pkg.torch.onnx.stack_trace"]:
                node.metadata_props.remove(item)
        onnx.save(file, path)


main()
