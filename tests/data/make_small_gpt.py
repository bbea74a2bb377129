"""Writes small_gpt/model.onnx: what samples/gpt is, in small, for tests that run many jobs.

    pip install torch==2.13.0 onnx==1.23.2 onnxscript==0.7.2
    python make_small_gpt.py
"""
import pathlib

import onnx
import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, TOKENS, CLASSES = 16, 4, 4, 32, 256


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.fc_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        samples = x.shape[0]
        parts = self.qkv(self.ln_1(x)).split(WIDTH, dim=2)
        heads = [part.view(samples, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(samples, TOKENS, WIDTH))
        return x + self.fc_out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(CLASSES, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(TOKENS))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Decoder()

    def forward(self, input_ids, labels):
        return functional.cross_entropy(self.model(input_ids).flatten(0, 1), labels.flatten())


torch.manual_seed(0)
loss = Loss()
for name, values in loss.named_parameters():
    if values.dim() > 1:
        nn.init.normal_(values, std=0.08)
ids, labels = (torch.zeros(8, TOKENS, dtype=torch.int64) for _ in range(2))
path = pathlib.Path(__file__).parent / "small_gpt" / "model.onnx"
path.parent.mkdir(exist_ok=True)
torch.onnx.export(loss, (ids, labels), path, dynamo=True, opset_version=18, input_names=["input_ids", "labels"],
                  output_names=["loss"], external_data=False, training=torch.onnx.TrainingMode.TRAINING,
                  do_constant_folding=False, dynamic_shapes=({0: "batch"}, {0: "batch"}))
model = onnx.load(path)
for node in model.graph.node:
    for prop in [prop for prop in node.metadata_props if prop.key.endswith("stack_trace")]:
        node.metadata_props.remove(prop)
onnx.save(model, path)
