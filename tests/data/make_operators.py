"""Writes operators/*.onnx, small forward-only models in float64 of operators that the importer writes out in others, and
operators/*.safetensors: batches, and what three steps of SGD on the mean squared error make of their parameters in
PyTorch.

    pip install onnx numpy onnxscript torch safetensors
    python tests/data/make_operators.py
"""
import pathlib
import numpy as np
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, load, numpy_helper, save
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent / "operators"
N, STEPS = 4, 3
rng = np.random.default_rng(5)
torch.set_default_dtype(torch.float64)


def floats(*shape, scale=0.5):
    return rng.normal(size=shape) * scale


def model(name, x_shape, params, nodes, forward, constants=None, batches=None):
    """nodes: (op, inputs, outputs, attributes) from x to y; forward: of x and the parameters in PyTorch."""
    made = [helper.make_node(op.lstrip("."), i.split(","), o.split(","), name=f"/{op.strip('.').lower()}{k}/{op}",
                             domain="com.microsoft" if op[0] == "." else "", **a) for k, (op, i, o, a) in enumerate(nodes)]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in {**params, **(constants or {})}.items()]
    f64 = TensorProto.DOUBLE
    graph = helper.make_graph(made, name, [helper.make_tensor_value_info("x", f64, ["N", *x_shape])],
                              [helper.make_empty_tensor_value_info("out")], tensors)
    graph.output[0].type.tensor_type.elem_type = f64
    save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]),
         OUT / f"{name}.onnx")
    p = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
    train(name, p, lambda x: forward(x, p), lambda: floats(N, *x_shape, scale=1))


def train(name, p, forward, draw):
    optimizer = torch.optim.SGD(p.values(), lr=0.1, momentum=0.9)
    losses, tensors = [], {}
    for k in range(STEPS):
        x = draw()
        tensors[f"batch/{k}/x"] = x
        target = floats(*forward(torch.tensor(x)).shape, scale=1)
        tensors[f"batch/{k}/target"] = target
        loss = F.mse_loss(forward(torch.tensor(x)), torch.tensor(target))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tensors |= {"losses": np.array(losses)} | {f"after/{k}": v.detach().numpy() for k, v in p.items()}
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, OUT / f"{name}.safetensors")


def gates(w, order, h):  # rows of PyTorch's gates in ONNX's order
    return torch.cat([w[k * h:(k + 1) * h] for k in order])


def run_torch(kind, order, x, p, h, directions, steps_first=False, **options):
    """PyTorch's layer with ONNX's W, R, B, whose gates stand in another order."""
    layer = getattr(torch.nn, kind)(x.shape[2], h, bidirectional=directions == 2, batch_first=True, **options)
    back = np.argsort(order)
    g = len(order)
    weights = {}
    for d in range(directions):
        end = "_l0" + ("_reverse" if d else "")
        b = p["B"][d]
        weights |= {"weight_ih" + end: gates(p["W"][d], back, h), "weight_hh" + end: gates(p["R"][d], back, h),
                    "bias_ih" + end: gates(b[:g * h], back, h), "bias_hh" + end: gates(b[g * h:], back, h)}
    y, _ = torch.func.functional_call(layer, weights, (x,))
    return y


def recurrent():
    T, I, H = 5, 3, 4
    for kind, op, order, attrs, options in (("LSTM", "LSTM", [0, 3, 1, 2], {}, {}),
                                            ("GRU", "GRU", [1, 0, 2], {"linear_before_reset": 1}, {}),
                                            ("RNN", "RNN", [0], {"activations": ["Relu", "Relu"]}, {"nonlinearity": "relu"})):
        g = len(order)
        params = {"W": floats(2, g * H, I), "R": floats(2, g * H, H), "B": floats(2, 2 * g * H)}
        model(kind.lower(), [T, I], params,
              [("Transpose", "x", "t", {"perm": [1, 0, 2]}),
               (op, "t,W,R,B", "s", {"hidden_size": H, "direction": "bidirectional", **attrs}),
               ("Transpose", "s", "u", {"perm": [2, 0, 1, 3]}), ("Reshape", "u,shape", "out", {})],
              lambda x, p: run_torch(kind, order, x, p, H, 2, **options), {"shape": np.array([0, 0, 2 * H])})


def sampled():
    model("grid_sample", [2, 4, 3], {"w": floats(24, 18), "v": floats(3, 2, 1, 1)},
          [("Conv", "x,v", "image", {"kernel_shape": [1, 1]}), ("Reshape", "x,flat", "rows", {}), ("MatMul", "rows,w", "places", {}),
           ("Reshape", "places,grid_shape", "grid", {}),
           ("GridSample", "image,grid", "out", {"mode": "linear", "padding_mode": "reflection"})],
          lambda x, p: F.grid_sample(F.conv2d(x, p["v"]), (x.reshape(-1, 24) @ p["w"]).reshape(-1, 3, 3, 2),
                                     padding_mode="reflection", align_corners=False),
          {"flat": np.array([-1, 24]), "grid_shape": np.array([-1, 3, 3, 2])})


