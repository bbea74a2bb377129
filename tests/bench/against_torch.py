"""The sample GPT, one training step: piper-run beside PyTorch, one thread each, alternating.

    tests/bench/against-torch [ROUNDS]

Prints milliseconds per step (medians) and the ratio. The model is the one that samples/gpt/model.onnx was exported from; only the time
is compared here, the numbers are compared by the tests.
"""
import json, os, statistics, subprocess, sys, tempfile, time

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
BATCH, CONTEXT, VOCAB, WIDTH, HEADS, LAYERS = 8, 128, 256, 128, 4, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.fc_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, HEADS, d // HEADS).transpose(1, 2) for z in self.qkv(self.ln_1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.fc_out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), labels.flatten())


def torch_steps(compiled):
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loss_of = torch.compile(model) if compiled else model
    ids = torch.randint(0, VOCAB, (BATCH, CONTEXT))
    labels = torch.randint(0, VOCAB, (BATCH, CONTEXT))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(ids, labels).backward()
        optimizer.step()

    for _ in range(3):
        step()
    return step


def timed(step, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def piper_ms(run, plans, text, count):
    with tempfile.NamedTemporaryFile() as metrics:
        subprocess.run([run, plans, "--data", text + ":u8", "--steps", str(count + 2), "--threads", "1", "--metrics", metrics.name],
                       check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        steps = [json.loads(line)["step_ms"] for line in open(metrics.name)]
    return statistics.median(steps[2:])


def main():
    run, plans, text = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    torch.manual_seed(0)
    ways = {"torch eager": torch_steps(False)}
    try:
        ways["torch.compile"] = torch_steps(True)
    except Exception as error:  # no compiler that inductor accepts
        print("torch.compile does not work here:", str(error).splitlines()[0])
    results = {name: [] for name in [*ways, "piper"]}
    for _ in range(rounds):
        for name, step in ways.items():
            results[name].append(timed(step, 10))
        results["piper"].append(piper_ms(run, plans, text, 10))
    medians = {name: statistics.median(values) for name, values in results.items()}
    for name, value in medians.items():
        print(f"{name:14s} {value:7.2f} ms a step")
    best = min(value for name, value in medians.items() if name != "piper")
    print(f"torch {torch.__version__} (better way) / piper = {best / medians['piper']:.2f}")


main()
