"""Parts of a module that are refused by name before anything is traced."""
import torch
from torch.nn.parameter import UninitializedTensorMixin

from .errors import NotExported


def refuse_parts(module):
    for name, part in module.named_modules():
        where = f"'{name}' is a {type(part).__name__}" if name else f"the module is a {type(part).__name__}"
        if isinstance(part, torch.jit.ScriptModule):
            raise NotExported(f"{where}, made by torch.jit.script or torch.jit.trace: that is not supported, as its parameters, dropout and hooks are out of sight. "
                              "Put in the module that it was made of")
        for value_name, value in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            if isinstance(value, UninitializedTensorMixin):
                raise NotExported(f"{where} whose '{value_name}' has no shape yet: run forward once on an example batch, then export it")
            if value.layout is not torch.strided:
                raise NotExported(f"{where} whose '{value_name}' is a sparse tensor: that is not supported. Keep its indices and its values as two buffers, and sum by "
                                  "index_add what they choose")
        for value_name, value in part.named_parameters(recurse=False):
            if value.is_complex():
                raise NotExported(f"{where} whose parameter '{value_name}' has complex numbers: that is not supported. Make its two parts one parameter of floats, "
                                  "and have forward put them together by torch.view_as_complex")
        if getattr(part, "max_norm", None) is not None:
            raise NotExported(f"'{name}' is an {type(part).__name__} with max_norm, by which forward shortens rows of its weight, which is trained: that is not supported. Leave max_norm out, or "
                              "shorten what it returns: rows * (max_norm / rows.norm(dim=-1, keepdim=True).clamp(min=max_norm))")
