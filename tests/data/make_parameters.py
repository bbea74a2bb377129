"""Writes parameters/*.onnx: small files with the metadata of an export, for what the exporter may do to parameters.

    pip install onnx numpy
    python tests/data/make_parameters.py            # --check: says whether these are the files that are stored
"""
import filecmp
import json
import pathlib
import sys
import tempfile
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

STORED = pathlib.Path(__file__).parent / "parameters"
OUT = pathlib.Path(tempfile.mkdtemp()) if "--check" in sys.argv else STORED
rng = np.random.default_rng(3)


def tensor(name, *shape):
    return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)


def ones(name, *shape):
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def node(op, inputs, output, call=None, scope="", rule=None, trace=None, cls=None, **attrs):
    made = helper.make_node(op, inputs.split(), [output], name=f"node_{output}", **attrs)
    names = ["", *[".".join(scope.split(".")[: i + 1]) for i in range(len(scope.split("."))) if scope], output]
    made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(names))
    if call:
        made.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"%{call[0]} : [num_users=1] = "
                                f"call_function[target=torch.ops.{call[1]}](args = ({call[2]}), kwargs = {{}})")
    if cls:
        made.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str(["net.Net", cls, "call"]))
    if rule:
        made.metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value=rule)
    if trace:
        made.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    return made


def write(name, nodes, initializers, x, parameters, folded=None, buffers=(), integers=(), outputs=(), returns="loss", listed=None, mutations=None, untouched=None):
    infos = [helper.make_tensor_value_info(i, TensorProto.INT64, [1]) for i in integers]
    for value, sources in (folded or {}).items():
        shape, dtype = next((list(i.dims), i.data_type) for i in initializers if i.name == value)
        infos.append(helper.make_tensor_value_info(value, dtype, shape))
        infos[-1].metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=str(sources))
    graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
                               *(helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs)], initializers, value_info=infos)
    lines = ["", "# inputs", *[f"p_{p.lower().replace('.', '_')}: PARAMETER target='{p}'" for p in parameters],
             *[f"b_{b.replace('.', '_')}: BUFFER target='{b}'" for b in buffers], "x: USER_INPUT", "", "# outputs",
             *[f"{value}: BUFFER_MUTATION target='{b}'" for b, value in (mutations or {}).items()], f"{returns}: USER_OUTPUT", ""]
    if parameters:
        graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value="\n".join(lines))
    if listed is not None:
        graph.metadata_props.add(key="piper.parameters", value=listed if isinstance(listed, str) else json.dumps(listed))
    if untouched is not None:
        graph.metadata_props.add(key="piper.untouched", value=untouched if isinstance(untouched, str) else json.dumps(untouched))
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), OUT / f"{name}.onnx")


def loss(of):
    return [node("Mul", f"{of} {of}", "square"), node("ReduceMean", "square", "loss", keepdims=0)]


OUT.mkdir(exist_ok=True)
IMAGE = ["batch", 3, 4, 4]
# A batch norm multiplied into a convolution: named by the rule that did it, or by nothing.
write("fused_batch_norm",
      [node("Conv", "x conv.weight val_1", "y", ("y", "aten._native_batch_norm_legit_no_training.default", "%conv2d, %p_bn_weight, %p_bn_bias"), "bn",
            "FuseBatchNormIntoConv", kernel_shape=[2, 2], strides=[2, 2]), *loss("y")],
      [tensor("conv.weight", 4, 3, 2, 2), tensor("val_1", 4)], IMAGE, ["conv.weight", "bn.weight", "bn.bias"])
conv = node("Conv", "x onnx::Conv_9 onnx::Conv_10", "y", kernel_shape=[2, 2], strides=[2, 2])
del conv.metadata_props[:]
conv.name = "/conv/Conv"
write("fused_batch_norm_older", [conv, *loss("y")], [tensor("onnx::Conv_9", 4, 3, 2, 2), tensor("onnx::Conv_10", 4)], IMAGE, [])
# y = x · (1 + w), twice: the equal results of the folding were merged, and one tells what it was.
write("folded_scale",
      [node("Mul", "x add", "mul", ("mul", "aten.mul.Tensor", "%x, %add"), "norm_1"),
       node("Mul", "mul add", "mul_1", ("mul_1", "aten.mul.Tensor", "%mul, %add_1"), "norm_2"),
       node("MatMul", "mul_1 val_2", "linear", ("linear", "aten.linear.default", "%mul_1, %p_fc_weight"), "fc"), *loss("linear")],
      [ones("add", 4), tensor("val_2", 4, 2)], ["batch", 4], ["norm_1.weight", "norm_2.weight", "fc.weight"],
      {"add": ["norm_1.weight", "val_0"], "val_2": ["fc.weight"]})
# A group norm written out: its weight and bias along the channels, with dims of one behind.
norm = ("group_norm", "aten.group_norm.default", "%x, 1, %p_norm_weight, %p_norm_bias, 1e-05, False")
write("channels",
      [node("Mul", "x val_1", "val_3", norm, "norm"), node("Add", "val_3 val_2", "group_norm", norm, "norm"), *loss("group_norm")],
      [tensor("val_1", 3, 1, 1), tensor("val_2", 3, 1, 1)], IMAGE, ["norm.weight", "norm.bias"],
      {"val_1": ["norm.weight", "val_0"], "val_2": ["norm.bias", "val_0"]})
# A transpose that was computed, read by two calls of one module.
write("folded_transpose",
      [node("MatMul", "x permute", "matmul", ("matmul", "aten.matmul.default", "%x, %permute"), "fc"),
       node("MatMul", "matmul permute", "matmul_1", ("matmul_1", "aten.matmul.default", "%matmul, %permute_1"), "fc"), *loss("matmul_1")],
      [tensor("permute", 4, 4)], ["batch", 4], ["fc.weight"], {"permute": ["fc.weight"]})
# A bias of zeros that was deleted, and a table looked up at constant positions.
write("deleted_and_folded",
      [node("Add", "x embedding", "add", ("add", "aten.add.Tensor", "%x, %embedding")),
       node("Gemm", "add fc.weight", "linear", ("linear", "aten.linear.default", "%add, %p_fc_weight, %p_fc_bias"), "fc", "RemoveOptionalBiasFromGemm",
            transB=1), *loss("linear")],
      [tensor("embedding", 1, 4), tensor("fc.weight", 2, 4)], ["batch", 4], ["table.weight", "fc.weight", "fc.bias"],
      {"embedding": ["arange", "table.weight"]})
# Two equal norms of one input that became one node.
write("merged_modules",
      [node("LayerNormalization", "x n.0.weight n.0.bias", "layer_norm",
            ("layer_norm", "aten.layer_norm.default", "%x, [4], %p_n_0_weight, %p_n_0_bias, 1e-05, False"), "n.0"),
       node("Gemm", "layer_norm a.weight a.bias", "linear", ("linear", "aten.linear.default", "%layer_norm, %p_a_weight, %p_a_bias"), "a", transB=1),
       node("Gemm", "layer_norm b.weight b.bias", "linear_1", ("linear_1", "aten.linear.default", "%layer_norm_1, %p_b_weight, %p_b_bias"), "b", transB=1),
       node("Sub", "linear linear_1", "sub", ("sub", "aten.sub.Tensor", "%linear, %linear_1")), *loss("sub")],
      [ones("n.0.weight", 4), tensor("n.0.bias", 4), tensor("a.weight", 2, 4), tensor("a.bias", 2), tensor("b.weight", 2, 4), tensor("b.bias", 2)],
      ["batch", 4], ["n.0.weight", "n.0.bias", "n.1.weight", "n.1.bias", "a.weight", "a.bias", "b.weight", "b.bias"])
# What lies on a bound has a gradient after clamp, and none after hardtanh.
write("bounds",
      [node("Mul", "x w", "mul", ("mul", "aten.mul.Tensor", "%x, %p_w")),
       node("Clip", "mul low high", "clamp", ("clamp", "aten.clamp.default", "%mul, 0.0, 6.0")),
       node("Clip", "clamp low high", "hardtanh", ("hardtanh", "aten.hardtanh.default", "%clamp, 0.0, 6.0")), *loss("hardtanh")],
      [tensor("w", 4), numpy_helper.from_array(np.float32(0), "low"), numpy_helper.from_array(np.float32(6), "high")], ["batch", 4], ["w"])