def quantised():
    def fake(x, scale, zero, low, high):
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, low, high)
    model("fake_quantised", [6], {"w": floats(6, 5)},
          [("QuantizeLinear", "x,sx,zx", "qx", {}), ("DequantizeLinear", "qx,sx,zx", "fx", {}),
           ("QuantizeLinear", "w,sw,zw", "qw", {}), ("DequantizeLinear", "qw,sw,zw", "fw", {}), ("MatMul", "fx,fw", "h", {}),
           ("QuantizeLinear", "h,sh,zx", "qh", {}), ("DequantizeLinear", "qh,sh,zx", "out", {})],
          lambda x, p: fake(fake(x, 0.0625, 128, 0, 255) @ fake(p["w"], 0.03125, 0, -128, 127), 0.015625, 128, 0, 255),
          {"sx": np.float64(0.0625), "zx": np.uint8(128), "sw": np.float64(0.03125), "zw": np.int8(0), "sh": np.float64(0.015625)})


def transformed():
    def spectrum(x, p):
        return torch.view_as_real(torch.fft.rfft((x @ p["w"]), dim=1))
    model("dft", [6], {"w": floats(6, 8)},
          [("MatMul", "x,w", "h", {}), ("Unsqueeze", "h,last", "u", {}), ("DFT", "u,,axis", "out", {"onesided": 1})], spectrum,
          {"last": np.array([2]), "axis": np.array(1)})
    model("col2im", [2, 3], {"w": floats(3, 12)},
          [("MatMul", "x,w", "h", {}), ("Transpose", "h", "t", {"perm": [0, 2, 1]}), ("Reshape", "t,blocks", "b", {}),
           ("Col2Im", "b,image,block", "out", {"strides": [1, 2]})],
          lambda x, p: F.fold((x @ p["w"]).transpose(1, 2).reshape(-1, 4, 6), (4, 4), (2, 2), stride=(1, 2)),
          {"blocks": np.array([-1, 4, 6]), "image": np.array([4, 4]), "block": np.array([2, 2])})


def attention():
    H, heads = 6, 2

    def split(x):
        return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

    def forward(x, p):
        q, k, v = (split(part) for part in (x @ p["w"] + p["b"]).split(H, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(*x.shape)
        return F.gelu(F.layer_norm(y + x, (H,), p["g"], p["c"], 1e-5) + p["d"])
    model("fused_attention", [5, H], {"w": floats(H, 3 * H), "b": floats(3 * H), "g": floats(H), "c": floats(H), "d": floats(H)},
          [(".Attention", "x,w,b", "h", {"num_heads": heads, "unidirectional": 1}),
           (".SkipLayerNormalization", "h,x,g,c", "n", {"epsilon": 1e-5}), (".BiasGelu", "n,d", "out", {})], forward)


class Bags(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.EmbeddingBag(10, 3, mode=mode) for mode in ("sum", "mean", "max"))
        self.w = torch.nn.Parameter(torch.tensor(floats(5)))

    def forward(self, x):
        return torch.cat([self.a(x, per_sample_weights=self.w.expand(x.shape)), self.b(x), self.c(x)], 1)


class UnevenBags(torch.nn.Module):
    """Bags that begin where a count of the tokens above 3 says, of which some are empty."""
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.EmbeddingBag(10, 3, mode=mode) for mode in ("sum", "mean", "max"))

    def forward(self, x):
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), (x > 3).sum(1).cumsum(0)[:-1]])
        return torch.cat([bag(x.flatten(), starts) for bag in (self.a, self.b, self.c)], 1)


def strip(graph, within=False):
    for node in graph.node:
        for entry in [e for e in node.metadata_props if within or not e.key.endswith(("fx_node", "name_scopes"))]:
            node.metadata_props.remove(entry)
        for attribute in node.attribute:
            strip(attribute.g, True)


def export(name, module, x):
    torch.onnx.export(module, (torch.tensor(x),), OUT / f"{name}.onnx", dynamo=True, dynamic_shapes=({0: torch.export.Dim("N", min=2)},),
                      input_names=["x"], output_names=["out"], opset_version=20, external_data=False, verbose=False)
    file = load(OUT / f"{name}.onnx")
    strip(file.graph)
    save(file, OUT / f"{name}.onnx")


def bags():
    torch.manual_seed(4)
    draw = lambda: rng.integers(0, 10, (N, 5))  # noqa: E731
    for name, module in ("bags", Bags()), ("uneven_bags", UnevenBags()):
        export(name, module, draw())
        train(name, dict(module.named_parameters()), module, draw)
    for name, options in ("padded_bags", {"padding_idx": 3}), ("bags_by_frequency", {"scale_grad_by_freq": True}):  # not supported
        export(name, torch.nn.EmbeddingBag(10, 3, **options), draw())


def determinants():
    model("det", [3, 4, 4], {"w": floats(4, 4)}, [("MatMul", "x,w", "h", {}), ("Det", "h", "out", {})],
          lambda x, p: torch.linalg.det(x @ p["w"]))


OUT.mkdir(exist_ok=True)
for part in (recurrent, sampled, quantised, transformed, attention, determinants, bags):
    part()
