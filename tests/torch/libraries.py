"""Exports modules of libraries by tools/export.py, which trains a step of each and compares it with PyTorch. Verdicts:

    right      Piper's step is PyTorch's
    refused    the exporter or piperc says what is not supported
    wrong      the steps differ, and the exporter says so; or a program ends otherwise
    no module  the library does not make it from a small configuration, or it does not run in PyTorch

  tests/torch/libraries [NAME-OR-PREFIX…] [--list] [--seconds N]
"""
import argparse
import collections
import copy
import logging
import os
import pathlib
import re
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/torch")]
import library_models as models  # noqa: E402
from own_process import in_own_process, read_libraries  # noqa: E402


def judge(make, folder):
    import torch
    from export import NotExported, export
    torch.manual_seed(0)
    torch.set_num_threads(1)
    try:
        module, batch = make()
        args = batch(torch.Generator().manual_seed(1))
        loss = copy.deepcopy(module.eval())(*args)  # apart, since some keep what they compute
        if not torch.isfinite(loss) or sum(p.numel() for p in module.parameters()) > 30_000_000:
            return "no module", "too large, or its loss is no number"
        with torch.no_grad():
            for value in filter(lambda value: value.requires_grad and value.is_floating_point(), module.parameters()):
                value.add_(torch.randn_like(value) * 0.02)
    except Exception as error:
        return "no module", f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]
    try:
        export(module, args, folder / "model.onnx", training=None, log=lambda text: None)
    except NotExported as error:
        text = str(error)
        found = re.search(r"error: (.*)", text)
        own = "torch.autograd.Function" in text  # a gradient of its own is named
        word = "wrong" if ("another model" in text and not own) or "does not run" in text else "refused"
        return word, (" ".join(text.split())[:400] if word == "wrong" else (found.group(1) if found else text.splitlines()[0])[:300])
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {str(error)[:300]}"
    return "right", ""


def work(make, writer):
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    with tempfile.TemporaryDirectory() as folder:
        writer.send(judge(make, pathlib.Path(folder)))


def main():
    parser = argparse.ArgumentParser(prog="tests/torch/libraries", description="Modules of libraries, exported by tools/export.py and compared.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases, or how their names begin (default: all)")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=int, default=180, help="for each")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    cases = models.all_cases()
    chosen = {name: make for name, make in cases.items() if not asked.names or any(name.startswith(start) for start in asked.names)}
    if asked.list or not chosen:
        print("\n".join(cases))
        sys.exit(0 if asked.list else "no such case")
    read_libraries()
    counts = collections.Counter()
    for name, make in chosen.items():
        word, what = in_own_process(work, make, asked.seconds, ("no module", f"not done in {asked.seconds} s"), ("wrong", "died"))
        counts[word] += 1
        print(f"{name:32} {word:9}  {what}", flush=True)
    tried = sum(counts.values()) - counts["no module"]
    print(f"\n{tried} modules: " + ", ".join(f"{counts[word]} {word}" for word in ("right", "refused", "wrong")) + f"; {counts['no module']} no module")
    sys.exit(1 if counts["wrong"] else 0)


main()