# Operators that nobody has, with the line of the program that they come from.
write("unsupported",
      [node("MatMul", "x w", "h"), node("MaxUnpool", "h", "d", scope="head", trace='File "net.py", line 7, in forward\n    d = self.unpool(h)\n'),
       node("Frobnicate", "h", "f", scope="head", domain="com.example"), node("MaxUnpool", "f", "e", scope="head"), *loss("d")],
      [tensor("w", 4, 4)], ["batch", 4], [])
# Parameters that cannot be had back beside an operator that nobody has.
write("folded_unsupported",
      [node("Mul", "x relu", "mul", ("mul", "aten.mul.Tensor", "%x, %relu"), "norm_1"),
       node("Mul", "mul relu", "mul_1", ("mul_1", "aten.mul.Tensor", "%mul, %relu_1"), "norm_2"), node("MaxUnpool", "mul_1", "d", scope="head"), *loss("d")],
      [ones("relu", 4)], ["batch", 4, 4], ["norm_1.weight", "norm_2.weight"], {"relu": ["norm_1.weight"]})
# The loss depends on a parameter, but not smoothly: it gets no gradient.
write("no_gradient",
      [node("Mul", "x v", "mul", ("mul", "aten.mul.Tensor", "%x, %p_v")), node("Mul", "x w", "mul_1", ("mul_1", "aten.mul.Tensor", "%x, %p_w")),
       node("Sign", "mul_1", "sign", ("sign", "aten.sign.default", "%mul_1")), node("Mul", "mul sign", "mul_2", ("mul_2", "aten.mul.Tensor", "%mul, %sign")),
       *loss("mul_2")],
      [tensor("v", 4), tensor("w", 4)], ["batch", 4], ["v", "w"])
# Tables of positions and of one type, looked up for every sample of a batch of fixed size.
def looked_up(name, rows, width, *places):
    return numpy_helper.from_array(rng.normal(size=(rows, width)).astype(np.float32)[np.array(places)], name)


def sums(*names):
    nodes, x = [], "x"
    for i, name in enumerate(names):
        nodes.append(node("Add", f"{x} {name}", f"add_{i}", (f"add_{i}", "aten.add.Tensor", f"%{x}, %{name}")))
        x = f"add_{i}"
    return nodes + loss(x)


write("repeated_tables", sums("embedding", "embedding_1"),
      [looked_up("embedding", 3, 2, *[[0, 1, 2]] * 4), looked_up("embedding_1", 1, 2, *[[0, 0, 0]] * 4)], [4, 3, 2],
      ["position.weight", "type.weight"], {"embedding": ["arange", "position.weight"], "embedding_1": ["zeros", "type.weight"]})
# By relative position: the order of the table's rows is lost. A table of zeros: which rows are equal by chance is not to be seen.
write("relative_table", sums("embedding"), [looked_up("embedding", 5, 2, [2, 3, 4], [1, 2, 3], [0, 1, 2])], ["batch", 3, 3, 2],
      ["bias.weight"], {"embedding": ["sub", "bias.weight"]})
write("table_of_zeros", sums("embedding"), [numpy_helper.from_array(np.zeros((3, 2), np.float32), "embedding")], ["batch", 3, 2],
      ["position.weight"], {"embedding": ["arange", "position.weight"]})
# A parameter that is 1 is no factor to the exporter.
linear = ("linear", "aten.linear.default", "%mul, %p_fc_weight, %p_fc_bias")
write("removed_factor", [node("Gemm", "x fc.weight fc.bias", "linear", linear, "fc", transB=1), *loss("linear")],
      [tensor("fc.weight", 2, 4), tensor("fc.bias", 2)], ["batch", 4], ["scale", "fc.weight", "fc.bias"])
# Two equal scales of one input that became one node, behind them one function.
write("merged_scales",
      [node("Mul", "x a.scale", "mul", ("mul", "aten.mul.Tensor", "%x, %p_a_scale"), "a"),
       node("Tanh", "mul", "tanh", ("tanh", "aten.tanh.default", "%mul")),
       node("Gemm", "tanh p.weight p.bias", "linear", ("linear", "aten.linear.default", "%tanh, %p_p_weight, %p_p_bias"), "p", transB=1),
       node("Gemm", "tanh q.weight q.bias", "linear_1", ("linear_1", "aten.linear.default", "%tanh_1, %p_q_weight, %p_q_bias"), "q", transB=1),
       node("Sub", "linear linear_1", "sub", ("sub", "aten.sub.Tensor", "%linear, %linear_1")), *loss("sub")],
      [ones("a.scale", 4), tensor("p.weight", 2, 4), tensor("p.bias", 2), tensor("q.weight", 2, 4), tensor("q.bias", 2)],
      ["batch", 4], ["a.scale", "b.scale", "p.weight", "p.bias", "q.weight", "q.bias"])
# A penalty on a weight that was computed once and for all, beside the weight's place.
write("folded_penalty",
      [node("MatMul", "x val_1", "linear", ("linear", "aten.linear.default", "%x, %p_fc_weight"), "fc"), *loss("linear")[:1],
       node("ReduceMean", "square", "mean", ("mean", "aten.mean.default", "%square"), keepdims=0),
       node("Add", "mean sum_1", "loss", ("add", "aten.add.Tensor", "%mean, %sum_1"))],
      [tensor("val_1", 4, 2), tensor("sum_1")], ["batch", 4], ["fc.weight"], {"val_1": ["fc.weight"], "sum_1": ["pow_1", "fc.weight"]})
# One of two values was detached, and their names do not say which.
write("detached_somewhere",
      [node("Mul", "x w", "mul", ("mul", "aten.mul.Tensor", "%x, %p_w")), node("Tanh", "mul", "tanh", ("tanh", "aten.tanh.default", "%mul")),
       node("Sub", "mul tanh", "sub", ("sub", "aten.sub.Tensor", "%mul, %detach, %clone")),
       node("Neg", "sub", "neg", ("sub", "aten.sub.Tensor", "%mul, %detach, %clone")), *loss("neg")], [tensor("w", 4)], ["batch", 4], ["w"])
# Norms that train, written as they infer; their statistics, equal at first, were merged.
def trains(x, at, out):
    call = f"%{x}, %p_{at}_weight, %p_{at}_bias, %b_{at}_running_mean, %b_{at}_running_var, True, 0.1, 1e-05"
    return node("BatchNormalization", f"{x} {at}.weight {at}.bias a.running_mean a.running_var", out,
                (out, "aten._native_batch_norm_legit_functional.default", call), at, momentum=0.1)


write("norms_that_train", [node("Mul", "x scale", "mul", ("mul", "aten.mul.Tensor", "%x, %p_scale")), trains("mul", "a", "y"), node("Tanh", "y", "tanh"), trains("tanh", "b", "z"), *loss("z")],
      [tensor("scale", 3, 1, 1), *[tensor(f"{m}.{w}", 3) for m in "ab" for w in ("weight", "bias")], numpy_helper.from_array(np.zeros(3, np.float32), "a.running_mean"),
       ones("a.running_var", 3)], IMAGE, ["scale", *(f"{m}.{w}" for m in "ab" for w in ("weight", "bias"))],
      buffers=[f"{m}.running_{w}" for m in "ab" for w in ("mean", "var")])

# ---- What was computed from parameters ------------------------------------------------------------
def values(name, of):
    return numpy_helper.from_array(np.asarray(of, np.float32), name)


def product(x, by, out, names, scope="", **more):
    return node("Mul", f"{x} {by}", out, (out, "aten.mul.Tensor", names), scope, **more)


w = rng.normal(size=4)
# Functions with an inverse, and what has one shape only that it can have had.
write("functions", [product("x", "exp", "mul", "%x, %exp"), product("mul", "neg", "mul_1", "%mul, %neg"), product("mul_1", "view", "mul_2", "%mul_1, %view"),
                    product("mul_2", "slice_1", "mul_3", "%mul_2, %slice_1"), *loss("mul_3")],
      [values("exp", np.exp(0.5)), values("neg", -np.exp(w)), tensor("view", 1, 4), tensor("slice_1", 1, 4)], ["batch", 4],
      ["scale", "decay", "gain", "table"], {"exp": ["scale"], "neg": ["exp", "decay"], "view": ["gain", "val_0"], "slice_1": ["table", "val_1", "val_2"]})
