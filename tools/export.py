#!/usr/bin/env python3
"""Exports a PyTorch module to ONNX for training and loses nothing on the way.

    from export import export
    export(module, args, "model.onnx")

PyTorch's own exporter writes what is needed to run a module. What is needed to train it is not all there: parameters that have equal values
are merged, weights are multiplied into each other, and nothing says which parameters are trained, which are one tensor under two names, where
no gradient flows and what forward does to buffers. Here the module is traced, that is written down, and the file is read back: Piper trains
it for one step on `args` and the loss and the change of each parameter are compared with PyTorch's, both in float64 where forward runs so.

Needs torch, onnx, onnxscript and safetensors, and piperc and piper-run for the comparison.
"""
import argparse
import contextlib
import copy
import importlib.util
import inspect
import json
import logging
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import onnx
import onnx.reference
import onnxscript.ir
import torch
import torch.nn.attention
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

BOUND = 1e-4  # between a step of Piper and one of PyTorch, of the largest change of the tensor: files hold their constants in float32
NARROW_BOUND = 2e-3  # the same where both compute in float32
PARAMETERS, SIGNATURE = "piper.parameters", "pkg.torch.export.ExportedProgram.graph_signature"
OPSET = 20


class NotExported(Exception):
    """What cannot be exported, or not be trained as the module is, and why. The file is left where it is if it was written."""


class Differs(NotExported):
    """A step of Piper and one of PyTorch are not the same."""


def export(module, args=(), path="model.onnx", kwargs=None, *, training=None, batch="auto", opset=OPSET, check=True, programs=None, log=print):
    """Writes `path`, and `path`.data for large models, and returns what the file says of the parameters.

    args, kwargs  an example batch of at least two samples, as the module takes it
    training      True or False: the module's mode while it is traced; None: the mode that it is in
    batch         "auto": the first dim of all inputs of which the first is as long as that of the first input is the batch, and left open;
                  None: nothing is left open; {"x": 0, "mask": None}: by input, which dim is
    check         train one step by Piper and compare (what draws random numbers is compared with its dropout off)
    programs      the folder of piperc and piper-run; None: that of PIPER_BIN, of the tree around this file, or of PATH
    """
    kwargs = dict(kwargs or {})
    before = module.training
    try:
        if training is not None:
            module.train(training)
        tools = find_programs(programs) if check else None
        job = Export(module, tuple(args), kwargs, batch, opset)
        listed = job.write(pathlib.Path(path))
        log(job.summary(path, listed))
        if check:
            log(job.check(pathlib.Path(path), tools))
        return listed
    finally:
        module.train(before)


# ---- What is traced ---------------------------------------------------------------------------------------------------------------------


class Watch(TorchFunctionMode):
    """Notes what draws random numbers; with `quiet`, dropout passes everything on."""

    DROPOUT = {name for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout")}
    DRAWS = {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal", "normal_", "uniform_",
             "multinomial", "randperm", "exponential_", "poisson", "gumbel_softmax"}

    def __init__(self, quiet=False):
        super().__init__()
        self.quiet, self.dropout, self.draws = quiet, False, set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name.rstrip("_") in self.DROPOUT:
            bound = dict(zip(("input", "p", "training"), args)) | kwargs
            default = name.startswith(("alpha", "feature_alpha")) or func in (torch.nn.functional.dropout,)
            if bound.get("training", bound.get("train", default)) and bound.get("p", 0.5) > 0:
                self.dropout = True
                if self.quiet:
                    return bound["input"]
        elif name == "scaled_dot_product_attention":
            bound = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args)) | kwargs
            if bound.get("dropout_p", 0):
                self.dropout = True
                if self.quiet:
                    bound["dropout_p"] = 0.0
            return attention_of_four_dims(func, bound)
        elif func is torch.nn.functional.instance_norm:
            return instance_norm(*args, **kwargs)
        elif name in EQUIVALENTS:
            return EQUIVALENTS[name](*args, **kwargs)
        elif name.rstrip("_") == "rrelu":
            bound = dict(zip(("input", "lower", "upper", "training"), args)) | kwargs
            if not bound.get("training", False):  # ONNX has it without the name
                return torch.nn.functional.leaky_relu(bound["input"], (bound.get("lower", 1 / 8) + bound.get("upper", 1 / 3)) / 2)
            self.draws.add(name)
        elif name in self.DRAWS:
            self.draws.add(name)
        return func(*args, **kwargs)


def attention_of_four_dims(attention, bound):
    """That of one batch dim, one of heads and two, which is what torch.onnx writes."""
    query, mask = bound["query"], bound.get("attn_mask")
    lead = query.shape[:-3]
    if len(lead) < 2 or any(bound[name].shape[:-3] != lead for name in ("key", "value")):
        return attention(**bound)
    bound |= {name: bound[name].flatten(0, -4) for name in ("query", "key", "value")}
    if mask is not None and mask.dim() > 3:
        bound["attn_mask"] = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)
    return attention(**bound).unflatten(0, lead)


