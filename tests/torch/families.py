"""Trains each family by Piper and by PyTorch and compares; tests/torch/families says how it is called.

Both train in float64, SGD with momentum, the same batches. Compared are the losses of all steps and every parameter by name: what Piper saves
must be what the module holds, no more and no less. What is right on one device is trained on two stages x two replicas x two microbatches
too. Constants that the file holds as float32 (rotary tables, scales) bound what can be asked: a difference of rounding stays under 1e-5.
"""
import argparse
import collections
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import family_models as models

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/bin")).resolve()
STEPS, BATCH, RATE, BOUND, SECONDS = 6, 8, 0.02, 1e-5, 600
OPSETS = {"dynamo": [18, 20, 23], "plain": [18], "older": [14, 17]}  # plain: dynamo with optimize=False
WORDS = ["right", "refused", "wrong", "no export"]
ONE = """piper: 1
train: {{global_batch: {batch}, optimizer: {{sgd: {{lr: {rate}, momentum: 0.9}}}}}}
directives: [{{precision: {{compute: f64}}}}]
"""
FOUR = ONE + "include: {root}/strategies/1f1b.yaml\nparams: {{stages: 2, dp: 2, microbatches: 2}}\n"


def export(case, module, batch, path):
    import torch
    name, exporter, opset, _ = case
    names = dict(input_names=list(batch), output_names=["loss"], opset_version=opset, verbose=False)
    inputs = tuple(batch.values())
    if exporter == "older":
        torch.onnx.export(module, inputs, path, dynamo=False, dynamic_axes={key: {0: "batch"} for key in batch}, **names)
        return
    shapes = tuple({0: torch.export.Dim("batch", min=1, max=4096)} for _ in batch)
    options = dict(dynamo=True, optimize=exporter == "dynamo", external_data=False, **names)
    try:
        torch.onnx.export(module, inputs, path, dynamic_shapes=shapes, **options)
    except Exception:  # some families fix the batch
        torch.onnx.export(module, inputs, path, **options)


def train_in_torch(module, batches):
    """Losses, and the values of parameters and buffers after all steps, by name."""
    import torch
    module = module.double()
    widened = [{key: value.double() if value.is_floating_point() else value for key, value in batch.items()} for batch in batches]
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=RATE, momentum=0.9)
    losses = []
    for batch in widened:
        optimizer.zero_grad()
        loss = module(*batch.values())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    trained = {key for key, p in module.named_parameters(remove_duplicate=False) if p.grad is not None}
    return losses, {key: value.detach() for key, value in module.state_dict(keep_vars=True).items()}, trained


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stderr


def reason(text):
    """The first error without its place, cut to a line."""
    found = re.search(r"error: (.*)", text)
    return (found.group(1) if found else text.strip()[-200:])[:200]


def train_in_piper(folder, strategy):
    """(word, what) or (None, (losses, saved))."""
    from safetensors.torch import load_file
    (folder / "strategy.yaml").write_text(strategy.format(batch=BATCH, rate=RATE, root=ROOT))
    plans, saved, metrics = folder / "plans", folder / "saved.safetensors", folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    code, said = run([BIN / "piperc", folder / "model.onnx", folder / "strategy.yaml", "-o", plans, "--force", "--no-oracles"])
    notes = said
    if code in (1, 3):
        return "refused", reason(said)
    if code != 0:
        return "wrong", f"piperc ends with {code}: {reason(said)}"
    code, said = run([BIN / "piper-run", plans, "--data", folder / "data.safetensors", "--steps", STEPS, "--save", saved, "--metrics", metrics])
    if code != 0:
        return "wrong", f"piper-run ends with {code}: {reason(said)}"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return None, ([line["loss"] for line in lines if "loss" in line], load_file(saved), notes)


def is_said_to_be_cut(name, value, whole, notes):
    """A table of which the exporter kept the rows that are read: piperc says so, and has the others from --init alone."""
    return name in notes and value.shape[1:] == whole.shape[1:] and value.shape[0] < whole.shape[0]