# What repeats, sorts or looks up its elements hides them.
for name, call, of, sources in [("repeated", "repeat", np.tile(w, 1), ["w", "val_0"]), ("sorted", "getitem", np.sort(w), ["w", "val_0"]),
                                ("looked_up", "select", w[[[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]], ["arange", "embedding", "w"])]:
    write(f"folded_{name}", [product("x", call, "mul", f"%x, %{call}"), *loss("mul")], [values(call, of)], [4, 4], ["w"], {call: sources})
# Functions without: not of their value, nor where it was saturated, nor of a flat place, nor of two.
for name, op, of in [("folded_relu", "relu", np.abs(w)), ("folded_sigmoid", "sigmoid", np.ones(4)), ("folded_flat", "sigmoid", 1 / (1 + np.exp(-w - 12)))]:
    write(name, [product("x", op, "mul", f"%x, %{op}"), *loss("mul")], [values(op, of)], ["batch", 4], ["w"], {op: ["w"]})
write("folded_product", [product("x", "mul", "mul_1", "%x, %mul"), product("mul_1", "u", "mul_2", "%mul_1, %p_u"), *loss("mul_2")],
      [values("mul", w), tensor("u", 4)], ["batch", 4], ["u", "v", "w"], {"mul": ["v", "w"]})
# Beside the parameter's own place the bytes tell what was done.
write("computed_beside",
      [node("MatMul", "x w", "matmul", ("matmul", "aten.matmul.default", "%x, %p_w")), node("MatMul", "matmul t", "matmul_1", ("matmul_1", "aten.matmul.default", "%matmul, %t")),
       product("matmul_1", "sum_1", "mul", "%matmul_1, %sum_1"), product("mul", "relu", "mul_1", "%mul, %relu"), product("mul_1", "sub", "mul_2", "%mul_1, %sub"), *loss("mul_2")],
      [values("w", (m := rng.normal(size=(4, 4)))), values("t", m.T), values("sum_1", m.sum(0)), values("relu", np.maximum(m, 0)), values("sub", 1 - np.float32(m))],
      [4, 4], ["w"], {"t": ["w"], "sum_1": ["w", "val_0"], "relu": ["w"], "sub": ["w", "val_1"]})
# A choice by the parameter's values that was made once and for all.
write("folded_choice",
      [product("x", "w", "mul", "%x, %p_w"), node("Where", "gt x mul", "where", ("where", "aten.where.self", "%gt, %x, %mul")), *loss("where")],
      [values("w", w), numpy_helper.from_array(w > 0, "gt")], ["batch", 4], ["w"], {"gt": ["w", "val_0"]})
# c + w: c is 1 in norms, else what the line of the program says, else what the strategy says.
def plus(name, trace=None, cls=None):
    write(name, [node("Mul", "x x", "square_1", scope="n", cls=cls), node("Sqrt", "square_1", "sqrt", scope="n", cls=cls), node("Div", "x sqrt", "div", ("div", "aten.div.Tensor", "%x, %sqrt"), "n", cls=cls),
                 product("div", "add", "mul", "%div, %add", "n", trace=trace, cls=cls), *loss("mul")],
          [values("add", 0.5 + np.float32(w))], ["batch", 4], ["n.scale"], {"add": ["n.scale", "val_0"]})


plus("added")
plus("added_in_norm", cls="net.RMSNorm")
plus("added_in_line", trace='File "net.py", line 3, in forward\n    return x / r * (0.5 + self.scale)\n')
# Equal results of several parameters were merged: each call says which module's is meant, if it has one.
def adapters(modules):
    nodes, at = [], "x"
    for i, scope in enumerate(modules):
        call = f"matmul_{i}"
        nodes.append(node("MatMul", f"{at} t", call, (call, "aten.matmul.default", f"%{at}, %t{'' if i == 0 else f'_{i}'}"), scope))
        at = call
    return nodes + loss(at), [numpy_helper.from_array(np.zeros((4, 4), np.float32), "t")]


write("merged_transposes", *adapters(["l.0", "l.1", "l.2"]), ["batch", 4], ["l.0.b", "l.1.b", "l.2.b"], {"t": ["l.0.b"]})
write("merged_in_one_module", *adapters(["", "", ""]), ["batch", 4], ["b.0", "b.1", "b.2"], {"t": ["b.0"]})
# Copies of a module with two of them: by their shapes.
names = ["permute", "permute_1", "permute_2", "permute_3"]
write("deep_copies", [node("MatMul", f"{['x', 'matmul', 'matmul_1', 'matmul_2'][i]} {names[i % 2]}", f"matmul_{i}" if i else "matmul",
                           (f"matmul_{i}" if i else "matmul", "aten.matmul.default", f"%{['x', 'matmul', 'matmul_1', 'matmul_2'][i]}, %{names[i]}"), f"l.{i // 2}") for i in range(4)] + loss("matmul_3"),
      [tensor("permute", 4, 2), tensor("permute_1", 2, 4)], ["batch", 4], ["l.0.a", "l.0.b", "l.1.a", "l.1.b"], {"permute": ["l.0.a"], "permute_1": ["l.0.b"]})
# A product of a parameter with itself that was equal to it.
write("merged_with_parameter", [product("x", "w", "mul_1", "%x, %mul"), node("Add", "mul_1 w", "add", ("add", "aten.add.Tensor", "%mul_1, %p_w")), *loss("add")],
      [ones("w", 4)], ["batch", 4], ["w"])
# Three equal norms of one input: in which order they are read is lost.
write("merged_norms",
      [node("LayerNormalization", "x n.0.weight n.0.bias", "layer_norm", ("layer_norm", "aten.layer_norm.default", "%x, [4], %p_n_2_weight, %p_n_2_bias, 1e-05, False"), "n.2"),
       *[node("Tanh", "layer_norm", f"tanh_{i}", (f"tanh_{i}", "aten.tanh.default", f"%layer_norm{'' if i == 0 else f'_{i}'}"), f"f.{i}") for i in range(3)],
       node("Sum", "tanh_0 tanh_1 tanh_2", "sum"), *loss("sum")],
      [ones("n.0.weight", 4), numpy_helper.from_array(np.zeros(4, np.float32), "n.0.bias")], ["batch", 4], [f"n.{i}.{k}" for i in range(3) for k in ("weight", "bias")])
# A module that has a weight and uses another's; one of PyTorch's that can only be tied.
for name, cls in [("unused_beside", "net.Own"), ("tied_beside", "torch.nn.modules.linear.Linear")]:
    write(name, [node("Gemm", "x a.weight", "linear", ("linear", "aten.linear.default", "%x, %p_a_weight"), "a", transB=1, cls="torch.nn.modules.linear.Linear"),
                 node("Gemm", "linear a.weight", "linear_1", ("linear_1", "aten.linear.default", "%linear, %p_a_weight"), "b", transB=1, cls=cls), *loss("linear_1")],
          [tensor("a.weight", 4, 4)], ["batch", 4], ["a.weight", "b.weight"])
# Two learned bounds became one.
write("fused_bounds",
      [node("Max", "x x_max", "maximum_1", ("maximum_1", "aten.maximum.default", "%maximum, %p_b"), "m", "FuseSuccessiveMax"), *loss("maximum_1")],
      [tensor("x_max", 4)], ["batch", 4], ["m.a", "b"])
# What is removed far away, or of integers, and a mask that was computed of none: no parameter had a part in it.
write("unused",
      [node("Mul", "x e.w", "mul", ("mul", "aten.mul.Tensor", "%x, %p_e_w"), "e"), node("Cast", "x", "ids", to=7), node("Cast", "ids", "again", ("again", "aten.to.dtype", "%mul_7"), "head", to=1),
       node("Add", "mul again", "add", ("add", "aten.add.Tensor", "%mul_9, %again"), "e.f"), node("Add", "add where", "add_1", ("add_1", "aten.add.Tensor", "%add, %where_1"), "head"), *loss("add_1")],
      [tensor("e.w", 4), tensor("where", 4)], ["batch", 4], ["e.w", "head.dead"], {"where": ["arange", "val_0"]}, integers=["ids"])


# Beside the loss there are logits: the loss is the scalar.
write("loss_and_logits",
      [node("Gemm", "x fc.weight fc.bias", "linear", ("linear", "aten.linear.default", "%x, %p_fc_weight, %p_fc_bias"), "fc", transB=1), *loss("linear")],
      [tensor("fc.weight", 2, 4), tensor("fc.bias", 2)], ["batch", 4], ["fc.weight", "fc.bias"], outputs=["linear"])


# Tables of sinusoids: by the class of their module, and by their numbers; a third that is none.
def sinusoids(name, rows, width):
    angles = np.arange(rows)[:, None] / 10000 ** (np.arange(width // 2) / (width / 2))
    return numpy_helper.from_array(np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32), name)


def add_table(x, table, out, classes):
    made = node("Add", f"{x} {table}", out, (out, "aten.add.Tensor", f"%{x}, %p_{table.replace('.', '_')}"))
    made.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str(classes))
    return made


write("sinusoids",
      [add_table("x", "a.weight", "add", ["net.Model", "net.Encoder", "net.SinusoidalPositionalEmbedding", "aten.add.Tensor"]),
       add_table("add", "b.weight", "add_1", ["net.Model", "net.Encoder", "aten.add.Tensor"]),
       add_table("add_1", "c.weight", "add_2", ["net.Model", "net.Encoder", "aten.add.Tensor"]), *loss("add_2")],
      [tensor("a.weight", 6, 4), sinusoids("b.weight", 6, 4), tensor("c.weight", 6, 4)], ["batch", 6, 4], ["a.weight", "b.weight", "c.weight"])
# ---- The older exporter: no metadata, scopes in node names, what is equal behind an Identity -------------------------------------


def old(scope, op, inputs, output=None, **attrs):
    name = f"/{scope}/{op}" if scope else f"/{op}"
    return helper.make_node(op, inputs.split(), [output or f"{name}_output_0"], name=name, **attrs)


def copy(of, name):
    return helper.make_node("Identity", [of], [name], name=f"Identity_{name}")


def write_older(name, nodes, initializers, x, opset=17):
    last = nodes[-1].output[0]
    nodes = [*nodes, old("", "Mul", f"{last} {last}"), old("", "ReduceMean", "/Mul_output_0", "loss", keepdims=0)]
    ids = x == ["ids"]
    shape = ["batch", 3] if ids else x
    graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.INT64 if ids else TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], initializers)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name="pytorch"), OUT / f"{name}.onnx")