def distances(x1, x2, p=2.0, compute_mode=None):
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), ord=p, dim=-1)


def distances_within(input, p=2.0):
    first, second = torch.triu_indices(len(input), len(input), 1)
    return torch.linalg.vector_norm(input[first] - input[second], ord=p, dim=-1)


def kth_value(input, k, dim=-1, keepdim=False, result=torch.return_types.kthvalue):
    found = [part.narrow(dim, k - 1, 1) for part in input.sort(dim=dim)]
    return result(found if keepdim else [part.squeeze(dim) for part in found])


def median(input, dim=None, keepdim=False):
    if dim is None:
        return median(input.flatten(), 0)[0]
    return kth_value(input, (input.shape[dim] + 1) // 2, dim, keepdim, torch.return_types.median)


def cumulated_product(input, dim, dtype=None):
    parts = list(input.to(dtype or input.dtype).unbind(dim))
    for k in range(1, len(parts)):
        parts[k] = parts[k - 1] * parts[k]
    return torch.stack(parts, dim)


def masked_scatter(input, mask, source):
    mask = mask.expand_as(input)
    place = (mask.flatten().to(torch.int64).cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.flatten()[place].view_as(input), input)


def multilabel_margin_loss(input, target, size_average=None, reduce=None, reduction="mean"):
    counts = (target < 0).to(torch.int64).cumsum(-1) == 0  # up to the first that is none
    label = torch.where(counts, target, torch.zeros_like(target))
    own = ((label.unsqueeze(-1) == torch.arange(input.shape[-1], device=input.device)) & counts.unsqueeze(-1)).any(-2)
    margins = torch.relu(1 - input.gather(-1, label).unsqueeze(-1) + input.unsqueeze(-2))
    margins = torch.where(counts.unsqueeze(-1) & ~own.unsqueeze(-2), margins, torch.zeros_like(margins))
    return reduced(margins.sum((-1, -2)) / input.shape[-1], size_average, reduce, reduction)


def reduced(each, size_average, reduce, reduction):
    if size_average is not None or reduce is not None:
        reduction = "none" if reduce is False else "sum" if size_average is False else "mean"
    return {"none": lambda: each, "sum": each.sum, "mean": each.mean}[reduction]()


def instance_norm(input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5):
    """With what becomes of its statistics, which the tracer does not see."""
    norm = torch.nn.functional
    if not use_input_stats:
        return norm.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None:
        with torch.no_grad():
            flat = input.flatten(2)
            running_mean.mul_(1 - momentum).add_(momentum * flat.mean(-1).mean(0))
            running_var.mul_(1 - momentum).add_(momentum * flat.var(-1).mean(0))
    return norm.instance_norm(input, None, None, weight, bias, True, momentum, eps)


def matrix_exp(A):
    """By scaling and squaring (Higham, 2005): the series of A·2⁻ⁿ, of a norm of at most 1/2, whose square is taken n times."""
    size = A.detach().abs().sum(-2).amax(-1)[..., None, None].clamp(min=1e-30)
    count = (size.log2().ceil() + 1).clamp(0, 24)
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    scaled, out = A * torch.exp2(-count), one
    for k in range(14, 0, -1):
        out = one + (scaled @ out) / k
    for k in range(24):
        out = torch.where(count > k, out @ out, out)
    return out


def solve(A, B, left=True):
    """By elimination (Gauss-Jordan), with the largest number of each column as its pivot."""
    if not left:
        return solve(A.mT, B.mT).mT
    vector = B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    size = A.shape[-1]
    lead = torch.broadcast_shapes(A.shape[:-2], right.shape[:-2])
    rows = torch.cat([A.expand(*lead, size, size), right.expand(*lead, size, right.shape[-1])], -1)
    place = torch.arange(size, device=A.device)
    for k in range(size):
        pivot = torch.where(place < k, -1.0, rows[..., k].detach().abs()).argmax(-1, keepdim=True)
        order = torch.where(place == k, pivot, torch.where(place == pivot, torch.full_like(place, k), place))
        rows = rows.gather(-2, order.unsqueeze(-1).expand(*order.shape, rows.shape[-1]))
        row = rows[..., k : k + 1, :] / rows[..., k : k + 1, k : k + 1]
        rows = torch.where((place == k).unsqueeze(-1), row, rows - rows[..., k : k + 1] * row)
    found = rows[..., size:]
    return found.squeeze(-1) if vector else found


def inverse(A):
    return solve(A, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))


def as_strided(input, size, stride, storage_offset=None):
    """torch.onnx takes what is viewed to lie in memory in the order of its dims: it is viewed in the order in which it lies."""
    own = input.storage_offset()
    order = sorted(range(input.dim()), key=lambda dim: (-input.stride(dim), -input.size(dim)))
    lying = input.permute(order)
    if not lying.is_contiguous() or (storage_offset or own) < own:
        raise NotExported("as_strided of a part of a tensor is not supported: clone() the part first")
    return torch.as_strided(lying if own == 0 else lying.clone(), size, stride, (own if storage_offset is None else storage_offset) - own)


