"""Part C: how fast, beside PyTorch on the same device; and which algorithms products take least time with.

A case is: ours, theirs in all their ways, ours again (the two of ours say what the device drifts by), each the median of its steps.
"""

import csv
import io
import json
import re
import statistics
import sys

from report import ROOT, lines_of

# name, samples, steps, aim of the ratio to the best of PyTorch; seconds at most, and that it wants at least
CASES = (("gpt2", 64, 20, 1.0, 170, 60), ("gpt2", 4, 60, 1.3, 100, 50), ("llama-1b", 4, 15, 1.0, 120, 60), ("gpt2-xl", 16, 8, 1.0, 130, 70))
TOKENS = {"gpt2": 1024, "gpt2-xl": 1024, "llama-1b": 2048}
# (parameters, layers, width): of 6 FLOPs a parameter and token, and of attention
FLOPS = {"gpt2": (124.4e6, 12, 768), "gpt2-xl": (1557.6e6, 48, 1600), "llama-1b": (1235.8e6, 16, 2048)}
WAYS = ("eager-flash", "eager-cudnn", "compile", "reduce-overhead")
BUDGET_MS = {"products": 64.8, "attention": 14.1, "others": 34.1}  # of a step of GPT-2 at 64 x 1024 on an H100
DEFAULT_TFLOPS = 790.0  # a product of 8192³ on an H100, where none was measured


def flops_a_token(name, causal):
    parameters, layers, width = FLOPS[name]
    return 6 * parameters + (6 if causal else 12) * layers * width * TOKENS[name]


def has_torch(day):
    if day.dry:
        return False
    code, output = day.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], 90)
    if code != 0:
        day.note("PyTorch with a device", None, why=output.strip().splitlines()[-1:] or code)
    return code == 0


def torch(day, name, batch, seconds, ways, limit_s):
    """By way; what is there when its time is up counts."""
    words = [sys.executable, ROOT / "tests/gpu/peer_torch.py", name, batch, seconds, *ways]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(day.out / "inductor"), "PYTHONUNBUFFERED": "1"}
    code, output = day.run(words, limit_s, env)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    with day.log.open("a") as log:
        log.write(f"\n==== torch {name} {batch}: {code}\n{output[-100000:]}")
    if code != 0 or not lines:
        day.note(f"torch {name} at {batch}: all ways", None, why=f"ended with {code} after {len(lines)} of {len(ways)}")
    return {line.pop("way"): line for line in lines}


