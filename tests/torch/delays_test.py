"""weight_versions: k against PyTorch in f64: gradients by autograd at the parameters of k - 1 updates ago, which a list of past parameters holds,
and an optimizer of PyTorch that updates the newest. Two stages whose steps overlap, and replicas with their states cut. Each number of versions
must agree with its own delay, and with no other.

  delays_test.py ROOT BIN    77 where no python here has PyTorch
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
from export import export  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

STEPS, BATCH, BOUND = 9, 8, 1e-13
LAYOUTS = {
    "overlapping stages": "include: [<schedules/pipedream-2bw>, <numerics/f64>]\nparams: {stages: 2, microbatches: 4}\n",
    "replicas": "include: [<zero1>, <numerics/f64>]\nparams: {dp: 2}\n",
}
OPTIMIZERS = {
    "sgd: {lr: 0.3, momentum: 0.9}": lambda values: torch.optim.SGD(values, lr=0.3, momentum=0.9, foreach=False),
    "adamw: {lr: 0.02}": lambda values: torch.optim.AdamW(values, lr=0.02, foreach=False),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x, y):
        return ((self.layers(x) - y) ** 2).mean()


def reference(module, batches, delay, optimizer):
    """The parameters after all steps, of which each takes its gradients at those of `delay` updates ago."""
    newest = {name: value.detach().double().clone() for name, value in module.named_parameters()}
    update, past = optimizer(list(newest.values())), []
    for step, batch in enumerate(batches):
        past.append({name: value.clone().requires_grad_() for name, value in newest.items()})
        at = past[max(0, step - delay)]
        loss = torch.func.functional_call(module, at, (batch["x"].double(), batch["y"].double()))
        for value, gradient in zip(newest.values(), torch.autograd.grad(loss, list(at.values()))):
            value.grad = gradient
        update.step()
    return newest


def difference(got, wanted):
    assert got.keys() == wanted.keys(), (got.keys(), wanted.keys())
    return max(float((got[name].double() - value).abs().max() / value.abs().max()) for name, value in wanted.items())


def main():
    torch.manual_seed(5)
    module = Model()
    batches = [{"x": torch.randn(BATCH, 6), "y": torch.randn(BATCH, 3)} for _ in range(STEPS)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        export(module, (batches[0]["x"], batches[0]["y"]), folder / "model.onnx", log=lambda line: None, programs=BIN)
        save_file({f"batch/{k}/{name}": value for k, one in enumerate(batches) for name, value in one.items()}, folder / "data.safetensors")
        for layout, text in LAYOUTS.items():
            for train, optimizer in OPTIMIZERS.items():
                wanted = [reference(module, batches, delay, optimizer) for delay in range(6)]
                for versions in (1, 2, 3, 4, 5) if layout == "replicas" else (2, 3, 4, 5):
                    (folder / "strategy.yaml").write_text(
                        f"piper: 1\n{text}weight_versions: {versions}\ntrain: {{global_batch: {BATCH}, optimizer: {{{train}}}}}\n")
                    for command in (["piperc", "model.onnx", "strategy.yaml", "-o", "plans", "--no-oracles", "--force"],
                                    ["piper-run", "plans", "--data", "data.safetensors", "--steps", str(STEPS), "--save", "saved.safetensors"]):
                        done = subprocess.run([BIN / command[0], *command[1:]], cwd=folder, capture_output=True, text=True)
                        assert done.returncode == 0, done.stdout + done.stderr
                    saved = load_file(folder / "saved.safetensors")
                    apart = [difference(saved, one) for one in wanted]
                    others = min(value for delay, value in enumerate(apart) if delay != versions - 1)
                    print(f"{layout}, {train}, {versions} versions: {apart[versions - 1]:.1e} from PyTorch, other delays {others:.1e}", flush=True)
                    assert apart[versions - 1] <= BOUND, apart
                    assert others > 1e-4, apart


main()