def set_items(input, places, value):
    one = value.dim() == 0 if isinstance(value, torch.Tensor) else isinstance(value, (bool, int, float))
    if one and isinstance(places, torch.Tensor) and places.dtype is torch.bool:
        input.masked_fill_(places.view(places.shape + (1,) * (input.dim() - places.dim())), value)
    elif isinstance(places, torch.Tensor) and places.dtype is torch.bool and isinstance(value, torch.Tensor) and value.dim() <= input.dim() - places.dim():
        input.copy_(torch.where(places.view(places.shape + (1,) * (input.dim() - places.dim())), value.to(input.dtype), input))
    else:
        input[places] = value


# Functions that torch.onnx does not write, or only by shapes that depend on values, by those that it does.
EQUIVALENTS = {"__setitem__": set_items, "as_strided": as_strided, "cdist": distances, "cumprod": cumulated_product, "inverse": inverse, "kthvalue": kth_value,
               "linalg_inv": inverse, "linalg_matrix_exp": matrix_exp, "linalg_solve": solve, "masked_scatter": masked_scatter, "matrix_exp": matrix_exp,
               "median": median, "multilabel_margin_loss": multilabel_margin_loss, "pdist": distances_within}


class Asked(TorchFunctionMode):
    """Notes what forward asks of tensors, a number for a branch say, and answers the same to the tracer, which knows no values: where it is
    asked of constants alone, neither of `open` tensors, which other batches and steps change, nor of what is made or drawn beside them."""

    QUESTIONS = {"item", "__bool__", "__int__", "__float__", "__index__", "tolist", "is_nonzero", "equal", "allclose"}

    def __init__(self, open=(), answers=None):
        super().__init__()
        self.open = {memory_of(tensor): tensor for tensor in open}  # kept, or another would have their place
        self.tracing, self.answers = answers is not None, {place: list(each) for place, each in (answers or {}).items()}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if self.tracing:
            told = self.answers.get(place_of(name)) if name in self.QUESTIONS else None
            answer = told.pop(0) if told else None
            return func(*args, **kwargs) if answer is None else answer
        out = func(*args, **kwargs)
        drawn = name in Watch.DRAWS or name.rstrip("_") in Watch.DROPOUT
        depends = drawn or any(memory_of(leaf) in self.open for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        if name in self.QUESTIONS:
            self.answers.setdefault(place_of(name), []).append(None if depends else out)
        elif depends:
            written = args[:1] if name.endswith("_") else kwargs.get("out")
            self.open |= {memory_of(leaf): leaf for leaf in pytree.tree_leaves((out, written)) if isinstance(leaf, torch.Tensor)}
        return out

    def answered(self):
        return {place: each for place, each in self.answers.items() if any(answer is not None for answer in each)}


def memory_of(tensor):
    """Of which views have parts."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):  # of a tensor that has none
        return id(tensor)


def place_of(question):
    """Where the program asks it: the file, the line and the question."""
    frame, own = sys._getframe(1), (__file__, os.path.dirname(torch.__file__))
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, question


class Backwards:
    """While it is entered, notes classes of torch.autograd.Function: their own backward is not in the file."""

    def __enter__(self):
        self.classes, self.apply = set(), torch.autograd.Function.__dict__["apply"]

        def apply(cls, *args, **kwargs):
            self.classes.add(cls.__name__)
            return self.apply.__get__(None, cls)(*args, **kwargs)

        torch.autograd.Function.apply = classmethod(apply)
        return self

    def __exit__(self, *_):
        torch.autograd.Function.apply = self.apply


@contextlib.contextmanager
def quietly():
    """Without what the exporter prints and logs."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def experts_in_batches(module):
    """Experts of the transformers library by products that ONNX has: those of groups of rows are the library's own."""
    kept = [(config, config._experts_implementation) for config in {id(m.config): m.config for m in module.modules() if hasattr(m, "config")}.values()
            if getattr(config, "_experts_implementation", None) == "grouped_mm"]
    try:
        for config, _ in kept:
            config._experts_implementation = "batched_mm"
        yield
    finally:
        for config, before in kept:
            config._experts_implementation = before


def first_line(error):
    """Of what was at fault first."""
    while error.__cause__ is not None:
        error = error.__cause__
    asked = re.search(r'call raised this error:\s*File "([^"]*)", line (\d+).*\n\s*(.*)', str(error))
    if asked and "data-dependent" in str(error):
        return f"what it does there depends on values that inputs or parameters decide: {asked[3]} ({asked[1]}:{asked[2]})"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


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
                if isinstance(leaf, torch.Tensor):
                    inputs["_".join([part, *(str(getattr(key, "key", getattr(key, "idx", key))) for key in keys)])] = leaf
    return inputs


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


def detach_what_has_no_gradient(program):
    """Results of torch.no_grad() are detached where they leave it, as the graph for inference has no such regions."""
    graph = program.graph_module
    regions = [node for node in graph.graph.nodes if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled]
    count = 0
    for region in regions:
        if region.args[0]:
            continue
        body = getattr(graph, region.args[1].target)
        results = next(node for node in body.graph.nodes if node.op == "output").args[0]
        for use in [user for user in region.users if user.target.__name__ == "getitem"]:
            source = results[use.args[1]]
            while getattr(source.target, "__name__", "") == "getitem":
                source = source.args[0]
            if source.target is torch.ops.higher_order.wrap_with_set_grad_enabled and source.args[0]:
                continue  # of an enable_grad() inside
            value = use.meta.get("val")
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            with graph.graph.inserting_after(use):
                detached = graph.graph.call_function(torch.ops.aten.detach.default, (use,))
            detached.meta = dict(use.meta)
            use.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)
            count += 1
    graph.recompile()
    return count


