"""What forward takes and returns: names of tensors, the dim of the batch, and which result is the loss."""
import collections.abc
import dataclasses
import inspect
import types

import torch
from torch.utils import _pytree as pytree

from .errors import NotExported


def flat_inputs(module, args, kwargs):
    """{name: tensor} of what forward takes, nested arguments with their keys: the names of the file's inputs, in their order."""
    try:
        names = list(inspect.signature(module.forward).bind(*args, **kwargs).arguments.items())
    except TypeError as error:
        raise NotExported(f"{type(module).__name__}.forward does not take these arguments: {error}") from None
    kinds = {name: p.kind for name, p in inspect.signature(module.forward).parameters.items()}
    inputs = {}
    for name, value in names:
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            parts = list(value.items())
        elif kinds[name] is inspect.Parameter.VAR_POSITIONAL:
            parts = [(f"{name}_{k}", one) for k, one in enumerate(value)]
        else:
            parts = [(name, value)]
        for part, one in parts:
            for keys, leaf in pytree.tree_flatten_with_path(one)[0]:
                if not isinstance(leaf, torch.Tensor):
                    continue
                full = "_".join([part, *map(name_of_key, keys)])
                if full in inputs:
                    raise NotExported(f"two inputs of {type(module).__name__}.forward would be called '{full}'; rename an argument or a key")
                inputs[full] = leaf
    return inputs


def in_order(module, kwargs):
    """The same as forward names them, in whatever order they are given: the tracer has inputs in the order given, and flat_inputs in forward's."""
    own = inspect.signature(module.forward).parameters
    return {name: kwargs[name] for name in (*filter(kwargs.__contains__, own), *(name for name in kwargs if name not in own))}


def with_names(signature, kwargs):
    """The signature of a function that takes these by their names, which it may take by **kwargs: the tracer gives no dims to what it takes so."""
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in kwargs if name not in signature.parameters]
    return signature.replace(parameters=own + more)


def choose_batch(inputs, batch):
    """{name: dim or None}"""
    if batch is None:
        return dict.fromkeys(inputs)
    if isinstance(batch, dict):
        unknown = sorted(set(batch) - set(inputs))
        if unknown:
            raise NotExported(f"batch names '{unknown[0]}', which is no input; inputs are {', '.join(inputs)}")
        return {name: batch.get(name) for name in inputs}
    if batch != "auto":
        raise NotExported(f"batch is {batch!r}; it is 'auto', None, or the dim of each input")
    sizes = [len(value) for value in inputs.values() if value.dim()]
    return {name: 0 if value.dim() and len(value) == sizes[0] else None for name, value in inputs.items()}


def size_of_batch(inputs, dims):
    sizes = {name: inputs[name].shape[dim] for name, dim in dims.items() if dim is not None}
    if len(set(sizes.values())) > 1:
        raise NotExported(f"the inputs have batches of several sizes: {sizes}")
    size = next(iter(sizes.values()), 0)
    if size == 1:
        raise NotExported("the example has one sample: of one, the tracer does not tell what grows with the batch; give two or more")
    return size


def name_of_key(key):
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


def shapes_of_classes(shapes):
    """The same with objects of dataclasses as the tracer takes them where it is told of dims: as lists."""
    if dataclasses.is_dataclass(shapes) and not isinstance(shapes, type) and type(shapes) in pytree.SUPPORTED_NODES:
        return [shapes_of_classes(getattr(shapes, field.name)) for field in dataclasses.fields(shapes)]
    if isinstance(shapes, dict):
        return {key: shapes_of_classes(one) for key, one in shapes.items()}
    if isinstance(shapes, (list, tuple)) and not hasattr(shapes, "_fields"):
        return type(shapes)(map(shapes_of_classes, shapes))
    return shapes


def register_classes(values):
    """Arguments that are instances of dataclasses are taken apart by their fields, as the tracer takes them only then."""
    for value in pytree.tree_leaves(values):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            torch.export.register_dataclass(type(value))
            register_classes([getattr(value, field.name) for field in dataclasses.fields(value)])


def tensors_of(out):
    """What forward returns as the tracer takes it: a tensor, or {name: tensor} of whatever holds them; numbers and words are left out."""
    if isinstance(out, torch.Tensor):
        return out
    found = {}
    for keys, leaf in pytree.tree_flatten_with_path(opened(out))[0]:
        if isinstance(leaf, torch.Tensor):
            name = "_".join(map(name_of_key, keys))
            found[name if name not in found else f"{name}_{len(found)}"] = leaf
    return found


def opened(value):
    """Objects that the tracer does not know as what they hold: those of dataclasses, mappings, and others with a loss."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [opened(one) for one in value]
    if isinstance(value, collections.abc.Mapping):
        return {str(key): opened(one) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: opened(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    if isinstance(value, types.SimpleNamespace) or not isinstance(value, (torch.Tensor, type)) and isinstance(getattr(value, "__dict__", {}).get("loss"), torch.Tensor):
        return {name: opened(one) for name, one in vars(value).items()}
    return value


def output_names(out):
    """Names of the tensors that forward returns: keys, or output_K."""
    leaves = pytree.tree_flatten_with_path(out)[0]
    return ["_".join(map(name_of_key, keys)) or f"output_{k}" for k, (keys, _) in enumerate(leaves)]


def find_loss(leaves, names):
    """The index of the loss, or None where forward returns no single scalar."""
    scalars = [k for k, one in enumerate(leaves) if isinstance(one, torch.Tensor) and one.dim() == 0 and one.is_floating_point()]
    called = [k for k in scalars if names[k] == "loss"]
    if called or len(scalars) == 1:
        return (called or scalars)[0]
    return None
