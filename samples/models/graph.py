"""Writes ONNX graphs as PyTorch's exporters do: parameters under their names, nodes named by the module that calls them."""
import contextlib
import json
import pathlib
import zlib

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET, IR = 23, 11
TYPES = {np.dtype("int64"): TensorProto.INT64, np.dtype("float32"): TensorProto.FLOAT}
PARAMETERS = "piper.parameters"  # formats/model.md: the list of parameters, which tools/export.py writes, too


class Graph:
    """A graph under construction. Values are names of tensors, as in the file."""

    def __init__(self):
        self.nodes, self.constants, self.inputs, self.listed = [], [], [], []
        self.modules, self.used = [], {}

    @contextlib.contextmanager
    def module(self, name):
        """What is made within is of this part of the module around it, such as `layers.0`."""
        self.modules.append(name)
        try:
            yield
        finally:
            self.modules.pop()

    def input(self, name, *dims):
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, dims))
        return name

    def parameter(self, name, *shape, about=0.0, spread=0.02, trained=True):
        """A tensor of floats; `about` and `spread`: mean and deviation of its first values, where values are written."""
        full = ".".join([*self.modules, name])
        self.listed.append({"name": full, "shape": list(shape), "trained": trained, "about": about, "spread": spread})
        return full

    def constant(self, values):
        """Numbers that the graph computes with: they are in the model file itself."""
        values = np.asarray(values, np.int64 if np.asarray(values).dtype.kind == "i" else np.float32)
        name = self.fresh("Constant_output")
        self.constants.append(helper.make_tensor(name, TYPES[values.dtype], values.shape, values.tobytes(), raw=True))
        return name

    def op(self, kind, *operands, outputs=1, **attributes):
        """Calls an operator; lists and numbers among the operands become constants."""
        inputs = [value if isinstance(value, str) else self.constant(value) for value in operands]
        name = self.fresh(kind)
        results = [f"{name}_output_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, results, name, **attributes))
        return results[0] if outputs == 1 else results

    def fresh(self, kind):
        name = "/" + "/".join([*self.modules, kind])
        count = self.used[name] = self.used.get(name, -1) + 1
        return f"{name}_{count}" if count else name

    def save(self, path, loss, weights=False, seed=0):
        """Writes the file; with `weights`, random first values beside it. Returns how many elements the parameters have."""
        path = pathlib.Path(path)
        data, tensors, offset = path.name + ".data", [], 0
        for entry in self.listed:
            tensor = TensorProto(name=entry["name"], data_type=TensorProto.FLOAT, dims=entry["shape"], data_location=TensorProto.EXTERNAL)
            size = 4 * int(np.prod(entry["shape"], dtype=object))
            for key, value in ("location", data), ("offset", offset), ("length", size):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            offset += size
        self.nodes.append(helper.make_node("Identity", [loss], ["loss"], "/Identity"))
        out = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
        graph = helper.make_graph(self.nodes, "main", self.inputs, [out], [*tensors, *self.constants])
        listed = [{key: entry[key] for key in ("name", "shape", "trained")} for entry in self.listed]
        graph.metadata_props.add(key=PARAMETERS, value=json.dumps(listed, separators=(",", ":")))
        model = helper.make_model(graph, producer_name="samples/models", ir_version=IR, opset_imports=[helper.make_opsetid("", OPSET)])
        path.write_bytes(model.SerializeToString(deterministic=True))
        if weights:
            with open(path.with_name(data), "wb") as file:
                for entry in self.listed:
                    drawn = np.random.default_rng([seed, zlib.crc32(entry["name"].encode())]).standard_normal(entry["shape"], np.float32)
                    file.write((drawn * np.float32(entry["spread"]) + np.float32(entry["about"])).tobytes())
        return offset // 4
