"""What piper-run --save writes, and what piper-checkpoint exports, is loaded by the exporting PyTorch module, by name and strictly, and goes on from there: its loss of
the next batch is the one of piper's next step. GPT with tied embeddings, Llama and BERT of the transformers library, trained on two
stages x two replicas, so that the parameters come from all of them. A model with batch norms, whose running statistics evaluation
reads; and Mamba, whose convolution is exported with its weight reshaped twice. And a module whose state_dict has more than is trained:
constants, integers, parameters that nothing reads, and what spectral norms keep, with which it is evaluated before its first step.

  save_test.py ROOT BIN [CASE…]    77 where no python here has PyTorch; the environment that tests/bench/against-torch makes serves,
                                   and so does one that PYTHON names
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from own_process import find_python

NEEDED = ["torch", "onnx", "onnxscript", "transformers", "safetensors"]
STRATEGY = """piper: 1
include: {root}/strategies/1f1b.yaml
params: {{stages: 2, dp: 2, microbatches: 2}}
train: {{global_batch: {batch}, optimizer: {{adamw: {{lr: 5e-3}}}}}}
"""
STEPS, BOUND = 4, 1e-4


def mamba():
    """Its convolution's weight is squeezed by the model and unsqueezed again; the exporter computes both."""
    import torch
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.MambaForCausalLM(transformers.MambaConfig(
                vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2, time_step_rank=2))

        def forward(self, input_ids, labels):
            logits = self.model(input_ids=input_ids, use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Model()


def check_exports(bin, folder, module, saved):
    """What piper-checkpoint exports has the bits of --save: one file under all names, a folder as Hugging Face has it."""
    from safetensors.torch import load_file, load_model

    def export(*words):
        subprocess.run([bin / "piper-checkpoint", "export", folder / "checkpoints", *words], check=True, stdout=subprocess.DEVNULL)

    export(folder / "exported.safetensors")
    export(folder / "exported", "--hf")
    exported = load_file(folder / "exported.safetensors")
    module.load_state_dict(exported, strict=True)
    load_model(module, folder / "exported/model.safetensors", strict=True)
    same = exported.keys() == saved.keys() and all(exported[name].equal(value) for name, value in saved.items())
    return same and all(module.state_dict()[name].equal(value) for name, value in saved.items())


def check(case, root, bin, folder):
    import torch
    import torch_models as models
    from safetensors.torch import load_file, save_file

    models.CASES["mamba"] = ("Mamba of the transformers library", mamba, 64, 8, 6, "")
    batches = models.batches(case)
    models.export(case, str(folder / "model.onnx"))
    save_file({f"batch/{k}/{name}": value for k, one in enumerate(batches) for name, value in one.items()}, folder / "data.safetensors")
    (folder / "strategy.yaml").write_text(STRATEGY.format(root=root, batch=models.CASES[case][3]))
    compiled = [bin / "piperc", folder / "model.onnx", folder / "strategy.yaml", "-o", folder / "plans", "--no-oracles"]
    subprocess.run(compiled, check=True, stdout=subprocess.DEVNULL)

    def train(steps, *options):
        command = [bin / "piper-run", folder / "plans", "--data", folder / "data.safetensors", "--steps", str(steps), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    train(STEPS, "--save", folder / "trained.safetensors", "--checkpoint", folder / "checkpoints")
    train(STEPS + 1, "--metrics", folder / "metrics.jsonl")
    wanted = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["loss"]

    module = models.build(case)
    with torch.no_grad():
        untrained = module(**batches[STEPS]).item()
        for value in module.parameters():
            value.normal_()
        module.load_state_dict(load_file(folder / "trained.safetensors"), strict=True)
        got = module(**batches[STEPS]).item()
    print(f"{case}: loss {got:.6f} in PyTorch, {wanted:.6f} of piper's step {STEPS}, {untrained:.6f} untrained", flush=True)
    if not check_exports(bin, folder, module, load_file(folder / "trained.safetensors")):
        return False
    return abs(got - wanted) <= BOUND * abs(wanted) and abs(untrained - wanted) > 10 * BOUND * abs(wanted)


def check_norms(root, bin, folder):
    import torch
    from make_batch_norm import STEPS as steps, Residual
    from safetensors.torch import load_file

    data = root / "tests/data/batch_norm/residual.safetensors"
    (folder / "strategy.yaml").write_text("piper: 1\ntrain: {global_batch: 8, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}\n")
    run = dict(check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([bin / "piperc", data.with_suffix(".onnx"), folder / "strategy.yaml", "-o", folder / "plans"], **run)
    subprocess.run([bin / "piper-run", folder / "plans", "--data", data, "--steps", str(steps), "--save", folder / "trained.safetensors",
                    "--checkpoint", folder / "checkpoints"], **run)
    reference, module, fresh = load_file(data), Residual().eval(), Residual().eval()
    batch = [reference["batch/0/x"], reference["batch/0/y"]]
    fresh.load_state_dict({name.removeprefix("after/"): value for name, value in reference.items() if name.startswith("after/")})
    module.load_state_dict(load_file(folder / "trained.safetensors"), strict=True)
    if not check_exports(bin, folder, Residual(), load_file(folder / "trained.safetensors")):
        return False
    with torch.no_grad():
        got, wanted, untrained = (m(*batch).item() for m in (module, fresh, Residual().eval()))
    print(f"batch_norm: loss of evaluation {got:.6f}, {wanted:.6f} trained by PyTorch, {untrained:.6f} untrained", flush=True)
    return abs(got - wanted) <= BOUND * abs(wanted) and abs(untrained - wanted) > 10 * BOUND * abs(wanted)


def make_partly_trained():
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.utils.spectral_norm(nn.Linear(16, 16))
            self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4))
            self.unread, self.still = nn.Linear(3, 3), nn.BatchNorm1d(16).eval()
            self.register_buffer("scale", torch.full((16,), 1.5))
            self.register_buffer("mask", torch.ones(16, 16).tril().bool())
            self.register_buffer("also", self.scale)
            self.register_buffer("never", torch.arange(5))
            self.register_buffer("count", torch.tensor(3, dtype=torch.int16))
            self.register_buffer("small", torch.tensor([7, 200], dtype=torch.uint8))
            self.register_buffer("passing", torch.ones(3), persistent=False)

        def train(self, mode=True):
            super().train(mode)
            self.still.eval()
            return self

        def forward(self, pixels, labels):
            x = pixels.to(self.scale.dtype) / 255 @ torch.where(self.mask, 1.0, 0.0).to(self.scale.dtype)
            return nn.functional.cross_entropy(self.second(self.still(torch.relu(self.first(x * self.scale)))), labels)

    torch.manual_seed(0)
    return Model()


def check_untouched(root, bin, folder):
    """Images of bytes, too, from .npy files of their own type."""
    import numpy
    import torch
    from export import export
    from safetensors.torch import load_file

    module, generator = make_partly_trained(), torch.Generator().manual_seed(1)
    pixels, labels = torch.randint(0, 256, (8, 16), generator=generator, dtype=torch.uint8), torch.randint(0, 4, (8,), generator=generator)
    numpy.save(folder / "pixels.npy", pixels.numpy())
    numpy.save(folder / "labels.npy", labels.numpy().astype("uint8"))
    export(module, (pixels, labels), folder / "model.onnx", log=lambda text: None, programs=bin)
    (folder / "strategy.yaml").write_text(f"piper: 1\ninclude: {root}/strategies/ddp.yaml\nparams: {{dp: 2}}\ntrain: {{global_batch: 8, optimizer: {{sgd: {{lr: 0.1}}}}}}\n")
    data = [word for name in ("pixels", "labels") for word in ("--data", f"{name}={folder / name}.npy")]
    run = dict(check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([bin / "piperc", folder / "model.onnx", folder / "strategy.yaml", "-o", folder / "plans", "--eval"], **run)
    subprocess.run([bin / "piper-run", folder / "plans", "--eval-only", *[word.replace("--data", "--eval-data") for word in data],
                    "--metrics", folder / "evaluated.jsonl"], **run)
    evaluated = next(line["loss"] for line in map(json.loads, (folder / "evaluated.jsonl").read_text().splitlines()) if "evaluation" in line)
    subprocess.run([bin / "piper-run", folder / "plans", *data, "--steps", "2", "--no-shuffle", "--checkpoint", folder / "checkpoints"], **run)
    subprocess.run([bin / "piper-run", folder / "plans", *data, "--steps", "3", "--no-shuffle", "--resume", folder / "checkpoints",
                    "--checkpoint", folder / "checkpoints", "--save", folder / "saved.safetensors"], **run)
    for name, flag in (("exported.safetensors", []), ("exported", ["--hf"])):
        subprocess.run([bin / "piper-checkpoint", "export", folder / "checkpoints", folder / name, *flag], **run)
    exports = [load_file(folder / name) for name in ("exported.safetensors", "exported/model.safetensors")]
    fresh, trained, loaded = make_partly_trained(), make_partly_trained(), make_partly_trained()
    with torch.no_grad():
        wanted = fresh.eval()(pixels, labels).item()
        for value in loaded.state_dict().values():
            value.zero_()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        trained(pixels, labels).backward()
        optimizer.step()
    loaded.load_state_dict(load_file(folder / "saved.safetensors"), strict=True)
    for exported in exports:
        make_partly_trained().load_state_dict(exported, strict=True)
        assert all(exported[name].equal(value) for name, value in load_file(folder / "saved.safetensors").items()), "exported otherwise than saved"
    off = {name for name, value in trained.state_dict().items() if not torch.allclose(value.float(), loaded.state_dict()[name].float(), atol=1e-4)}
    print(f"untouched: evaluated {evaluated}, {wanted} in PyTorch; loaded otherwise: {sorted(off)}", flush=True)
    return evaluated is not None and abs(evaluated - wanted) <= BOUND * wanted and not off


def main():
    root, bin = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    find_python(root, NEEDED)
    sys.path[:0] = [str(root / "tests/bench"), str(root / "tests/data"), str(root / "tools")]
    failed = []
    for case in sys.argv[3:] or ["gpt", "llama", "bert", "mamba", "batch_norm", "untouched"]:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            own = {"batch_norm": check_norms, "untouched": check_untouched}.get(case)
            right = own(root, bin, folder) if own else check(case, root, bin, folder)
            if not right:
                failed.append(case)
    if failed:
        sys.exit(f"not the same model: {', '.join(failed)}")


main()
