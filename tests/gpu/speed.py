"""How fast a step is beside PyTorch on the same device, where its time goes, and which algorithms of products are fastest."""

import csv
import io
import json
import re
import statistics
import sys

import correctness
from session import ROOT, lines_of

TOKENS = {"gpt2": 1024, "gpt2-xl": 1024, "llama-1b": 2048}  # of a sample
FLOPS = {"gpt2": (124.4e6, 12, 768), "gpt2-xl": (1557.6e6, 48, 1600), "llama-1b": (1235.8e6, 16, 2048)}  # parameters, layers, width
AIMS = {("gpt2", 64): 1.0, ("gpt2", 4): 1.3, ("llama-1b", 4): 1.0, ("gpt2-xl", 16): 1.0}  # our tokens/s over those of the best of PyTorch
WAYS = ("eager-flash", "eager-cudnn", "compile", "reduce-overhead")
BUDGET_MS = {"products": 64.8, "attention": 14.1, "others": 34.1}  # of a step of GPT-2 at 64 x 1024 on an H100
DEFAULT_TFLOPS = 790.0  # of a product of 8192³ on an H100, if none was measured


def flops_a_token(name, causal):
    """Returns 6 FLOPs a parameter and 12 a layer, width and token of attention (Narayanan et al. 2021), half of the latter if causal."""
    parameters, layers, width = FLOPS[name]
    return 6 * parameters + (6 if causal else 12) * layers * width * TOKENS[name]


def prepare(session, name, batch):
    """Returns the plans of a model in bf16."""
    folder = session.model(name, batch)
    return None if folder is None else session.compile(f"plans-{name}-{batch}", folder / "model.onnx", folder / "bf16.yaml", "--no-oracles")


def prepare_behind(session, name, batch):
    """Begins to make these plans while others are run; `prepare` finds them when they are there."""
    if session.dry:
        return None
    folder, plans = session.out / f"{name}-{batch}", session.out / f"plans-{name}-{batch}"
    folder.mkdir()
    bin_ = session.build
    script = (f"{bin_}/tests/make_models {name} {batch} {folder} random=1 && "
              f"{bin_}/bin/piperc {folder}/model.onnx {folder}/bf16.yaml --target cuda -o {plans}.part --no-oracles && mv {plans}.part {plans}")
    return session.start(["bash", "-c", script], session.variables(bin_ / "bin/piperc"))


def has_torch(session):
    if session.dry:
        return False
    code, output = session.run([sys.executable, "-c", "import torch; assert torch.cuda.is_available(); print(torch.__version__)"], 60)
    if code != 0:
        session.note("PyTorch with a device", None, why=output.strip().splitlines()[-1:] or code)
    return code == 0


def torch_command(session, name, batch, seconds, ways):
    """Returns a command and its environment; its caches are the session's."""
    return ([sys.executable, ROOT / "tests/gpu/peer_torch.py", name, batch, seconds, *ways],
            {"TORCHINDUCTOR_CACHE_DIR": str(session.out / "inductor"), "TRITON_CACHE_DIR": str(session.out / "triton"), "PYTHONUNBUFFERED": "1"})


def torch(session, name, batch, seconds, ways, limit_s):
    """Returns what was measured, by way; also what there is when the time is up."""
    words, env = torch_command(session, name, batch, seconds, ways)
    code, output = session.run(words, limit_s, env)
    session.write_log(f"torch {name} {batch}: {code}", output)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if code != 0 or len(lines) < len(ways):
        session.note(f"torch {name} at {batch}: all ways", None, why=f"ended with {code} after {len(lines)} of {len(ways)}")
    return {line.pop("way"): line for line in lines}


