"""Writes optimizers.json: what torch.optim.Muon and Adafactor make of tensors in float64.

    python tests/data/make_optimizers.py

Muon of PyTorch iterates in bfloat16; here its casts to that type do nothing, so that the numbers are
those of its formulas.
"""
import json
import pathlib

import torch

STEPS = 6


def trained(optimizer, shape, settings):
    torch.manual_seed(len(shape) * 100 + shape[0])
    weight = torch.nn.Parameter(torch.randn(shape, dtype=torch.float64))
    gradients = [torch.randn(shape, dtype=torch.float64) * (k + 1) for k in range(STEPS)]
    start = weight.detach().flatten().tolist()
    step = getattr(torch.optim, optimizer)([weight], **settings)
    after = []
    for gradient in gradients:
        weight.grad = gradient.clone()
        step.step()
        after.append(weight.detach().flatten().tolist())
    return {"start": start, "gradients": [g.flatten().tolist() for g in gradients], "after": after}


def case(optimizer, shape, torch_settings, **ours):
    settings = {**torch_settings, **ours}
    for key in ("eps", "adjust_lr_fn"):
        settings.pop(key, None)
    return {"optimizer": optimizer.lower(), "shape": list(shape), "settings": settings,
            **trained(optimizer, shape, torch_settings)}


def main():
    torch.Tensor.bfloat16 = lambda self: self.clone()
    cases = [
        case("Muon", (6, 4), {"lr": 0.02, "weight_decay": 0.1}),
        case("Muon", (3, 5), {"lr": 0.05, "weight_decay": 0.0, "momentum": 0.8, "nesterov": False}),
        case("Muon", (4, 8), {"lr": 0.02, "weight_decay": 0.1, "ns_steps": 3,
                              "adjust_lr_fn": "match_rms_adamw"}, adjust_lr="match_rms_adamw"),
        case("Adafactor", (6, 4), {"lr": 0.1, "weight_decay": 0.1}),
        case("Adafactor", (2, 3, 4), {"lr": 0.02}),
        case("Adafactor", (7,), {"lr": 0.1, "beta2_decay": -0.5, "d": 1.5, "eps": (1e-3, 0.5)},
             eps1=1e-3, eps2=0.5),
    ]
    path = pathlib.Path(__file__).with_name("optimizers.json")
    path.write_text(json.dumps(cases, indent=None) + "\n")


main()
