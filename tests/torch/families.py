"""Trains each family by Piper and by PyTorch and compares; tests/torch/families says how it is called.

Both train in float64, SGD with momentum, the same batches. Compared are the losses of all steps and every parameter by name. Verdicts:

    right      the losses are those of PyTorch, and what Piper saves is what the module holds, no more and no less; a table that is said to
               be cut is compared as far as it goes. Also on two stages x two replicas x two microbatches.
    noted      the losses are right; a parameter is missing or has another shape, and a note of piperc's names that parameter. Or all is
               right once a buffer is excluded of which a note says that it may be one.
    refused    piperc does not take the file, and says why
    wrong      anything else that differs
    no export  the exporter does not write the module, or PyTorch's own losses are no numbers

Constants that the file holds as float32 (rotary tables, scales) bound what can be asked: a difference of rounding stays under 1e-5.
"""
import argparse
import collections
import json
import logging
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import family_models as models
from exporters import export
from own_process import in_own_process, read_libraries

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/bin")).resolve()
STEPS, BATCH, RATE, BOUND, SECONDS = 6, 8, 0.02, 1e-5, 600
OPSETS = {"dynamo": [18, 20, 23], "plain": [18], "older": [14, 17], "tool": [20]}
WORDS = ["right", "noted", "refused", "wrong", "no export"]
ONE = """piper: 1
train: {{global_batch: {batch}, optimizer: {{sgd: {{lr: {rate}, momentum: 0.9}}}}}}
directives: [{{precision: {{compute: f64}}}}]
"""
FOUR = ONE + "include: {root}/strategies/1f1b.yaml\nparams: {{stages: 2, dp: 2, microbatches: 2}}\n"


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


def is_named(name, notes):
    """By a note of piperc's, as a whole word."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", notes) is not None


def is_cut(value, whole):
    """A table of which the exporter kept the rows that are read; the others come from --init alone."""
    return value.dim() > 0 and value.shape[1:] == whole.shape[1:] and value.shape[0] < whole.shape[0]


def nearest_rows(value, whole):
    """Tables with an offset are read from their third row on, say."""
    parts = [whole[k : k + len(value)] for k in range(len(whole) - len(value) + 1)]
    return min(parts, key=lambda part: (value.double() - part.double()).abs().max().item())


def differences(got, wanted):
    """By parameter: what differs. A table that is said to be cut is compared as far as it goes."""
    _, saved, notes = got
    _, state, trained = wanted
    found = {name: "missing" for name in sorted(trained - set(saved))} | {name: "foreign" for name in sorted(set(saved) - set(state))}
    for name in set(saved) & set(state):
        value, whole = saved[name], state[name]
        if is_cut(value, whole) and is_named(name, notes):
            whole = nearest_rows(value, whole)
        if value.shape != whole.shape:
            found[name] = f"{list(value.shape)} for {list(whole.shape)}"
            continue
        error = (value.double() - whole.double()).abs().max().item() if value.numel() else 0.0
        if not error <= BOUND * max(whole.abs().max().item(), 0.05):
            found[name] = f"differs by {error:.1e}"
    return found


def buffers_trained(got, wanted):
    """Buffers of the module that piperc trains, and says that they may be buffers: files of the older exporter do not tell."""
    _, saved, notes = got
    said = "\n".join(line for line in notes.splitlines() if "perhaps a buffer" in line)
    return sorted(name for name in set(saved) & set(wanted[1]) - wanted[2] if is_named(name, said))


def compare(got, wanted):
    """(word, what)"""
    losses, _, notes = got
    worst = max(abs(a - b) / max(abs(b), 0.05) for a, b in zip(losses, wanted[0]))
    if len(losses) != len(wanted[0]) or not worst <= BOUND:
        return "wrong", f"losses differ by {worst:.1e}"
    found = differences(got, wanted)
    silent = {name: what for name, what in found.items() if what.startswith(("differs", "foreign")) or not is_named(name, notes)}
    word = "wrong" if silent else "noted" if found else "right"
    return word, "; ".join(f"{name}: {what}" for name, what in list((silent or found).items())[:3])


def judge(case, folder):
    from safetensors.torch import save_file
    name, exporter, opset, weights = case
    batches = models.batches(name, STEPS, BATCH)
    save_file({f"batch/{k}/{key}": value.contiguous() for k, batch in enumerate(batches) for key, value in batch.items()},
              folder / "data.safetensors")
    module = models.build(name, weights)
    try:
        export(module, batches[0], exporter, opset, str(folder / "model.onnx"))
    except Exception as error:
        return "no export", str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
    wanted = train_in_torch(models.build(name, weights), batches)
    if not all(map(math.isfinite, wanted[0])):
        return "no export", "the losses of PyTorch are no numbers"
    for layout, strategy in (("", ONE), ("on four ranks: ", FOUR)):
        word, got = train_in_piper(folder, strategy)
        buffers = [] if word else buffers_trained(got, wanted)
        if buffers:
            excluded = "".join(f"  - exclude: {name}\n" for name in buffers)
            word, got = train_in_piper(folder, f"{strategy}parameters:\n{excluded}")
        if word:
            return word, layout + got
        word, what = compare(got, wanted)
        if word == "right" and buffers:
            word, what = "noted", f"right where the note is followed: 'exclude' for {', '.join(buffers)}"
        if word != "right":
            return word, layout + what
    return "right", ""


def work(case, writer):
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # the exporters print, also from C++
    os.dup2(nothing, 2)
    with tempfile.TemporaryDirectory() as folder:
        writer.send(judge(case, pathlib.Path(folder)))


def main():
    parser = argparse.ArgumentParser(prog="tests/torch/families", description="Families of exported models: right, noted, refused or wrong.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="families (default: all)")
    parser.add_argument("--exporter", action="append", choices=list(OPSETS), help="dynamo, plain (optimize=False), older, or tool (tools/export.py); default: all")
    parser.add_argument("--opset", action="append", type=int, help="default: " + str(OPSETS))
    parser.add_argument("--weights", action="append", choices=["used", "fresh"], help="default: used and fresh at the first opset, then used")
    parser.add_argument("--list", action="store_true", help="the families' names")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in models.FAMILIES]
    if asked.list or unknown:
        print("\n".join(models.FAMILIES))
        sys.exit(f"no such family: {', '.join(unknown)}" if unknown else 0)
    read_libraries()
    counts = collections.defaultdict(collections.Counter)
    for name in asked.names or models.FAMILIES:
        for exporter in asked.exporter or OPSETS:
            for k, opset in enumerate(asked.opset or OPSETS[exporter]):
                for weights in asked.weights or (["used", "fresh"] if k == 0 else ["used"]):
                    word, what = in_own_process(work, (name, exporter, opset, weights), 2 * SECONDS, ("no export", "not done in time"), ("no export", "died"))
                    counts[exporter][word] += 1
                    print(f"{name:14} {exporter:6} {opset} {weights:5}  {word:9}  {what}", flush=True)
    print()
    for exporter, words in counts.items():
        print(f"{exporter:6}  " + "  ".join(f"{words[word]} {word}" for word in WORDS))
    sys.exit(1 if any(words["wrong"] for words in counts.values()) else 0)


main()
