"""Writes losses/model.onnx, a small forward-only model in float64; losses/cases.json, losses that a strategy may name
over its outputs; and losses/reference.safetensors: batches, and what three steps of SGD with torch.nn.functional make
of each.

    pip install onnx numpy torch safetensors
    python tests/data/make_losses.py
"""
import json
import pathlib
import numpy as np
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper, save
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent / "losses"
BATCH, IN, HIDDEN, CLASSES, PLACES, STEPS = 8, 6, 8, 5, 4, 3
WIDTH = CLASSES * PLACES
rng = np.random.default_rng(11)
PARAMS = {"fc1.weight": rng.normal(size=(HIDDEN, IN)) * 0.5, "fc1.bias": rng.normal(size=HIDDEN) * 0.1,
          "fc2.weight": rng.normal(size=(WIDTH, HIDDEN)) * 0.5, "fc2.bias": rng.normal(size=WIDTH) * 0.1}


def batch():
    hard = rng.random((BATCH, WIDTH))
    shares = rng.random((BATCH, PLACES, CLASSES)) * (rng.random((BATCH, PLACES, CLASSES)) > 0.3)
    shares = (shares + 1e-300) / (shares + 1e-300).sum(-1, keepdims=True)
    shares[shares < 1e-200] = 0
    return {"x": rng.normal(size=(BATCH, IN)), "target": rng.normal(size=(BATCH, WIDTH)),
            "chance": np.where(hard < 0.3, 0.0, np.where(hard > 0.7, 1.0, hard)), "shares": shares,
            "log_shares": np.log(rng.dirichlet(np.ones(CLASSES), size=(BATCH, PLACES))),
            "labels": rng.integers(0, CLASSES, size=(BATCH, PLACES))}


BATCHES = [batch() for _ in range(STEPS)]
CASES = {
    "output": ("total", lambda o, t: o["total"]),
    "mean": ("{mean: chances}", lambda o, t: o["chances"].mean()),
    "sum": ("{sum: chances}", lambda o, t: o["chances"].sum()),
    "cross_entropy": ("{cross_entropy: {logits: last, labels: labels}}",
                      lambda o, t: F.cross_entropy(o["scores"], t["labels"])),
    "cross_entropy_options": (
        "{cross_entropy: {logits: scores, labels: labels, dim: 1, ignore_index: 2, label_smoothing: 0.125}}",
        lambda o, t: F.cross_entropy(o["scores"], t["labels"], ignore_index=2, label_smoothing=0.125)),
    "cross_entropy_sum": (
        "{cross_entropy: {logits: scores, labels: labels, dim: -2, label_smoothing: 0.25, reduction: sum}}",
        lambda o, t: F.cross_entropy(o["scores"], t["labels"], label_smoothing=0.25, reduction="sum")),
    "mse": ("{mse: {output: out, target: target}}", lambda o, t: F.mse_loss(o["out"], t["target"])),
    "mse_sum": ("{mse: {output: out, target: target, reduction: sum}}",
                lambda o, t: F.mse_loss(o["out"], t["target"], reduction="sum")),
    "mse_of_two_outputs": ("{mse: {output: out, target: chances}}", lambda o, t: F.mse_loss(o["out"], o["chances"])),
    "l1": ("{l1: {output: out, target: target}}", lambda o, t: F.l1_loss(o["out"], t["target"])),
    "smooth_l1": ("{smooth_l1: {output: out, target: target, beta: 0.7}}",
                  lambda o, t: F.smooth_l1_loss(o["out"], t["target"], beta=0.7)),
    "huber": ("{huber: {output: out, target: target, delta: 0.6}}",
              lambda o, t: F.huber_loss(o["out"], t["target"], delta=0.6)),
    "bce": ("{bce: {output: chances, target: chance}}", lambda o, t: F.binary_cross_entropy(o["chances"], t["chance"])),
    "bce_of_0_and_1": ("{bce: {output: hard, target: chance}}",
                       lambda o, t: F.binary_cross_entropy(o["hard"], t["chance"])),
    "bce_with_logits": ("{bce_with_logits: {logits: out, target: chance}}",
                        lambda o, t: F.binary_cross_entropy_with_logits(o["out"], t["chance"])),
    "bce_with_weight": ("{bce_with_logits: {logits: out, target: chance, pos_weight: 3, reduction: sum}}",
                        lambda o, t: F.binary_cross_entropy_with_logits(
                            o["out"], t["chance"], pos_weight=torch.tensor(3.0), reduction="sum")),
    "kl": ("{kl: {output: logs, target: shares}}", lambda o, t: F.kl_div(o["logs"], t["shares"])),
    "kl_batchmean": ("{kl: {output: logs, target: shares, reduction: batchmean}}",
                     lambda o, t: F.kl_div(o["logs"], t["shares"], reduction="batchmean")),
    "kl_of_logs": ("{kl: {output: logs, target: log_shares, log_target: true, reduction: sum}}",
                   lambda o, t: F.kl_div(o["logs"], t["log_shares"], log_target=True, reduction="sum")),
    "several": ("\n  - {mse: {output: out, target: target}, weight: 0.5}\n"
                "  - {cross_entropy: {logits: last, labels: labels}}\n"
                "  - {mean: chances, weight: -0.25}\n"
                "  - {output: total, weight: 2}",
                lambda o, t: 0.5 * F.mse_loss(o["out"], t["target"]) + F.cross_entropy(o["scores"], t["labels"])
                - 0.25 * o["chances"].mean() + 2 * o["total"]),
}


