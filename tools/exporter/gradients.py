"""Gradients that forward computes itself, by torch.autograd.grad or the transforms of torch.func: of an energy with respect to places, of a critic with
respect to its input. The tracer sees one call, whose place the ops of the gradient take, once all else is known."""
import contextlib
import operator

import torch
from torch._C import _functorch
from torch._functorch import eager_transforms
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._functorch.predispatch import _add_batch_dim
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .decompositions import Parts

LIBRARY = torch.library.Library("piper", "DEF")
LIBRARY.define("gradient(Tensor[] outputs, Tensor[] inputs, Tensor[] along) -> Tensor[]")
LIBRARY.define("stop(Tensor value) -> Tensor")


@torch.library.impl(LIBRARY, "gradient", "CompositeExplicitAutograd")
def shapes_of_gradient(outputs, inputs, along):
    return [torch.empty_like(one) for one in inputs]


@torch.library.impl(LIBRARY, "stop", "CompositeExplicitAutograd")
def stop(value):
    return torch.empty_like(value)


def gradient_in_graph(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, allow_unused=None,
                      is_grads_batched=False, materialize_grads=False):
    """What torch.autograd.grad returns, while it is traced."""
    if is_grads_batched:
        raise NotImplementedError("torch.autograd.grad with is_grads_batched=True is not supported: call it for each of them")
    outputs, inputs = ([one] if isinstance(one, torch.Tensor) else [*one] for one in (outputs, inputs))
    along = [grad_outputs] if grad_outputs is None or isinstance(grad_outputs, torch.Tensor) else [*grad_outputs]
    along = [torch.ones_like(out) if by is None else by.expand_as(out) for out, by in zip(outputs, along * len(outputs) if along == [None] else along)]
    found = torch.ops.piper.gradient(outputs, inputs, along)
    return tuple(one if create_graph else one.detach() for one in found)


@contextlib.contextmanager
def transforms_in_graph():
    """torch.func's transforms differentiate by levels of tensors within tensors, of which the tracer sees nothing: grad, vjp, jacrev and hessian call the
    gradient of what they are given instead."""
    def along(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=True):
        by = [torch.ones_like(out) for out in outputs] if grad_outputs is None else [*grad_outputs]
        return tuple(torch.ops.piper.gradient([*outputs], [*inputs], by))

    others = dict(grad_increment_nesting=lambda: contextlib.nullcontext(0), _wrap_all_tensors=lambda values, _: pytree.tree_map_only(torch.Tensor, batched_anew, values),
                  _create_differentiable=lambda values, level=None: values, _undo_create_differentiable=lambda values, level=None: values,
                  _autograd_grad=along, jacfwd=eager_transforms.jacrev)
    own = {name: getattr(eager_transforms, name) for name in others}
    vars(eager_transforms).update(others)
    try:
        yield
    finally:
        vars(eager_transforms).update(own)


def batched_anew(value):
    """The tensor under another name, with a batch of its own for each vmap that is under way: its gradient has one, also where it has none."""
    value = value.view_as(value)
    for interpreter in retrieve_all_functorch_interpreters():
        if not is_of_level(value, interpreter.level()):
            value = _add_batch_dim(value.unsqueeze(0).expand(interpreter.batch_size(), *value.shape), 0, interpreter.level())
    return value


def is_of_level(value, level):
    while _functorch.is_batchedtensor(value):
        if _functorch.maybe_get_level(value) == level:
            return True
        value = _functorch.get_unwrapped(value)
    return False


@torch.library.register_vmap("piper::gradient", lib=LIBRARY)
def gradient_of_rows(info, dims, *values):
    """Within vmap: of samples, of which each depends on its own, or along several directions, as a jacobian is."""
    outputs, inputs, along = values
    in_front = lambda at: [one if dim in (None, 0) else one.movedim(dim, 0) for dim, one in zip(dims[at], values[at])]  # noqa: E731
    if any(dim is not None for each in dims[:2] for dim in each):
        whole = lambda at: [one if dim is not None else one.expand(info.batch_size, *one.shape) for dim, one in zip(dims[at], in_front(at))]  # noqa: E731
        return torch.ops.piper.gradient(whole(0), inputs, whole(2)), [*dims[1]]
    each = [torch.ops.piper.gradient(outputs, inputs, [one if dim is None else one[k] for dim, one in zip(dims[2], in_front(2))]) for k in range(info.batch_size)]
    return [torch.stack(rows) for rows in zip(*each)], [0] * len(inputs)


