"""Files without the values of parameters: modules are traced that have none, and the file says where values would be."""
import contextlib
import pathlib

import onnxscript.ir
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .errors import NotExported


@contextlib.contextmanager
def without_values(module):
    """Within, the module's parameters are tensors of their shapes that have no values and take no memory."""
    empty = [name for name, value in module.named_buffers() if value.is_meta]
    if empty:
        raise NotExported(f"the buffer '{empty[0]}' is on the device 'meta': forward computes with its values, so make buffers on the CPU; parameters alone "
                          "may be there")
    mode, stand_ins, replaced = FakeTensorMode(allow_non_fake_inputs=True), {}, []
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is None:
                continue
            if id(value) not in stand_ins:
                with mode:
                    stand_ins[id(value)] = torch.nn.Parameter(torch.empty(value.shape, dtype=value.dtype), value.requires_grad)
            replaced.append((part, name, value))
    try:
        for part, name, value in replaced:
            part._parameters[name] = stand_ins[id(value)]
        yield module
    finally:
        for part, name, value in replaced:
            part._parameters[name] = value


def leave_out(model, listed, path):
    """Parameters as parts of a data file that is not written; all other numbers are in the model file."""
    offset, location = 0, pathlib.Path(path).name + ".data"
    for entry in listed:
        value = model.graph.initializers.get(entry["name"])
        if value is None:
            continue
        length = value.const_value.nbytes
        value.const_value = onnxscript.ir.ExternalTensor(location, offset, length, value.const_value.dtype, name=value.name,
                                                         shape=onnxscript.ir.Shape(entry["shape"]), base_dir=str(pathlib.Path(path).parent))
        offset += length