def view_by_copies(program):
    """torch.onnx takes ops apart, whose results may lie otherwise than when they were traced: no view of them has the shape then."""
    for node in [node for node in program.graph.nodes if node.target is torch.ops.aten.view.default]:
        with program.graph.inserting_before(node):
            copied = program.graph.call_function(torch.ops.aten.clone.default, node.args[:1], {"memory_format": torch.contiguous_format})
        copied.meta = dict(node.args[0].meta)
        node.replace_input_with(node.args[0], copied)
    program.graph_module.recompile()


def take_losses_apart(program):
    """Decompositions take a cross-entropy of each sample for a scalar, and leave out a sum of it: it is written as what it picks."""
    aten, graph = torch.ops.aten, program.graph
    names = "self", "target", "weight", "reduction", "ignore_index", "label_smoothing"
    for node in [node for node in graph.nodes if node.target is aten.cross_entropy_loss.default]:
        given = {"weight": None, "reduction": 1, "ignore_index": -100, "label_smoothing": 0.0, **dict(zip(names, node.args)), **node.kwargs}
        logits, target = given["self"], given["target"]
        if given["reduction"] != 0 or given["label_smoothing"] or target.meta["val"].is_floating_point():
            continue
        dim = 1 if logits.meta["val"].dim() > 1 else 0
        with graph.inserting_before(node):
            logs = graph.call_function(aten.log_softmax.int, (logits, dim))
            counts = graph.call_function(aten.ne.Scalar, (target, given["ignore_index"]))
            label = graph.call_function(aten.where.self, (counts, target, graph.call_function(aten.zeros_like.default, (target,))))
            picked = graph.call_function(aten.gather.default, (logs, dim, graph.call_function(aten.unsqueeze.default, (label, dim))))
            loss = graph.call_function(aten.neg.default, (graph.call_function(aten.squeeze.dim, (picked, dim)),))
            if given["weight"] is not None:
                loss = graph.call_function(aten.mul.Tensor, (loss, graph.call_function(aten.index.Tensor, (given["weight"], [label]))))
            loss = graph.call_function(aten.where.self, (counts, loss, graph.call_function(aten.zeros_like.default, (loss,))))
        loss.meta = dict(node.meta)
        node.replace_all_uses_with(loss)
        graph.erase_node(node)
    program.graph_module.recompile()


def complex_by_parts(program):
    """torch.onnx has no dims put into complex numbers: they are put into their two parts."""
    aten = torch.ops.aten
    for node in [node for node in program.graph.nodes if node.target is aten.unsqueeze.default and node.meta["val"].is_complex()]:
        value, dim = node.args
        with program.graph.inserting_before(node):
            parts = program.graph.call_function(aten.view_as_real.default, (value,))
            wider = program.graph.call_function(aten.unsqueeze.default, (parts, dim if dim >= 0 else dim - 1))
            whole = program.graph.call_function(aten.view_as_complex.default, (wider,))
        parts.meta["val"] = aten.view_as_real.default(value.meta["val"])
        wider.meta["val"] = aten.unsqueeze.default(parts.meta["val"], wider.args[1])
        whole.meta = dict(node.meta)
        node.replace_all_uses_with(whole)
        program.graph.erase_node(node)
    program.graph_module.recompile()


def drop_assertions(program):
    """What is asserted of values, and what is computed for that alone."""
    asserted = {"aten._assert_scalar", "aten._assert_async", "aten._assert_tensor_metadata", "aten.sym_constrain_range", "aten.sym_constrain_range_for_size"}
    for node in reversed(program.graph.nodes):
        of_call = node.op == "call_function" and not node.users
        if of_call and (str(node.target).rpartition(".")[0] in asserted or not node.is_impure()):
            program.graph.erase_node(node)
    program.graph_module.recompile()


def output_names(out):
    """Names of the tensors that forward returns: keys, or output_K."""
    leaves = pytree.tree_flatten_with_path(out)[0]
    return ["_".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in keys) or f"output_{k}" for k, (keys, _) in enumerate(leaves)]