def linear(scope, x, weight, bias=None):
    out = f"/{scope}/MatMul_output_0"
    return [old(scope, "MatMul", f"{x} {weight}")] + ([old(scope, "Add", f"{bias} {out}")] if bias else [])


def norm(scope, x, module):
    return old(scope, "LayerNormalization", f"{x} {module}.weight {module}.bias", axis=-1)


def zeros(name, *shape):
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


# Norms that are alike, a module that is called again (its scope has a number then), a copy of it, modules whose parent is not
# called, a mask; without biases a list that is called again, a module that is called again, and two whose names look like it.
write_older("older_copies",
            [copy("n.0.weight", "n.1.weight"), copy("n.0.bias", "n.1.bias"), copy("onnx::MatMul_1", "onnx::MatMul_2"), copy("onnx::MatMul_1", "onnx::MatMul_3"),
             copy("d.fc.bias", "d.copy.bias"), copy("onnx::MatMul_8", "onnx::MatMul_9"),
             norm("n.0", "x", "n.0"), *linear("fc", "/n.0/LayerNormalization_output_0", "onnx::MatMul_1", "d.fc.bias"),
             norm("n.1", "/fc/Add_output_0", "n.1"), *linear("fc_1", "/n.1/LayerNormalization_output_0", "onnx::MatMul_2", "d.fc.bias"),
             *linear("copy", "/fc_1/Add_output_0", "onnx::MatMul_3", "d.copy.bias"), old("", "Add", "/copy/Add_output_0 onnx::Add_7"),
             old("", "Softmax", "/Add_output_0", axis=-1), *linear("l/l.0", "/Softmax_output_0", "onnx::MatMul_8"),
             *linear("l/l.0_1", "/l/l.0/MatMul_output_0", "onnx::MatMul_9"), copy("onnx::MatMul_10", "onnx::MatMul_11"),
             *linear("out", "/l/l.0_1/MatMul_output_0", "onnx::MatMul_10"), *linear("out_1", "/out/MatMul_output_0", "onnx::MatMul_11"),
             *linear("two", "/out_1/MatMul_output_0", "onnx::MatMul_12"), *linear("two_1", "/two/MatMul_output_0", "onnx::MatMul_13")],
            [ones("n.0.weight", 4), zeros("n.0.bias", 4), tensor("onnx::MatMul_1", 4, 4), zeros("d.fc.bias", 4),
             numpy_helper.from_array(np.array([0, -np.inf, 0, 0], np.float32), "onnx::Add_7"), *(tensor(f"onnx::MatMul_{k}", 4, 4) for k in (8, 10, 12, 13))], ["batch", 4])
# A group norm and a PReLU, whose weights have dims of one behind the channels.
channels = [old("act", "PRelu", "x onnx::PRelu_1"), old("norm", "Constant", "", "shape", value=numpy_helper.from_array(np.array([0, 1, -1], np.int64))),
            old("norm", "Reshape", "/act/PRelu_output_0 shape", "groups"), old("norm", "InstanceNormalization", "groups one none"),
            old("norm", "Shape", "/act/PRelu_output_0"), old("norm", "Reshape", "/norm/InstanceNormalization_output_0 /norm/Shape_output_0", "whole"),
            old("norm", "Mul", "whole onnx::Mul_2"), old("norm", "Add", "/norm/Mul_output_0 onnx::Add_3")]
units = [old("norm", "Constant", "", name, value=numpy_helper.from_array(np.full(1, value, np.float32))) for name, value in (("one", 1), ("none", 0))]
write_older("older_channels", units + channels, [tensor(name, 3, 1, 1) for name in ("onnx::PRelu_1", "onnx::Mul_2", "onnx::Add_3")], IMAGE)
# What was computed from parameters: 1 + w, and a matrix that no module's scope tells, at two places.
write_older("older_folded",
            [copy("onnx::MatMul_5", "onnx::MatMul_6"), old("norm", "Mul", "x onnx::Mul_4"), old("", "MatMul", "/norm/Mul_output_0 onnx::MatMul_5"),
             old("", "Tanh", "/MatMul_output_0"), helper.make_node("MatMul", ["/Tanh_output_0", "onnx::MatMul_6"], ["y"], name="/MatMul_1")],
            [tensor("onnx::Mul_4", 4), tensor("onnx::MatMul_5", 4, 4)], ["batch", 4])
# Two matrices of zeros: one head called twice, or two.
write_older("older_zeros", [copy("onnx::MatMul_1", "onnx::MatMul_2"), *linear("head", "x", "onnx::MatMul_1"), *linear("head_1", "x", "onnx::MatMul_2"),
                            old("", "Add", "/head/MatMul_output_0 /head_1/MatMul_output_0")], [zeros("onnx::MatMul_1", 4, 4)], ["batch", 4])
# Merged by another program, which leaves no Identity.
write_older("older_merged", [norm("n.0", "x", "n.0"), helper.make_node("LayerNormalization", ["/n.0/LayerNormalization_output_0", "n.0.weight", "n.1.bias"],
                                                                       ["y"], name="/n.1/LayerNormalization", axis=-1)],
            [ones("n.0.weight", 4), zeros("n.0.bias", 4), tensor("n.1.bias", 4)], ["batch", 4])
# A tied head, a padding row, and what may be a buffer.
words = rng.normal(size=(5, 4)).astype(np.float32)
words[0] = 0
write_older("older_tied", [old("words", "Gather", "words.weight x"), old("", "Sub", "/words/Gather_output_0 scale"), *linear("head", "/Sub_output_0", "onnx::MatMul_3")],
            [numpy_helper.from_array(words, "words.weight"), tensor("scale", 4), numpy_helper.from_array(words.T.copy(), "onnx::MatMul_3")], ["ids"])
