"""The programs that a file is tried by: piperc and piper-run, and another one that runs ONNX files."""
import json
import math
import os
import pathlib
import re
import shutil
import subprocess

import onnx
import onnx.reference
import torch

from .errors import NotExported

STRATEGY = """piper: 1
train: {{{batch}optimizer: {{sgd: {{lr: {rate!r}}}}}}}
"""
CHOSEN = ("\n  = help: how many elements x[mask] has depends on values. Supported are its sum, its mean and the losses of torch.nn.functional, also of what pointwise "
          "functions or those of inner dims make of it, and y[mask] = …: write what else it becomes for all elements, and choose by torch.where")
PRECISE = "directives: [{precision: {compute: f64}}]\n"


def find_programs(folder):
    """The folder of piperc and piper-run: the one that is named, that of the tree around these files, or that on PATH."""
    here = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin"
    on_path = shutil.which("piperc")
    places = [folder, os.environ.get("PIPER_BIN"), here, on_path and pathlib.Path(on_path).parent]
    for place in places:
        if place and all(os.access(pathlib.Path(place) / name, os.X_OK) for name in ("piperc", "piper-run")):
            return pathlib.Path(place)
    raise NotExported("piperc and piper-run are not found: build them, name their folder as programs= or PIPER_BIN, or pass check=False")


def train_in_piper(tools, path, folder, data, size, rate, precise):
    """The loss of the last step of SGD and the parameters after it, by name; `data` has the batches, one for each step."""
    from safetensors.torch import load_file
    write_files(folder, data, size, rate, precise)
    plans, saved, metrics = folder / "plans", folder / "saved.safetensors", folder / "metrics.jsonl"
    steps = len({name.split("/")[1] for name in data}) or 1
    call([tools / "piperc", path, folder / "strategy.yaml", "-o", plans, "--no-oracles", "--force"], "piperc does not take the file",
         lambda said: places_of_nodes(path, said))
    call([tools / "piper-run", plans, "--data", folder / "data.safetensors", "--steps", steps, "--save", saved, "--metrics", metrics],
         "piper-run does not run it")
    losses = [line["loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]
    return losses[-1], load_file(saved)  # of this run: metrics are added to the file


def evaluate_in_piper(tools, path, folder, data, size, precise):
    """The loss of the file before training, with nothing drawn."""
    write_files(folder, data, size, 1.0, precise)
    plans, metrics = folder / "plans", folder / "metrics.jsonl"
    call([tools / "piperc", path, folder / "strategy.yaml", "-o", plans, "--no-oracles", "--force", "--eval"], "piperc --eval does not take the file",
         lambda said: places_of_nodes(path, said))
    call([tools / "piper-run", plans, "--eval-only", "--eval-data", folder / "data.safetensors", "--metrics", metrics], "piper-run does not evaluate it")
    loss = next(line["loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "evaluation" in line)
    return math.nan if loss is None else loss


def write_files(folder, data, size, rate, precise):
    """The batches and the strategy. Piper reads small integers as larger ones."""
    from safetensors.torch import save_file
    small = torch.uint8, torch.int8, torch.int16
    save_file({name: value.detach().to(torch.int32 if value.dtype in small else value.dtype).contiguous().clone() for name, value in data.items()},
              folder / "data.safetensors")
    (folder / "strategy.yaml").write_text(STRATEGY.format(batch=f"global_batch: {size}, " if size else "", rate=rate) + (PRECISE if precise else ""))


def call(command, what, places=lambda said: ""):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise NotExported(f"{what}:\n{done.stderr.strip()}{places(done.stderr)}")


def places_of_nodes(path, said):
    """The line of the program that made each node of which an error speaks."""
    names, lines = set(re.findall(r"node '([^']+)'", said)), []
    for node in onnx.load(str(path), load_external_data=False).graph.node if names else []:
        traces = [pair.value for pair in node.metadata_props if pair.key == "pkg.torch.onnx.stack_trace" and node.name in names]
        found = re.findall(r'File "([^"]*)", line (\d+).*\n\s*(.*)', "".join(traces))
        if found:
            file, line, text = found[-1]
            lines.append(f"\n  = note: '{node.name}' is of {file}:{line}: {text}")
    return "".join(lines[:4]) + (CHOSEN if re.search(r"NonZero\)?: is not supported where", said) else "")


def loss_of_file(path, inputs):
    """(the program, the loss) of another program than Piper that runs files, not a number where it does not run this one."""
    try:
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # it is asked for a number, not for its remarks
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        program, names, run = "onnxruntime", [value.name for value in session.get_inputs()], session.run
    except Exception:  # it is not there, or refuses the file
        program, names, run = "onnx.reference", list(inputs), onnx.reference.ReferenceEvaluator(str(path)).run
    try:
        return program, float(run(["loss"], {name: inputs[name].detach().numpy() for name in names})[0])
    except Exception:
        return program, math.nan
