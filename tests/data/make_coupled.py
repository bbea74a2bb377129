"""Writes coupled/*.onnx, small models whose losses couple the samples of a batch or look as if they did, and
coupled/reference.json: what a few steps of gradient descent make of each, by central differences in float64.

    pip install onnx numpy
    python tests/data/make_coupled.py
"""
import json
import pathlib
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

OUT = pathlib.Path(__file__).parent / "coupled"
BATCH, D, STEPS, RATE = 8, 4, 3, 0.1
rng = np.random.default_rng(7)
W = (rng.normal(size=(D, D)) * 0.5).astype(np.float32)
BATCHES = [{"x": rng.normal(size=(BATCH, D)).astype(np.float32), "y": rng.normal(size=(BATCH, D)).astype(np.float32),
            "order": rng.permutation(BATCH).astype(np.int64)} for _ in range(STEPS)]

ROWS = [np.linspace(-1, 1, D, dtype=np.float32)[None] * (k + 1) for k in range(STEPS)]


def node(op, inputs, output, scope, **attrs):
    made = helper.make_node(op, inputs.split(), [output], name=f"/{scope}/{op}_{output}", **attrs)
    return made


def constant(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def numbers(name, value):
    """No initializer, which would be a parameter."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def squares(of, to="loss"):
    """mean((of - y)²)"""
    return [node("Sub", f"{of} y", "error", "loss"), node("Mul", "error error", "square", "loss"),
            node("ReduceMean", "square", to, "loss", keepdims=0)]


def softmax(z, axis):
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def entropy_sum(z, labels):
    return -np.log(softmax(z, 1)[np.arange(BATCH), labels]).sum()


def learned_weight(w, mse):
    return np.exp(-w[0, 0]) * mse + w[0, 0]


SIGNS = np.array([1, -1, 2, -2, 3, -3, 4, -4], np.float32)
MASK = np.array([True, False, False, True])
CLASSES = constant("classes", np.int64(D))
PLACES = [constant("places", np.int64(1)), constant("zero", np.float32(0))]
H = [node("MatMul", "x w", "h", "fc")]
BATCH_AXIS = constant("batch_axis", np.array([0], np.int64))
STANDARD = [node("ReduceMean", "x batch_axis", "mean", "inputs"), node("Sub", "x mean", "c", "inputs"), node("Mul", "c c", "c2", "inputs"),
            node("ReduceMean", "c2 batch_axis", "var", "inputs"), node("Sqrt", "var", "std", "inputs"), node("Div", "c std", "z", "inputs")]


def standard(x):
    return (x - x.mean(0)) / x.std(0)


MODELS = {
    # Every sample against every other, as in contrastive learning.
    "contrastive": ([*H, node("MatMul", "y w", "g", "fc"), node("Transpose", "g", "gt", "contrast", perm=[1, 0]),
                     node("MatMul", "h gt", "logits", "contrast"),
                     node("SoftmaxCrossEntropyLoss", "logits order", "loss", "loss")], [],
                    lambda w, x, y, order: -np.log(softmax((x @ w) @ (y @ w).T, 1)[np.arange(BATCH), order]).mean()),
    # A batch norm in training mode, written out.
    "batch_norm": ([*H, node("ReduceMean", "h batch_axis", "mean", "norm"), node("Sub", "h mean", "centred", "norm"),
                    node("Mul", "centred centred", "squares", "norm"), node("ReduceMean", "squares batch_axis", "var", "norm"),
                    node("Add", "var eps", "safe", "norm"), node("Sqrt", "safe", "std", "norm"), node("Div", "centred std", "z", "norm"),
                    *squares("z")], [BATCH_AXIS, constant("eps", np.float32(1e-3))],
                   lambda w, x, y, order: (((x @ w - (x @ w).mean(0)) / np.sqrt((x @ w).var(0) + np.float32(1e-3)) - y) ** 2).mean()),
    "softmax_over_batch": ([*H, node("Softmax", "h", "z", "head", axis=0), *squares("z")], [],
                           lambda w, x, y, order: ((softmax(x @ w, 0) - y) ** 2).mean()),
    # A statistic of the batch that is squared: the square of a mean is no mean of squares.
    "squared_mean": ([*H, node("ReduceMean", "h batch_axis", "mean", "aux"), node("Mul", "mean mean", "load", "aux"),
                      node("ReduceSum", "load", "aux", "aux", keepdims=0),
                      *squares("h", "mse"),
                      node("Add", "mse aux", "loss", "loss")], [BATCH_AXIS],
                     lambda w, x, y, order: ((x @ w - y) ** 2).mean() + ((x @ w).mean(0) ** 2).sum()),
    "cumsum_over_batch": ([*H, node("CumSum", "h first", "z", "scan"), *squares("z")], [constant("first", np.array(0, np.int64))],
                          lambda w, x, y, order: ((np.cumsum(x @ w, 0) - y) ** 2).mean()),
    # Samples in another order, as a momentum encoder shuffles them.
    "shuffled": ([*H, node("Gather", "h order", "z", "shuffle", axis=0), *squares("z")], [],
                 lambda w, x, y, order: (((x @ w)[order] - y) ** 2).mean()),
    "first_half": ([*H, node("Slice", "h from to batch_axis", "half", "slice"), node("Mul", "half half", "square", "loss"),
                    node("ReduceMean", "square", "loss", "loss", keepdims=0)],
                   [BATCH_AXIS, constant("from", np.array([0], np.int64)), constant("to", np.array([BATCH // 2], np.int64))],
                   lambda w, x, y, order: ((x @ w)[: BATCH // 2] ** 2).mean()),
    "max_over_batch": ([*H, node("ReduceMax", "h batch_axis", "top", "pool"), *squares("top")], [BATCH_AXIS],
                       lambda w, x, y, order: (((x @ w).max(0, keepdims=True) - y) ** 2).mean()),
    # Rows of two samples each: any cut that keeps such pairs together is exact.
    "pairs": ([*H, node("Reshape", "h rows", "pairs", "pairs"), node("Softmax", "pairs", "p", "pairs", axis=1),
               node("Reshape", "p back", "z", "pairs"), *squares("z")],
              [constant("rows", np.array([4, -1], np.int64)), constant("back", np.array([-1, D], np.int64))],
              lambda w, x, y, order: ((softmax((x @ w).reshape(4, -1), 1).reshape(-1, D) - y) ** 2).mean()),
    # Samples on the inner side of a merged dim: legal as they lie.
    "inner": ([*H, node("Transpose", "h", "t", "inner", perm=[1, 0]), node("Reshape", "t flat", "f", "inner"),
               node("Tanh", "f", "u", "inner"), node("Reshape", "u back", "v", "inner"), node("Transpose", "v", "z", "inner", perm=[1, 0]),
               *squares("z")], [constant("flat", np.array([-1], np.int64)), constant("back", np.array([D, -1], np.int64))],
              lambda w, x, y, order: ((np.tanh(x @ w) - y) ** 2).mean()),
    # A statistic of the inputs alone: it can be had before the microbatches run.
    "centred_inputs": ([node("ReduceMean", "x batch_axis", "mean", "inputs"), node("Sub", "x mean", "c", "inputs"),
                        node("MatMul", "c w", "h", "fc"), *squares("h")], [BATCH_AXIS],
                       lambda w, x, y, order: (((x - x.mean(0)) @ w - y) ** 2).mean()),
    # A mean of the batch that enters the loss as it is: linear, so a sum of parts.
    "plain_mean": ([*H, node("ReduceMean", "h batch_axis", "mean", "aux"), node("ReduceSum", "mean", "aux", "aux", keepdims=0),
                    *squares("h", "mse"),
                    node("Add", "mse aux", "loss", "loss")], [BATCH_AXIS],
                   lambda w, x, y, order: ((x @ w - y) ** 2).mean() + (x @ w).mean(0).sum()),
    # Sums, and a sum of a sum and a mean.
    "entropy_sum": ([*H, node("Mod", "order classes", "labels", "loss"),
                     node("SoftmaxCrossEntropyLoss", "h labels", "loss", "loss", reduction="sum")], [CLASSES],
                    lambda w, x, y, order: entropy_sum(x @ w, order % D)),
    "losses": ([*H, node("Mod", "order classes", "labels", "loss"),
                node("SoftmaxCrossEntropyLoss", "h labels", "entropy", "loss", reduction="sum"),
                *squares("h", "mse"), node("Add", "mse entropy", "loss", "loss")], [CLASSES],
               lambda w, x, y, order: entropy_sum(x @ w, order % D) + ((x @ w - y) ** 2).mean()),
    # A bias that all samples share, of some elements of a table: the others are zeros.
    "masked_bias": ([*H, node("Gather", "w places", "row", "bias", axis=0), node("Where", "mask row zero", "bias", "bias"),
                     node("Add", "h bias", "z", "bias"), *squares("z")], [*PLACES, constant("mask", MASK)],
                    lambda w, x, y, order: ((x @ w + np.where(MASK, w[1], 0) - y) ** 2).mean()),
    "zeros_beside": ([*H, node("Gather", "w places", "row", "bias", axis=0), node("Unsqueeze", "row batch_axis", "rows", "bias"),
                      node("ConstantOfShape", "size", "zeros", "bias"), node("Concat", "zeros rows", "both", "bias", axis=0),
                      node("ReduceSum", "both batch_axis", "bias", "bias", keepdims=0),
                      node("Add", "h bias", "z", "bias"), *squares("z")],
                     [*PLACES, BATCH_AXIS, constant("size", np.array([2, D], np.int64))],
                     lambda w, x, y, order: ((x @ w + w[1] - y) ** 2).mean()),
    # Divided by the norm of each row, which is nothing where the row is.
    "weight_norm": ([node("ReduceL2", "w last_axis", "norm", "fc", keepdims=1), node("Div", "w norm", "v", "fc"),
                     node("MatMul", "x v", "h", "fc"), *squares("h")], [constant("last_axis", np.array([1], np.int64))],
                    lambda w, x, y, order: ((x @ (w / np.sqrt((w**2).sum(1, keepdims=True))) - y) ** 2).mean()),
    # Where what is beside the sum is no zero, each microbatch would add it.
    "ones_beside": ([*H, node("Gather", "w places", "row", "bias", axis=0), node("Mul", "row row", "square_row", "bias"),
                     node("Where", "mask square_row one", "bias", "bias"), node("ReduceMean", "h batch_axis", "mean", "bias", keepdims=0),
                     node("Where", "mask mean one", "chosen", "bias"), node("Add", "h bias", "shifted", "bias"),
                     node("Mul", "shifted chosen", "z", "bias"), *squares("z")],
                    [*PLACES, BATCH_AXIS, constant("mask", MASK), constant("one", np.float32(1))],
                    lambda w, x, y, order: (((x @ w + np.where(MASK, w[1] ** 2, 1)) * np.where(MASK, (x @ w).mean(0), 1) - y) ** 2).mean()),
    # What does not depend on the samples, beside a mean over them: it counts once.
    "penalty": ([*H, *squares("h", "mse"), node("ReduceSumSquare", "w", "l2", "penalty", keepdims=0), node("Mul", "l2 tenth", "small", "penalty"),
                 node("Add", "mse small", "loss", "loss")], [constant("tenth", np.float32(0.1))],
                lambda w, x, y, order: ((x @ w - y) ** 2).mean() + np.float32(0.1) * (w**2).sum()),
    "no_penalty": ([*H, *squares("h", "mse"), node("ReduceSum", "w", "all", "penalty", keepdims=0), node("Mul", "all nothing", "none", "penalty"),
                    node("Add", "mse none", "loss", "loss")], [constant("nothing", np.float32(0))],
                   lambda w, x, y, order: ((x @ w - y) ** 2).mean()),
    "one_minus": ([*H, *squares("h", "mse"), node("Sub", "one mse", "rest", "loss"), node("Mul", "rest minus", "scaled", "loss"),
                   node("Add", "scaled one", "loss", "loss")], [constant("one", np.float32(1)), constant("minus", np.float32(-2))],
                  lambda w, x, y, order: -2 * (1 - ((x @ w - y) ** 2).mean()) + 1),
    # A task's learned weight (Kendall et al., 2018).
    "learned_weight": ([*H, *squares("h", "mse"), node("Slice", "w from to", "corner", "weight"), node("ReduceSum", "corner", "s", "weight", keepdims=0),
                        node("Neg", "s", "minus", "weight"), node("Exp", "minus", "scale", "weight"), node("Mul", "scale mse", "scaled", "loss"),
                        node("Add", "scaled s", "loss", "loss")],
                       [constant("from", np.array([0, 0], np.int64)), constant("to", np.array([1, 1], np.int64))],
                       lambda w, x, y, order: learned_weight(w, ((x @ w - y) ** 2).mean())),
    # Statistics of the inputs that need others: a deviation from a mean, and what is divided by it.
    "standardised": ([*STANDARD, node("MatMul", "z w", "h", "fc"), *squares("h")], [BATCH_AXIS],
                     lambda w, x, y, order: (((x - x.mean(0)) / x.std(0) @ w - y) ** 2).mean()),
    "standardised_twice": ([*STANDARD, node("Mul", "z z", "z2", "inputs"), node("Mul", "z2 z2", "z4", "inputs"),
                            node("ReduceMean", "z4 batch_axis", "kurtosis", "inputs"), node("Div", "z kurtosis", "u", "inputs"),
                            node("MatMul", "u w", "h", "fc"), *squares("h")], [BATCH_AXIS],
                           lambda w, x, y, order: (standard(x) / (standard(x) ** 4).mean(0) @ w - y).__pow__(2).mean()),
    # By each sample's place in the batch, which the exporter made a constant.
    "by_place": ([*H, numbers("signs", SIGNS[:, None]), node("Mul", "h signs", "z", "place"), *squares("z")], [],
                 lambda w, x, y, order: ((x @ w * SIGNS[:, None] - y) ** 2).mean()),
    "flat_places": ([*H, numbers("places", np.arange(BATCH * D).astype(np.float32) / 16), node("Reshape", "h flat", "f", "place"), node("Mul", "f places", "g", "place"), node("Reshape", "g back", "z", "place"),
                     *squares("z")],
                    [constant("flat", np.array([BATCH * D], np.int64)), constant("back", np.array([BATCH, D], np.int64))],
                    lambda w, x, y, order: ((x @ w * (np.arange(BATCH * D) / 16).reshape(BATCH, D) - y) ** 2).mean()),
    # An input that all samples share.
    "shared_offset": ([*H, node("Add", "h offset", "z", "shift"), *squares("z")], [],
                   lambda w, x, y, order, offset: ((x @ w + offset - y) ** 2).mean()),
    # Losses of each sample that take its classes together.
    "smoothed": ([*H, node("Mod", "order classes", "labels", "loss"), node("LogSoftmax", "h", "logs", "loss", axis=-1),
                  node("Unsqueeze", "labels last_axis", "places", "loss"), node("GatherElements", "logs places", "own", "loss", axis=1),
                  node("ReduceMean", "own", "likely", "loss", keepdims=0), node("ReduceMean", "logs", "all", "loss", keepdims=0),
                  node("Mul", "all tenth", "smooth", "loss"), node("Add", "likely smooth", "sum", "loss"), node("Neg", "sum", "loss", "loss")],
                 [CLASSES, constant("last_axis", np.array([1], np.int64)), constant("tenth", np.float32(0.1))],
                 lambda w, x, y, order: entropy_sum(x @ w, order % D) / BATCH - np.float32(0.1) * np.log(softmax(x @ w, 1)).mean()),
    "z_loss": ([*H, node("ReduceLogSumExp", "h last_axis", "z", "loss", keepdims=0), node("Mul", "z z", "square", "loss"),
                node("ReduceMean", "square", "loss", "loss", keepdims=0)], [constant("last_axis", np.array([1], np.int64))],
               lambda w, x, y, order: (np.log(np.exp(x @ w).sum(1)) ** 2).mean()),
    "probabilities": ([*H, node("Softmax", "h", "z", "head", axis=-1), *squares("z")], [],
                      lambda w, x, y, order: ((softmax(x @ w, 1) - y) ** 2).mean()),
    "margin": ([*H, node("ReduceMax", "h last_axis", "top", "head"), node("Sub", "h top", "z", "head"), *squares("z")],
               [constant("last_axis", np.array([1], np.int64))],
               lambda w, x, y, order: ((x @ w - (x @ w).max(1, keepdims=True) - y) ** 2).mean()),
    "shared_static": ([*H, node("Add", "h offset", "z", "shift"), *squares("z")], [],
                      lambda w, x, y, order, offset: ((x @ w + offset - y) ** 2).mean()),
}
STATIC = ("by_place", "flat_places", "shared_static")  # whose batch is exported as a number


def descend(loss, batches):
    w, losses = W.astype(np.float64), []
    for batch in batches:
        feeds = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in batch.items()}
        losses.append(float(loss(w, **feeds)))
        gradient = np.zeros_like(w)
        for at in np.ndindex(*w.shape):
            step = np.zeros_like(w)
            step[at] = 1e-5
            gradient[at] = (loss(w + step, **feeds) - loss(w - step, **feeds)) / 2e-5
        w = w - RATE * gradient
    return {"losses": losses, "w": [float(v) for v in w.ravel()]}


def main():
    OUT.mkdir(exist_ok=True)
    reference = {"rate": RATE, "batches": [{k: [float(e) for e in v.ravel()] for k, v in b.items()} for b in BATCHES], "models": {}}
    rows = [{**b, "offset": row} for b, row in zip(BATCHES, ROWS)]
    infos = {"x": helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", D]),
             "y": helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", D]),
             "order": helper.make_tensor_value_info("order", TensorProto.INT64, ["batch"]),
             "offset": helper.make_tensor_value_info("offset", TensorProto.FLOAT, [1, D])}
    reference["rows"] = [[float(e) for e in row.ravel()] for row in ROWS]
    static = {k: helper.make_tensor_value_info(k, TensorProto.FLOAT, [BATCH, D]) for k in ("x", "y")} | {"offset": infos["offset"]}
    for name, (nodes, constants, loss) in MODELS.items():
        used = {i for n in nodes for i in n.input}
        graph = helper.make_graph(nodes, name, [v for k, v in (static if name in STATIC else infos).items() if k in used],
                                  [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], [constant("fc.weight", W), *constants])
        for n in graph.node:
            for i, value in enumerate(n.input):
                n.input[i] = "fc.weight" if value == "w" else value
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        save(model, OUT / f"{name}.onnx")
        reference["models"][name] = descend(loss, rows if "offset" in used else BATCHES)
    (OUT / "reference.json").write_text(json.dumps(reference) + "\n")


main()
