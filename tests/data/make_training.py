"""Writes training/*.onnx, a small model with training_info for each optimizer of ai.onnx.preview.training, and what a
few steps make of it in float64 by the operators' pseudo code; and variants that are refused.

    pip install onnx numpy
    python tests/data/make_training.py
"""
import json
import pathlib
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OUT = pathlib.Path(__file__).parent / "training"
DOMAIN = "ai.onnx.preview.training"
BATCH, STEPS = 8, 4
rng = np.random.default_rng(11)
START = {"w": rng.normal(size=(4, 2)).astype(np.float32), "b": rng.normal(size=2).astype(np.float32),
         "s": rng.normal(size=2).astype(np.float32)}
BATCHES = [{"x": rng.normal(size=(BATCH, 4)).astype(np.float32), "y": rng.normal(size=(BATCH, 2)).astype(np.float32)} for _ in range(STEPS)]


def f32(name, value, shape=None):
    value = np.asarray(value, np.float32)
    return numpy_helper.from_array(value if shape is None else np.broadcast_to(value, shape).copy(), name)


def i64(name, value):
    return numpy_helper.from_array(np.asarray(value, np.int64), name)


def forward():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"], name="/fc/MatMul"), helper.make_node("Add", ["xw", "b"], ["h"], name="/fc/Add"),
             helper.make_node("Mul", ["h", "s"], ["z"], name="/scale/Mul")]
    return helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
                             [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 2])],
                             [numpy_helper.from_array(v, k) for k, v in START.items()])


LOSS = [helper.make_node("Sub", ["z", "y"], ["error"]), helper.make_node("Mul", ["error", "error"], ["square"]),
        helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0)]
STATES = {"Adagrad": ["H"], "Adam": ["V", "H"], "Momentum": ["V"]}


def model(updates, count=0, counted=False, edit=None):
    """`updates`: (op, parameters, attributes, rate, first accumulator)"""
    names = [p for _, parameters, *_ in updates for p in parameters]
    nodes = [*LOSS, helper.make_node("Gradient", [*names, "x"], [f"d{n}" for n in names], domain=DOMAIN, xs=names, zs=["x"], y="loss")]
    constants, bindings = [i64("T", count), i64("one", 1)], {"T": "T_next"}
    nodes.append(helper.make_node("Add", ["T", "one"], ["T_next"]))
    for k, (op, parameters, attributes, rate, start) in enumerate(updates):
        constants.append(f32(f"R{k}", rate))
        states = [[f"{p}.{s}" for p in parameters] for s in STATES[op]]
        for group in states:
            constants += [f32(s, start, START[s.split(".")[0]].shape) for s in group]
        flat = [s for group in states for s in group]
        outputs = [*[f"{p}_next" for p in parameters], *[f"{s}_next" for s in flat]]
        bindings.update(zip([*parameters, *flat], outputs))
        nodes.append(helper.make_node(op, [f"R{k}", "T_next" if counted else "T", *parameters, *[f"d{p}" for p in parameters], *flat], outputs,
                                      domain=DOMAIN, **attributes))
    algorithm = helper.make_graph(nodes, "step", [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
                                  [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], constants)
    info = onnx.TrainingInfoProto()
    info.algorithm.CopyFrom(algorithm)
    for key, value in bindings.items():
        info.update_binding.add(key=key, value=value)
    made = helper.make_model(forward(), opset_imports=[helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)], ir_version=8)
    made.training_info.append(info)
    if edit:
        edit(made)
    return made


def update(op, a, rate, t, x, g, state):
    g = a.get("norm_coefficient", 0) * x + g
    if op == "Adagrad":
        h = state[0] + g * g
        return x - rate / (1 + t * a.get("decay_factor", 0)) * g / (np.sqrt(h) + a.get("epsilon", 1e-6)), [h]
    alpha, beta = a.get("alpha", 0.9), a.get("beta", 0.999)
    if op == "Adam":
        v, h = alpha * state[0] + (1 - alpha) * g, beta * state[1] + (1 - beta) * g * g
        r = rate * np.sqrt(1 - beta**t) / (1 - alpha**t) if t > 0 else rate
        return (1 - a.get("norm_coefficient_post", 0)) * (x - r * v / (np.sqrt(h) + a.get("epsilon", 1e-6))), [v, h]
    v = alpha * state[0] + (beta if t > 0 else 1) * g
    return x - rate * (g + alpha * v if a["mode"] == "nesterov" else v), [v]


