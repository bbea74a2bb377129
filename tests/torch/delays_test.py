"""weight_versions: k against PyTorch in f64: gradients by autograd at the parameters of k - 1 updates ago, which a list of past parameters holds,
and an optimizer of PyTorch that updates the newest. Two stages whose steps overlap, replicas with their states cut, and three stages with a delay
each. Each number of versions must agree with its own delay, and with no other.

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
# By layout: the delays of the layers of three stages, and what its strategy says of versions, replicas, microbatches and the order.
STAGES = {
    "falling delays": ((2, 1, 0), "{where: {stage: s}, versions: pp - s}", 1, 4, "repeat min(M, P-r): F; repeat M - min(M, P-r): B F; repeat min(M, P-r): B"),
    "delays of one stage": ((0, 3, 0), "[{where: {stage: 1}, versions: 4}]", 2, 2, "repeat M: F; repeat M: B"),
    "overlapping stages": ((1, 1, 0), '{where: {stage: s}, versions: "s < pp - 1 ? 2 : 1"}', 1, 4, "repeat M - (P-r-1): F B; repeat P-r-1: F[step=1] B"),
    "overlapping stages, one later": ((2, 1, 0), "{where: {stage: s}, versions: pp - s}", 2, 2, "repeat M - (P-r-1): F B; repeat P-r-1: F[step=1] B"),
    "stages two steps ahead": ((2, 1, 0), "{where: {stage: s}, versions: pp - s}", 1, 1, "F[step=P-r-1] B"),
    "stages two steps ahead, one later": ((3, 2, 1), "{where: {stage: s}, versions: pp - s + 1}", 2, 1, "F[step=P-r-1] B"),
}
STAGE = """include: <numerics/f64>
weight_versions: {}
mesh: {{pp: 3, dp: {}}}
annotate: [{{match: "layers/{{i}}", tags: {{stage: i / 2}}}}]
directives:
  - split: {{dim: batch, into: {}}}
  - place: {{where: {{stage: s}}, on: {{pp: s}}}}
  - replicate: {{over: dp, shard: [optimizer]}}
  - order: {{each: pp, program: "{}"}}
"""
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


def reference(module, batches, delays, optimizer):
    """The parameters after all steps, of which each takes its gradients at those of so many updates ago, by stage of two layers."""
    newest = {name: value.detach().double().clone() for name, value in module.named_parameters()}
    update, past = optimizer(list(newest.values())), []
    for step, batch in enumerate(batches):
        past.append({name: value.clone().requires_grad_() for name, value in newest.items()})
        at = {name: past[max(0, step - delays[int(name.split(".")[1]) // 2])][name] for name in newest}
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
        cases = [(f"{layout}, {versions} versions", f"{text}weight_versions: {versions}\n", (versions - 1,) * 3)
                 for layout, text in LAYOUTS.items() for versions in range(1 if layout == "replicas" else 2, 6)]
        cases += [(layout, STAGE.format(versions, dp, microbatches, order), delays)
                  for layout, (delays, versions, dp, microbatches, order) in STAGES.items()]
        every = {(delay,) * 3 for delay in range(6)} | {way for delays, *_ in STAGES.values() for way in (delays, delays[::-1])}
        for train, optimizer in OPTIMIZERS.items():
            wanted = {delays: reference(module, batches, delays, optimizer) for delays in sorted(every)}
            for layout, text, delays in cases:
                (folder / "strategy.yaml").write_text(f"piper: 1\n{text}train: {{global_batch: {BATCH}, optimizer: {{{train}}}}}\n")
                for command in (["piperc", "model.onnx", "strategy.yaml", "-o", "plans", "--no-oracles", "--force"],
                                ["piper-run", "plans", "--data", "data.safetensors", "--steps", str(STEPS), "--save", "saved.safetensors"]):
                    done = subprocess.run([BIN / command[0], *command[1:]], cwd=folder, capture_output=True, text=True)
                    assert done.returncode == 0, done.stdout + done.stderr
                saved = load_file(folder / "saved.safetensors")
                apart = {some: difference(saved, one) for some, one in wanted.items()}
                others = min(value for some, value in apart.items() if some != delays)
                print(f"{layout}, {train}: {apart[delays]:.1e} from PyTorch, other delays {others:.1e}", flush=True)
                assert apart[delays] <= BOUND, apart
                assert others > 1e-4, apart


main()