# A batch norm that trains, before the opset that has a word for it.
write_older("older_batch_norm", [helper.make_node("BatchNormalization", ["x", *(f"bn.{w}" for w in ("weight", "bias", "running_mean", "running_var"))],
                                                  ["y", "mean", "var", "saved_mean", "saved_var"], name="/bn/BatchNormalization"),
                                 helper.make_node("Tanh", ["y"], ["z"], name="/Tanh")],
            [ones("bn.weight", 3), zeros("bn.bias", 3), zeros("bn.running_mean", 3), ones("bn.running_var", 3)], IMAGE, opset=13)
# A product with 1 was removed, and what is added to it merged with the first table: the node reads embedding_2 for "mul_1" and embedding_1
# for "embedding_3". A name that no call reads is beside them, and has no part in it.
write("merged_beside_removed",
      [helper.make_node("Cast", ["x"], ["ids"], name="node_ids", to=TensorProto.INT64),
       node("Gather", "m.e.weight ids", "embedding", ("embedding", "aten.embedding.default", "%p_m_e_weight, %ids"), "m.e"),
       node("Add", "embedding embedding_1", "add", ("add", "aten.add.Tensor", "%mul, %embedding_1"), "m.a"),
       node("Gather", "m.e.weight ids", "embedding_2", ("embedding_2", "aten.embedding.default", "%p_m_e_weight, %ids"), "m.e"),
       node("Add", "embedding_2 embedding_1", "add_1", ("add_1", "aten.add.Tensor", "%mul_1, %embedding_3"), "m.b"),
       node("Mul", "add add_1", "mul_2", ("mul_2", "aten.mul.Tensor", "%add, %add_1")), *loss("mul_2")],
      [tensor("m.e.weight", 8, 4), tensor("embedding_1", 6, 4)], ["batch", 6], ["shared.weight", "m.e.weight", "m.a.p.weight", "m.b.p.weight"],
      {"embedding_1": ["arange", "m.a.p.weight"]})


# Norms of the older exporter that convert their weight or add to it, in one step; a table under the names of two modules that double
# it, and one that is handed to a module; a convolution whose weight was computed.
def older_norm(scope, x, weight, converts):
    at = f"/{scope}"
    root = [old(scope, "Mul", f"{x} {x}", f"{at}/square"), old(scope, "ReduceMean", f"{at}/square", axes=[-1]), old(scope, "Sqrt", f"{at}/ReduceMean_output_0"),
            old(scope, "Div", f"{x} {at}/Sqrt_output_0"), old(scope, "Mul", f"{at}/Div_output_0 {weight}")]
    return root + ([old(scope, "Cast", f"{at}/Mul_output_0", to=1)] if converts else [])


write_older("older_norms", [*older_norm("n.0", "x", "onnx::Mul_7", True), *older_norm("n.1", "/n.0/Cast_output_0", "onnx::Mul_8", True)],
            [tensor("onnx::Mul_7", 4), tensor("onnx::Mul_8", 4)], ["batch", 4])
write_older("older_plus_one", older_norm("n", "x", "onnx::Mul_7", False), [tensor("onnx::Mul_7", 4)], ["batch", 4])
write_older("older_shared", [old("a", "Gather", "t.weight x"), old("a", "Mul", "/a/Gather_output_0 two"), old("b", "Gather", "t.weight x"), old("b", "Mul", "/b/Gather_output_0 two"),
                             old("c", "Gather", "table x"), old("", "Sum", "/a/Mul_output_0 /b/Mul_output_0 /c/Gather_output_0"),
             helper.make_node("Tanh", ["/Sum_output_0"], ["y"], name="/Tanh")],
            [tensor("t.weight", 5, 4), tensor("two"), tensor("table", 5, 4)], ["ids"])
write_older("older_conv", [old("conv", "Conv", "x onnx::Conv_9 conv.bias", kernel_shape=[2, 2], strides=[2, 2])],
            [tensor("onnx::Conv_9", 4, 3, 2, 2), tensor("conv.bias", 4)], IMAGE)

# What opset 18 has no operator for, beside the parameter's own place.
write("computed_swish", [product("x", "w", "mul", "%x, %p_w"), product("mul", "silu", "mul_1", "%mul, %silu"), *loss("mul_1")],
      [values("w", w), values("silu", np.float32(w) / (1 + np.exp(-np.float32(w))))], ["batch", 4], ["w"], {"silu": ["w"]})
# A parameter in a file beside it.
apart = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
for key, value in [("location", "w.bin"), ("offset", "0"), ("length", "16")]:
    apart.external_data.add(key=key, value=value)
write("external", [product("x", "w", "mul", "%x, %p_w"), *loss("mul")], [apart], ["batch", 4], ["w"])
# A parameter in two functions of it: the one that is steeper tells it, and the other agrees.
w = rng.normal(size=4).astype(np.float32) * np.float32(0.01)
write("two_functions",
      [node("Mul", "x exp", "mul", ("mul", "aten.mul.Tensor", "%x, %exp")), node("Mul", "mul tanh", "mul_1", ("mul_1", "aten.mul.Tensor", "%mul, %tanh")), *loss("mul_1")],
      [numpy_helper.from_array(np.exp(w), "exp"), numpy_helper.from_array(np.tanh(w), "tanh")], ["batch", 4], ["w"], {"exp": ["w"], "tanh": ["w"]})
# What a call makes of its argument bears no name of it: of a parameter itself, and of what was computed from one.
write("within_calls",
      [node("Tile", "val_0 val_1", "repeat", ("repeat", "aten.repeat.default", "%p_m_probe, [%batch, 1]"), "m"),
       node("MatMul", "repeat val_2", "linear", ("linear", "aten.linear.default", "%repeat, %exp"), "m"), *loss("linear")],
      [tensor("val_0", 1, 4), numpy_helper.from_array(np.array([2, 1]), "val_1"), numpy_helper.from_array(np.exp(rng.normal(size=(4, 3)).astype(np.float32)), "val_2")], ["batch", 4],
      ["m.probe", "m.w"], {"val_0": ["m.probe", "val_3"], "val_2": ["exp", "m.w"]})
# A part of a parameter, beside another that was equal to a constant, or a factor of 1.
write("part_beside_constant",
      [node("Mul", "x select", "mul", ("mul", "aten.mul.Tensor", "%x, %select")), node("Add", "mul x", "add", ("add", "aten.add.Tensor", "%mul, %x")),
       node("Mul", "add half", "mul_1", ("mul_1", "aten.mul.Tensor", "%add, %select_1")), *loss("mul_1")],
      [tensor("select"), numpy_helper.from_array(np.float32(0.5), "half")], ["batch", 4], ["w"], {"select": ["w", "val_0"]})
write("part_beside_factor",
      [node("Mul", "x select", "mul", ("mul", "aten.mul.Tensor", "%x, %select")), node("Add", "mul x", "add", ("add", "aten.add.Tensor", "%mul, %mul_1")), *loss("add")],
      [tensor("select")], ["batch", 4], ["w"], {"select": ["w", "val_0"]})
# A table looked up: that of negated places, or a table that was negated.
write("looked_up_of_function", sums("embedding"), [looked_up("embedding", 3, 2, [0, 1, 2])], ["batch", 3, 2], ["t.weight"], {"embedding": ["neg", "arange", "t.weight"]})
write("looked_up_by_index", sums("index"), [looked_up("index", 3, 2, [0, 1, 2])], ["batch", 3, 2], ["t"], {"index": ["arange", "t"]})
# Repeated along a dim that it has.
write("repeated_rows", sums("repeat"), [looked_up("repeat", 2, 2, [0, 1, 0, 1])], ["batch", 4, 2], ["t"], {"repeat": ["t", "val_0"]})
# A number so small that it does not show, within a function of a parameter that is read itself.
w = rng.normal(size=4).astype(np.float32) + np.float32(3)
write("number_within",
      [node("Mul", "x w", "mul", ("mul", "aten.mul.Tensor", "%x, %p_w")), node("Mul", "mul mul_2", "mul_1", ("mul_1", "aten.mul.Tensor", "%mul, %mul_2")),
       *loss("mul_1")],
      [numpy_helper.from_array(w, "w"), numpy_helper.from_array(1 / (w + np.float32(1e-9)), "mul_2")], ["batch", 4], ["w"],
      {"mul_2": ["add", "reciprocal", "scalar_tensor_default", "val_0", "w"]})