def node(op, inputs, output, scope, **attrs):
    return helper.make_node(op, inputs.split(), [output], name=f"/{scope}/{op}_{output}", **attrs)


def write_model():
    f64, n = TensorProto.DOUBLE, "N"
    nodes = [node("Gemm", "x fc1.weight fc1.bias", "h", "fc1", transB=1), node("Tanh", "h", "a", "act"),
             node("Gemm", "a fc2.weight fc2.bias", "out", "fc2", transB=1),
             node("Reshape", "out to_scores", "scores", "head"), node("Transpose", "scores", "last", "head", perm=[0, 2, 1]),
             node("Sigmoid", "out", "chances", "head"), node("Add", "out half", "shifted", "head"),
             node("Clip", "shifted zero one", "hard", "head"), node("LogSoftmax", "last", "logs", "head", axis=-1),
             node("Mul", "out out", "squares", "head"), node("ReduceMean", "squares", "total", "head", keepdims=0)]
    constants = {"to_scores": np.array([-1, CLASSES, PLACES]), "half": np.float64(0.5), "zero": np.float64(0),
                 "one": np.float64(1)}
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in {**PARAMS, **constants}.items()]
    shapes = {"out": [n, WIDTH], "scores": [n, CLASSES, PLACES], "last": [n, PLACES, CLASSES], "chances": [n, WIDTH],
              "hard": [n, WIDTH], "logs": [n, PLACES, CLASSES], "total": []}
    outputs = [helper.make_tensor_value_info(k, f64, v) for k, v in shapes.items()]
    graph = helper.make_graph(nodes, "losses", [helper.make_tensor_value_info("x", f64, [n, IN])], outputs, tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), OUT / "model.onnx")


def outputs_of(p, x):
    y = torch.tanh(x @ p["fc1.weight"].T + p["fc1.bias"]) @ p["fc2.weight"].T + p["fc2.bias"]
    scores = y.reshape(-1, CLASSES, PLACES)
    last = scores.transpose(1, 2)
    return {"out": y, "scores": scores, "last": last, "chances": torch.sigmoid(y), "hard": (y + 0.5).clamp(0, 1),
            "logs": F.log_softmax(last, -1), "total": (y * y).mean()}


def trained(loss):
    p = {k: torch.tensor(v, requires_grad=True) for k, v in PARAMS.items()}
    optimizer = torch.optim.SGD(p.values(), lr=0.05, momentum=0.9)
    losses = []
    for batch in BATCHES:
        t = {k: torch.tensor(v) for k, v in batch.items()}
        value = loss(outputs_of(p, t["x"]), t)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return np.array(losses), {k: v.detach().numpy() for k, v in p.items()}


def main():
    OUT.mkdir(exist_ok=True)
    write_model()
    tensors = {f"batch/{k}/{name}": v for k, b in enumerate(BATCHES) for name, v in b.items()}
    for name, (_, loss) in CASES.items():
        losses, params = trained(loss)
        tensors[f"{name}/losses"] = losses
        tensors |= {f"{name}/after/{k}": v for k, v in params.items()}
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, OUT / "reference.safetensors")
    cases = {name: text for name, (text, _) in CASES.items()}
    (OUT / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


main()
