"""GPT-2 with 124M parameters in PyTorch on the device that is here: tokens a second, as lines of JSON.

    gpt2_torch.py BATCH STEPS [eager|compile|reduce-overhead]...
"""
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 12, 768, 12, 1024, 50257


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.fc_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.fc_out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe.weight
        for block in self.h:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.t()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def tokens_a_second(way, batch, steps):
    torch.manual_seed(0)
    model = Gpt2().cuda()
    call = model if way == "eager" else torch.compile(model, mode=None if way == "compile" else way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids, labels = torch.randint(VOCABULARY, (2, batch, CONTEXT), device="cuda")
    seconds = []
    for _ in range(steps + 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = call(ids, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return batch * CONTEXT / statistics.median(seconds[5:])


if __name__ == "__main__":
    size, count = int(sys.argv[1]), int(sys.argv[2])
    for each in sys.argv[3:]:
        print(json.dumps({"way": each, "tokens_per_s": round(tokens_a_second(each, size, count))}), flush=True)
