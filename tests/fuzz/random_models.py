"""Writes random ONNX models with what onnxruntime computes for them, each in a folder as ONNX's own node tests are, or all in one
file (tests/ops/node_cases.h reads both).

    random_models.py FOLDER COUNT SEED
    random_models.py tests/data/random_models.gz 100 1      # what the repository has

A model has 5 to 60 operators of opset 13 to 23 on small float tensors. Models whose results are not finite are drawn again.
"""
import gzip
import os
import random
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

MOST = 3000  # elements of a tensor


class Model:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.np = np.random.default_rng(seed)
        self.opset = self.random.randint(13, 23)
        self.nodes, self.initializers, self.inputs, self.feeds = [], [], [], {}
        self.shapes, self.used = {}, set()
        for i in range(self.random.randint(1, 3)):
            shape = self.shape()
            name = f"in{i}"
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
            self.feeds[name] = self.floats(shape)
            self.shapes[name] = shape

    # ---- Parts of a model
    def shape(self):
        rank = self.random.choice([1, 2, 2, 3, 3, 4, 4])
        return [self.random.choice([1, 2, 3, 4, 5, 6]) for _ in range(rank)]

    def floats(self, shape):
        return self.np.uniform(-1.5, 1.5, shape).astype(np.float32)

    def constant(self, array):
        name = f"c{len(self.initializers) + len(self.nodes)}"
        array = np.asarray(array)
        if self.random.random() < 0.5:
            self.initializers.append(numpy_helper.from_array(array, name))
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        return name

    def ints(self, values):
        return self.constant(np.array(values, np.int64))

    def node(self, op, inputs, shape=None, outputs=1, **attrs):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}_{op}", **attrs))
        self.used.update(inputs)
        if shape is not None:
            self.keep(names[0], shape)
        return names[0] if outputs == 1 else names

    def keep(self, name, shape):
        self.shapes[name] = [int(d) for d in shape]

    def pick(self, least=0, most=9, test=None):
        found = [n for n, s in self.shapes.items() if least <= len(s) <= most and (test is None or test(s))]
        if not found:
            return None
        recent = found[-6:]
        return self.random.choice(recent if self.random.random() < 0.7 else found)

    def axis(self, shape):
        a = self.random.randrange(len(shape))
        return a, (a if self.random.random() < 0.5 else a - len(shape))

    # ---- Operators; each returns whether it made something
    def unary(self):
        x = self.pick()
        plain = ["Tanh", "Sigmoid", "Relu", "Abs", "Neg", "Erf", "Sin", "Cos", "Softplus", "Elu", "LeakyRelu", "Selu", "Softsign", "Identity",
                 "HardSigmoid", "Atan", "Asinh", "Celu"]
        plain += ["HardSwish"] * (self.opset >= 14) + ["Mish"] * (self.opset >= 18) + ["Gelu"] * (self.opset >= 20)
        op = self.random.choice(plain + ["Exp", "Sqrt", "Log", "Reciprocal", "Clip", "Pow", "PRelu", "Dropout", "Swish"])
        s = self.shapes[x]
        if op == "Swish":
            return self.node("Mul", [x, self.node("Sigmoid", [x])], s)
        if op == "Exp":
            return self.node(op, [self.node("Tanh", [x])], s)
        if op in ("Sqrt", "Log", "Reciprocal"):
            far = self.node("Add", [self.node("Abs", [x]), self.constant(np.float32(0.5))])
            return self.node(op, [far], s)
        if op == "Clip":
            low = self.constant(np.float32(-0.7)) if self.random.random() < 0.6 else ""
            return self.node(op, [x, low] + ([self.constant(np.float32(0.9))] if self.random.random() < 0.6 else []), s)
        if op == "Pow":
            return self.node(op, [self.node("Tanh", [x]), self.constant(np.float32(self.random.choice([1, 2, 3])))], s)
        if op == "PRelu":
            return self.node(op, [x, self.constant(self.floats(s[-1:] if s else []))], s)
        return self.node(op, [x], s)

    def binary(self):
        x = self.pick()
        s = self.shapes[x]
        y = self.pick(test=lambda t: self.together(s, t) is not None) if self.random.random() < 0.6 else None
        if y is None:
            cut = s[self.random.randint(0, len(s)):]
            y = self.constant(self.floats([1 if self.random.random() < 0.3 else d for d in cut]))
            self.shapes[y] = list(numpy_shape(self, y))
        t = self.together(s, self.shapes[y])
        op = self.random.choice(["Add", "Sub", "Mul", "Max", "Min", "Div", "Where", "Sum", "Mean"])
        if not y.startswith("v") and not y.startswith("in"):
            del self.shapes[y]
        if op == "Div":
            return self.node(op, [x, self.node("Add", [self.node("Abs", [y]), self.constant(np.float32(1))])], t)
        if op == "Where":
            return self.node(op, [self.node("Greater", [x, self.constant(np.float32(0.123))]), y, x], t)
        if op in ("Sum", "Mean"):
            return self.node(op, [x, y, x], t)
        return self.node(op, [x, y], t)

    @staticmethod
    def together(a, b):
        try:
            out = list(np.broadcast_shapes(tuple(a), tuple(b)))
        except ValueError:
            return None
        return out if np.prod(out) <= MOST else None

    def reduce(self):
        x = self.pick(1)
        s = self.shapes[x]
        axes = sorted(self.random.sample(range(len(s)), self.random.randint(1, len(s))))
        op = self.random.choice(["Sum", "Mean", "Max", "Min", "L1", "L2", "LogSumExp", "SumSquare", "Prod", "LogSum"])
        keep = self.random.randint(0, 1)
        out = [1 if i in axes else d for i, d in enumerate(s) if keep or i not in axes]
        named = [a if self.random.random() < 0.5 else a - len(s) for a in axes]
        if op in ("Prod", "SumSquare", "L2"):
            x = self.node("Tanh", [x])
        if op == "LogSum":
            x = self.node("Softplus", [x])
        if op == "Sum" or self.opset >= 18:
            return self.node("Reduce" + op, [x, self.ints(named)], out, keepdims=keep)
        return self.node("Reduce" + op, [x], out, axes=named, keepdims=keep)

    def softmax(self):
        x = self.pick(1)
        return self.node(self.random.choice(["Softmax", "LogSoftmax"]), [x], self.shapes[x], axis=self.axis(self.shapes[x])[1])

    def matmul(self):
        x = self.pick(1)
        s = self.shapes[x]
        n = self.random.randint(1, 6)
        if np.prod(s[:-1]) * n > MOST:
            return None
        kind = self.random.choice(["MatMul", "Gemm", "Einsum", "batched"])
        if kind == "Gemm" and len(s) == 2:
            tb = self.random.randint(0, 1)
            bias = [self.constant(self.floats(self.random.choice([[n], [1, n], [s[0], 1]])))] if self.random.random() < 0.7 else []
            return self.node("Gemm", [x, self.constant(self.floats([n, s[1]] if tb else [s[1], n]) / 2)] + bias, [s[0], n], transB=tb, alpha=0.5, beta=1.5)
        if kind == "Einsum" and 2 <= len(s) <= 3:
            eq = "abk,kn->anb" if len(s) == 3 else "ak,kn->na"
            return self.node("Einsum", [x, self.constant(self.floats([s[-1], n]) / 2)], [s[0], n, s[1]] if len(s) == 3 else [n, s[0]], equation=eq)
        if kind == "batched" and len(s) >= 3:
            perm = list(range(len(s) - 2)) + [len(s) - 1, len(s) - 2]
            return self.node("MatMul", [x, self.node("Transpose", [x], perm=perm)], s[:-1] + [s[-2]]) if np.prod(s[:-1]) * s[-2] <= MOST else None
        return self.node("MatMul", [x, self.constant(self.floats([s[-1], n]) / 2)], s[:-1] + [n])

    def reshape(self):
        x = self.pick(1)
        s = self.shapes[x]
        kind = self.random.choice(["Reshape", "zero", "dynamic", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"])
        if kind == "Flatten":
            a = self.random.randint(0, len(s))
            return self.node(kind, [x], [int(np.prod(s[:a])), int(np.prod(s[a:]))], axis=a)
        if kind == "Squeeze":
            ones = [i for i, d in enumerate(s) if d == 1]
            return self.node(kind, [x, self.ints(ones)], [d for d in s if d != 1]) if ones else None
        if kind == "Unsqueeze":
            a = self.random.randint(0, len(s))
            return self.node(kind, [x, self.ints([a])], s[:a] + [1] + s[a:]) if len(s) < 5 else None
        if kind == "Transpose":
            perm = self.random.sample(range(len(s)), len(s))
            return self.node(kind, [x], [s[p] for p in perm], perm=perm)
        if kind == "Expand":
            out = [self.random.randint(2, 3) if d == 1 else d for d in s]
            return self.node(kind, [x, self.ints(out)], out) if np.prod(out) <= MOST else None
        if kind == "Tile":
            times = [self.random.choice([1, 1, 2]) for _ in s]
            out = [a * b for a, b in zip(s, times)]
            return self.node(kind, [x, self.ints(times)], out) if np.prod(out) <= MOST else None
        if kind == "zero" and len(s) >= 2:
            return self.node("Reshape", [x, self.ints([0, -1])], [s[0], int(np.prod(s[1:]))])
        if kind == "dynamic":  # shape arithmetic: [d0, -1] from Shape
            first = self.node("Slice", [self.node("Shape", [x]), self.ints([0]), self.ints([1])])
            return self.node("Reshape", [x, self.node("Concat", [first, self.ints([-1])], axis=0)], [s[0], int(np.prod(s[1:]))])
        whole = int(np.prod(s))
        a = self.random.choice([d for d in range(1, whole + 1) if whole % d == 0])
        return self.node("Reshape", [x, self.ints([a, -1])], [a, whole // a])

    def join(self):
        x = self.pick(1)
        s = self.shapes[x]
        a, named = self.axis(s)
        y = self.pick(test=lambda t: len(t) == len(s) and all(i == a or t[i] == s[i] for i in range(len(s))))
        if sum([s[a], self.shapes[y][a]]) * np.prod(s) / s[a] > MOST:
            return None
        return self.node("Concat", [x, y], [d + (self.shapes[y][a] if i == a else 0) for i, d in enumerate(s)], axis=named)

    def cut(self):
        x = self.pick(1, test=lambda t: max(t) >= 2)
        if x is None:
            return None
        s = list(self.shapes[x])
        a = self.random.choice([i for i, d in enumerate(s) if d >= 2])
        if self.random.random() < 0.4:
            first = self.random.randint(1, s[a] - 1)
            names = self.node("Split", [x, self.ints([first, s[a] - first])], outputs=2, axis=a)
            for name, size in zip(names, [first, s[a] - first]):
                self.keep(name, s[:a] + [size] + s[a + 1:])
            return names
        step = self.random.choice([1, 1, 2, -1])
        if step > 0:
            start = self.random.randint(0, s[a] - 1)
            count = (s[a] - start + step - 1) // step
            return self.node("Slice", [x, self.ints([start]), self.ints([2**62]), self.ints([a]), self.ints([step])], s[:a] + [count] + s[a + 1:])
        return self.node("Slice", [x, self.ints([-1]), self.ints([-(2**62)]), self.ints([a - len(s)]), self.ints([-1])], s)

    def pad(self):
        x = self.pick(1, 4)
        s = self.shapes[x]
        mode = self.random.choice(["constant", "constant", "edge", "reflect"])
        high = [2 if mode != "reflect" else min(2, d - 1) for d in s]
        before, after = [self.random.randint(0, h) for h in high], [self.random.randint(0, h) for h in high]
        out = [d + b + e for d, b, e in zip(s, before, after)]
        if np.prod(out) > MOST:
            return None
        return self.node("Pad", [x, self.ints(before + after)] + ([self.constant(np.float32(0.25))] if mode == "constant" else []), out, mode=mode)

    def gather(self):
        x = self.pick(1, 4)
        s = self.shapes[x]
        a, named = self.axis(s)
        kind = self.random.choice(["Gather", "GatherElements", "GatherND", "TopK", "ScatterElements", "ScatterND", "ArgMax", "OneHot"])
        if kind == "Gather":
            shape = self.random.choice([[], [2], [2, 2]])
            out = s[:a] + shape + s[a + 1:]
            return self.node(kind, [x, self.constant(self.np.integers(-s[a], s[a], shape).astype(np.int64))], out, axis=named) if np.prod(out) <= MOST else None
        if kind in ("GatherElements", "ScatterElements"):
            index = list(s)
            index[a] = self.random.randint(1, 3) if kind == "GatherElements" else 1
            places = self.constant(self.np.integers(0, s[a], index).astype(np.int64))
            if kind == "GatherElements":
                return self.node(kind, [x, places], index, axis=named)
            add = {"reduction": "add"} if self.opset >= 16 and self.random.random() < 0.6 else {}
            return self.node(kind, [x, places, self.constant(self.floats(index))], s, axis=a, **add)
        if kind == "GatherND":
            places = self.constant(self.np.integers(0, s[0], [3, 1]).astype(np.int64))
            return self.node(kind, [x, places], [3] + s[1:])
        if kind == "ScatterND":
            places = self.constant(np.array([[int(self.np.integers(0, s[0]))]], np.int64))
            return self.node(kind, [x, places, self.constant(self.floats([1] + s[1:]))], s)
        if kind == "TopK":
            k = self.random.randint(1, s[a])
            values, _ = self.node(kind, [x, self.ints([k])], outputs=2, axis=named, largest=self.random.randint(0, 1))
            self.keep(values, s[:a] + [k] + s[a + 1:])
            return values
        of = self.pick(2, test=lambda t: np.prod(t[1:]) * 7 <= MOST and len(t) < 5)
        if of is None or not of.startswith("in"):  # of inputs: what is computed may differ by rounding
            return None
        place = self.node("ArgMax", [of], axis=0, keepdims=0)
        if kind == "ArgMax":
            shape = self.shapes[self.nodes[-1].input[0]][1:]
            return self.node("Cast", [place], shape, to=TensorProto.FLOAT)
        shape = self.shapes[self.nodes[-1].input[0]][1:]
        return self.node("OneHot", [place, self.constant(np.int64(7)), self.constant(np.array([-0.5, 1.5], np.float32))], shape + [7], axis=-1)

    def scan(self):
        x = self.pick(1)
        s = self.shapes[x]
        if self.random.random() < 0.5 or len(s) < 2 or self.opset < 14:
            return self.node("CumSum", [x, self.constant(np.int64(self.axis(s)[1]))], s, exclusive=self.random.randint(0, 1), reverse=self.random.randint(0, 1))
        return self.node("Trilu", [x, self.constant(np.int64(self.random.randint(-2, 2)))], s, upper=self.random.randint(0, 1))

    def norm(self):
        x = self.pick(2)
        if x is None:
            return None
        s = self.shapes[x]
        kind = self.random.choice(["LayerNormalization", "InstanceNormalization", "BatchNormalization", "GroupNormalization", "LRN", "LpNormalization"])
        c = s[1]
        if kind == "LayerNormalization" and self.opset >= 17:
            a = self.random.randint(-len(s), -1)
            return self.node(kind, [x, self.constant(self.floats(s[a:])), self.constant(self.floats(s[a:]))], s, axis=a)
        if kind == "InstanceNormalization" and len(s) >= 3 and np.prod(s[2:]) > 1:
            return self.node(kind, [x, self.constant(self.floats([c])), self.constant(self.floats([c]))], s, epsilon=1e-2)
        if kind == "BatchNormalization":
            return self.node(kind, [x] + [self.constant(self.floats([c])) for _ in range(3)] + [self.constant(abs(self.floats([c])) + np.float32(0.1))], s)
        if kind == "GroupNormalization" and self.opset >= 21 and len(s) >= 3 and c % 2 == 0:
            return self.node(kind, [x, self.constant(self.floats([c])), self.constant(self.floats([c]))], s, num_groups=2, epsilon=1e-2)
        if kind == "LRN" and len(s) == 4:
            return self.node(kind, [x], s, size=3, alpha=0.1)
        if kind == "LpNormalization":
            far = self.node("Add", [self.node("Abs", [x]), self.constant(np.float32(0.1))])
            return self.node(kind, [far], s, axis=-1, p=self.random.choice([1, 2]))
        return None

    def image(self):
        x = self.pick(3, 5, test=lambda t: all(d >= 2 for d in t[2:]))
        if x is None:
            return None
        s = self.shapes[x]
        n, c, spatial = s[0], s[1], s[2:]
        kind = self.random.choice(["Conv", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Resize", "DepthToSpace"])
        kernel = [self.random.randint(1, min(3, d)) for d in spatial]
        strides = [self.random.randint(1, 2) for _ in spatial]
        dilations = [2 if k > 1 and (k - 1) * 2 + 1 <= d and self.random.random() < 0.3 else 1 for k, d in zip(kernel, spatial)]
        before = [self.random.randint(0, k - 1) for k in kernel]
        after = [self.random.randint(0, k - 1) for k in kernel]
        if kind.startswith("Global"):
            return self.node(kind, [x], [n, c] + [1] * len(spatial))
        if kind == "Resize" and len(s) == 4:
            out = [self.random.randint(1, 2 * d) for d in spatial]
            mode = self.random.choice(["nearest", "linear", "cubic"])
            where = self.random.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
            # onnxruntime divides by a rounded scale: of 14 elements to 2 it takes the 7th, not the 8th.
            rounded = mode == "nearest" and (where != "asymmetric" or any(o < d for o, d in zip(out, spatial)))
            if np.prod(out) * n * c > MOST or rounded:
                return None
            extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
            return self.node(kind, [x, "", "", self.ints(s[:2] + out)], s[:2] + out, mode=mode, coordinate_transformation_mode=where, **extra)
        if kind == "DepthToSpace" and len(s) == 4 and c % 4 == 0:
            return self.node(kind, [x], [n, c // 4, spatial[0] * 2, spatial[1] * 2], blocksize=2, mode=self.random.choice(["DCR", "CRD"]))
        size = [d + b + e - (k - 1) * q - 1 for d, b, e, k, q in zip(spatial, before, after, kernel, dilations)]
        count = [r // t + 1 for r, t in zip(size, strides)]
        if kind == "Conv":
            groups = self.random.choice([g for g in range(1, c + 1) if c % g == 0])
            m = groups * self.random.randint(1, 2)
            if n * m * np.prod(count) > MOST:
                return None
            w = self.constant(self.floats([m, c // groups] + kernel) / 2)
            bias = [self.constant(self.floats([m]))] if self.random.random() < 0.5 else []
            if self.random.random() < 0.2 and all(q == 1 for q in dilations):
                return self.node(kind, [x, w] + bias, [n, m] + [-(-d // t) for d, t in zip(spatial, strides)], group=groups, strides=strides, auto_pad="SAME_UPPER")
            return self.node(kind, [x, w] + bias, [n, m] + count, group=groups, strides=strides, dilations=dilations, pads=before + after)
        if kind == "ConvTranspose":
            groups = self.random.choice([g for g in range(1, c + 1) if c % g == 0])
            m = self.random.randint(1, 2)
            extra = [self.random.randint(0, t - 1) for t in strides]
            out = [t * (d - 1) + e + (k - 1) * q + 1 - b - f for t, d, e, k, q, b, f in zip(strides, spatial, extra, kernel, dilations, before, after)]
            if min(out) < 1 or n * m * groups * np.prod(out) > MOST:
                return None
            return self.node(kind, [x, self.constant(self.floats([c, m] + kernel) / 2)], [n, m * groups] + out, group=groups, strides=strides, dilations=dilations,
                             pads=before + after, output_padding=extra)
        if kind in ("MaxPool", "AveragePool"):
            attrs = {"kernel_shape": kernel, "strides": strides, "pads": before + after}
            if kind == "AveragePool":
                attrs["count_include_pad"] = self.random.randint(0, 1)
                count = [(d + b + e - k) // t + 1 for d, b, e, k, t in zip(spatial, before, after, kernel, strides)]
            else:
                attrs["dilations"] = dilations
                if any(b > 0 for b in before + after) and any(q > 1 for q in dilations):
                    return None  # a window may lie in the pads alone
            return self.node(kind, [x], [n, c] + count, **attrs)
        return None

    def calm(self):  # keeps numbers small
        for name in list(self.shapes)[-3:]:
            if name not in self.used and name.startswith("v"):
                self.node("Tanh", [name], self.shapes[name])

    # ---- The whole
    def build(self):
        kinds = [self.unary] * 4 + [self.binary] * 4 + [self.reduce] * 2 + [self.softmax, self.matmul, self.matmul] + [self.reshape] * 3
        kinds += [self.join, self.cut, self.pad, self.gather, self.gather, self.scan, self.norm, self.norm] + [self.image] * 3
        for i in range(self.random.randint(5, 45)):
            self.random.choice(kinds)()
            if i % 4 == 3:
                self.calm()
        outputs = [n for n in self.shapes if n.startswith("v") and n not in self.used]
        if not outputs or len(self.nodes) > 90:
            return None
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n]) for n in outputs]
        graph = helper.make_graph(self.nodes, "random", self.inputs, infos, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = 8
        return model


def numpy_shape(model, name):
    for t in model.initializers:
        if t.name == name:
            return t.dims
    for n in model.nodes:
        if name in n.output:
            return n.attribute[0].t.dims
    return []


def write(folder, model, feeds, results):
    data = os.path.join(folder, "test_data_set_0")
    os.makedirs(data, exist_ok=True)
    onnx.save(model, os.path.join(folder, "model.onnx"))
    for i, info in enumerate(model.graph.input):
        with open(os.path.join(data, f"input_{i}.pb"), "wb") as out:
            out.write(numpy_helper.from_array(feeds[info.name], info.name).SerializeToString())
    for i, (info, value) in enumerate(zip(model.graph.output, results)):
        with open(os.path.join(data, f"output_{i}.pb"), "wb") as out:
            out.write(numpy_helper.from_array(value, info.name).SerializeToString())


def packed(name, model, feeds, results):
    model.graph.name = name
    pairs = [("in:", i.name, feeds[i.name]) for i in model.graph.input] + [("out:", o.name, r) for o, r in zip(model.graph.output, results)]
    for prefix, tensor, value in pairs:
        model.graph.initializer.append(numpy_helper.from_array(value, prefix + tensor))
    data = model.SerializeToString(deterministic=True)
    size, rest = b"", len(data)
    while rest > 127:
        size, rest = size + bytes([rest & 127 | 128]), rest >> 7
    return size + bytes([rest]) + data


def main():
    folder, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    made, drawn, ops, refused, all_packed = 0, 0, {}, {}, b""
    while made < count:
        built = Model(seed + drawn)
        drawn += 1
        model = built.build()
        if model is None:
            continue
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options)
            results = session.run(None, built.feeds)
        except Exception as error:
            text = str(error).splitlines()[0]
            refused[text[:150]] = refused.get(text[:150], 0) + 1
            continue
        if not all(np.isfinite(r).all() and np.abs(r).max(initial=0) < 1e4 for r in results):
            continue
        for node in model.graph.node:
            ops[node.op_type] = ops.get(node.op_type, 0) + 1
        name = f"test_random_{seed + drawn - 1}"
        if folder.endswith(".gz"):
            all_packed += packed(name, model, built.feeds, results)
        else:
            write(os.path.join(folder, name), model, built.feeds, results)
        made += 1
    if folder.endswith(".gz"):
        with open(folder, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as out:
            out.write(all_packed)
    nodes = sum(ops.values())
    print(f"{made} models of {drawn} drawn from seed {seed}: {nodes} nodes of {len(ops)} operators")
    for text, times in sorted(refused.items()):
        print(f"  onnxruntime {times} times: {text}")


main()
