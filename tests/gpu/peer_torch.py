"""The models of tests/bench/make_models.cc in PyTorch on the device that is here: a line of JSON for each way to run them.

    peer_torch.py MODEL BATCH SECONDS [KEY=NUMBER…] WAY…

MODEL and KEYs as make_models has them; WAYs are eager-flash and eager-cudnn, attention by one or the other, and compile and
reduce-overhead (CUDA graphs), modes of torch.compile, with the faster of these. bf16 by autocast, parameters and a fused AdamW in f32.
A way that fails or finds no memory says so in its line; what finds no memory is tried on parts of the batch. WAY ceilings: how fast the
device copies, and multiplies 8192³.
"""
import dataclasses
import gc
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclasses.dataclass
class Sizes:
    llama: bool
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    context: int
    vocabulary: int


MODELS = {"gpt2": Sizes(False, 12, 768, 12, 12, 3072, 1024, 50257), "gpt2-xl": Sizes(False, 48, 1600, 25, 25, 6400, 1024, 50257),
          "llama-1b": Sizes(True, 16, 2048, 32, 8, 8192, 2048, 128256)}
WAYS = ("eager-flash", "eager-cudnn", "compile", "reduce-overhead")
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def turned(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.sizes, self.head = s, s.width // s.heads
        norm = nn.RMSNorm if s.llama else nn.LayerNorm
        self.ln_1, self.ln_2 = norm(s.width, eps=1e-5), norm(s.width, eps=1e-5)
        biased = not s.llama
        self.qkv = nn.Linear(s.width, (s.heads + 2 * s.kv_heads) * self.head, bias=biased)
        self.proj = nn.Linear(s.width, s.width, bias=biased)
        self.up = nn.Linear(s.width, s.hidden, bias=biased)
        self.gate = nn.Linear(s.width, s.hidden, bias=False) if s.llama else None
        self.down = nn.Linear(s.hidden, s.width, bias=biased)

    def forward(self, x, cos, sin):
        s = self.sizes
        parts = self.qkv(self.ln_1(x)).split([s.heads * self.head, s.kv_heads * self.head, s.kv_heads * self.head], -1)
        q, k, v = (part.view(*x.shape[:2], -1, self.head).transpose(1, 2) for part in parts)
        if s.llama:
            q, k = turned(q, cos, sin).to(v.dtype), turned(k, cos, sin).to(v.dtype)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=s.heads != s.kv_heads)
        x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
        h = self.ln_2(x)
        h = functional.silu(self.gate(h)) * self.up(h) if s.llama else functional.gelu(self.up(h), approximate="tanh")
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.sizes = s
        self.wte = nn.Embedding(s.vocabulary, s.width)
        self.wpe = None if s.llama else nn.Embedding(s.context, s.width)
        self.h = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.ln_f = (nn.RMSNorm if s.llama else nn.LayerNorm)(s.width, eps=1e-5)
        half = s.width // s.heads // 2
        angles = torch.arange(s.context)[:, None] * 5e5 ** (-torch.arange(half) / half)
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, labels):
        x = self.wte(ids)
        if self.wpe is not None:
            x = x + self.wpe.weight
        for block in self.h:
            x = block(x, self.cos, self.sin)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def step_times(call, model, batch, parts, seconds):
    s = model.sizes
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids, labels = torch.randint(min(s.vocabulary, 50257), (2, parts, batch // parts, s.context), device="cuda")
    torch.cuda.reset_peak_memory_stats()

    def step():
        for part in range(parts):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = call(ids[part], labels[part]) / parts
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(4):
        step()
    torch.cuda.synchronize()
    times, end = [], time.monotonic() + seconds
    while (time.monotonic() < end or len(times) < 5) and len(times) < 200:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        step()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return times


def measure(way, sizes, batch, seconds, backend):
    torch.manual_seed(0)
    for parts in (1, 2, 4):
        model = call = None
        try:
            start = time.monotonic()
            model = Model(sizes).cuda()
            call = model
            if way in ("compile", "reduce-overhead"):
                mode = None if way == "compile" else way
                if sizes.layers > 12:  # block by block: whole, it takes minutes
                    for block in model.h:
                        block.compile(mode=mode)
                else:
                    call = torch.compile(model, mode=mode)
            with sdpa_kernel([backend, SDPBackend.FLASH_ATTENTION], set_priority=True):
                times = step_times(call, model, batch, parts, seconds)
            ms = statistics.median(times)
            return {"ms": round(ms, 3), "tokens_per_s": round(batch * sizes.context / ms * 1e3), "steps": len(times),
                    "allocated_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
                    "reserved_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2), "parts": parts,
                    "seconds": round(time.monotonic() - start, 1)}
        except torch.OutOfMemoryError as problem:
            reason = str(problem).splitlines()[0]
        finally:
            model = call = None
            torch._dynamo.reset()
            gc.collect()
            torch.cuda.empty_cache()
    return {"error": reason}


def ceilings():
    def ms_of(run, turns):
        run()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(turns):
            run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / turns

    a = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    copy = statistics.median(ms_of(lambda: b.copy_(a), 5) for _ in range(5))
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = statistics.median(ms_of(lambda: x @ y, 10) for _ in range(5))
    return {"copy_tb_per_s": round(2 * a.numel() / copy * 1e-9, 3), "tflop_per_s": round(2 * 8192**3 / product * 1e-9, 1)}


def main():
    name, batch, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    sizes, speeds = MODELS[name], {}
    for word in sys.argv[4:]:
        key, equal, number = word.partition("=")
        if equal:
            setattr(sizes, key, int(number))
            continue
        try:
            if word == "ceilings":
                line = ceilings()
            elif word not in WAYS:
                line = {"error": f"there are {', '.join(WAYS)}"}
            else:
                best = max(speeds, key=speeds.get, default="eager-flash")
                backend = word.removeprefix("eager-") if word.startswith("eager-") else best.removeprefix("eager-")
                line = {"attention": backend, **measure(word, sizes, batch, seconds, BACKENDS[backend])}
                if word.startswith("eager-") and "tokens_per_s" in line:
                    speeds[word] = line["tokens_per_s"]
        except Exception as problem:
            line = {"error": f"{type(problem).__name__}: {problem}"[:400]}
        print(json.dumps({"way": word, "torch": torch.__version__, **line}), flush=True)


if __name__ == "__main__":
    main()