# Equal values that two calls transposed, of which the second names another.
write("merged_within_calls",
      [node("MatMul", "x val_0", "linear", ("linear", "aten.linear.default", "%x, %exp"), "m"),
       node("MatMul", "linear val_0", "linear_1", ("linear_1", "aten.linear.default", "%linear, %exp_1"), "m"), *loss("linear_1")],
      [ones("val_0", 4, 4)], ["batch", 4], ["m.w"], {"val_0": ["exp", "m.w"]})
# Two tokens that are equal before any training, put beside each other: the places of the call's arguments tell them apart.
write("merged_tokens",
      [node("Expand", "m.token size", "expand", ("expand", "aten.expand.default", "%p_m_token, [4, -1, -1]"), "m"),
       node("Concat", "expand expand x", "cat", ("cat", "aten.cat.default", "[%expand, %expand_1, %x], 1"), "m", axis=1), *loss("cat")],
      [zeros("m.token", 1, 1, 4), numpy_helper.from_array(np.array([4, 1, 4]), "size")], [4, 3, 4], ["m.token", "m.other"])
# Parts of parameters are made by nodes without a call. Those of equal ones are merged: of two modules, and of one.
def parts(name, modules, leaves):
    nodes, x = [], "x"
    split = helper.make_node("Split", [f"{modules[0]}.{leaves[0]}", "sizes"], ["split_split_0", "split_split_1"], name="node_Split")
    for k, module in enumerate(modules * (3 - len(modules))):
        for part in range(2):
            call = f"add_{2 * k + part}"
            nodes.append(node("Add", f"{x} split_split_{part}", call, (call, "aten.add.Tensor", f"%{x}, %getitem_{2 * k + part}"), module, cls="net.Own"))
            nodes.append(node("Tanh", call, f"t_{call}", (f"t_{call}", "aten.tanh.default", f"%{call}"), module, cls="net.Own"))
            x = f"t_{call}"
    write(name, [split, *nodes, *loss(x)], [zeros(f"{modules[0]}.{leaves[0]}", 8), numpy_helper.from_array(np.array([4, 4]), "sizes")], ["batch", 4],
          [f"{module}.{leaf}" for module in modules for leaf in leaves])


parts("merged_parts", ["a", "b"], ["bias"])
parts("merged_parts_within", ["a"], ["first", "second"])


def split(of, sizes, axis=0):
    return helper.make_node("Split", [of, sizes], [f"{sizes}_split_0", f"{sizes}_split_1"], name=f"node_{sizes}", axis=axis)


# Cut otherwise, so that each is cut by a node of its own.
whole = dict(scope="a", cls="net.Own")
write("merged_parts_beside",
      [split("a.first", "head"), split("a.first", "tail"),
       node("Add", "x head_split_0", "add", ("add", "aten.add.Tensor", "%x, %getitem"), **whole), node("Tanh", "add", "tanh", ("tanh", "aten.tanh.default", "%add")),
       node("Add", "tanh tail_split_1", "add_1", ("add_1", "aten.add.Tensor", "%tanh, %getitem_3"), **whole), *loss("add_1")],
      [ones("a.first", 12), numpy_helper.from_array(np.array([4, 8]), "head"), numpy_helper.from_array(np.array([8, 4]), "tail")],
      ["batch", 4], ["a.first", "a.second"])
# Of two modules, where what is made of one part was merged, too.
second = dict(scope="b", cls="net.Own")
write("merged_parts_and_sums",
      [split("a.w", "halves"), node("Exp", "halves_split_0", "exp", ("exp", "aten.exp.default", "%getitem"), **whole),
       node("Mul", "x exp", "mul", ("mul", "aten.mul.Tensor", "%x, %exp"), **whole),
       node("Add", "mul halves_split_1", "add", ("add", "aten.add.Tensor", "%mul, %getitem_1"), **whole), node("Tanh", "add", "tanh", ("tanh", "aten.tanh.default", "%add")),
       node("Mul", "tanh exp", "mul_1", ("mul_1", "aten.mul.Tensor", "%tanh, %exp_1"), **second),
       node("Add", "mul_1 halves_split_1", "add_1", ("add_1", "aten.add.Tensor", "%mul_1, %getitem_3"), **second), *loss("add_1")],
      [ones("a.w", 8), numpy_helper.from_array(np.array([4, 4]), "halves")], ["batch", 4], ["a.w", "b.w"])
# Of what a call made, which is lost of the second module, whose parameters have calls besides.
def rows(x, k, module, name):
    return node("Gemm", f"{x} a.w", f"linear{k}", (f"linear{k}", "aten.linear.default", f"%{x}, %{name}"), **module, transB=1)


write("merged_before_parts",
      [node("Sin", "start", "sin", ("sin", "aten.sin.default", "%start")), rows("sin", "", whole, "p_a_w"), split("linear", "halves", 1),
       node("Add", "x halves_split_0", "add", ("add", "aten.add.Tensor", "%x, %getitem"), **whole), node("Tanh", "add", "tanh", ("tanh", "aten.tanh.default", "%add")),
       node("Add", "tanh halves_split_0", "add_1", ("add_1", "aten.add.Tensor", "%tanh, %getitem_2"), **second), node("Tanh", "add_1", "tanh_1", ("tanh_1", "aten.tanh.default", "%add_1")),
       rows("tanh_1", "_2", second, "p_b_w"), *loss("linear_2")],
      [numpy_helper.from_array(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), "a.w"), ones("start", 1, 4), numpy_helper.from_array(np.array([4, 4]), "halves")], ["batch", 4], ["a.w", "b.w"], buffers=["start"])
# A number that forward changes and returns beside the loss, which is the other scalar.
write("changed_number",
      [node("Add", "steps one", "add", ("add", "aten.add.Tensor", "%b_steps, 1")), node("Mul", "x w", "mul", ("mul", "aten.mul.Tensor", "%x, %p_w")),
       node("Div", "mul steps", "div", ("div", "aten.div.Tensor", "%mul, %b_steps")), *loss("div")],
      [ones("w", 4), ones("steps"), numpy_helper.from_array(np.float32(1), "one")], ["batch", 4], ["w"], buffers=["steps"], outputs=["add"], mutations={"steps": "add"})
# A parameter that is two modules' own, in parts of the last one's name.
write("tied_parts",
      [split("b.w", "halves"), node("Add", "x halves_split_0", "add", ("add", "aten.add.Tensor", "%x, %getitem"), **whole),
       node("Tanh", "add", "tanh", ("tanh", "aten.tanh.default", "%add")),
       node("Concat", "tanh tanh", "cat", ("cat", "aten.cat.default", "[%tanh, %tanh], 1"), axis=1),
       node("Mul", "cat b.w", "mul", ("mul", "aten.mul.Tensor", "%cat, %p_b_w"), **second), *loss("mul")],
      [ones("b.w", 8), numpy_helper.from_array(np.array([4, 4]), "halves")], [4, 4], ["a.w", "b.w"])
# Norms of a class of their own, of which the equal scales and the equal offsets were merged: each is of the parameter of its name.
def own_norm(x, k, scope):
    trace = dict(scope=scope, cls="net.Norm2d")
    own = ["", "_1"] if k == 0 else ["_2", "_3"]
    return [node("Mul", f"unsqueeze {x}", f"mul_{k}", (f"mul_{k}", "aten.mul.Tensor", f"%unsqueeze{own[0]}, %{x}"), **trace),
            node("Add", f"mul_{k} unsqueeze_1", f"add_{k}", (f"add_{k}", "aten.add.Tensor", f"%mul_{k}, %unsqueeze{own[1]}"), **trace),
            node("Tanh", f"add_{k}", f"tanh_{k}", (f"tanh_{k}", "aten.tanh.default", f"%add_{k}"))]


