"""What the tests of this folder share: a python that has PyTorch, and a process for each case."""
import importlib.util
import multiprocessing
import os
import sys


def find_python(root, needed):
    """Goes on in a python that has what is needed, or ends the test as skipped (77)."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return
    for python in [os.environ.get("PYTHON"), root / "build/torch/bin/python3"]:
        if python and os.access(python, os.X_OK) and "PIPER_TORCH_TEST" not in os.environ:
            os.execve(python, [str(python), *sys.argv], os.environ | {"PIPER_TORCH_TEST": "1"})
    print(f"skipped: {sys.executable} has no {', '.join(missing)}: PYTHON=… names one")
    sys.exit(77)


def read_libraries():
    """Once, before the cases are forked."""
    import onnxscript.optimizer  # noqa: F401
    import torch.onnx._internal.exporter._core  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401


def in_own_process(work, case, seconds, late, died):
    """What `work` sends of the case; `late` or `died` where it sends nothing. Forked, so that a case that dies is one word, and the libraries
    are read once."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(case, writer))
    child.start()
    writer.close()
    try:
        return reader.recv() if reader.poll(seconds) else late
    except EOFError:
        return died
    finally:
        child.kill()
        child.join()
