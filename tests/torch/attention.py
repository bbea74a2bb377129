"""Counts attentions in exports of the families of family_models.py; tests/torch/attention says how it is called."""
import argparse
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

from exporters import export
from own_process import find_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build/bin")).resolve()
OPSETS = {"dynamo": [18, 20, 21, 23], "static": [18, 22], "older": [17]}
QUICK = ["llama", "gemma3", "gpt-neox", "vit", "bart", "hand-gpt"]
WITHOUT = ["mamba", "rwkv", "convnext", "resnet", "hand-experts", "hand-gates", "mixer", "group-resnet", "batch-resnet", "unet", "dit", "gaussian",
           "hand-next", "hand-branches", "hand-flow", "hand-merged", "lstm", "gru", "codebook"]
# What may be left, by family, and why.
LEFT = {}


def implementations(module):
    """Those of the library's models; of a module written by hand, the one that it has."""
    return ["sdpa", "eager"] if hasattr(getattr(module, "model", None), "set_attn_implementation") else ["own"]


def describe(path):
    """(attentions, the reasons of those that are left); an error of piperc as a text."""
    done = subprocess.run([BIN / "piperc", path, "--describe"], capture_output=True, text=True)
    found = re.search(r"^recognised:.*(?:\n    .*)*", done.stdout, re.M)
    if not found:
        return (done.stdout + done.stderr).strip()[-200:]
    count = re.search(r"\bAttention (\d+)", found.group(0))
    return int(count.group(1)) if count else 0, re.findall(r"^no attention: (.*)", done.stdout, re.M)


def judge(name, implementation, exporter, opset, folder):
    """(whether it is as it should be, what to print)"""
    import family_models as models
    module = models.build(name, "used")
    if implementation != "own":
        try:
            module.model.set_attn_implementation(implementation)
        except ValueError:
            return True, "the library has none"
    path = folder / f"{name}.{implementation}.{exporter}.{opset}.onnx"
    try:
        if not path.exists():
            export(module, models.batches(name, 1, 8)[0], exporter, opset, str(path))
    except Exception as error:
        return True, "no export: " + (str(error).strip().splitlines() or [type(error).__name__])[0][:100]
    said = describe(path)
    if isinstance(said, str):
        return True, "refused: " + said.splitlines()[-1]
    count, left = said
    unexpected = [line for line in left if LEFT.get(name) is None or LEFT[name] not in line]
    few = count < 2 and not left
    return not unexpected and not few, f"{count} attentions" + "".join(f"; left: {line}" for line in left)


def main():
    find_python(ROOT, ["torch", "onnx", "onnxscript", "transformers"])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import family_models as models
    parser = argparse.ArgumentParser(prog="tests/torch/attention", description="Attentions of exported models: recognised or left.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="families (default: all)")
    parser.add_argument("--exporter", action="append", choices=list(OPSETS), help="default: all")
    parser.add_argument("--opset", action="append", type=int, help="default: " + str(OPSETS))
    parser.add_argument("--implementation", action="append", choices=["sdpa", "eager"], help="default: both")
    parser.add_argument("--quick", action="store_true", help="few families, opset 20 with the sizes of one batch, sdpa")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="where exports are kept, and found again")
    asked = parser.parse_args()
    names = asked.names or (QUICK if asked.quick else [name for name in models.FAMILIES if name not in WITHOUT])
    exporters = ["static"] if asked.quick else asked.exporter or list(OPSETS)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            own = implementations(models.build(name, "used"))
            wanted = [i for i in own if i == "own" or not asked.implementation or i in asked.implementation]
            for exporter in exporters:
                for opset in [20] if asked.quick else asked.opset or OPSETS[exporter]:
                    for implementation in wanted[:1] if asked.quick else wanted:
                        right, what = judge(name, implementation, exporter, opset, folder)
                        wrong += not right
                        print(f"{'ok ' if right else 'BAD'} {name:14} {implementation:5} {exporter:6} {opset}  {what}", flush=True)
    print(f"{wrong} files are not as they should be")
    sys.exit(1 if wrong else 0)


main()
