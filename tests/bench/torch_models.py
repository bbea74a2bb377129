"""The models that tests/bench/against-torch trains, their batches, and how they are exported."""
import logging, warnings

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fc_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(self.ln_1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.fc_out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Byte-level GPT. `first` and `last` say which ends this part of a pipeline has."""

    def __init__(self, layers, width, heads, context, tied=True, vocabulary=256, first=True, last=True):
        super().__init__()
        if first:
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleDict({str(i): Block(width, heads) for i in layers})
        if last:
            self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        if first and last and tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, x):
        if hasattr(self, "wte"):
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h.values():
            x = block(x)
        return self.lm_head(self.ln_f(x)) if hasattr(self, "lm_head") else x


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class WithLoss(nn.Module):
    """A model of logits with its loss; models of the transformers library give theirs in a record."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        out = self.model(input_ids)
        return token_loss(getattr(out, "logits", out), labels)


class MaskedWithLoss(WithLoss):
    def forward(self, input_ids, attention_mask, labels):
        return token_loss(self.model(input_ids=input_ids, attention_mask=attention_mask).logits, labels)


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    return WithLoss(LlamaForCausalLM(LlamaConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=128, use_cache=False)))


def bert():
    from transformers import BertConfig, BertForMaskedLM
    return MaskedWithLoss(BertForMaskedLM(BertConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=1024, num_hidden_layers=10, num_attention_heads=8,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)))


def gpt(layers, width, heads, context, **options):
    return lambda: WithLoss(Gpt(range(layers), width, heads, context, **options))


SAMPLE = dict(width=128, heads=4, context=128)
# name: (what it is, module, vocabulary, batch, context, ranks: "" or the way they share the work)
CASES = {
    "gpt": ("the sample GPT, 4 layers of 128", gpt(4, **SAMPLE), 256, 8, 128, ""),
    "gpt-6x384": ("GPT of 6 layers of 384, context 256", gpt(6, 384, 6, 256), 256, 4, 256, ""),
    "llama": ("Llama of the transformers library, 8 layers of 256", llama, 8192, 4, 128, ""),
    "bert": ("BERT of the transformers library, 10 layers of 256", bert, 8192, 4, 128, ""),
    "pp": ("the sample GPT untied, 2 stages, 4 microbatches, 1F1B", gpt(4, tied=False, **SAMPLE), 256, 8, 128, "pp"),
    "pp-zbv": ("the same beside PyTorch's 1F1B, with Piper's ZBV", gpt(4, tied=False, **SAMPLE), 256, 8, 128, "pp"),
    "dp": ("the sample GPT, 2 replicas", gpt(4, **SAMPLE), 256, 8, 128, "dp"),
}
MICROBATCHES = 4
BATCHES = 8


def build(case):
    torch.manual_seed(0)
    return CASES[case][1]().eval()


def batches(case):
    """Random tokens in which half are predictable; all labels are there but for masked models."""
    _, _, vocabulary, batch, context, _ = CASES[case]
    generator = torch.Generator().manual_seed(1)
    out = []
    for _ in range(BATCHES):
        text = torch.randint(0, vocabulary, (batch, context + 1), generator=generator)
        text[:, 1::2] = (text[:, 0::2][:, : text[:, 1::2].shape[1]] * 3 + 1) % vocabulary
        one = {"input_ids": text[:, :-1].contiguous(), "labels": text[:, 1:].contiguous()}
        if case == "bert":
            asked = torch.rand(one["labels"].shape, generator=generator) < 0.3
            one = {"input_ids": torch.where(asked, 3, one["input_ids"]), "attention_mask": torch.ones_like(one["labels"]),
                   "labels": torch.where(asked, one["input_ids"], -100)}
        out.append(one)
    return out


def export(case, path):
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    first = batches(case)[0]
    shapes = tuple({0: torch.export.Dim("batch", min=1, max=4096)} for _ in first)
    torch.onnx.export(build(case), tuple(first.values()), path, dynamo=True, input_names=list(first), output_names=["loss"],
                      opset_version=18, dynamic_shapes=shapes, external_data=True, verbose=False)
