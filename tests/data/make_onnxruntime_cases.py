"""Writes onnxruntime_cases.gz: uses of operators with what onnxruntime makes of them, in the form of onnx_node_cases.gz (see
tests/ops/node_cases.h): its own operators (com.microsoft), recurrent ones, samples of images, transforms, quantisation, determinants.

    pip install onnx onnxruntime numpy
    python tests/data/make_onnxruntime_cases.py
"""
import gzip
import pathlib
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from google.protobuf.internal.encoder import _VarintBytes

rng = np.random.default_rng(3)
CASES = []
F64 = np.float64


def floats(*shape, scale=1.0, dtype=np.float32):
    return (rng.normal(size=shape) * scale).astype(dtype)


def case(name, nodes, inputs, outputs, constants=None, opset=20):
    """nodes: (op, inputs, outputs, attributes); com.microsoft's have a dot before their name."""
    made = [helper.make_node(op.lstrip("."), i.split(","), o.split(","), domain="com.microsoft" if op[0] == "." else "", **a)
            for op, i, o, a in nodes]
    infos = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()]
    tensors = [v if isinstance(v, TensorProto) else numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(made, "ort_" + name, infos, [helper.make_empty_tensor_value_info(o) for o in outputs], tensors)
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", opset),
                                                                  helper.make_opsetid("com.microsoft", 1)])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    results = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, inputs)
    for info, value in zip(graph.output, results):
        info.CopyFrom(helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    graph.initializer.extend(numpy_helper.from_array(v, "in:" + k) for k, v in inputs.items())
    graph.initializer.extend(numpy_helper.from_array(v, "out:" + o) for o, v in zip(outputs, results))
    model.graph.CopyFrom(graph)
    CASES.append(model.SerializeToString(deterministic=True))


def one(name, op, inputs, outputs=1, constants=(), opset=20, **attrs):
    """One node over a, b, c …; None: an input that is left out; those of `constants` are initializers."""
    letters = "abcdefghijkl"
    names = ["" if v is None else letters[i] for i, v in enumerate(inputs)]
    outs = [f"y{i}" for i in range(outputs)]
    given = {n: v for n, v in zip(names, inputs) if n}
    case(name, [(op, ",".join(names), ",".join(outs), attrs)], {k: v for k, v in given.items() if k not in constants}, outs,
         {k: given[k] for k in constants}, opset)


def microsoft():
    x, b = floats(2, 3, 8), floats(8)
    one("gelu", ".Gelu", [x])
    one("bias_gelu", ".BiasGelu", [x, b])
    one("fast_gelu", ".FastGelu", [x])
    one("fast_gelu_bias", ".FastGelu", [x, b])
    one("quick_gelu", ".QuickGelu", [x], alpha=1.25)
    one("skip_layer_norm", ".SkipLayerNormalization", [x, floats(2, 3, 8), floats(8), b, floats(8)], epsilon=1e-5)
    case("skip_layer_norm_sum", [(".SkipLayerNormalization", "x,s,g,b", "y,,,sum", {"epsilon": 1e-5})],
         {"x": x, "s": floats(3, 8), "g": floats(8), "b": b}, ["y", "sum"])
    case("skip_rms_norm", [(".SkipSimplifiedLayerNormalization", "x,s,g,b", "y,,,sum", {"epsilon": 1e-5})],
         {"x": x, "s": floats(2, 3, 8), "g": floats(8), "b": b}, ["y", "sum"])
    one("rms_norm", "SimplifiedLayerNormalization", [x, b], epsilon=1e-5, axis=-1)
    one("matmul", ".FusedMatMul", [floats(2, 3, 4), floats(2, 5, 4)], transB=1, alpha=0.5)
    one("matmul_batch", ".FusedMatMul", [floats(4, 3, 2, 5), floats(3, 2, 5, 6)], transBatchA=1)
    one("matmul_batch_both", ".FusedMatMul", [floats(4, 3, 2, 5), floats(6, 3, 2, 5)], transBatchA=1, transBatchB=1, transB=1)


def attention():
    B, S, N, D = 2, 5, 2, 4
    H = N * D
    x, w, b = floats(B, S, H), floats(H, 3 * H), floats(3 * H)
    mask = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)
    one("attention", ".Attention", [x, w, b], num_heads=N)
    one("attention_causal", ".Attention", [x, w, b, mask], num_heads=N, unidirectional=1)
    one("attention_lengths", ".Attention", [x, w, b, np.array([3, 5], np.int32)], num_heads=N, scale=0.3)
    one("attention_mask3", ".Attention", [x, w, b, (rng.random((B, S, S)) > .3).astype(np.int32)], num_heads=N)
    one("attention_bias", ".Attention", [x, w, b, None, None, floats(1, N, S, S)], 2, num_heads=N)
    one("attention_past", ".Attention", [x, w, b, None, floats(2, B, N, 3, D)], 2, num_heads=N, unidirectional=1)
    one("attention_sizes", ".Attention", [x, floats(H, 22), floats(22)], num_heads=N, qkv_hidden_sizes=[8, 8, 6])
    L = 6
    q, k, v = floats(B, S, H), floats(B, L, H), floats(B, L, H)
    padding = np.array([[1, 1, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]], np.int32)
    one("multi_head", ".MultiHeadAttention", [q, k, v, floats(3 * H), padding], num_heads=N)
    one("multi_head_bias", ".MultiHeadAttention", [q, k, v, None, None, floats(1, N, S, L)], num_heads=N, scale=0.4)
    one("multi_head_crossed", ".MultiHeadAttention", [q, floats(B, N, L, D), floats(B, N, L, D)], num_heads=N)
    k, v = floats(B, S, H), floats(B, S, H)
    one("multi_head_causal", ".MultiHeadAttention", [q, k, v], num_heads=N, unidirectional=1)
    one("multi_head_past", ".MultiHeadAttention", [q, k, v, None, None, None, floats(B, N, 3, D), floats(B, N, 3, D)], 3,
        num_heads=N)
    D, G = 16, 1
    q, k, v = floats(B, S, N * D), floats(B, S, G * D), floats(B, S, G * D)
    ends, total = np.full(B, S - 1, np.int32), np.array(S, np.int32)
    cos, sin = np.cos(floats(8, D // 2)), np.sin(floats(8, D // 2))
    groups = dict(num_heads=N, kv_num_heads=G)
    one("groups", ".GroupQueryAttention", [q, k, v, None, None, ends, total], 3, "fg", **groups)
    one("groups_window", ".GroupQueryAttention", [q, k, v, None, None, ends, total], 3, "fg", local_window_size=2, **groups)
    one("groups_cap", ".GroupQueryAttention", [q, k, v, None, None, ends, total], 3, "fg", softcap=1.5, scale=0.7, **groups)
    one("groups_packed", ".GroupQueryAttention", [np.concatenate([q, k, v], -1), None, None, None, None, ends, total], 3, "fg",
        **groups)
    for pairs in (0, 1):
        one(f"groups_rotary{pairs}", ".GroupQueryAttention", [q, k, v, None, None, ends, total, cos, sin], 3, "fghi",
            do_rotary=1, rotary_interleaved=pairs, **groups)
        places = np.tile(np.arange(1, S + 1), (B, 1))
        one(f"rotary{pairs}", ".RotaryEmbedding", [q, places, cos, sin], interleaved=pairs)
        one(f"rotary_heads{pairs}", ".RotaryEmbedding", [floats(B, N, S, D), np.array([2]), cos, sin], interleaved=pairs)


def recurrent():
    T, B, I, H = 4, 3, 2, 5
    lens = np.array([4, 2, 3], np.int32)
    for op, G, acts in (("RNN", 1, ["Affine"]), ("GRU", 3, ["HardSigmoid", "Softsign"]), ("LSTM", 4, ["HardSigmoid", "ScaledTanh", "Elu"])):
        low = op.lower()
        for direction, D in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            x, w, r, bias = floats(T, B, I), floats(D, G * H, I), floats(D, G * H, H, scale=.5), floats(D, 2 * G * H)
            states = [floats(D, B, H)] * (2 if op == "LSTM" else 1)
            outs = 3 if op == "LSTM" else 2
            one(f"{low}_{direction}", op, [x, w, r, bias], outs, hidden_size=H, direction=direction, opset=14)
            one(f"{low}_{direction}_lengths", op, [x, w, r, bias, lens, *states], outs, hidden_size=H, direction=direction,
                opset=14)
        alpha, beta = {"RNN": ([.5], [.1]), "GRU": ([.3], [.4]), "LSTM": ([.3, .9, .7], [.4, .6])}[op]
        x, w, r, bias = floats(T, B, I), floats(1, G * H, I), floats(1, G * H, H, scale=.5), floats(1, 2 * G * H)
        one(f"{low}_activations", op, [x, w, r, bias], outs, hidden_size=H, activations=acts, activation_alpha=alpha,
            activation_beta=beta, opset=14)
        one(f"{low}_clip", op, [x * 3, w, r, bias], outs, hidden_size=H, clip=0.5, opset=14)
        if op == "GRU":
            one("gru_reset_after", op, [x, w, r, bias], outs, hidden_size=H, linear_before_reset=1, opset=14)
        if op == "LSTM":
            one("lstm_peepholes", op, [x, w, r, bias, None, None, None, floats(1, 3 * H)], outs, hidden_size=H, opset=14)
            one("lstm_input_forget", op, [x, w, r, None], outs, hidden_size=H, input_forget=1, opset=14)


def images():
    x = floats(2, 3, 4, 5)
    grid = floats(2, 3, 2, 2, scale=0.9)
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                one(f"grid_{mode}_{padding}{align}", "GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=align)
    one("grid_volume", "GridSample", [floats(2, 2, 3, 4, 3), floats(2, 2, 1, 3, 3, scale=.7)], mode="linear", padding_mode="border")
    one("grid_16", "GridSample", [x, grid], mode="bilinear", opset=16)
    one("upsample", "Upsample", [x, np.array([1, 1, 2, 1.5], np.float32)], constants="b", mode="nearest", opset=9)
    one("upsample_linear", "Upsample", [x, np.array([1, 1, 2, 3], np.float32)], constants="b", mode="linear", opset=9)
    one("upsample_7", "Upsample", [x], mode="nearest", scales=[1., 1., 2., 2.], opset=7)
    one("col2im", "Col2Im", [floats(2, 12, 6), np.array([4, 5]), np.array([2, 3])], constants="bc", strides=[2, 2], pads=[0, 1, 0, 1],
        opset=18)
    pixels = rng.integers(0, 256, size=(2, 4, 5, 3), dtype=np.uint8)
    case("pixels", [("Transpose", "x", "t", {"perm": [0, 3, 1, 2]}), ("Slice", "t,from,to", "s", {}), ("Cast", "s", "f", {"to": 1}),
                    ("Mul", "f,scale", "y", {})], {"x": pixels}, ["y"],
         {"scale": np.float32(1 / 255), "from": np.array([0, 1]), "to": np.array([2, 3])})
    case("narrow_casts", [("Cast", "x", "u", {"to": 2}), ("Cast", "x", "s", {"to": 3}), ("Cast", "u", "a", {"to": 6}),
                          ("Cast", "s", "b", {"to": 6}), ("Add", "a,b", "y", {})], {"x": np.arange(-300, 300, 7).astype(np.int32)}, ["y"])


def transforms():
    for n, length in ((6, None), (6, 4), (5, 8)):
        x = [floats(2, n, 3, 1), None if length is None else np.array(length)]
        one(f"dft_{n}_{length}", "DFT", [*x, np.array(1)], constants="bc" if length else "c")
        one(f"dft_half_{n}_{length}", "DFT", [*x, np.array(1)], constants="bc" if length else "c", onesided=1)
        one(f"dft_inverse_{n}_{length}", "DFT", [floats(2, n, 2), *x[1:], np.array(1)], constants="bc" if length else "c", inverse=1)
    one("dft_17", "DFT", [floats(2, 4, 5, 2)], axis=2, opset=17)
    one("stft", "STFT", [floats(2, 12, 1), np.array(3), floats(6), None], constants="b", opset=17)
    one("stft_whole", "STFT", [floats(2, 12, 1), np.array(4), None, np.array(5)], constants="bd", onesided=0, opset=17)


def quantised():
    x = floats(3, 4, scale=3)
    for kind, zero in (("uint8", 120), ("int8", -3), ("uint16", 30000), ("int16", 5)):
        s, z = np.float32(0.04), np.array(zero, kind)
        case("quantise_" + kind, [("QuantizeLinear", "x,s,z", "q", {}), ("DequantizeLinear", "q,s,z", "y", {})], {"x": x}, ["y"],
             {"s": s, "z": z}, opset=21)
    case("quantise_axis", [("QuantizeLinear", "x,s,z", "q", {"axis": 0}), ("Transpose", "q", "t", {"perm": [1, 0]}),
                           ("DequantizeLinear", "t,s,z", "y", {"axis": 1})], {"x": x}, ["y"],
         {"s": np.array([.1, .02, .3], np.float32), "z": np.array([0, 5, -4], np.int8)})
    case("quantise_default", [("QuantizeLinear", "x,s", "q", {}), ("DequantizeLinear", "q,s", "y", {})], {"x": x}, ["y"],
         {"s": np.float32(0.03)})
    case("stored_quantised", [("DequantizeLinear", "w,s,z", "v", {"axis": 1}), ("MatMul", "x,v", "y", {})], {"x": x}, ["y"],
         {"w": rng.integers(-128, 128, size=(4, 2), dtype=np.int8), "s": np.array([.1, .2], np.float32), "z": np.array([1, -2], np.int8)})


def blocks():
    x = floats(5, 6, scale=3)
    for kind, zero, axis, block in (("int8", (-3, 4), 1, 2), ("uint8", (100, 120), 0, 2), ("int4", (-2, 3), 0, 3), ("uint4", (3, 9), 1, 4)):
        shape = [-(-n // block) if d == axis else n for d, n in enumerate(x.shape)]
        zeros = helper.make_tensor("z", getattr(TensorProto, kind.upper()), shape, rng.integers(*zero, size=shape).ravel())
        case(f"quantise_blocks_{kind}", [("QuantizeLinear", "x,s,z", "q", {"axis": axis, "block_size": block}),
                                         ("DequantizeLinear", "q,s,z", "y", {"axis": axis, "block_size": block})], {"x": x}, ["y"],
             {"s": (rng.random(shape) * 0.5 + 0.05).astype(np.float32), "z": zeros}, opset=21)
    weights = helper.make_tensor("w", TensorProto.INT4, [6, 3], rng.integers(-8, 8, size=18))
    case("stored_in_blocks", [("DequantizeLinear", "w,s", "v", {"axis": 0, "block_size": 3}), ("MatMul", "x,v", "y", {})], {"x": x}, ["y"],
         {"w": weights, "s": np.array([[.1, .2, .3], [.4, .5, .6]], np.float32)}, opset=21)


def determinants():
    one("det", "Det", [floats(2, 3, 4, 4)], opset=11)
    for n in 1, 2, 3, 9:
        one(f"det_{n}", "Det", [floats(n, n)], opset=22)
    singular = floats(3, 3)
    singular[2] = singular[0] - 2 * singular[1]
    one("det_singular", "Det", [singular.round(1)])


def body(inputs, nodes, outputs, tensors=()):
    def infos(names):
        return [helper.make_tensor_value_info(n, t, None if t == 1 else []) for n, t in names.items()]
    made = [helper.make_node(op, i.split(","), o.split(","), **a) for op, i, o, a in nodes]
    return helper.make_graph(made, "body", infos(inputs), infos(outputs), [numpy_helper.from_array(v, k) for k, v in tensors])


def loops():
    f32, i64, boolean = 1, 7, 9
    x, w = floats(3, 4), floats(4, 4)
    yes = {"yes": np.array(True), "count": np.array(3)}
    # Carries a product, uses the number of the turn and a matrix from outside, and stacks what it sees.
    turn = body({"t": i64, "go": boolean, "h": f32},
                [("Cast", "t", "k", {"to": 1}), ("MatMul", "h,w", "m", {}), ("Add", "m,k", "s", {}), ("Tanh", "s", "h2", {}),
                 ("Identity", "go", "go2", {}), ("ReduceSum", "h2,axis", "r", {"keepdims": 0})],
                {"go2": boolean, "h2": f32, "r": f32}, [("axis", np.array([1]))])
    case("loop", [("Loop", "count,yes,x", "h,rs", {"body": turn})], {"x": x, "w": w}, ["h", "rs"], yes)
    # Without a turn nothing is stacked.
    none = body({"t": i64, "go": boolean, "h": f32}, [("Neg", "h", "h2", {}), ("Identity", "go", "go2", {}), ("Neg", "t", "k", {})],
                {"go2": boolean, "h2": f32, "k": i64})
    case("loop_without_turns", [("Loop", "none,yes,x", "h,ks", {"body": none}), ("Concat", "ks,z", "all", {"axis": 0})],
         {"x": x, "z": np.array([5, 7])}, ["h", "all"], {"yes": yes["yes"], "none": np.array(0)})
    inner = body({"u": i64, "go": boolean, "a": f32}, [("Mul", "a,half", "b", {}), ("Add", "b,h", "c", {}), ("Identity", "go", "g", {})],
                 {"g": boolean, "c": f32})
    outer = body({"t": i64, "go": boolean, "h": f32},
                 [("Loop", "count,yes,h", "i", {"body": inner}), ("Sin", "i", "h2", {}), ("Identity", "yes", "g", {})],
                 {"g": boolean, "h2": f32})
    case("loop_of_loops", [("Loop", "count,,x", "y", {"body": outer})], {"x": x}, ["y"], {**yes, "half": np.float32(.5)})
    step = body({"h": f32, "a": f32, "b": f32},
                [("Mul", "h,a", "m", {}), ("Add", "m,b", "h2", {}), ("Sub", "h2,b", "o", {}), ("Identity", "h2", "p", {})],
                {"h2": f32, "o": f32, "p": f32})
    case("scan", [("Scan", "h,x,z", "last,o,p", {"body": step, "num_scan_inputs": 2, "scan_input_axes": [0, 1],
                                                 "scan_input_directions": [0, 1], "scan_output_axes": [1, 0],
                                                 "scan_output_directions": [0, 1]})],
         {"h": floats(4), "x": x, "z": floats(4, 3)}, ["last", "o", "p"])


def bits():
    x, y = (rng.integers(-2**40, 2**40, size=shape) for shape in ((3, 5), (5,)))
    for op in "BitwiseAnd", "BitwiseOr", "BitwiseXor":
        one(op.lower(), op, [x, y])
        one(op.lower() + "_32", op, [(x >> 12).astype(np.int32), (y >> 12).astype(np.int32)])
    one("bitwisenot", "BitwiseNot", [x])
    # Of fewer bits: what comes of it is of as many.
    for kind, code, has_sign in (("uint8", 2, False), ("int8", 3, True), ("uint16", 4, False), ("int16", 5, True)):
        nodes = [("Cast", "x", "a", {"to": code}), ("Cast", "y", "b", {"to": code}), ("BitwiseAnd", "a,b", "c", {}), ("BitwiseXor", "c,a", "d", {}),
                 ("BitwiseNot", "d", "e", {}), ("BitwiseOr", "e,b", "f", {}), ("Cast", "f", "out", {"to": 7})]
        case("bits_" + kind, nodes, {"x": x, "y": y}, ["out"])
        if not has_sign:
            case("shifts_" + kind, [*nodes[:2], ("Cast", "n", "k", {"to": code}), ("BitShift", "a,k", "l", {"direction": "LEFT"}),
                                    ("BitShift", "b,k", "r", {"direction": "RIGHT"}), ("BitwiseXor", "l,r", "c", {}), ("Cast", "c", "out", {"to": 7})],
                 {"x": x, "y": y, "n": np.array([0, 1, 3, 5, 7])}, ["out"])


def places():
    # 3 / 0.6 is 5 in f32, and less in f64, as is 11 / 1.1.
    for size, scale in ((20, 0.1), (14, 0.3), (7, 0.6), (11, 1.1), (11, 1.7), (31, 2.3)):
        x, scales = floats(1, 1, 1, size), np.array([1, 1, 1, scale], np.float32)
        if scale > 1:
            one(f"upsample_places_{scale}", "Upsample", [x, scales], constants="b", mode="nearest", opset=9)
        for coordinates in "asymmetric", "half_pixel":
            for rounding in "floor", "ceil", "round_prefer_floor", "round_prefer_ceil":
                one(f"resize_places_{scale}_{coordinates}_{rounding}", "Resize", [x, None, scales], constants="c", mode="nearest",
                    coordinate_transformation_mode=coordinates, nearest_mode=rounding, opset=19)


for part in (microsoft, attention, recurrent, images, transforms, quantised, loops, blocks, determinants, bits, places):
    part()
out = pathlib.Path(__file__).parent / "onnxruntime_cases.gz"
with open(out, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed:
    for data in CASES:
        packed.write(_VarintBytes(len(data)) + data)
print(len(CASES), "cases,", out.stat().st_size, "bytes")
