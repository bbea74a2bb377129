"""piper-checkpoint reads what torch.distributed.checkpoint writes here and now: four ranks, shards of rows and of two dims, FSDP2, tensors that
are not contiguous. tests/unit/dcp_test.cc has what is refused, from a checkpoint that was written once.

  dcp_test.py ROOT BIN    77 where no python here has PyTorch; one that PYTHON names serves
"""
import pathlib
import subprocess
import sys
import tempfile

from own_process import find_python

ROOT, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
find_python(ROOT, ["torch", "safetensors"])
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, ROOT / "tests/data/make_dcp.py", folder], check=True)
    imported = pathlib.Path(folder) / "imported.safetensors"
    subprocess.run([BIN / "piper-checkpoint", "import", "--dcp", pathlib.Path(folder) / "checkpoint", imported], check=True)
    expected, found = load_file(pathlib.Path(folder) / "whole.safetensors"), load_file(imported)
    assert sorted(expected) == sorted(found), (sorted(expected), sorted(found))
    for name, value in expected.items():
        assert value.dtype == found[name].dtype and torch.equal(value, found[name]), name
    assert not torch.equal(expected["model.rows.weight"], found["model.rows.weight"] + 1)
    print(f"{len(found)} tensors are equal")
