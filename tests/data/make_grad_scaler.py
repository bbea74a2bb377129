"""Trains the exported model `mlp` in PyTorch, in f16 with torch.amp.GradScaler; writes grad_scaler.json.

python3 make_grad_scaler.py MODELS > grad_scaler.json     (torch, safetensors)
"""

import json
import sys

import torch
from safetensors.torch import load_file
from torch import nn

STEPS = 16
# The first scales overflow f16 in the backward pass; later the scale grows until they do again.
SCALER = dict(init_scale=2.0**28, growth_factor=4096.0, backoff_factor=2.0**-12, growth_interval=3)

tensors = load_file(f"{sys.argv[1]}/mlp/reference.safetensors")
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
names = [key[len("init/") :] for key in tensors if key.startswith("init/")]
prefix = next(name[: name.index("0.weight")] for name in names if name.endswith("0.weight"))
model.load_state_dict({name[len(prefix) :]: tensors[f"init/{name}"] for name in names})
torch.set_num_threads(1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
scaler = torch.amp.GradScaler("cpu", **SCALER)
losses, scales, skipped = [], [], []
for k in range(STEPS):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(tensors[f"batch/{k}/x"]), tensors[f"batch/{k}/y"])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    losses.append(loss.item())
    scales.append(scaler.get_scale())
    skipped.append(0 if finite else 1)
    scaler.step(optimizer)
    scaler.update()
doc = {
    "train": "optimizer: {adamw: {lr: 3e-3, betas: [0.9, 0.95], eps: 1e-6, weight_decay: 0.1}}, clip_norm: 1.0",
    "loss_scale": "{" + ", ".join(f"{k}: {v!r}" for k, v in SCALER.items()) + "}",
    "losses": losses,
    "scales": scales,
    "skipped": skipped,
}
print(json.dumps(doc, indent=1))