def find_loss(leaves, names):
    """The index of the loss, or None where forward returns no single scalar."""
    scalars = [k for k, one in enumerate(leaves) if isinstance(one, torch.Tensor) and one.dim() == 0 and one.is_floating_point()]
    called = [k for k in scalars if names[k] == "loss"]
    if called or len(scalars) == 1:
        return (called or scalars)[0]
    return None


# ---- The file ---------------------------------------------------------------------------------------------------------------------------


class Export:
    def __init__(self, module, args, kwargs, batch, opset):
        self.module, self.args, self.kwargs, self.opset = module, args, kwargs, opset
        self.inputs = flat_inputs(module, args, kwargs)
        self.dims = choose_batch(self.inputs, batch)
        self.size = size_of_batch(self.inputs, self.dims)
        self.fixed = ""  # why the batch is, where it was to be left open
        self.quiet = False

    def trace(self):
        """The exported program, with everything that forward returns and changes."""
        watch, backwards = Watch(self.quiet), Backwards()
        state = {name: value.detach().clone() for name, value in self.module.state_dict(keep_vars=True).items()}
        try:
            with watch, backwards:
                out, self.answers = self.ask(self.args, self.kwargs)
            if self.answers and self.size and self.answers != self.ask(*self.doubled())[1]:
                self.fixed = "what it asks of tensors depends on the size of the batch"
        finally:
            with torch.no_grad():
                for name, value in self.module.state_dict(keep_vars=True).items():
                    value.copy_(state[name])
        self.leaves, self.names = pytree.tree_leaves(out), output_names(out)
        self.watch, self.backwards = watch, sorted(backwards.classes)
        self.loss = find_loss(self.leaves, self.names)
        with quietly(), torch.enable_grad(), Watch(self.quiet), experts_in_batches(self.module):
            return self.traced()

    def ask(self, args, kwargs):
        """What forward returns, and the answers to what it asks of constants."""
        args, kwargs = copy.deepcopy((args, kwargs))
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        asked = Asked([*tensors, *self.module.parameters(), *self.module.buffers()])
        with quietly(), torch.enable_grad(), asked:
            return self.module(*args, **kwargs), asked.answered()

    def doubled(self):
        """The arguments with each sample twice."""
        dims = {id(self.inputs[name]): dim for name, dim in self.dims.items() if dim is not None}
        twice = lambda leaf: torch.cat([leaf, leaf], dims[id(leaf)]) if isinstance(leaf, torch.Tensor) and id(leaf) in dims else leaf  # noqa: E731
        return pytree.tree_map(twice, (self.args, self.kwargs))

    def traced(self):
        def shaped(open_batch):
            dim = torch.export.Dim("batch", min=1, max=2**31 - 1)
            by_id = {id(self.inputs[name]): {at: dim} for name, at in self.dims.items() if at is not None and open_batch}
            return pytree.tree_map(lambda leaf: by_id.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None, self.signature_arguments())

        def attempt(open_batch):
            with Asked(answers=self.answers):
                return torch.export.export(self.module, self.args, self.kwargs, dynamic_shapes=shaped(open_batch), strict=False)

        if self.size and not self.fixed:
            try:
                return attempt(True)
            except Exception as error:  # the tracer has many classes of them
                self.fixed = first_line(error)
        try:
            return attempt(False)
        except Exception as error:
            raise NotExported(f"torch.export does not trace {type(self.module).__name__}: {first_line(error)}") from error

    def signature_arguments(self):
        return dict(inspect.signature(self.module.forward).bind(*self.args, **self.kwargs).arguments)

    def keep_changed_buffers(self, program):
        """What buffers of floats become is returned, so that it is in the file: (the signature before, their names)."""
        told = str(program.graph_signature)
        kinds = torch.export.graph_signature.OutputKind
        norms = self.statistics_of_norms(program)
        kept = []
        for spec in program.graph_signature.output_specs:
            if spec.kind is not kinds.BUFFER_MUTATION or spec.target in norms:
                continue
            if not self.module.get_buffer(spec.target).is_floating_point():
                continue
            kept.append(spec.target)
            spec.kind, spec.target = kinds.USER_OUTPUT, None
        returned = sum(spec.kind is kinds.USER_OUTPUT for spec in program.graph_signature.output_specs)
        program.module_call_graph[0].signature.out_spec = pytree.tree_structure(tuple(range(returned)))
        return told, kept

    @staticmethod
    def statistics_of_norms(program):
        """Buffers that are running statistics: batch norms say themselves what becomes of them."""
        buffers = program.graph_signature.inputs_to_buffers
        return {buffers[arg.name] for node in program.graph.nodes if "batch_norm" in str(node.target)
                for arg in node.args if isinstance(arg, torch.fx.Node) and arg.name in buffers}

    def write(self, path):
        program = self.trace()
        self.detached = detach_what_has_no_gradient(program)
        try:
            try:
                written, told = self.convert(program)
            except Exception as error:
                if "Cannot view" not in first_line(error):
                    raise
                written, told = self.convert(program, copies=True)
        except Exception as error:
            raise NotExported(f"torch.onnx does not write {type(self.module).__name__}: {first_line(error)}") from error
        listed = self.listed()
        self.describe(written.model, told, listed)
        with quietly():
            written.save(str(path), external_data=sum(value.nbytes for value in self.module.parameters()) > 2**20)
        return listed

    def convert(self, program, copies=False):
        """What torch.onnx makes of it, and the signature before forward's changes were returned."""
        with quietly():
            take_losses_apart(program)
            program = program.run_decompositions({})
            drop_assertions(program)
            complex_by_parts(program)
            if copies:
                view_by_copies(program)
            told, self.changed = self.keep_changed_buffers(program)
            return torch.onnx.export(program, dynamo=True, optimize=False, opset_version=self.opset, verbose=False), told

    def listed(self):
        """By tensor, in the module's order: its first name, its others, its shape and whether it is trained."""
        by_tensor = {}
        for name, value in self.module.named_parameters(remove_duplicate=False):
            entry = by_tensor.setdefault(id(value), {"name": name, "shape": list(value.shape), "trained": bool(value.requires_grad)})
            if entry["name"] != name:
                entry.setdefault("also", []).append(name)
        return list(by_tensor.values())

    def describe(self, model, told, listed):
        """Parameters under their first names, inputs and the loss under theirs, and the list."""
        graph = model.graph
        for entry in listed:
            for name in [entry["name"], *entry.get("also", [])]:
                if name in graph.initializers and name != entry["name"]:
                    value = graph.initializers.pop(name)
                    value.name = entry["name"]
                    graph.initializers[entry["name"]] = value
        for value in [value for node in graph for value in node.outputs if value.name in graph.initializers or value.name in self.inputs]:
            value.name += "_result"  # of a call that has the name of a buffer, such as 'mean'
        used = {value.name for node in graph for value in node.inputs if value is not None} | {value.name for value in graph.outputs}
        for entry in listed:
            if entry["name"] not in used:
                entry["unused"] = True
        for value, name in zip(graph.inputs, self.inputs):
            value.name = name
        self.name_outputs(graph)
        for target, value in zip(self.changed, graph.outputs):  # torch.onnx numbers results anew
            told = re.sub(rf"(?m)^.*(?=: BUFFER_MUTATION target='{re.escape(target)}'$)", value.name, told)
        graph.metadata_props[SIGNATURE] = told
        graph.metadata_props[PARAMETERS] = json.dumps(listed, separators=(",", ":"))

    def name_outputs(self, graph):
        """The loss alone, where there is one, and what buffers become."""
        count = len(self.changed)
        of_user = list(graph.outputs)[count:]
        if self.loss is not None and len(of_user) == len(self.leaves):
            loss = of_user[self.loss]
            loss.name = "loss"
            keep = [copied(graph, value) if value is loss or value.uses() else value for value in list(graph.outputs)[:count]] + [loss]
            del graph.outputs[:]
            graph.outputs.extend(keep)

    def summary(self, path, listed):
        trained = [entry for entry in listed if entry["trained"] and not entry.get("unused")]
        lines = [f"{path}: {len(trained)} parameters to train, {sum(self.count(entry) for entry in trained)} elements"]
        frozen, unused = sum(not entry["trained"] for entry in listed), sum(entry.get("unused", False) for entry in listed)
        lines[0] += (f"; {frozen} frozen" if frozen else "") + (f"; {unused} that nothing reads" if unused else "")
        tied = sum(len(entry.get("also", [])) for entry in listed)
        if tied:
            lines[0] += f"; {tied} further names of tied ones"
        if self.changed:
            lines.append(f"  forward changes the buffers {', '.join(self.changed)}")
        if self.detached:
            lines.append(f"  {self.detached} results of torch.no_grad() stop gradients")
        if self.fixed:
            lines.append(f"  the batch stays {self.size}: the module does not take another ({self.fixed})")
        if self.loss is None:
            lines.append("  forward returns no single scalar: name its loss in the strategy")
        return "\n".join(lines)

    @staticmethod
    def count(entry):
        return torch.Size(entry["shape"]).numel()

    # ---- The file is read back ----------------------------------------------------------------------------------------------------------

    def check(self, path, tools):
        if self.loss is None:
            done = subprocess.run([tools / "piperc", path, "--describe"], capture_output=True, text=True)
            if done.returncode:
                raise NotExported(f"piperc does not read {path}:\n{done.stderr.strip()}")
            return "  read back; nothing is compared without a loss"
        if self.watch.draws:
            return f"  not compared with PyTorch: forward draws numbers of its own ({', '.join(sorted(self.watch.draws))})"
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            if self.watch.dropout:
                twin = copy.copy(self)
                twin.quiet, path = True, folder / "model.onnx"
                twin.write(path)
            where = ", with its dropout off" if self.watch.dropout else ""
            try:
                loss, changes = self.one_step(tools, path, folder, torch.float64)
            except Exception as error:  # forward's own, or a difference: where it makes tensors of float32 it may not run in float64, or round there
                if isinstance(error, NotExported) and not isinstance(error, Differs):
                    raise
                try:
                    loss, changes = self.one_step(tools, path, folder, torch.float32)
                except Differs as second:
                    raise (error if isinstance(error, Differs) else second) from None
                where += ", in float32, in which forward computes also where its parameters are float64"
        return f"  one step of Piper is one of PyTorch{where}: loss {loss:.6g}, {len(changes)} gradients"

    def one_step(self, tools, path, folder, dtype):
        """The loss and the gradients, on which both agree."""
        try:
            wanted, changes, buffers = self.step_as(dtype)
        except Exception as error:
            if dtype is torch.float64:
                raise
            raise NotExported(f"PyTorch does not train {type(self.module).__name__} for a step: {first_line(error)}") from error
        endless = ["its loss"] if not math.isfinite(wanted) else [f"the gradient of '{name}'" for name, change in changes.items() if not change.isfinite().all()]
        if endless:
            raise (ValueError if dtype is torch.float64 else NotExported)(
                f"nothing is compared: in PyTorch itself {endless[0]} is not finite on these arguments. Give an example batch on which the module trains "
                "(labels that count, say), or pass check=False (--no-check); the file is written")
        # The largest change is 1, so that float32 holds it and the values; of a loss that nothing changes, rounding errors stay small.
        rate = 1 / (max([1e-9 * abs(wanted), *map(largest, changes.values())]) or 1.0)
        loss, saved = step_in_piper(tools, path, folder, self.inputs, self.size, rate, dtype is torch.float64)
        self.compare(loss, wanted, saved, changes, rate, buffers, BOUND if dtype is torch.float64 else NARROW_BOUND, path)
        return loss, changes

    def step_as(self, dtype):
        """The loss, the gradient of each parameter that has one, by its first name, and what buffers of floats become."""
        module = copy_of(self.module)
        for norm in module.modules():  # that of the type of its input, which is another one here
            if isinstance(norm, torch.nn.RMSNorm) and norm.eps is None:
                norm.eps = torch.finfo(norm.weight.dtype if norm.weight is not None else torch.get_default_dtype()).eps
        module = module.to(dtype)
        before = {name: value.clone() for name, value in module.named_buffers()}
        widen = lambda leaf: leaf.detach().to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf  # noqa: E731
        args, kwargs = pytree.tree_map(widen, (self.args, self.kwargs))
        # Not by the fused kernels, whose gradients of rows that a mask of large numbers hides are those of rounding errors.
        defined = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with quietly(), torch.enable_grad(), Watch(quiet=True), experts_in_batches(module), defined:
            loss = pytree.tree_leaves(module(*args, **kwargs))[self.loss]
            loss.backward()
        changed = {name: value for name, value in module.named_buffers() if value.is_floating_point() and not torch.equal(value, before[name])}
        return loss.item(), {name: value.grad for name, value in module.named_parameters() if value.grad is not None}, changed

    def compare(self, loss, wanted, saved, changes, rate, buffers, bound, path):
        wrong = []
        if not abs(loss - wanted) <= bound * max(abs(wanted), 1e-3):
            wrong.append(f"the loss is {loss:.8g}, that of PyTorch {wanted:.8g}")
            program, of_file = loss_of_file(path, self.inputs)
            if abs(of_file - loss) <= NARROW_BOUND * max(abs(loss), 1e-3):
                wrong.append(f"by {program} it is {of_file:.8g}, too: what torch.onnx wrote of some operator is not what PyTorch computes")
        values = dict(self.module.named_parameters())
        for name, value in values.items():
            if name not in saved:
                if name in changes and changes[name].abs().max() > 0:
                    wrong.append(f"'{name}' is not trained")
                continue
            change = changes.get(name, torch.zeros_like(value)).double() * rate
            if saved[name].shape != value.shape:
                wrong.append(f"'{name}' is saved as {list(saved[name].shape)}, not {list(value.shape)}")
                continue
            off = largest(value.detach().double() - saved[name].double() - change)
            if not off <= bound * max(largest(change), 1e-2) + 1e-6 * largest(value.detach()):
                wrong.append(f"the gradient of '{name}' differs by {off / rate:.2g} of {largest(change) / rate:.2g}")
        for name, value in buffers.items():
            if name not in saved:
                wrong.append(f"the buffer '{name}', which forward changes, is not saved")
            elif not torch.allclose(saved[name].double(), value.double(), rtol=bound, atol=1e-6):
                wrong.append(f"the buffer '{name}' becomes another value")
        if wrong:
            more = [f"its gradient is that of {', '.join(self.backwards)} (torch.autograd.Function), which the file does not have"] if self.backwards else []
            raise Differs("\n  ".join(["Piper would train another model:", *wrong[:8], *(["…"] if len(wrong) > 8 else []), *more]))