def ours(day, name, plans, steps, *flags, limit_s=90):
    """The median step behind the first quarter: ms, tokens a second, the memory that the plan states."""
    metrics = day.out / f"{name}.jsonl"
    metrics.unlink(missing_ok=True)
    words = [day.build / "bin/piper-run", plans, "--backend", "cuda", "--data", day.tokens(), "--steps", 3 if day.dry else steps,
             "--metrics", metrics, *flags]
    if day.check(f"train {name}", words, limit_s) is None:
        return None
    lines = lines_of(metrics)
    kept = lines[len(lines) // 4:]
    ms = statistics.median(line["step_ms"] for line in kept)
    speed = statistics.median(line["tokens_per_s"] for line in kept)
    return {"ms": round(ms, 3), "tokens_per_s": round(speed), "stated_gib": round(kept[-1]["peak_bytes"] / 2**30, 2)}


def bytes_on_device(taken):
    """A number, or one by what has it: {"device": {"arena": …}, "host": …}."""
    if isinstance(taken, dict):
        return bytes_on_device(taken["device"]) if "device" in taken else sum(map(bytes_on_device, taken.values()))
    return taken or 0


def profile(day, name, plans):
    """What the host takes an instruction, what the backend takes of memory, and ms a step by pass; where piper-run says it."""
    if "--profile" not in day.run([day.build / "bin/piper-run", "--help"], 30)[1]:
        return {}
    file = day.results_folder / f"profile-{name}.json"
    words = [day.build / "bin/piper-run", plans, "--backend", "cuda", "--data", day.tokens(), "--profile", file, *(["--steps", 4] if day.dry else [])]
    if day.check(f"profile of {name}", words, 60) is None or not file.exists():
        return {}
    made = json.loads(file.read_text())
    steps = max(1, made.get("step", {}).get("count", 1))
    passes = {}
    for program in made.get("programs", []):
        passes[program.get("pass", "")] = passes.get(program.get("pass", ""), 0) + program.get("total_us", 0) / 1e3 / steps
    taken = [bytes_on_device(role.get("taken_bytes")) for role in made.get("roles", [])]
    return {"host_us_per_instruction": made.get("host", {}).get("us_per_instruction", made.get("host_us_per_instruction")),
            "taken_gib": round(max(taken, default=0) / 2**30, 2),
            "ms_by_pass": {key: round(ms, 3) for key, ms in passes.items()}}


def compare(day, name, batch, ours_all, theirs, aim):
    """The line of the table."""
    title = f"{name} at {batch} x {TOKENS[name]}"
    mine = statistics.median(one["tokens_per_s"] for one in ours_all)
    right = {way: line for way, line in theirs.items() if "tokens_per_s" in line}
    peak = day.facts.get("ceilings", {}).get("tflop_per_s", DEFAULT_TFLOPS) * 1e12
    facts = {"tokens_per_s": round(mine), "drift": round(ours_all[-1]["tokens_per_s"] / ours_all[0]["tokens_per_s"], 4),
             "mfu": round(mine * flops_a_token(name, False) / peak, 3), "mfu_causal": round(mine * flops_a_token(name, True) / peak, 3)}
    if right:
        best = max(right, key=lambda way: right[way]["tokens_per_s"])
        facts |= {"best": best, "torch_tokens_per_s": right[best]["tokens_per_s"], "aim": aim,
                  "ratio": round(mine / right[best]["tokens_per_s"], 3),
                  "memory_ratio": round(right[best]["reserved_gib"] / ours_all[0]["stated_gib"], 3)}
    day.facts.setdefault("speed", {})[title] = {"ours": ours_all, "torch": theirs, **facts}
    day.note(title, facts["ratio"] >= aim if right else None, **facts)


def case(day, name, batch, steps, aim, with_torch):
    folder = day.model(name, batch)
    if folder is None:
        return
    label = f"{name}-{batch}"
    plans = day.compile(f"plans-{label}", folder / "model.onnx", folder / "bf16.yaml", "--no-oracles")
    if plans is None:
        return
    first = ours(day, f"{label}-graphs", plans, steps, "--graphs", "on")
    if first is None:
        return
    theirs = torch(day, name, batch, 3, WAYS, day.left() - 25) if with_torch else {}
    again = ours(day, f"{label}-again", plans, steps, "--graphs", "on", limit_s=25) if not day.dry else None
    compare(day, name, batch, [one for one in (first, again) if one], theirs, aim)
    if batch == 4 and name == "gpt2":  # where launches count
        apart = ours(day, f"{label}-ops", plans, steps, "--graphs", "off")
        if apart:
            day.note("graphs beside op by op", True, ratio=round(apart["ms"] / first["ms"], 3), ops_ms=apart["ms"], graph_ms=first["ms"])
    facts = profile(day, label, plans)
    if facts:
        day.facts["speed"][f"{name} at {batch} x {TOKENS[name]}"]["profile"] = facts
        day.note(f"profile {label}", True, **facts)
    return plans


# ---- Tables of algorithms and kernels -----------------------------------------------------------

def tune(day, plans, steps):
    """Writes products_cuda.txt beside the report: what is in it is kept, of other devices and other products."""
    table = day.results_folder / "products_cuda.txt"
    output = day.check("algorithms of products", [day.build / "bin/piper-run", plans, "--tune", table], 60)
    if not table.exists():
        return
    lines = [line for line in table.read_text().splitlines() if "|" in line]
    day.facts["products"] = (output or "").splitlines()
    tuned = ours(day, "gpt2-tuned", plans, steps, "--products", table, limit_s=40)
    if tuned:
        before = day.facts.get("speed", {}).get(f"gpt2 at 64 x {TOKENS['gpt2']}", {}).get("ours", [tuned])[-1]
        day.note("with the algorithms that were measured", True, lines=len(lines), ms=tuned["ms"], before_ms=before["ms"],
                 ratio=round(before["ms"] / tuned["ms"], 3))


def family(kernel):
    if re.search(r"gemm|nvjet|cutlass|xmma|splitK", kernel, re.I):
        return "products"
    if re.search(r"fprop|bprop|flash|cudnn|attention|sdpa", kernel, re.I):
        return "attention"
    return "others"


def read_kernels(text):
    """(name, ms) of each launch, of what ncu wrote: a line of names, one of units, and a line each."""
    lines = list(csv.reader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"')))))
    if len(lines) < 3:
        return []
    name, time = lines[0].index("Kernel Name"), lines[0].index("gpu__time_duration.sum")
    unit = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1.0, "msecond": 1.0}[lines[1][time]]
    return [(line[name], float(line[time].replace(",", "")) * unit) for line in lines[2:]]


def kernels(day, plans):
    """ms a step by kernel, as ncu sees the second of two steps, op by op."""
    words = ["ncu", "--csv", "--page", "raw", "--metrics", "gpu__time_duration.sum", "--clock-control", "none", "--target-processes", "all",
             day.build / "bin/piper-run", plans, "--backend", "cuda", "--data", day.tokens(), "--steps", 2, "--graphs", "off"]
    env = day.variables(day.build / "bin/piper-run")
    code, output = day.run(words, 70, env)
    launches = read_kernels(output)
    if not launches:
        return day.note("a table of kernels", None, why=f"ncu ended with {code}: {output[-300:]}")
    by_kernel, by_family = {}, dict.fromkeys(BUDGET_MS, 0.0)
    for name, ms in launches[len(launches) // 2:]:
        count, total = by_kernel.get(name, (0, 0.0))
        by_kernel[name] = count + 1, total + ms
        by_family[family(name)] += ms
    table = sorted(((round(ms, 3), count, name) for name, (count, ms) in by_kernel.items()), reverse=True)
    day.facts["kernels"] = [{"ms": ms, "launches": count, "kernel": name} for ms, count, name in table[:60]]
    for ms, count, name in table[:20]:
        print(f"     {ms:9.3f} ms  {count:4d} x  {name[:90]}", flush=True)
    return day.note("a table of kernels", True, **{f"{name}_ms": f"{ms:.1f} of {BUDGET_MS[name]}" for name, ms in by_family.items()})


def ceilings(day):
    day.facts["ceilings"] = torch(day, "gpt2", 1, 1, ["ceilings"], 60).get("ceilings", {})
    day.note("ceilings", bool(day.facts["ceilings"]), **day.facts["ceilings"])


def run(day):
    with_torch = has_torch(day)
    if with_torch:
        day.section("ceilings", 60, 60, lambda: ceilings(day))
    for name, batch, steps, aim, most, least in CASES[:1] if day.dry else CASES:
        plans = day.section(f"{name} at {batch}", most, least, lambda: case(day, name, batch, steps, aim, with_torch))
        if (name, batch) != CASES[0][:2] or plans is None:
            continue
        day.section("algorithms of products", 90, 60, lambda: tune(day, plans, steps))
        if not day.dry and day.has("ncu"):
            day.section("a table of kernels", 75, 60, lambda: kernels(day, plans))
    if day.dry:  # the others' programs are the same, but for the Llama's, which is made and compiled
        folder = day.model("llama-1b")
        day.compile("plans-llama", folder / "model.onnx", folder / "bf16.yaml", "--no-oracles")
