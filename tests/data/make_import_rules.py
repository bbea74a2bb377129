"""Writes import_rules.json: uses of ONNX operators with the results of ONNX's reference evaluator.

    pip install onnx numpy
    python tests/data/make_import_rules.py > tests/data/import_rules.json
"""
import json
import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator



def floats(*shape, low=-1.0, step=0.375, seed=5):
    n = int(np.prod(shape))
    return ((np.arange(n) * seed) % 11 * step + low).astype(np.float32).reshape(shape)


def ints(*values, shape=None):
    out = np.array(values, dtype=np.int64)
    return out.reshape(shape) if shape is not None else out


class Const:  # an initializer instead of an input
    def __init__(self, value):
        self.value = np.asarray(value)


def number(x):  # JSON has no infinity: a number that no f32 holds
    if isinstance(x, np.floating) and np.isinf(x):
        return 1e39 if x > 0 else -1e39
    return bool(x) if isinstance(x, np.bool_) else int(x) if isinstance(x, np.integer) else float(np.float32(x))


def tensor(value, constant):
    kind = {"float32": "f32", "int64": "i64", "int32": "i32", "bool": "bool"}[str(value.dtype)]
    return {"type": kind, "shape": list(value.shape), "data": [number(v) for v in value.ravel()], "constant": constant}