def copied(graph, value):
    """What a buffer becomes apart from the value, through which gradients flow."""
    node = onnxscript.ir.node("Identity", [value])
    graph.append(node)
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = f"{value.name}_kept", value.type, value.shape
    return node.outputs[0]


def copy_of(module):
    """Also of one that has results of its forward, such as the weights of torch.nn.utils.weight_norm."""
    made = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                made[id(value)] = value.detach().clone()
    return copy.deepcopy(module, made)


def largest(tensor):
    return tensor.abs().max().item() if tensor.numel() else 0.0


def loss_of_file(path, inputs):
    """(the program, the loss) of another program than Piper that runs files, not a number where it does not run this one."""
    try:
        import onnxruntime
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        program, names, run = "onnxruntime", [value.name for value in session.get_inputs()], session.run
    except Exception:  # it is not there, or refuses the file
        program, names, run = "onnx.reference", list(inputs), onnx.reference.ReferenceEvaluator(str(path)).run
    try:
        return program, float(run(["loss"], {name: inputs[name].detach().numpy() for name in names})[0])
    except Exception:
        return program, math.nan


STRATEGY = """piper: 1
train: {{global_batch: {batch}, optimizer: {{sgd: {{lr: {rate!r}}}}}}}
"""
PRECISE = "directives: [{precision: {compute: f64}}]\n"


