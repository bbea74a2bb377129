"""Local steps are DiLoCo (Douillard et al., 2023) as PyTorch computes it in f64: sites with AdamW of their own, and Nesterov momentum on the mean of
their distances from the outer parameters. Each site clips by the norm of its own gradients, where one is said. Updates that are delayed are those of Streaming
DiLoCo (Douillard et al., 2025). Without the outer momentum, with other intervals or delays, or clipped by the norm of all sites, PyTorch is elsewhere.

  local_steps_test.py ROOT BIN    77 where no python here has PyTorch; one that PYTHON names serves
"""
import copy
import pathlib
import subprocess
import sys
import tempfile

from own_process import find_python

NEEDED = ["torch", "onnx", "onnxscript", "safetensors"]
ROOT, BIN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
SITES, EVERY, BATCH, WIDTH, BOUND = 2, 3, 8, 16, 1e-12
STEPS = 9  # None of the delayed updates, which run in parts beside several steps, is between its parts then.

find_python(ROOT, NEEDED)
sys.path.insert(0, str(ROOT / "tools"))
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from export import export  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

CLIP = 0.03
# By name: the strategy, and whether sites clip.
STRATEGIES = {"sites": ("params: {every: EVERY}\n", False),
              "stages": ("include: <1f1b>\nparams: {every: EVERY, stages: 2, microbatches: 2}\n", False),
              "replicas": ("include: <zero1>\nparams: {every: EVERY, dp: 2}\n", False),
              "fragments": ("params: {every: EVERY, first: 'h/{0..1}/**'}\n", False),
              "fragments of stages": ("include: <1f1b>\nparams: {every: EVERY, first: 'h/{0..1}/**', stages: 2, microbatches: 2}\n", False),
              "delayed fragments": ("params: {every: EVERY, first: 'h/{0..1}/**', delay: 2, mix: 0.25}\n", False),
              "delayed fragments of stages": (
                  "include: <1f1b>\nparams: {every: EVERY, first: 'h/{0..1}/**', delay: 2, mix: 0.25, stages: 2, microbatches: 2}\n", False),
              "clipped": ("params: {every: EVERY}\n", True),
              "clipped stages": ("include: <1f1b>\nparams: {every: EVERY, stages: 2, microbatches: 2}\n", True),
              "clipped replicas": ("include: <zero2>\nparams: {every: EVERY, dp: 2}\n", True)}
# Adam's steps hardly depend on the size of gradients: what clips trains with momentum.
OPTIMIZER = {False: "adamw: {lr: 3e-3, weight_decay: 0.1}", True: "sgd: {lr: 0.5, momentum: 0.9}"}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, y):
        for layer in self.h:
            x = x + torch.tanh(layer(x))
        return F.mse_loss(x, y)


def clip(sites, by_all):
    """Clips the gradients of each site by its own norm, or by that of all of them."""
    each = [list(site.parameters()) for site in sites]
    for parameters in [sum(each, [])] if by_all else each:
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)


