"""What a module holds, so that it is put back after forward has run, and what of it forward changes."""
import copy
import operator
import types

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree

CONTAINERS = dict, list, set


class Kept:
    """Tensors by value, and all else that its parts hold, such as counters and caches, by what it is."""

    def __init__(self, module):
        self.tensors = [(value, value.detach().clone()) for value in (*module.parameters(), *module.buffers())]
        self.parts = [(f"{name}." if name else "", vars(part), vars(part).copy()) for name, part in module.named_modules()]
        self.contents = {id(value): copy.copy(value) for _, _, held in self.parts for value in held.values() if isinstance(value, CONTAINERS)}

    def put_back(self, all=True):
        """Parameters and buffers; where `all`, the rest, too."""
        for _, now, held in self.parts:
            for key in [key for key in now if all and key not in held]:
                del now[key]
            for key, value in held.items():
                if all or key in ("_parameters", "_buffers"):
                    now[key] = value
                    self.refill(value)
        with torch.no_grad():
            for value, before in self.tensors:
                if value.shape == before.shape:
                    value.copy_(before)
                else:
                    value.data = before.clone()

    def refill(self, value):
        before = self.contents.get(id(value))
        if before is None or holds(value, before):
            return
        value.clear()
        value.extend(before) if isinstance(value, list) else value.update(before)

    def changed(self):
        """The names of what is neither a parameter nor a buffer and is no longer what it was."""
        return [prefix + key for prefix, now, held in self.parts for key, value in held.items() if key not in ("_parameters", "_buffers", "_modules")
                and not (is_same(now.get(key), value) and is_same(value, self.contents.get(id(value), value)))]

    def results(self):
        """The names of what was computed by an earlier forward, and was left as it is by this one."""
        return [prefix + key for prefix, now, held in self.parts for key, value in held.items() if now.get(key) is value
                and any(not tensor.is_leaf and tensor.requires_grad for tensor in tensors_in(self.contents.get(id(value), value)))]


def holds(value, before):
    """Whether a container holds the same objects as before."""
    if isinstance(value, dict):
        return list(value) == list(before) and all(value[key] is before[key] for key in value)
    return len(value) == len(before) and (value == before if isinstance(value, set) else all(map(operator.is_, value, before)))


def is_same(a, b):
    """Also of tensors of equal values, one by one in a container."""
    if a is b:
        return True
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and are_equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    return isinstance(a, (bool, int, float, str, set)) and a == b


def are_equal(a, b):
    """Also of sparse tensors, which PyTorch does not compare. Tensors without values have none that differ."""
    return is_fake(a) or is_fake(b) or torch.equal(*(one if one.layout is torch.strided else one.to_dense() for one in (a, b)))


def are_close(one, other):
    """Whether forward returned the same twice, but for rounding."""
    pairs = [pair for pair in zip(pytree.tree_leaves(one), pytree.tree_leaves(other)) if all_tensors(pair)]
    return all(a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-4, equal_nan=True) for a, b in pairs)


def all_tensors(values):
    return all(isinstance(value, torch.Tensor) and not value.is_complex() for value in values)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def copy_of(module):
    """Also of one that holds results of its forward, such as the weights of torch.nn.utils.weight_norm."""
    results = {id(tensor): tensor.detach().clone() for part in module.modules() for value in vars(part).values() for tensor in tensors_in(value)
               if not tensor.is_leaf}
    copied = copy.deepcopy(module, results)
    for one, other in zip(module.parameters(), copied.parameters()):
        vars(other).update(vars(one))  # what is noted of it, which PyTorch does not copy
    for part in copied.modules():
        for key, value in vars(part).items():
            vars(part)[key] = rebound(value, results)
        for hooks in (part._forward_hooks, part._forward_pre_hooks):
            hooks.update((key, rebound(hook, results)) for key, hook in hooks.items())
    return copied


def rebound(value, copies):
    """A function of which Python copies only the name, as one that reads the copies of what it reads: `self.head = lambda x: x @ self.table.weight`."""
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return value
    try:
        cells = [types.CellType(copies.get(id(cell.cell_contents), cell.cell_contents)) for cell in value.__closure__]
    except ValueError:  # one is still empty
        return value
    made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, tuple(cells))
    made.__kwdefaults__ = value.__kwdefaults__
    vars(made).update(vars(value))
    return made