# `results`: of operators whose older versions the evaluator does not know.
def case(op, inputs, opset=18, outputs=1, results=None, **attrs):
    names = [f"in{i}" for i in range(len(inputs))]
    node = helper.make_node(op, ["" if v is None else n for n, v in zip(names, inputs)],
                            [f"out{i}" for i in range(outputs)], **attrs)
    feeds = {n: v.value if isinstance(v, Const) else v for n, v in zip(names, inputs) if v is not None}
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()]
    outs = [helper.make_empty_tensor_value_info(f"out{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "g", infos, outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    if results is None:
        results = ReferenceEvaluator(model).run(None, feeds)
    return {"op": op, "opset": opset, "attrs": attrs,
            "inputs": [None if v is None else tensor(feeds[n], isinstance(v, Const)) for n, v in zip(names, inputs)],
            "outputs": [tensor(np.asarray(r), False) for r in results]}


# By the definitions of the older versions.
def lp_pool(x, h, w, p):
    y = np.stack([(np.abs(x[:, :, i:i + x.shape[2] - h + 1, j:j + x.shape[3] - w + 1]) ** p) for i in range(h) for j in range(w)])
    return (y.sum(0) ** (1 / p)).astype(np.float32)


def attended(q, k, v, scale):
    scores = scale * (q @ k.swapaxes(2, 3))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).astype(np.float32)


def scattered(x, places, values):
    out = x.copy()
    for k, place in enumerate(places):
        out[0, place, k] = values[0, 0, k]
    return out


def resized(x, down, right, mode):  # output o stands at o / scale of the input
    def along(x, scale, axis):
        at = np.arange(x.shape[axis] * scale) / scale
        low = np.floor(at).astype(int)
        if mode == "nearest":
            return np.take(x, low, axis)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        share = (at - low).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        return np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return along(along(x, down, 2), right, 3).astype(np.float32)


# An operator as its newest version computes it, for an older one that does the same otherwise.
def as_new(op, inputs, old, new):
    made = case(op, new.pop("inputs", inputs), new.pop("opset", 18), **new)
    made["opset"], made["attrs"] = old.pop("opset"), old
    made["inputs"] = [None if v is None else tensor(v.value if isinstance(v, Const) else v, isinstance(v, Const)) for v in inputs]
    return made


# Before opset 13: along all dims from `axis` on.
def flat(op, x, opset, **attrs):
    axis = attrs.get("axis", 1)
    made = case(op, [x.reshape(*x.shape[:axis], -1)], axis=-1)["outputs"][0]
    return case(op, [x], opset, results=[np.array(made["data"], np.float32).reshape(x.shape)], **attrs)


X = floats(2, 3, 4)
OLDER = [
    flat("Softmax", X, 11, axis=1), flat("LogSoftmax", X, 11), flat("Hardmax", X, 11, axis=1), flat("Softmax", X, 1, axis=2), flat("Softmax", floats(2, 3, 2, 2), 9, axis=2),
    *[as_new(op, [X, floats(3, low=0.5, seed=7)], dict(opset=6, broadcast=1, axis=1), dict(inputs=[X, floats(3, 1, low=0.5, seed=7)])) for op in ["Add", "Sub", "Mul", "Div"]],
    as_new("Add", [X, floats(3, 4, seed=7)], dict(opset=1, broadcast=1), {}), as_new("Sub", [X, floats(2, 3, seed=7)], dict(opset=6, broadcast=1, axis=0), dict(inputs=[X, floats(2, 3, 1, seed=7)])),
    as_new("Mul", [X, floats(seed=7)], dict(opset=6, broadcast=1), {}), as_new("Pow", [floats(2, 3, low=0.5), floats(2)], dict(opset=1, broadcast=1, axis=0), dict(inputs=[floats(2, 3, low=0.5), floats(2, 1)])),
    as_new("Greater", [X, floats(3, seed=7)], dict(opset=1, broadcast=1, axis=1), dict(inputs=[X, floats(3, 1, seed=7)])), as_new("And", [X > 0, X[0, :, 0] < 1], dict(opset=1, broadcast=1, axis=1), dict(inputs=[X > 0, X[0, :, :1] < 1])),
    as_new("PRelu", [X, floats(3, seed=7)], dict(opset=6), dict(inputs=[X, floats(3, 1, seed=7)])), as_new("PRelu", [X, floats(1, seed=7)], dict(opset=1), {}), as_new("PRelu", [X, floats(4, seed=7)], dict(opset=7), {}),
    as_new("Abs", [X], dict(opset=1), {}), as_new("Max", [X, floats(2, 3, 4, seed=7)], dict(opset=6), {}), as_new("Sum", [X, X, X], dict(opset=1), {}), as_new("Mean", [X, X], dict(opset=6), {}),
    as_new("Cast", [X], dict(opset=1, to="INT64"), dict(to=TensorProto.INT64)), as_new("Cast", [ints(1, 0, 3)], dict(opset=5, to="FLOAT"), dict(to=TensorProto.FLOAT)),
    as_new("Reshape", [X], dict(opset=1, shape=[0, -1]), dict(inputs=[X, Const(ints(0, -1))])), as_new("Tile", [floats(2, 3), Const(ints(2)), Const(ints(1))], dict(opset=5), dict(inputs=[floats(2, 3), Const(ints(1, 2))])),
    as_new("Pad", [floats(2, 3)], dict(opset=1, paddings=[1, 0, 0, 2], value=9.5), dict(inputs=[floats(2, 3), Const(ints(1, 0, 0, 2)), Const(np.float32(9.5))])),
    as_new("Concat", [X, floats(2, 1, 4)], dict(opset=3), dict(axis=1)), as_new("Split", [X], dict(opset=1, axis=2, split=[1, 3]), dict(inputs=[X, Const(ints(1, 3))], axis=2, outputs=2)),
    as_new("Gemm", [floats(2, 3), floats(3, 4), floats(4)], dict(opset=6, broadcast=1), {}), as_new("Selu", [X], dict(opset=1), dict(alpha=1.6732, gamma=1.0507)),
    as_new("MaxPool", [floats(1, 2, 5, 4)], dict(opset=1, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 0, 0, 0]), dict(kernel_shape=[2, 2], strides=[2, 2], pads=[1, 0, 0, 0])),
    as_new("AveragePool", [floats(1, 2, 4, 6)], dict(opset=1, kernel_shape=[2, 3], strides=[2, 3], pads=[0, 1, 0, 1]), dict(kernel_shape=[2, 3], strides=[2, 3], pads=[0, 1, 0, 1])),
    as_new("LpPool", [floats(1, 2, 4, 6)], dict(opset=1, kernel_shape=[2, 3], p=2.5), dict(kernel_shape=[2, 3], results=[lp_pool(floats(1, 2, 4, 6), 2, 3, 2.5)])),
    as_new("GlobalLpPool", [floats(1, 2, 4, 6)], dict(opset=1, p=1.0), dict(results=[np.abs(floats(1, 2, 4, 6)).sum((2, 3), keepdims=True)])),
    *[as_new("BatchNormalization", [floats(2, 3, 5), floats(3), floats(3, seed=3), Const(floats(3, seed=2)), Const(floats(3, low=0.5))], dict(opset=v, epsilon=0.001, **more), dict(epsilon=0.001))
      for v, more in [(1, dict(is_test=1)), (6, dict(is_test=1)), (7, dict(spatial=1)), (7, {})]],
    as_new("InstanceNormalization", [floats(2, 3, 5), floats(3), floats(3, seed=3)], dict(opset=1), {}), as_new("Dropout", [X], dict(opset=1, is_test=1), {}), as_new("Dropout", [X], dict(opset=7, ratio=0.25), {}),
    as_new("LayerNormalization", [X, floats(4), floats(4, seed=3)], dict(opset=11, axis=-1), dict(axis=-1)), as_new("Gelu", [X], dict(opset=14), dict(opset=20)),
    as_new("Scatter", [X, Const(ints(2, 0, 1, shape=(1, 1, 3))), floats(1, 1, 3, seed=7)], dict(opset=9, axis=1), dict(results=[scattered(X, [2, 0, 1], floats(1, 1, 3, seed=7))], axis=1)),
    *[as_new(op, [floats(1, 1, 2, 3), *scales], dict(opset=v, mode=mode, **attrs), dict(results=[resized(floats(1, 1, 2, 3), 2, 3, mode)]))
      for op, v, scales, attrs in [("Upsample", 7, [], dict(scales=[1.0, 1.0, 2.0, 3.0])), ("Upsample", 9, [Const(np.array([1, 1, 2, 3], np.float32))], {}), ("Resize", 10, [Const(np.array([1, 1, 2, 3], np.float32))], {})]
      for mode in ("nearest", "linear")],
    # Labels and indices of 32 bits.
    as_new("GatherElements", [X, ints(2, 0, 1, 3, 1, 0, shape=(2, 3, 1)).astype(np.int32)], dict(opset=13, axis=2), dict(inputs=[X, ints(2, 0, 1, 3, 1, 0, shape=(2, 3, 1))], axis=2)),
    as_new("ScatterElements", [X, Const(ints(2, 0, 1, shape=(1, 1, 3)).astype(np.int32)), floats(1, 1, 3, seed=7)], dict(opset=13, axis=1), dict(results=[scattered(X, [2, 0, 1], floats(1, 1, 3, seed=7))], axis=1)),
    as_new("SoftmaxCrossEntropyLoss", [floats(4, 3), ints(2, 0, -100, 1).astype(np.int32)], dict(opset=13, ignore_index=-100), dict(inputs=[floats(4, 3), ints(2, 0, -100, 1)], ignore_index=-100)),
    as_new("NegativeLogLikelihoodLoss", [floats(4, 3), ints(2, 0, 1, 1).astype(np.int32), floats(3, low=0.5)], dict(opset=13), dict(inputs=[floats(4, 3), ints(2, 0, 1, 1), floats(3, low=0.5)])),
]
CASES = [
    *[case(op, [X]) for op in ["Abs", "Neg", "Exp", "Tanh", "Sigmoid", "Erf", "Relu", "Sin", "Cos", "Sign", "Floor", "Ceil", "Round", "Softplus", "HardSwish"]],
    *[case(op, [floats(2, 3, low=0.5)]) for op in ["Log", "Sqrt", "Reciprocal"]],
    *[case(op, [X, floats(3, 1, seed=7)]) for op in ["Add", "Sub", "Mul", "Max", "Min", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"]],
    case("Div", [X, floats(4, low=0.5)]), case("Pow", [floats(5, low=0.5), Const(np.float32(2))]), case("Pow", [X, Const(np.float32(3))]),
    case("Pow", [floats(5, low=0.5), Const(np.float32(0.5))]), case("Pow", [floats(5, low=0.5), Const(np.float32(1.7))]),
    case("Sum", [X, floats(4), floats(3, 1)]), case("Mean", [X, floats(4), floats(3, 1)]), case("Where", [X > 0, X, floats(4)]),
    case("Mod", [ints(7, -7, 5, -5), ints(3, 3, -3, -3)]), case("Clip", [X, Const(np.float32(-0.5)), Const(np.float32(1))]), case("Clip", [X, None, Const(np.float32(1))]),
    case("LeakyRelu", [X], alpha=0.1), case("Elu", [X], alpha=1.5), case("HardSigmoid", [X], alpha=0.3, beta=0.4), case("PRelu", [X, floats(4)]),
    case("Gelu", [X], opset=20), case("Gelu", [X], opset=20, approximate="tanh"), case("Cast", [X], to=TensorProto.INT64), case("Cast", [ints(1, 0, 3)], to=TensorProto.FLOAT),
    case("Reshape", [X, Const(ints(0, -1))]), case("Reshape", [X, Const(ints(4, 3, 2))]), case("Flatten", [X], axis=2), case("Flatten", [X], axis=-3),
    case("Squeeze", [floats(1, 3, 1), Const(ints(0))]), case("Squeeze", [floats(1, 3, 1)]), case("Unsqueeze", [X, Const(ints(0, -1))]),
    case("Transpose", [X]), case("Transpose", [X], perm=[1, 2, 0]), case("Expand", [floats(3, 1), Const(ints(2, 1, 4))]), case("Tile", [floats(2, 3), Const(ints(2, 3))]),
    case("Tile", [floats(1, 3), Const(ints(4, 1))]), case("Concat", [X, floats(2, 1, 4)], axis=1), case("Identity", [X]),
    case("Slice", [X, Const(ints(1)), Const(ints(3)), Const(ints(-1))]), case("Slice", [X, Const(ints(-1, 10)), Const(ints(-100, 0)), Const(ints(1, 2)), Const(ints(-1, -2))]),
    case("Slice", [X, Const(ints(2**63 - 1)), Const(ints(-2**63)), Const(ints(0)), Const(ints(-1))]),
    case("Split", [X, Const(ints(1, 3))], outputs=2, axis=2), case("Split", [X], outputs=2, axis=2, num_outputs=2), case("Split", [floats(7)], outputs=3, num_outputs=3),
    case("Pad", [floats(2, 3), Const(ints(1, 0, 0, 2)), Const(np.float32(9))]),
    case("Gather", [X, Const(ints(2, 0, -1, 1, shape=(2, 2)))], axis=1), case("Gather", [X, Const(ints(-1, shape=()))], axis=2), case("Gather", [X, ints(1, 0)], axis=0),
    case("GatherND", [X, Const(ints(0, 1, 1, 2, shape=(2, 2)))]), case("GatherND", [X, Const(ints(0, 2, 1, 2, shape=(2, 2)))]), case("GatherND", [X, ints(0, 2, shape=(2, 1))], batch_dims=1),
    case("OneHot", [ints(2, 0, -1), Const(ints(4, shape=())), Const(np.array([0.5, 2], np.float32))], axis=-1), case("OneHot", [Const(ints(2, 0, 3, 1, shape=(2, 2))), Const(ints(4, shape=())), Const(np.array([0, 1], np.float32))], axis=1),
    case("Trilu", [floats(2, 3, 4)], upper=0), case("Trilu", [floats(3, 4), Const(ints(1, shape=()))], upper=1), case("CumSum", [X, Const(ints(1, shape=()))]), case("CumSum", [X, Const(ints(-1, shape=()))], exclusive=1, reverse=1),
    *[case(op, [X, Const(ints(0, -1))], keepdims=k) for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"] for k in (0, 1)],
    case("ReduceMean", [X]), case("ReduceSum", [X], noop_with_empty_axes=1), case("ReduceLogSum", [floats(2, 3, low=0.5), Const(ints(1))]),
    case("Softmax", [X], axis=1), case("LogSoftmax", [X]), case("GlobalAveragePool", [floats(2, 3, 4, 4)]), case("AveragePool", [floats(1, 2, 4, 6)], kernel_shape=[2, 3], strides=[2, 3]), case("AveragePool", [floats(1, 2, 4, 6)], kernel_shape=[2, 3], count_include_pad=1),
    case("MaxPool", [floats(1, 2, 5, 4)], kernel_shape=[2, 2], strides=[2, 2]),
    case("MatMul", [X, floats(4, 2)]), case("MatMul", [ints(*range(-5, 7), shape=(2, 3, 2)), ints(3, -1, 4, 1, -5, 9, 2, 6, shape=(2, 4))]), case("MatMul", [ints(2, 3), ints(-4, 5)]), case("MatMul", [floats(4), floats(2, 4, 3)]), case("MatMul", [X, floats(4)]), case("MatMul", [floats(4), floats(4, seed=3)]),
    case("Gemm", [floats(3, 2), floats(4, 3, seed=3), floats(4)], transA=1, transB=1, alpha=0.5, beta=2.0), case("Gemm", [floats(2, 3), floats(3, 4)]),
    case("Conv", [floats(2, 3, 4, 6), floats(5, 3, 2, 3, seed=3), floats(5)], strides=[2, 3], kernel_shape=[2, 3]),
    case("Einsum", [X, floats(2, 4, 5, seed=3)], equation="bij,bjk->bik"), case("Einsum", [X, floats(4, 5, seed=3)], equation="bij,jk->kbi"), case("Einsum", [floats(3), floats(4)], equation="i,j->ij"),
    case("Einsum", [X], equation="bij->j"), case("Einsum", [floats(2, 3), floats(2, 3, 4), floats(4, 2)], equation="ab,abc,cd->ad"), case("Einsum", [floats(2, 3), floats(3, 4)], equation="ij,jk"),
    case("LayerNormalization", [X, floats(4), floats(4, seed=3)], axis=-1), case("LayerNormalization", [X, floats(3, 4)], axis=1, epsilon=1e-3),
    case("InstanceNormalization", [floats(2, 3, 5), floats(3), floats(3, seed=3)]), case("GroupNormalization", [floats(2, 4, 5), floats(4), floats(4, seed=3)], opset=21, num_groups=2),
    case("GroupNormalization", [floats(2, 4, 5), floats(2), floats(2, seed=3)], opset=18, num_groups=2),
    case("BatchNormalization", [floats(2, 3, 5), floats(3), floats(3, seed=3), Const(floats(3, seed=2)), Const(floats(3, low=0.5))]),
    case("RMSNormalization", [X, floats(4)], opset=23), case("RMSNormalization", [X, floats(3, 4)], opset=23, axis=-1),
    case("RMSNormalization", [X, floats(1, 3, 1)], opset=23, axis=-1), case("RMSNormalization", [X, floats(1)], opset=23, axis=1),
    case("LayerNormalization", [X, floats(3, 4), floats(3, 1, seed=3)], axis=-1), case("LayerNormalization", [X, floats(4), floats(1, seed=3)], axis=1),
    case("Softplus", [floats(9, low=-40.0, step=8.0)]), case("Log", [floats(5, low=0.5)]),
    case("SoftmaxCrossEntropyLoss", [floats(4, 3), ints(2, 0, -100, 1)], ignore_index=-100), case("SoftmaxCrossEntropyLoss", [floats(2, 3, 4), ints(2, 0, -1, 1, 1, 1, 0, -1, shape=(2, 4))], ignore_index=-1, reduction="sum"),
    case("SoftmaxCrossEntropyLoss", [floats(4, 3), ints(2, 0, 1, 1)], outputs=2),
    case("Attention", [floats(1, 2, 3, 4), floats(1, 2, 3, 4, seed=3), floats(1, 2, 3, 4, seed=7)], opset=23, is_causal=1),
    case("Attention", [floats(1, 3, 8), floats(1, 5, 4, seed=3), floats(1, 5, 4, seed=7)], opset=23, q_num_heads=4, kv_num_heads=2, scale=0.3),
    case("RotaryEmbedding", [floats(1, 2, 3, 4), floats(1, 3, 2, seed=3), floats(1, 3, 2, seed=7)], opset=23),
    case("RotaryEmbedding", [floats(1, 3, 8), floats(5, 2, seed=3), floats(5, 2, seed=7), ints(4, 0, 2, shape=(1, 3))], opset=23, num_heads=2, interleaved=1),
    case("Shape", [X], start=1), case("Size", [X]), case("Range", [Const(ints(2, shape=())), Const(ints(9, shape=())), Const(ints(3, shape=()))]),
    case("ConstantOfShape", [Const(ints(2, 3))]), case("Not", [X > 0]), case("And", [X > 0, X < 1]), case("Or", [X > 0, X < -0.5]), case("Xor", [X > 0, X < 1]), case("IsNaN", [X]),
    case("Dropout", [X]), case("CastLike", [X, ints(1)]),
    # Windows of keys, before a query's own and after it; with keys of the past.
    *[case("Attention", [*(floats(1, 2, 6, 4, seed=s) for s in (5, 3, 7))], opset=25, is_causal=c, left_window_size=l, right_window_size=r)
      for c, l, r in ((1, 1, -1), (0, 2, 1), (0, -1, 0), (0, 0, 9), (1, 9, 9))],
    case("Attention", [floats(1, 2, 3, 4), floats(1, 2, 3, 4, seed=3), floats(1, 2, 3, 4, seed=7), None, floats(1, 2, 4, 4, seed=2), floats(1, 2, 4, 4, seed=9)],
         opset=25, outputs=3, is_causal=1, left_window_size=2),
    # A scale below zero, of which the evaluator takes the root.
    case("Attention", [*(floats(1, 2, 3, 4, seed=s) for s in (5, 3, 7))], opset=23, scale=-0.3, results=[attended(*(floats(1, 2, 3, 4, seed=s) for s in (5, 3, 7)), -0.3)]),
    # Exponents of another type than the base; labels of no class; a class of probability 0 whose label is ignored.
    *[case("Pow", [ints(4, 9, 16), exponent(np.float32(e))]) for e in (0.5, 1.5, 2) for exponent in (Const, lambda e: np.full(3, e))],
    case("Pow", [ints(4, 9, 16).astype(np.int32), floats(3, low=0.5)]), case("Pow", [floats(3, low=0.5), ints(1, 2, 3)]),
    case("OneHot", [Const(ints(0, 5, -1, -4)), Const(ints(3, shape=())), Const(np.array([0, 1], np.float32))]),
    *[case("SoftmaxCrossEntropyLoss", [np.where(np.arange(3) == 0, -np.inf, floats(4, 3)).astype(np.float32), ints(2, 0, 1, 1)], ignore_index=0, reduction=r)
      for r in ("none", "sum", "mean")],
    case("NegativeLogLikelihoodLoss", [np.where(np.arange(3) == 0, -np.inf, floats(4, 3)).astype(np.float32), ints(2, 0, 1, 1), floats(3, low=0.5)], ignore_index=0),
    # Backwards from before the first element: that one (as the specification clamps it; numpy takes none).
    *[as_new("Slice", [floats(3), Const(ints(s)), Const(ints(e)), Const(ints(0)), Const(ints(step))], dict(opset=18), dict(results=[floats(3)[list(at)]]))
      for s, e, step, at in ((-4, -5, -1, (0,)), (-9, -2**63, -2, (0,)), (-4, 0, -1, ()), (-3, -9, -1, (0,)))],
    case("Slice", [floats(0), Const(ints(-4)), Const(ints(-5)), Const(ints(0)), Const(ints(-1))]),
    # A mask that does not reach all keys hides the rest.
    *[case("Attention", [floats(1, 2, 3, 4), floats(1, 2, 5, 4, seed=3), floats(1, 2, 5, 4, seed=7), mask], opset=23)
      for mask in (floats(3, 4, seed=2), floats(3, 1, seed=2), floats(3, 3, seed=2) > 0)],
    # Infinity less itself is no number; integers; activations whose names are in small letters.
    as_new("ReduceLogSumExp", [np.array([[np.inf, 1], [np.inf, np.inf]], np.float32), Const(ints(1))], dict(opset=18, keepdims=0),
           dict(results=[np.array([np.inf, np.inf], np.float32)])),
    case("Relu", [ints(-2, 0, 3).astype(np.int32)], opset=14),
    as_new("RNN", [floats(2, 1, 3), floats(1, 2, 3, seed=3), floats(1, 2, 2, seed=7)], dict(opset=14, hidden_size=2, activations=["tanh"]),
           dict(opset=14, hidden_size=2, activations=["Tanh"])),
    # Nothing of a scalar has a place. Sizes times scales in f32, as PyTorch and onnxruntime have them; rows of nothing likewise.
    case("NonZero", [Const(np.array(1, np.float32))]),
    as_new("Resize", [floats(1, 1, 10), None, Const(np.array([1, 1, 0.7], np.float32))], dict(opset=18, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
           dict(results=[floats(1, 1, 10)[:, :, [0, 1, 2, 4, 5, 7, 8]]])),
    as_new("ReduceLogSumExp", [np.array([[-np.inf, -np.inf, -np.inf], [1, 2, -np.inf]], np.float32), Const(ints(1))], dict(opset=18, keepdims=0),
           dict(results=[np.array([-np.inf, 2.3132617], np.float32)])),
    *[case(f"{name}Window", [Const(ints(size, shape=()))], periodic=periodic) for name in ("Hann", "Hamming", "Blackman") for size, periodic in ((7, 1), (8, 0), (1, 1))],
    *[case("RoiAlign", [floats(2, 3, 6, 5), np.array([[0.5, 1, 3.5, 4], [-3, -2, 2, 2.2], [2, 2, 2.25, 2.5], [3, 1, 9, 8]], np.float32), ints(0, 1, 1, 0)],
           coordinate_transformation_mode=mode, output_height=2, output_width=3, sampling_ratio=ratio, spatial_scale=scale)
      for mode, ratio, scale in (("half_pixel", 2, 1.0), ("output_half_pixel", 1, 0.5), ("output_half_pixel", 3, 1.0))],
    *OLDER,
]
print("[")
print(",\n".join(json.dumps(c, separators=(",", ":")) for c in CASES))
print("]")