def write_gradients(program):
    """Puts the ops of each gradient where it is called: those of a later one may depend on an earlier one."""
    graph = program.graph
    calls = [node for node in graph.nodes if node.target is torch.ops.piper.gradient.default]
    if calls:
        draw_beside(graph)
    for node in calls:
        outputs, inputs, along = node.args
        computed = between(graph, inputs, outputs)
        taken = [one for one in dict.fromkeys([*inputs, *along, *outputs, *(arg for each in computed for arg in each.all_input_nodes)]) if one not in computed]

        def gradient(*values, outputs=outputs, inputs=inputs, along=along, computed=computed, taken=taken):
            held = {one: value.detach() if isinstance(value, torch.Tensor) else value for one, value in zip(taken, values)}
            for one in inputs:
                if one in held:
                    held[one].requires_grad_()
            for one in computed:
                target = torch.ops.piper.stop.default if one.target is torch.ops.aten.detach.default else one.target
                held[one] = target(*torch.fx.node.map_arg(one.args, held.get), **torch.fx.node.map_arg(one.kwargs, held.get))
            learned = [(held[one], held[by]) for one, by in zip(outputs, along) if held[one].requires_grad]
            found = torch.autograd.grad([one for one, _ in learned], [held[one] for one in inputs], [by for _, by in learned], allow_unused=True)
            return [torch.zeros_like(held[one]) if each is None else each for one, each in zip(inputs, found)]

        with torch.enable_grad():
            made = make_fx(gradient, decomposition_table=core_aten_decompositions() | BACKWARDS)(*(one.meta["val"] for one in taken)).graph
        keep_stops(made)
        places = [one for one in made.nodes if one.op == "placeholder"]
        with graph.inserting_before(node):
            results = graph.graph_copy(made, dict(zip(places, taken)))
        for user in [*node.users]:
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
    program.graph_module.recompile()


def draw_beside(graph):
    """Dropout becomes a factor, which a gradient takes as it is: what is computed again would be drawn again."""
    for node in [node for node in graph.nodes if node.target is torch.ops.aten.native_dropout.default and node.args[2]]:
        input, p, trains = node.args
        with graph.inserting_before(node):
            call = Parts(graph)
            drawn = call(torch.ops.aten.native_dropout.default, call(torch.ops.aten.ones_like.default, input), p, trains)
            kept = call(torch.ops.aten.mul.Tensor, input, call(operator.getitem, drawn, 0))
        for user in [user for user in node.users if user.args[1] == 0]:
            user.replace_all_uses_with(kept)
            graph.erase_node(user)
        if not node.users:
            graph.erase_node(node)


def keep_stops(graph):
    """PyTorch detaches what it keeps for a backward, through which gradients flow again here; forward's own detach() stays."""
    for node in [node for node in graph.nodes if node.target is torch.ops.aten.detach.default]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    for node in graph.nodes:
        if node.target is torch.ops.piper.stop.default:
            node.target = torch.ops.aten.detach.default


def convolution_backward(gradient, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask):
    """By convolutions, as ONNX has no other."""
    if output_mask[1]:
        raise NotImplementedError("torch.autograd.grad with respect to the weight of a convolution is not supported")
    beyond = [0] * len(stride)
    if not transposed:
        at = zip(input.shape[2:], gradient.shape[2:], weight.shape[2:], stride, padding, dilation)
        beyond = [size - ((steps - 1) * by - 2 * pad + wide * (kernel - 1) + 1) for size, steps, kernel, by, pad, wide in at]
    of_input = torch.ops.aten.convolution.default(gradient, weight, None, stride, padding, dilation, not transposed, beyond, groups) if output_mask[0] else None
    of_bias = gradient.sum([0, *range(2, gradient.dim())]) if output_mask[2] else None
    return of_input, None, of_bias


# Also of norms, whose statistics a backward reads and ONNX keeps to itself.
BACKWARDS = {op: function for op, function in decomposition_table.items() if "backward" in str(op) or str(op).startswith("aten.native_")}
BACKWARDS[torch.ops.aten.convolution_backward.default] = convolution_backward


def between(graph, inputs, outputs):
    """What is computed of the inputs and needed for the outputs, in order. Tensors that only have the shape of others are none of it, so that a dropout
    of ones is that of forward, and not drawn anew."""
    after, needed = {*inputs}, {*outputs}
    for node in graph.nodes:
        of_shape = str(node.target).split(".")[1:2] in NAMES_OF_SHAPE
        if not of_shape and any(one in after for one in node.all_input_nodes):
            after.add(node)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    roots = {one for one in inputs if not any(each in after for each in one.all_input_nodes)}
    found = {node: None for node in graph.nodes if node in after and node in needed and node not in roots}
    for node in found:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotImplementedError(f"torch.autograd.grad through {node.target}, which draws random numbers, is not supported: draw them beside it, and multiply")
    return found


NAMES_OF_SHAPE = [["ones_like"], ["zeros_like"], ["full_like"], ["empty_like"], ["new_ones"], ["new_zeros"], ["new_full"], ["sym_size"]]