def ours(session, title, plans, steps, *flags, limit_s=60):
    """Returns the median of the steps after the first quarter: ms, tokens a second, and the memory that the plan states; None if it failed."""
    lines, _ = session.train(title, plans, 3 if session.dry else steps, *flags, data=session.tokens(), limit_s=limit_s, saves=False)
    if not lines:
        return None
    kept = lines[len(lines) // 4:]
    made = {"ms": round(statistics.median(line["step_ms"] for line in kept), 3),
            "tokens_per_s": round(statistics.median(line["tokens_per_s"] for line in kept)),
            "stated_gib": round(kept[-1]["peak_bytes"] / 2**30, 2), "first_loss": lines[0]["loss"], "last_loss": lines[-1]["loss"]}
    session.facts.setdefault("ours", {})[title] = made
    return made


def bytes_on_device(taken):
    """Adds up a number, or numbers by owner: {"device": {"arena": …}, "host": …}."""
    if isinstance(taken, dict):
        return bytes_on_device(taken["device"]) if "device" in taken else sum(map(bytes_on_device, taken.values()))
    return taken or 0


def profile(session, title, plans, steps=6, data=None):
    """Notes the host's time an instruction, the memory taken, and ms a step by pass and by program. The first is the host's own only
    where the device is not behind: a full queue holds the host back."""
    file = session.kept / f"profile-{title}.json"
    words = [session.build / "bin/piper-run", plans, "--backend", "cuda", "--data", data or session.tokens(), "--profile", file, "--steps", steps]
    if session.check(f"profile of {title}", words, 60) is None or not file.exists():
        return
    made = json.loads(file.read_text())
    runs = max(1, made.get("step", {}).get("count", 1))
    passes, programs = {}, []
    for program in made.get("programs", []):
        ms = program.get("total_us", 0) / 1e3 / runs
        passes[program.get("pass", "")] = passes.get(program.get("pass", ""), 0) + ms
        programs.append((round(ms, 3), program.get("count", 0) / runs, program.get("label", "")))
    taken = [bytes_on_device(role.get("taken_bytes")) for role in made.get("roles", [])]
    facts = {"host_us_per_instruction": made.get("host", {}).get("us_per_instruction"), "taken_gib": round(max(taken, default=0) / 2**30, 2),
             "ms_by_pass": {key: round(ms, 2) for key, ms in passes.items()}}
    session.facts.setdefault("profiles", {})[title] = {**facts, "programs": sorted(programs, reverse=True)[:40]}
    session.note(f"profile {title}", True, **facts)


def compare(session, name, batch, all_of_ours, theirs):
    """Notes our speed beside the best of PyTorch's."""
    title, aim = f"{name} at {batch} x {TOKENS[name]}", AIMS[name, batch]
    mine = statistics.median(one["tokens_per_s"] for one in all_of_ours)
    right = {way: line for way, line in theirs.items() if "tokens_per_s" in line}
    peak = session.facts.get("ceilings", {}).get("tflop_per_s", DEFAULT_TFLOPS) * 1e12
    facts = {"ms": [one["ms"] for one in all_of_ours], "tokens_per_s": round(mine),
             "mfu": round(mine * flops_a_token(name, False) / peak, 3), "mfu_causal": round(mine * flops_a_token(name, True) / peak, 3)}
    if right:
        best = max(right, key=lambda way: right[way]["tokens_per_s"])
        facts |= {"torch_ms": {way: line["ms"] for way, line in right.items()}, "best": best, "aim": aim,
                  "ratio": round(mine / right[best]["tokens_per_s"], 3),
                  "memory_ratio": round(right[best]["reserved_gib"] / all_of_ours[0]["stated_gib"], 3)}
    session.facts.setdefault("speed", {})[title] = {"torch": theirs, **facts}
    session.note(title, facts["ratio"] >= aim if right else None, **facts)


VARIANTS = {"whole": "", "in-4-microbatches": "  - split: {dim: batch, into: 4, as: mb}", "recomputed": "  - recompute: {}"}


def predict(session, batch=64):
    """GPT-2 in several ways beside what piper-sim says of them: by the data sheet's figures, and by what the first of them took."""
    folder = session.model("gpt2", batch)
    if folder is None:
        return
    first, errors = None, {"guessed": [], "measured": []}
    for name, directive in VARIANTS.items():
        strategy = session.strategy(f"gpt2-{name}", f"{(folder / 'bf16.yaml').read_text()}{directive}\n")
        plans = session.compile(f"plans-gpt2-{name}", folder / "model.onnx", strategy, "--no-oracles")
        made = plans and ours(session, f"gpt2-{name}", plans, 12, "--graphs", "on")
        if not made:
            continue
        profile(session, f"gpt2-{name}", plans)
        first = first or session.kept / f"profile-gpt2-{name}.json"
        said = {}
        for way, flags in {"guessed": (), "measured": ("--profile", first)}.items():
            words = [session.build / "bin/piper-sim", plans, "--cluster", ROOT / "strategies/clusters/h100x8.yaml", "--json", *flags]
            code, output = session.run(words, 30)
            if code == 0:
                said[way] = round(json.loads(output[output.index("{"):])["step_s"] * 1e3, 2)
                errors[way].append(abs(said[way] / made["ms"] - 1))
        session.note(f"gpt2 {name}: predicted", len(said) == 2, ms=made["ms"], **said)
    session.note("predictions", all(errors.values()), **{f"{way}_worst": f"{max(each, default=1):.1%}" for way, each in errors.items()})


def host(session):
    """The host's time an instruction, in a model so small that the device waits for the host."""
    plans = correctness.plans_of_sample(session, "bf16")
    if plans is not None:
        profile(session, "sample", plans, 20, session.tokens() if session.dry else session.text())


def launches(session):
    """GPT-2 at 4 samples, where launches count: as a graph and op by op."""
    plans = prepare(session, "gpt2", 4)
    if plans is None:
        return
    graph = ours(session, "gpt2-4-graph", plans, 60, "--graphs", "on")
    apart = ours(session, "gpt2-4-op-by-op", plans, 20, "--graphs", "off")
    if graph and apart:
        session.note("gpt2 at 4 as a graph beside op by op", True, graph_ms=graph["ms"], ops_ms=apart["ms"], tokens_per_s=graph["tokens_per_s"])


def large(session):
    """GPT-2 at 64 samples: the number, and where its time goes."""
    plans = prepare(session, "gpt2", 64)
    if plans is None:
        return
    made = ours(session, "gpt2-64-graph", plans, 15, "--graphs", "on")
    if made:
        session.note("gpt2 at 64", True, **made)
        profile(session, "gpt2-64", plans)


def beside_torch(session, name, batch, steps, with_torch, ways=WAYS, seconds=3):
    """Ours, theirs in all their ways, ours again: the two of ours say by how much the device drifts."""
    plans = prepare(session, name, batch)
    if plans is None:
        return
    table = session.folder / "products_cuda.txt"  # an earlier session may have left one of another device
    tuned = "products" in session.facts and table.exists()
    flags = ["--graphs", "on", *(["--products", table] if tuned else [])]
    made = [ours(session, f"{name}-{batch}-before", plans, steps, *flags)]
    theirs = torch(session, name, batch, seconds, ways, session.left() - 20) if with_torch else {}
    if not session.dry:
        made.append(ours(session, f"{name}-{batch}-after", plans, steps, *flags, limit_s=25))
    made = [one for one in made if one]
    if made:
        compare(session, name, batch, made, theirs)


def ceilings(session):
    session.facts["ceilings"] = torch(session, "gpt2", 1, 1, ["ceilings"], 60).get("ceilings", {})
    session.note("ceilings", bool(session.facts["ceilings"]), **session.facts["ceilings"])


# ---- Algorithms and kernels ---------------------------------------------------------------------

def tune(session, name="gpt2", batch=64, steps=15):
    """Measures the algorithms of products and keeps the table beside the report, then trains with it."""
    plans = prepare(session, name, batch)
    if plans is None:
        return
    table = session.folder / "products_cuda.txt"
    output = session.check(f"algorithms of products of {name} at {batch}", [session.build / "bin/piper-run", plans, "--tune", table],
                           max(20, session.left() - 20))
    session.facts.setdefault("products", []).extend((output or "").splitlines())
    if not table.exists():
        return
    before = session.facts.get("ours", {}).get(f"{name}-{batch}-graph") or ours(session, f"{name}-{batch}-untuned", plans, steps)
    tuned = ours(session, f"{name}-{batch}-tuned", plans, steps, "--products", table, limit_s=40)
    if tuned and before:
        session.note(f"{name} at {batch} with measured algorithms", True, ms=tuned["ms"], before_ms=before["ms"],
                     ratio=round(before["ms"] / tuned["ms"], 3))


def family(kernel):
    if re.search(r"gemm|nvjet|cutlass|xmma|splitK", kernel, re.I):
        return "products"
    if re.search(r"fprop|bprop|flash|cudnn|attention|sdpa", kernel, re.I):
        return "attention"
    return "others"


def read_kernels(text):
    """Returns (name, ms) of each launch from ncu's csv: a line of names, one of units, then a line each."""
    lines = list(csv.reader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"')))))
    if len(lines) < 3:
        return []
    name, time = lines[0].index("Kernel Name"), lines[0].index("gpu__time_duration.sum")
    unit = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1.0, "msecond": 1.0}[lines[1][time]]
    return [(line[name], float(line[time].replace(",", "")) * unit) for line in lines[2:]]


def kernels(session, name="gpt2", batch=64):
    """Notes ms a step by kernel, as ncu sees one step, op by op."""
    if session.dry or not session.has("ncu"):
        return session.note("a table of kernels", None, why="ncu is not here")
    plans = prepare(session, name, batch)
    words = ["ncu", "--csv", "--page", "raw", "--metrics", "gpu__time_duration.sum", "--clock-control", "none", "--target-processes", "all",
             session.build / "bin/piper-run", plans, "--backend", "cuda", "--data", session.tokens(), "--steps", 1, "--graphs", "off"]
    code, output = session.run(words, session.left(), session.variables(session.build / "bin/piper-run"))
    (session.kept / f"kernels-{name}-{batch}.csv").write_text(output)
    found = read_kernels(output)
    if not found:
        return session.note("a table of kernels", None, why=f"ncu ended with {code}: {output[-300:]}")
    by_kernel, by_family = {}, dict.fromkeys(BUDGET_MS, 0.0)
    for kernel, ms in found:
        count, total = by_kernel.get(kernel, (0, 0.0))
        by_kernel[kernel] = count + 1, total + ms
        by_family[family(kernel)] += ms
    aim = BUDGET_MS if batch == 64 else {}
    table = sorted(((round(ms, 3), count, kernel) for kernel, (count, ms) in by_kernel.items()), reverse=True)
    session.facts[f"kernels_at_{batch}"] = [{"ms": ms, "launches": count, "kernel": kernel} for ms, count, kernel in table[:80]]
    for ms, count, kernel in table[:24]:
        session.table.append(f"     {ms:9.3f} ms  {count:4d} x  {kernel[:100]}")
    return session.note("a table of kernels", code == 0, **{f"{key}_ms": f"{ms:.1f}" + (f" of {aim[key]}" if aim else "") for key, ms in by_family.items()})