write("merged_in_class", [*own_norm("x", 0, "a"), *own_norm("tanh_0", 1, "b"), *loss("tanh_1")], [ones("unsqueeze", 3, 1), zeros("unsqueeze_1", 3, 1)],
      ["batch", 3, 4], ["a.weight", "a.bias", "b.weight", "b.bias"], {"unsqueeze": ["a.weight", "val_0"], "unsqueeze_1": ["a.bias", "val_0"]})
# A sum of scales' logarithms that was 0, and was removed where it was added; and a number of the module's own that is 1 and is read elsewhere.
def removed(name, missing, scale, folded):
    flow = dict(scope="flow", cls="net.Flow")
    write(name, [node("Mul", f"x {scale}", "mul", ("mul", "aten.mul.Tensor", f"%x, %{'exp' if folded else 'p_flow_scale'}"), **flow),
                 node("ReduceSum", "mul", "sum_2", ("sum_2", "aten.sum.default", "%mul"), keepdims=0, **flow),
                 node("Tanh", "sum_2", "tanh", ("tanh", "aten.tanh.default", f"%{missing}"), **flow), *loss("tanh")],
          [ones(scale, 4)], ["batch", 4], ["flow.scale"], {scale: ["flow.scale"]} if folded else {})


removed("removed_sum", "add_7", "exp", True)
removed("removed_product", "mul_7", "flow.scale", False)
# Rows of a table that are repeated along the batch.
write("repeated_query",
      [node("Tile", "val_0 size", "repeat", ("repeat", "aten.repeat.default", "%unsqueeze, [%batch, 1, 1]"), "m"),
       node("Add", "repeat x", "add", ("add", "aten.add.Tensor", "%repeat, %x"), "m"), *loss("add")],
      [tensor("val_0", 1, 3, 4), numpy_helper.from_array(np.array([4, 1, 1]), "size")], [4, 3, 4], ["q.weight"], {"val_0": ["q.weight", "unsqueeze", "val_1", "val_2"]})
# Two equal modules of several calls on one input. And a module's result that was merged with that of an equal one, which has a place elsewhere.
write("merged_chain",
      [product("x", "a.scale", "mul", "%x, %p_a_scale", "a"), node("Add", "mul a.shift", "add", ("add", "aten.add.Tensor", "%mul, %p_a_shift"), "a"),
       node("Tanh", "add", "tanh", ("tanh", "aten.tanh.default", "%add_1")), node("Sub", "add tanh", "sub", ("sub", "aten.sub.Tensor", "%add, %tanh")), *loss("sub")],
      [ones("a.scale", 4), zeros("a.shift", 4)], ["batch", 4], ["a.scale", "a.shift", "b.scale", "b.shift"])
write("merged_with_equal",
      [node("Gemm", "x a.weight a.bias", "linear", ("linear", "aten.linear.default", "%x, %p_a_weight, %p_a_bias"), "a", transB=1),
       node("Tanh", "linear", "tanh", ("tanh", "aten.tanh.default", "%linear_1")),
       node("Gemm", "tanh a.weight a.bias", "linear_2", ("linear_2", "aten.linear.default", "%tanh, %p_b_weight, %p_b_bias"), "b", transB=1),
       node("Sub", "linear linear_2", "sub", ("sub", "aten.sub.Tensor", "%linear, %linear_2")), *loss("sub")],
      [tensor("a.weight", 4, 4), tensor("a.bias", 4)], ["batch", 4], ["a.weight", "a.bias", "b.weight", "b.bias"])
# A product with 1 was removed below a parameter of zeros, of which a function may have been 1.
write("removed_below",
      [node("Add", "x m.flow.shift", "add", ("add", "aten.add.Tensor", "%x, %p_m_flow_shift"), "m.flow", cls="net.Flow"),
       node("Tanh", "add", "tanh", ("tanh", "aten.tanh.default", "%mul"), "m", cls="net.Net"), *loss("tanh")],
      [zeros("m.flow.shift", 4)], ["batch", 4], ["m.flow.shift"])
# Two chains of modules on one input, under names that do not answer each other: the last comes apart, and the first may be lost.
write("merged_chains",
      [product("x", "a.one.scale", "mul", "%x, %p_a_one_scale", "a.one"), node("Add", "mul a.two.shift", "add", ("add", "aten.add.Tensor", "%mul, %p_a_two_shift"), "a.two"),
       node("Tanh", "add", "tanh", ("tanh", "aten.tanh.default", "%add_1"), "b"), node("Sub", "add tanh", "sub", ("sub", "aten.sub.Tensor", "%add, %tanh")), *loss("sub")],
      [ones("a.one.scale", 4), zeros("a.two.shift", 4)], ["batch", 4], ["a.one.scale", "a.two.shift", "b.first.scale", "b.second.shift"])
# A penalty that is 0 at first was removed from what the model returns.
write("removed_penalty",
      [node("Add", "x shift", "add", ("add", "aten.add.Tensor", "%x, %p_shift"), cls="net.Net"), *loss("add")], [zeros("shift", 4)], ["batch", 4], ["shift"],
      returns="add_1")
# Files that list their parameters: ones that are equal and stay apart, one frozen, one with two names, one that is not used and a table of
# sinusoids that is trained; and lists that are none, or not of this file.
NORMS = [node("Mul", "x a.scale", "mul"), node("Mul", "mul b.scale", "mul_1"), node("Add", "mul_1 table", "add"), *loss("add")]
table = numpy_helper.from_array(np.stack([np.sin(np.arange(4)), np.cos(np.arange(4)), np.sin(np.arange(4) / 10), np.cos(np.arange(4) / 10)], 1)
                                .astype(np.float32), "table")
LIST = [{"name": "a.scale", "shape": [4], "trained": True}, {"name": "b.scale", "also": ["c.scale"], "shape": [4], "trained": False},
        {"name": "table", "shape": [4, 4], "trained": True}, {"name": "head.bias", "shape": [2], "trained": True, "unused": True}]
for name, listed in {"listed": LIST, "listed_shape": [LIST[0] | {"shape": [2, 2]}, *LIST[1:]], "listed_text": "a.scale b.scale", "listed_type": [3],
                     "listed_twice": [*LIST, LIST[0]], "listed_lost": [*LIST, {"name": "d.scale", "shape": [4]}], "listed_size": [LIST[0] | {"shape": [-4]}],
                     "listed_flag": [LIST[0] | {"trained": "no"}], "listed_also": [LIST[0] | {"also": "c"}]}.items():
    write(name, NORMS, [ones("a.scale", 4), ones("b.scale", 4), table], ["batch", 4, 4], ["a.scale", "b.scale", "table"], listed=listed)

# ---- Files that lost what the exporter said of them -------------------------------------------------
def bare(op, inputs, output, **attrs):
    return helper.make_node(op, inputs.split(), [output], name=f"node_{output}", **attrs)


def write_bare(name, nodes, initializers, x, opset=18):
    nodes = [*nodes, bare("Mul", f"{nodes[-1].output[0]} {nodes[-1].output[0]}", "square"), bare("ReduceMean", "square", "loss", keepdims=0)]
    graph = helper.make_graph(nodes, name, [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)], [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], initializers)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name="pytorch", producer_version="2.13.0"), OUT / f"{name}.onnx")


# Without metadata: a convolution that may have a batch norm in it, a norm that may be two, a number, a weight that its bias names, a table.
write_bare("without_calls",
           [bare("Conv", "x conv.weight val_1", "conv2d", kernel_shape=[4, 4]), bare("Flatten", "conv2d", "view"), bare("LayerNormalization", "view norm.weight norm.bias", "layer_norm"),
            bare("LayerNormalization", "layer_norm norm.weight norm.bias", "layer_norm_1"), bare("Mul", "layer_norm_1 val_2", "mul"), bare("MatMul", "mul val_3", "val_4"),
            bare("Add", "val_4 head.bias", "linear"), bare("Add", "linear embedding", "add")],
           [tensor("conv.weight", 4, 3, 4, 4), tensor("val_1", 4), ones("norm.weight", 4), zeros("norm.bias", 4), tensor("val_2"), tensor("val_3", 4, 2), tensor("head.bias", 2),
            tensor("embedding", 1, 2)], IMAGE)