def step_in_piper(tools, path, folder, inputs, size, rate, precise):
    """The loss of one step of SGD and the parameters after it, by name."""
    from safetensors.torch import load_file, save_file
    save_file({f"batch/0/{name}": value.detach().contiguous().clone() for name, value in inputs.items()}, folder / "data.safetensors")
    (folder / "strategy.yaml").write_text(STRATEGY.format(batch=size or 1, rate=rate) + (PRECISE if precise else ""))
    plans, saved, metrics = folder / "plans", folder / "saved.safetensors", folder / "metrics.jsonl"
    call([tools / "piperc", path, folder / "strategy.yaml", "-o", plans, "--no-oracles", "--force"], "piperc does not take the file")
    call([tools / "piper-run", plans, "--data", folder / "data.safetensors", "--steps", "1", "--save", saved, "--metrics", metrics],
         "piper-run does not run it")
    losses = [line["loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]
    return losses[-1], load_file(saved)  # of this run: metrics are added to the file


def call(command, what):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise NotExported(f"{what}:\n{done.stderr.strip()}")


def find_programs(folder):
    """The folder of piperc and piper-run."""
    here = pathlib.Path(__file__).resolve().parents[1] / "build" / "bin"
    on_path = shutil.which("piperc")
    places = [folder, os.environ.get("PIPER_BIN"), here, on_path and pathlib.Path(on_path).parent]
    for place in places:
        if place and all(os.access(pathlib.Path(place) / name, os.X_OK) for name in ("piperc", "piper-run")):
            return pathlib.Path(place)
    raise NotExported("piperc and piper-run are not found: build them, name their folder as programs= or PIPER_BIN, or pass check=False")


# ---- As a command -----------------------------------------------------------------------------------------------------------------------


def load(text):
    """(module, args, kwargs) of FILE.py:FUNCTION."""
    file, _, function = text.rpartition(":")
    if not file or not pathlib.Path(file).is_file():
        raise NotExported(f"'{text}' is not FILE.py:FUNCTION of a file that is there")
    sys.path.insert(0, str(pathlib.Path(file).resolve().parent))
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    make = getattr(loaded, function, None)
    if not callable(make):
        known = [name for name, value in vars(loaded).items() if inspect.isfunction(value)]
        raise NotExported(f"{file} has no function '{function}'; it has {', '.join(known) or 'none'}")
    made = make()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 3 or not isinstance(made[0], torch.nn.Module):
        raise NotExported(f"{function}() returns (module, args) or (module, args, kwargs), not {type(made).__name__}")
    module, args, kwargs = (*made, None)[:3]
    return (module, (), args) if isinstance(args, dict) and kwargs is None else (module, args, kwargs)


def main():
    parser = argparse.ArgumentParser(prog="export.py", description=__doc__.splitlines()[0], epilog="FUNCTION returns (module, args): args is a tuple "
                                     "of an example batch, or a dict where forward takes keywords.")
    parser.add_argument("what", metavar="FILE.py:FUNCTION")
    parser.add_argument("-o", "--output", default="model.onnx", metavar="FILE")
    parser.add_argument("--training", action=argparse.BooleanOptionalAction, default=None, help="the module's mode (default: the one that it is in)")
    parser.add_argument("--fixed-batch", action="store_true", help="leave no dim open")
    parser.add_argument("--opset", type=int, default=OPSET, help=f"default: {OPSET}")
    parser.add_argument("--no-check", action="store_true", help="do not train a step of it")
    parser.add_argument("--programs", metavar="FOLDER", help="of piperc and piper-run")
    asked = parser.parse_args()
    try:
        module, args, kwargs = load(asked.what)
        export(module, args, asked.output, kwargs, training=asked.training, batch=None if asked.fixed_batch else "auto", opset=asked.opset,
               check=not asked.no_check, programs=asked.programs)
    except NotExported as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