def diloco(model, batches, every, momentum, clips=False, by_all=False, offset=0, delay=0, mix=0.0):
    """The outer parameters, and those of each site, after all batches. Those of the last two layers are joined `offset` steps after the others. An update is by
    what sites have when it is due; `delay` steps later they go on with `mix` of their own parameters and the rest of the outer ones."""
    outer = model.double()
    sites = [copy.deepcopy(outer) for _ in range(SITES)]
    inner = [torch.optim.SGD(site.parameters(), lr=0.5, momentum=0.9) if clips else
             torch.optim.AdamW(site.parameters(), lr=3e-3, weight_decay=0.1) for site in sites]
    fragments = {after: [name for name, _ in outer.named_parameters() if offset == 0 or (name[2] in "23") == (after > 0)] for after in {0, offset}}
    joined = {after: torch.optim.SGD([outer.get_parameter(name) for name in names], lr=0.7, momentum=momentum, nesterov=momentum > 0)
              for after, names in fragments.items()}
    taken = {}
    for step, batch in enumerate(batches):
        for k, site in enumerate(sites):
            own = slice(k * BATCH // SITES, (k + 1) * BATCH // SITES)
            inner[k].zero_grad()
            site(*(batch[name][own].double() for name in ("x", "y"))).backward()
        if clips:
            clip(sites, by_all)
        for optimizer in inner:
            optimizer.step()
        def due(later):
            return (step + 1 - later) % every if step + 1 > later else None

        with torch.no_grad():
            for name in fragments.get(due(0), []):
                taken |= {f"site.{k}.{name}.taken": site.get_parameter(name).detach().clone() for k, site in enumerate(sites)}
                outer.get_parameter(name).grad = outer.get_parameter(name) - sum(site.get_parameter(name) for site in sites) / SITES
        if due(min(delay, 1)) in joined:
            joined[due(min(delay, 1))].step()
        with torch.no_grad():
            for name in fragments.get(due(delay), []):
                for site in sites:
                    own = site.get_parameter(name)
                    own.copy_(mix * own + (1 - mix) * outer.get_parameter(name))
    named = {name: value.detach().clone() for name, value in outer.named_parameters()}
    for k, site in enumerate(sites):
        named |= {f"site.{k}.{name}": value.detach().clone() for name, value in site.named_parameters()}
    return named | (taken if delay > 0 else {})


def program(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def difference(got, want):
    assert set(got) == set(want), (sorted(got), sorted(want))
    return max(float((got[name].double() - want[name]).abs().max()) for name in want)


def main(folder):
    torch.manual_seed(11)
    model = Model()
    batches = [{name: torch.randn(BATCH, WIDTH) for name in ("x", "y")} for _ in range(STEPS)]
    export(model, tuple(batches[0].values()), folder / "model.onnx", log=lambda text: None)
    save_file({f"batch/{k}/{name}": value for k, one in enumerate(batches) for name, value in one.items()}, folder / "data.safetensors")
    def trained(*how):
        return diloco(copy.deepcopy(model), batches, *how)

    wanted = {clips: trained(EVERY, 0.9, clips) for clips in (False, True)}
    controls = {clips: [trained(EVERY, 0, clips), trained(EVERY + 1, 0.9, clips)] for clips in (False, True)}
    controls[True].append(trained(EVERY, 0.9, True, True))
    in_fragments, delayed = trained(EVERY, 0.9, False, False, 1), trained(EVERY, 0.9, False, False, 1, 2, 0.25)
    delayed_controls = [trained(EVERY, 0.9, False, False, 1, 1, 0.25), trained(EVERY, 0.9, False, False, 1, 2, 0.5)]
    for name, (text, clips) in STRATEGIES.items():
        fragments = "fragments" in name
        want, controls_of = (in_fragments, [wanted[False]]) if fragments else (wanted[clips], controls[clips])
        if name.startswith("delayed"):
            want, controls_of = delayed, delayed_controls
        include = f"[<sites/{'fragments' if fragments else 'diloco'}>, <numerics/f64>]"
        if "include" in text:
            first, text = text.split("\n", 1)
            include = include.replace("]", f", {first.split(': ')[1]}]")
        (folder / "strategy.yaml").write_text(
            f"piper: 1\ninclude: {include}\n{text.replace('EVERY', str(EVERY)).replace('{every', f'{{sites: {SITES}, every')}"
            f"train: {{global_batch: {BATCH}, {f'clip_norm: {CLIP}, ' if clips else ''}optimizer: {{{OPTIMIZER[clips]}}}}}\n")
        plans, saved = folder / name, folder / f"{name}.safetensors"
        program(BIN / "piperc", folder / "model.onnx", folder / "strategy.yaml", "-o", plans)
        program(BIN / "piper-run", plans, "--data", folder / "data.safetensors", "--steps", STEPS, "--save", saved)
        got = load_file(saved)
        off = difference(got, want)
        if off > BOUND:
            sys.exit(f"{name}: {off:.1e} from PyTorch")
        for control in controls_of:
            if difference(got, control) < 1e-4:
                sys.exit(f"{name}: the outer optimizer makes no difference")
        print(f"{name}: within {off:.1e} of PyTorch; the controls are {min(difference(got, c) for c in controls_of):.1e} off")


with tempfile.TemporaryDirectory() as made:
    main(pathlib.Path(made))