write_bare("without_calls_16", [bare("Gemm", "x fc.weight fc.bias", "linear", transB=1)], [tensor("fc.weight", 2, 4), tensor("fc.bias", 2)], ["batch", 4], opset=16)
write_bare("table_without_calls_16", [bare("Add", "x embedding", "add")], [tensor("embedding", 1, 4)], ["batch", 4], opset=16)
# Weights in Constant nodes.
write_older("constant_nodes", [old("fc", "Constant", "", "fc.weight", value=tensor("", 4, 4)), old("fc", "MatMul", "x fc.weight")], [], ["batch", 4])
# Numbers that an optimiser made tensors of, and one that may have been computed from a parameter.
for name, number in (("older_numbers", 1e-5), ("older_scale", 14.2857)):
    write_older(name, [*linear("fc", "x", "onnx::MatMul_3", "fc.bias"), old("", "Pow", "/fc/Add_output_0 /Constant_1_output_0"), old("", "Mul", "/Pow_output_0 onnx::Mul_9", "scaled"),
                       helper.make_node("Div", ["scaled", "onnx::Div_11"], ["y"], name="/Div")],
                [tensor("onnx::MatMul_3", 4, 4), tensor("fc.bias", 4), values("/Constant_1_output_0", 3), values("onnx::Mul_9", number), values("onnx::Div_11", [8])], ["batch", 4])
# A counter that the file has no more, and which no training reads; one that a batch norm had, which was folded into a constant.
write("counter", [node("Constant", "", "val_0", ("add", "aten.add.Tensor", "%b_n_num_batches_tracked, 1"), value=numpy_helper.from_array(np.int64(1))),
                  node("Cast", "val_0", "val_1", to=TensorProto.FLOAT), product("x", "w", "mul", "%x, %p_w"), node("Mul", "mul val_1", "mul_1"), *loss("mul_1")],
      [tensor("w", 4)], ["batch", 4], ["w"], buffers=["n.num_batches_tracked"], mutations={"n.num_batches_tracked": "add"})

# One table looked up in two calls of a model, as where it judges two texts: the second constant was merged with the first.
write("looked_up_twice",
      [helper.make_node("Cast", ["x"], ["ids"], name="node_ids", to=TensorProto.INT64), helper.make_node("Neg", ["ids"], ["others"], name="node_others"),
       node("Gather", "m.e.weight ids", "embedding", ("embedding", "aten.embedding.default", "%p_m_e_weight, %ids"), "m.e"),
       node("Add", "embedding embedding_1", "add", ("add", "aten.add.Tensor", "%embedding, %embedding_1"), "m"),
       node("Gather", "m.e.weight others", "embedding_2", ("embedding_2", "aten.embedding.default", "%p_m_e_weight, %others"), "m.e"),
       node("Add", "embedding_2 embedding_1", "add_1", ("add_1", "aten.add.Tensor", "%embedding_2, %embedding_3"), "m"),
       node("Sub", "add add_1", "sub", ("sub", "aten.sub.Tensor", "%add, %add_1")), *loss("sub")],
      [tensor("m.e.weight", 8, 4), tensor("embedding_1", 6, 4)], ["batch", 6], ["m.e.weight", "m.p.weight"], {"embedding_1": ["arange", "m.p.weight"]})
# The greatest of some elements, detached: the call reads their shape, too, and what it scatters them into is no value of a node.
scatter = ("scatter_reduce", "aten.scatter_reduce.two", "%zeros, 0, %c_at, %detach, amax")
write("detached_scatter",
      [node("Mul", "x w", "mul", ("mul", "aten.mul.Tensor", "%x, %p_w")), node("Shape", "mul", "val_1", scatter), node("ConstantOfShape", "val_1", "val_2", scatter),
       node("ScatterElements", "zeros at val_2", "val_3", scatter), node("ScatterElements", "val_3 at mul", "scatter_reduce", scatter, reduction="max"),
       node("Gather", "scatter_reduce at", "index", ("index", "aten.index.Tensor", "%scatter_reduce, [%c_at]")),
       node("Sub", "mul index", "sub", ("sub", "aten.sub.Tensor", "%mul, %index")), *loss("sub")],
      [tensor("w", 4), zeros("zeros", 3), numpy_helper.from_array(np.array([0, 2, 0, 1]), "at")], [4], ["w"])

# Pictures of bytes, and a sequence beside them.
picture = helper.make_tensor_value_info("picture", TensorProto.UINT8, ["batch", 4])
more = helper.make_tensor_sequence_value_info("more", TensorProto.FLOAT, None)
graph = helper.make_graph([bare("Cast", "picture", "x", to=TensorProto.FLOAT), bare("MatMul", "x fc.weight", "h"), *loss("h")], "bytes", [picture, more],
                          [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], [tensor("fc.weight", 4, 2)])
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), OUT / "bytes.onnx")

# What onnxruntime makes of an export: one bias of zeros for all modules, and a node without a scope where others were fused. Two of its products
# have no weight under their names; with such a bias beside the first module's product, too.
for name, weight in (("older_fused", "a.weight"), ("older_fused_twice", "onnx::MatMul_2")):
    write_older(name, [*linear("a", "x", weight, "a.bias"),
                       helper.make_node("Gelu", ["/a/Add_output_0"], ["gelu"], name="Gelu_0", domain="com.microsoft"),
                       *linear("b", "gelu", "onnx::MatMul_5", "a.bias"), helper.make_node("Gelu", ["/b/Add_output_0"], ["y"], name="Gelu_1", domain="com.microsoft")],
                [tensor(weight, 4, 4), zeros("a.bias", 4), tensor("onnx::MatMul_5", 4, 4)], ["batch", 4])
# A dim of four that is squeezed, which PyTorch leaves.
write("squeezed", [product("x", "w", "mul", "%x, %p_w"), node("Squeeze", "mul axes", "squeeze", ("squeeze", "aten.squeeze.dim", "%mul, 1")), *loss("squeeze")],
      [tensor("w", 4), numpy_helper.from_array(np.array([1]), "axes")], ["batch", 4], ["w"])
# A convolution of volumes without a bias, for which the exporter writes zeros of another shape.
write("volumes", [node("Conv", "x conv.weight val_6", "conv3d", ("conv3d", "aten.conv3d.default", "%x, %p_conv_weight, None"), "conv"), *loss("conv3d")],
      [tensor("conv.weight", 4, 2, 2, 2, 2), zeros("val_6", 4, 2)], ["batch", 2, 3, 3, 3], ["conv.weight"])
# Products of parameters in a file that was not optimised.
write("product_without_optimize", [node("Constant", "", "val_0", value=tensor("", 1)), product("x", "mul", "mul_1", "%x, %mul"), product("mul_1", "u", "mul_2", "%mul_1, %p_u"),
                                   product("mul_2", "val_0", "mul_3", "%mul_2, 2"), *loss("mul_3")],
      [values("mul", w), tensor("u", 4)], ["batch", 4], ["u", "v", "w"], {"mul": ["v", "w"]})
# What a module has beside its parameters: a constant, what nothing reads, and a buffer that no step reads, with its value. And lists of it that are none.
BESIDE = [tensor("w", 4), tensor("idle", 2), numpy_helper.from_array(np.arange(3), "order"), tensor("last", 4)]
for name, untouched in {"untouched": {"idle": "idle", "also": "idle", "order": "order", "w": "w"}, "untouched_text": "idle", "untouched_entry": {"idle": 1},
                        "untouched_lost": {"idle": "gone"}}.items():
    write(name, [node("Mul", "x w", "mul", ("mul", "aten.mul.Tensor", "%x, %p_w")), node("Add", "w w", "sum", ("sum", "aten.add.Tensor", "%p_w, %p_w")), *loss("mul")],
          BESIDE, ["batch", 4], ["w"], buffers=["last"], outputs=["sum"], mutations={"last": "sum"}, listed=[{"name": "w", "shape": [4]}], untouched=untouched)

if OUT != STORED:
    names = sorted({path.name for folder in (OUT, STORED) for path in folder.glob("*.onnx")})
    _, differing, missing = filecmp.cmpfiles(OUT, STORED, names, shallow=False)
    sys.exit(f"not what is stored: {', '.join(differing + missing)}" if differing or missing else 0)