def difference(got, wanted):
    """What differs most, or ""."""
    losses, saved, notes = got
    wanted_losses, state, trained = wanted
    worst = max(abs(a - b) / max(abs(b), 0.05) for a, b in zip(losses, wanted_losses))
    if len(losses) != len(wanted_losses) or not worst <= BOUND:
        return f"losses differ by {worst:.1e}"
    missing = sorted(trained - set(saved))
    foreign = sorted(set(saved) - set(state))
    if missing or foreign:
        return f"missing {missing[:3]}, foreign {foreign[:3]}"
    for name, value in saved.items():
        whole = state[name]
        if is_said_to_be_cut(name, value, whole, notes):
            whole = whole[: value.shape[0]]
        if value.shape != whole.shape:
            return f"{name} is {list(value.shape)} for {list(whole.shape)}"
        error = (value.double() - whole.double()).abs().max().item() if value.numel() else 0.0
        if not error <= BOUND * max(whole.abs().max().item(), 0.05):
            return f"{name} differs by {error:.1e}"
    return ""


def judge(case, folder):
    from safetensors.torch import save_file
    name, _, _, weights = case
    batches = models.batches(name, STEPS, BATCH)
    save_file({f"batch/{k}/{key}": value.contiguous() for k, batch in enumerate(batches) for key, value in batch.items()},
              folder / "data.safetensors")
    module = models.build(name, weights)
    try:
        export(case, module, batches[0], str(folder / "model.onnx"))
    except Exception as error:
        return "no export", str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
    wanted = train_in_torch(models.build(name, weights), batches)
    for layout, strategy in (("", ONE), ("on four ranks: ", FOUR)):
        word, got = train_in_piper(folder, strategy)
        if word:
            return word, layout + got
        differs = difference(got, wanted)
        if differs:
            return "wrong", layout + differs
    return "right", ""


def work(text):
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        print("\n" + json.dumps(judge(tuple(json.loads(text)), pathlib.Path(folder))))


def in_own_process(case):
    command = [sys.executable, __file__, "--work", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        return "no export", "not done in time"
    last = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode == 0 and last[0].startswith("["):
        return json.loads(last[0])
    return "no export", (done.stderr.strip().splitlines() or ["died"])[-1][:120]


def main():
    parser = argparse.ArgumentParser(prog="tests/torch/families", description="Families of exported models: right, refused or wrong.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="families (default: all)")
    parser.add_argument("--exporter", action="append", choices=list(OPSETS), help="dynamo, plain (optimize=False) or older; default: all")
    parser.add_argument("--opset", action="append", type=int, help="default: " + str(OPSETS))
    parser.add_argument("--weights", action="append", choices=["used", "fresh"], help="default: used and fresh at the first opset, then used")
    parser.add_argument("--list", action="store_true", help="the families' names")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        return work(asked.work)
    unknown = [name for name in asked.names if name not in models.FAMILIES]
    if asked.list or unknown:
        print("\n".join(models.FAMILIES))
        sys.exit(f"no such family: {', '.join(unknown)}" if unknown else 0)
    counts = collections.defaultdict(collections.Counter)
    for name in asked.names or models.FAMILIES:
        for exporter in asked.exporter or OPSETS:
            for k, opset in enumerate(asked.opset or OPSETS[exporter]):
                for weights in asked.weights or (["used", "fresh"] if k == 0 else ["used"]):
                    word, what = in_own_process((name, exporter, opset, weights))
                    counts[exporter][word] += 1
                    print(f"{name:14} {exporter:6} {opset} {weights:5}  {word:9}  {what}", flush=True)
    print()
    for exporter, words in counts.items():
        print(f"{exporter:6}  " + "  ".join(f"{words[word]} {word}" for word in WORDS))
    sys.exit(1 if any(words["wrong"] for words in counts.values()) else 0)


main()