def descend(updates, count, counted):
    p = {k: v.astype(np.float64) for k, v in START.items()}
    states = {n: [np.full(START[n].shape, float(np.float32(start))) for _ in STATES[op]] for op, names, _, _, start in updates for n in names}
    losses = []
    for k, batch in enumerate(BATCHES):
        x, y = batch["x"].astype(np.float64), batch["y"].astype(np.float64)
        h = x @ p["w"] + p["b"]
        error = h * p["s"] - y
        losses.append(float((error**2).mean()))
        dz = 2 * error / error.size
        g = {"w": x.T @ (dz * p["s"]), "b": (dz * p["s"]).sum(0), "s": (dz * h).sum(0)}
        t = count + k + (1 if counted else 0)
        for op, names, attributes, rate, _ in updates:
            a = {key: float(np.float32(v)) if isinstance(v, float) else v for key, v in attributes.items()}
            for n in names:
                p[n], states[n] = update(op, a, float(np.float32(rate)), t, p[n], g[n], states[n])
    return {"losses": losses, "parameters": {k: [float(e) for e in v.ravel()] for k, v in p.items()}}


MOMENTUM = dict(alpha=0.9, beta=0.8, norm_coefficient=0.01, mode="standard")
GOOD = {
    "momentum": ([("Momentum", ["w", "b", "s"], MOMENTUM, 0.1, 0)], 0, False),
    "nesterov": ([("Momentum", ["w", "b", "s"], {**MOMENTUM, "mode": "nesterov"}, 0.1, 0)], 3, True),
    "adam": ([("Adam", ["w", "b", "s"], dict(alpha=0.8, beta=0.99, epsilon=1e-3, norm_coefficient=0.02, norm_coefficient_post=0.01), 0.05, 0)], 0, False),
    "adam_counted": ([("Adam", ["w", "b", "s"], {}, 0.05, 0)], 0, True),
    "adagrad": ([("Adagrad", ["w", "b", "s"], dict(decay_factor=0.1, epsilon=1e-4, norm_coefficient=0.02), 0.05, 0.25)], 2, False),
    # A frozen parameter, and two optimizers.
    "mixed": ([("Adam", ["w"], {}, 0.02, 0), ("Momentum", ["b"], MOMENTUM, 0.1, 0)], 0, False),
}


def rewired(old, new):
    def edit(made):
        for node in made.training_info[0].algorithm.node:
            if node.domain == DOMAIN and node.op_type != "Gradient":
                node.input[:] = [new if i == old else i for i in node.input]
    return edit


def clipped(made):
    made.training_info[0].algorithm.node.insert(4, helper.make_node("Tanh", ["dw"], ["dw_small"]))
    rewired("dw", "dw_small")(made)


def unbound(made):
    del made.training_info[0].update_binding[1]


def extra(made):
    made.training_info[0].update_binding.add(key="one", value="T_next")


def elsewhere(made):
    made.training_info[0].algorithm.node[3].input[0] = "b"


PLAIN = [("Momentum", ["w", "b", "s"], MOMENTUM, 0.1, 0)]
REFUSED = {
    "refused_clipped": model(PLAIN, edit=clipped),
    "refused_unbound": model(PLAIN, edit=unbound),
    "refused_binding": model(PLAIN, edit=extra),
    "refused_point": model(PLAIN, edit=elsewhere),
    "refused_rate": model(PLAIN, edit=rewired("R0", "x")),
    "refused_count": model(PLAIN, edit=rewired("T", "one")),
    "refused_state": model([("Momentum", ["w", "b", "s"], MOMENTUM, 0.1, 0.5)]),
    "refused_two": model(PLAIN, edit=lambda made: made.training_info.append(made.training_info[0])),
}

OUT.mkdir(exist_ok=True)
reference = {"batches": [{k: [float(e) for e in v.ravel()] for k, v in b.items()} for b in BATCHES], "models": {}}
for name, arguments in GOOD.items():
    made = model(*arguments)
    onnx.checker.check_model(made)
    onnx.save(made, OUT / f"{name}.onnx")
    reference["models"][name] = descend(*arguments)
for name, made in REFUSED.items():
    onnx.save(made, OUT / f"{name}.onnx")
(OUT / "reference.json").write_text(json.dumps(reference) + "\n")
