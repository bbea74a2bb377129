"""Writes tests/data/onnx_node_cases.gz: the ONNX project's backend node tests (package onnx 1.23.2, Apache-2.0) of the
operators that changed or appeared in opsets 18 to 23, see node_cases.h. A case for a later opset is kept under opset 23 where
it means the same there.

    python3 -m venv venv && venv/bin/pip install onnx==1.23.2 && venv/bin/python tests/ops/make_node_cases.py
"""
import gzip
import io
import os
import warnings

warnings.filterwarnings("ignore")
import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.backend.test.case.node import collect_testcases

NEWEST = 23
KINDS = {np.dtype(t) for t in ("float32", "float64", "int32", "int64", "bool")}
NOT_CLAIMED = {  # no rule imports them
    "AffineGrid", "Bernoulli", "CausalConvWithState", "CenterCropPad", "ImageDecoder", "LinearAttention", "MaxUnpool",
    "QLinearMatMul", "QuantizeLinear", "DequantizeLinear", "RegexFullMatch",
    "RoiAlign", "StringConcat", "StringSplit", "TensorScatter", "FlexAttention", "SwiGLU", "CumProd", "BitCast", "Unique", "OptionalGetElement", "OptionalHasElement"}
MOST_BYTES = 24_000  # of data; larger cases are left out


def data_bytes(case):
    return sum(np.asarray(x).nbytes for group in case.data_sets[0] for x in group)


def is_wanted(case):
    main = [n for n in case.model.graph.node if n.domain == ""]
    versions = [o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx")]
    if "expanded" in case.name or not main or not versions or versions[0] < 18 or main[0].op_type in NOT_CLAIMED:
        return False
    if not all(isinstance(x, np.ndarray) and x.dtype in KINDS for group in case.data_sets[0] for x in group):
        return False
    return data_bytes(case) <= MOST_BYTES


def packed(case):
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = min(opset.version, NEWEST)
    model.ir_version = min(model.ir_version, 10)
    try:
        onnx.checker.check_model(model)
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception as error:
        print("left out:", case.name, str(error).splitlines()[0][:90])
        return None
    graph = model.graph
    graph.name = case.name
    del graph.value_info[:]
    for prefix, infos, values in (("in:", graph.input, case.data_sets[0][0]), ("out:", graph.output, case.data_sets[0][1])):
        for info, value in zip(infos, values):
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), prefix + info.name))
    return model.SerializeToString(deterministic=True)


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


here = os.path.dirname(os.path.abspath(__file__))
raw = io.BytesIO()
count = 0
for case in sorted(collect_testcases(None), key=lambda c: c.name):
    if case.model is not None and is_wanted(case):
        data = packed(case)
        if data is not None:
            raw.write(varint(len(data)) + data)
            count += 1
path = os.path.join(here, "..", "data", "onnx_node_cases.gz")
with open(path, "wb") as out:
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as packed_file:
        packed_file.write(raw.getvalue())
print(count, "cases,", os.path.getsize(path), "bytes")
