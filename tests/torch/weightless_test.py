"""tools/export.py with weights=False: the file says the same plans as one with values, for modules that have values and that have none.

  weightless_test.py ROOT BIN    77 where no python here has PyTorch
"""
import pathlib
import subprocess
import sys
import tempfile

from own_process import find_python

ROOT, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
find_python(ROOT, ["torch", "onnx", "onnxscript", "safetensors"])
sys.path.insert(0, str(ROOT / "tools"))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from export import NotExported, export  # noqa: E402
from torch import nn  # noqa: E402

STRATEGY = "piper: 1\ninclude: [<schedules/1f1b>]\nparams: {stages: 2, microbatches: 2}\ntrain: {optimizer: {sgd: {lr: 0.1}}, global_batch: 4}\n"


class Decoder(nn.Module):
    """A tied head, a frozen norm, a table that is a buffer, and causal attention."""

    def __init__(self, width=16, table_on="cpu"):
        super().__init__()
        self.words, self.first, self.norm, self.head = nn.Embedding(50, width), nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 50, bias=False)
        self.head.weight = self.words.weight
        self.norm.bias.requires_grad_(False)
        self.register_buffer("table", torch.arange(8, device=table_on).float().outer(torch.ones(width, device=table_on)), persistent=False)

    def forward(self, ids, labels):
        x = self.words(ids) + self.table
        q = self.first(x).unflatten(-1, (2, -1)).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def explained(folder):
    (folder / "strategy.yaml").write_text(STRATEGY)
    done = subprocess.run([BIN / "piperc", "model.onnx", "strategy.yaml", "--dry-run", "--explain"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    why = subprocess.run([BIN / "piperc", "model.onnx", "strategy.yaml", "--dry-run", "--cluster", "<h100x8>", "--why", "1@0"], cwd=folder,
                         capture_output=True, text=True)
    assert why.returncode == 0 and why.stdout.startswith("rank 1 computes nothing from 0 us to "), why
    return [line for line in done.stdout.splitlines() if "zeros" not in line and line.strip() != "values"]


def write(folder, module, **flags):
    """What the exporter says."""
    said, ids = [], torch.randint(50, (4, 8))
    (folder / "model.onnx.data").unlink(missing_ok=True)
    export(module, (ids, ids), folder / "model.onnx", log=said.append, programs=BIN, **flags)
    return "\n".join(said)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        module = Decoder()
        before = {key: value.clone() for key, value in module.state_dict().items()}
        assert "is one of PyTorch" in write(folder, module)
        whole = explained(folder)
        said = write(folder, module, weights=False)
        assert "not compared with PyTorch" in said and "1 further names of tied ones" in said and "1 frozen" in said, said
        assert not (folder / "model.onnx.data").exists()
        assert explained(folder) == whole, "plans depend on the values of parameters"
        assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items()), "the module has changed"
        with torch.device("meta"):
            nowhere = Decoder()
        write(folder, nowhere, weights=False)
        assert explained(folder) == whole, "a module without values says other plans"
        assert all(value.is_meta for value in nowhere.parameters()), "the module has changed"
        with torch.device("meta"):
            wide = Decoder(width=32)
        write(folder, wide, weights=False)
        assert explained(folder) != whole, "plans of another width are the same"
        try:
            write(folder, Decoder(table_on="meta"), weights=False)
        except NotExported as error:
            assert "the buffer 'table' is on the device 'meta'" in str(error), error
        else:
            raise AssertionError("a buffer without values is exported")
    print("weightless exports say the plans of whole ones")


main()
