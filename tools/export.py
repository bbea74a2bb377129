#!/usr/bin/env python3
"""Exports a PyTorch module to ONNX for training and loses nothing on the way.

    from export import export
    export(module, args, "model.onnx")

PyTorch's own exporter writes what is needed to run a module. What is needed to train it is not all there: parameters that have equal values
are merged, weights are multiplied into each other, and nothing says which parameters are trained, which are one tensor under two names, where
no gradient flows and what forward does to buffers. Here the module is traced, that is written down, and the file is read back: Piper trains
it for one step on `args` and the loss and the gradient of each parameter are compared with PyTorch's, both in float64 where forward runs so.

Needs torch, onnx, onnxscript and safetensors, and piperc and piper-run for the comparison.
"""
import argparse
import importlib.util
import inspect
import pathlib
import sys
import threading
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from exporter.check import compare_with_pytorch
from exporter.errors import NotExported, first_line
from exporter.model import Export
from exporter.output import check_is_other, check_output, check_room
from exporter.programs import find_programs
from exporter.weightless import without_values

OPSET = 20
PATIENCE = 10  # seconds after which is said what is under way


def export(module, args=(), path="model.onnx", kwargs=None, *, training=None, batch="auto", opset=OPSET, weights=True, check=True, programs=None,
           log=print):
    """Writes `path`, and `path`.data for large models, and returns what the file says of the parameters.

    args, kwargs  an example batch of at least two samples, as the module takes it
    training      True or False: the module's mode while it is traced; None: the mode that it is in
    batch         "auto": the first dim of all inputs of which the first is as long as that of the first input is the batch, and left open;
                  None: nothing is left open; {"x": 0, "mask": None}: by input, which dim is
    weights       False: the parameters' values are not written, and need not be there: the module may be on the device "meta", but for its
                  buffers. Such a file is for piperc --dry-run; nothing is compared
    check         train one step by Piper and compare (what draws random numbers is compared with its dropout off)
    programs      the folder of piperc and piper-run; None: that of PIPER_BIN, of the tree around this file, or of PATH
    """
    kwargs = dict(kwargs or {})
    modes, undo = [(part, part.training) for part in module.modules()], ExitStack()
    try:
        check_output(path)
        if weights:
            check_room(path, [*module.parameters(), *module.buffers()])
        if training is not None:
            module.train(training)
        tools = find_programs(programs) if check and weights else None
        with nullcontext(module) if weights else without_values(module):
            job = Export(module, tuple(args), kwargs, batch, opset, weights)
            undo.enter_context(job.undo)
            with told(f"{path}: forward of {type(module).__name__} is traced and written"):
                listed = job.write(pathlib.Path(path))
        log(job.summary(path, listed))
        if tools:
            with told(f"{path}: Piper and PyTorch train a step, and evaluate"):
                log(compare_with_pytorch(job, pathlib.Path(path), tools))
        return listed
    except NotExported:
        raise
    except Exception as error:  # PyTorch, its exporters and what forward calls have many classes of them
        raise NotExported(f"{type(module).__name__} is not exported: {first_line(error)}") from error
    finally:
        undo.close()
        for part, mode in modes:
            part.training = mode


@contextmanager
def told(what):
    """Says it on stderr if it takes long."""
    out = sys.stderr  # while it is exported, what others print goes nowhere
    timer = threading.Timer(PATIENCE, lambda: print(f"{what} …", file=out, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def load(text):
    """(module, args, kwargs) of FILE.py:FUNCTION."""
    file, _, function = text.rpartition(":")
    if not file or not pathlib.Path(file).is_file():
        raise NotExported(f"'{text}' is not FILE.py:FUNCTION of a file that is there")
    sys.path.insert(0, str(pathlib.Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    make = getattr(loaded, function, None)
    if not callable(make):
        known = [name for name, value in vars(loaded).items() if inspect.isfunction(value)]
        raise NotExported(f"{file} has no function '{function}'; it has {', '.join(known) or 'none'}")
    made = make()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 3 or not isinstance(made[0], torch.nn.Module):
        raise NotExported(f"{function}() returns (module, args) or (module, args, kwargs), not {type(made).__name__}")
    module, args, kwargs = (*made, None)[:3]
    return (module, (), args) if isinstance(args, dict) and kwargs is None else (module, args, kwargs)


EPILOG = """\
args is a tuple of an example batch of at least two samples, or a dict where forward takes keywords:

    def small():
        return Model(), (torch.randn(4, 8), torch.randint(0, 2, (4,)))

If forward returns one scalar, it is the loss; else the strategy names one. formats/model.md says what is exported and what is refused.
"""


def main():
    parser = argparse.ArgumentParser(prog="export.py", description=__doc__.splitlines()[0], epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", metavar="FILE.py:FUNCTION", help="a function that returns (module, args) or (module, args, kwargs)")
    parser.add_argument("-o", "--output", default="model.onnx", metavar="FILE", help="file to write (default: model.onnx)")
    parser.add_argument("--training", action=argparse.BooleanOptionalAction, default=None, help="export in training or evaluation mode (default: the module's own mode)")
    parser.add_argument("--fixed-batch", action="store_true", help="keep the example's batch size instead of a dynamic batch")
    parser.add_argument("--opset", type=int, default=OPSET, help=f"version of ONNX's operators (default: {OPSET})")
    parser.add_argument("--no-weights", action="store_true", help="write no parameter values; piperc --dry-run needs none")
    parser.add_argument("--no-check", action="store_true", help="do not compare a training step with PyTorch")
    parser.add_argument("--programs", metavar="FOLDER", help="folder of piperc and piper-run (default: PIPER_BIN, the build beside this file, or PATH)")
    asked = parser.parse_args()
    try:
        check_is_other(asked.output, asked.what.rpartition(":")[0])
        module, args, kwargs = load(asked.what)
        export(module, args, asked.output, kwargs, training=asked.training, batch=None if asked.fixed_batch else "auto", opset=asked.opset,
               weights=not asked.no_weights, check=not asked.no_check, programs=asked.programs)
    except NotExported as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
