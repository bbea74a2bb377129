"""Writes batched.onnx beside it: a model on a batch that uses, sample by sample, the operators of images, places and order, so
that cutting the batch can be compared with not cutting it (tests/ops/batched_test.cc). Needs the packages onnx and numpy."""
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(3)
nodes, weights = [], []


def weight(name, *shape, scale=0.5):
    weights.append(numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name))
    return name


def known(array):
    name = f"k{len(nodes)}"
    nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array))))
    return name


def ints(*values):
    return known(np.array(values, np.int64))


def node(op, inputs, outputs=1, **attrs):
    names = [f"v{len(nodes)}_{i}" for i in range(outputs)]
    nodes.append(helper.make_node(op, inputs, names, name=f"{op}_{len(nodes)}", **attrs))
    return names[0] if outputs == 1 else names


# Images [batch, 4, 8, 8]
x = node("Conv", ["image", weight("conv.weight", 8, 2, 3, 3), weight("conv.bias", 8)], group=2, pads=[1, 2, 1, 0], strides=[1, 1], dilations=[1, 1])
x = node("BatchNormalization", [x, weight("bn.weight", 8), weight("bn.bias", 8), known(rng.standard_normal(8).astype(np.float32)),
                                known(rng.uniform(0.5, 2, 8).astype(np.float32))])
x = node("Selu", [x])
x = node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
x = node("LRN", [x], size=3, alpha=0.2)
x = node("Conv", [x, weight("next.weight", 8, 8, 2, 2, scale=0.3)], auto_pad="SAME_UPPER", strides=[1, 1], dilations=[2, 1])
x = node("DepthToSpace", [x], blocksize=2, mode="CRD")
x = node("ConvTranspose", [x, weight("up.weight", 2, 3, 3, 3)], strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
x = node("AveragePool", [x], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0], ceil_mode=1)
x = node("Resize", [x, "", known(np.array([1, 1, 1.5, 0.75], np.float32))], mode="linear", coordinate_transformation_mode="half_pixel")
x = node("Pad", [x, ints(0, 0, 1, 2, 0, 0, 1, 0)], mode="reflect")
rows = node("GlobalAveragePool", [x])
rows = node("Flatten", [rows])  # [batch, 3]
x = node("Reshape", [x, ints(0, 3, -1)])

# Places: [batch, 3, n] at [batch, 3, 5] of the data
taken = node("GatherElements", [x, "places"], axis=2)  # [batch, 3, 5]
best, where = node("TopK", [x, ints(4)], outputs=2, axis=2)
put = node("ScatterElements", [taken, node("Slice", ["places", ints(0), ints(1), ints(2)]), node("Unsqueeze", [rows, ints(2)])], axis=2)
added = node("ScatterElements", [put, "places", node("Tanh", [put])], axis=2, reduction="add")
hot = node("OneHot", [node("ArgMax", [taken], axis=2, keepdims=0), known(np.int64(5)), known(np.array([0.25, 1], np.float32))], axis=-1)
turned = node("ReverseSequence", [added, "lengths"], batch_axis=0, time_axis=1)
grown = node("CumSum", [node("Tanh", [turned]), known(np.int64(2))])
product = node("ReduceProd", [node("Sigmoid", [best])], axes=[2], keepdims=0)
norm = node("ReduceL2", [hot], axes=[2], keepdims=0)
feature = node("Concat", [node("Flatten", [grown]), node("Flatten", [hot]), node("Mul", [product, norm]), rows], axis=1)
scores = node("Gemm", [feature, weight("head.weight", 5, 15 + 15 + 3 + 3), weight("head.bias", 5)], transB=1)
scores = node("LpNormalization", [scores], axis=-1)
loss = node("SoftmaxCrossEntropyLoss", [scores, "label", known(np.array([1, 2, 0.5, 1, 3], np.float32))], ignore_index=2)
# x[arange(batch), label], as an exporter writes it
batch = node("Gather", [node("Shape", ["label"]), known(np.int64(0))], axis=0)
own = node("Unsqueeze", [node("Range", [known(np.int64(0)), batch, known(np.int64(1))]), ints(1)])
picked = node("GatherND", [node("LogSoftmax", [scores], axis=1), node("Concat", [own, node("Unsqueeze", ["label", ints(1)])], axis=1)])
loss = node("Sub", [loss, node("ReduceMean", [picked], keepdims=0)])
nodes.append(helper.make_node("Identity", [loss], ["loss"], name="loss"))

used = {i for n in nodes for i in n.input} | {"loss"}
nodes = [n for n in nodes if any(o in used for o in n.output)]


def data(name, kind, *shape):
    return helper.make_tensor_value_info(name, kind, ["batch", *shape])


inputs = [data("image", TensorProto.FLOAT, 4, 8, 8), data("places", TensorProto.INT64, 3, 5), data("lengths", TensorProto.INT64), data("label", TensorProto.INT64)]
graph = helper.make_graph(nodes, "batched", inputs, [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 8
onnx.checker.check_model(model)
onnx.save(model, os.path.join(os.path.dirname(os.path.abspath(__file__)), "batched.onnx"))
