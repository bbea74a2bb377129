"""Changes of a traced program that make torch.onnx write what the module does."""
import torch


def detach_what_has_no_gradient(program):
    """Results of torch.no_grad() are detached where they leave it, as the graph for inference has no such regions."""
    graph = program.graph_module
    regions = [node for node in graph.graph.nodes if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled]
    count = 0
    for region in regions:
        if region.args[0]:
            continue
        body = getattr(graph, region.args[1].target)
        written = written_within(body.graph, region.args[2:])
        for value in dict.fromkeys(written.values()):
            keep_gradient_of_before(graph.graph, region, value)
            count += 1
        results = next(node for node in body.graph.nodes if node.op == "output").args[0]
        for use in [user for user in region.users if user.target.__name__ == "getitem"]:
            source = results[use.args[1]]
            while getattr(source.target, "__name__", "") == "getitem":
                source = source.args[0]
            if source.target is torch.ops.higher_order.wrap_with_set_grad_enabled and source.args[0]:
                continue  # of an enable_grad() inside
            if source in written:
                use.replace_all_uses_with(written[source])
                continue
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


def read_parameters_by_name(program):
    """A parameter that forward finds elsewhere than where the module registers it, as in a list of what is regularised, is no constant of the tracer's."""
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    first = {}
    for name, parameter in signature.inputs_to_parameters.items():
        first.setdefault(memory_and_form(program.state_dict[parameter]), placeholders[name])
    for name, constant in signature.inputs_to_lifted_tensor_constants.items():
        held = first.get(memory_and_form(program.constants[constant]))
        if held is not None:
            placeholders[name].replace_all_uses_with(held)
    program.graph_module.recompile()


def memory_and_form(tensor):
    """What two names of one tensor have in common; of an empty one, itself."""
    at = tensor.data_ptr() if tensor.layout is torch.strided and tensor.numel() else 0
    return (at or id(tensor), tensor.shape, tensor.stride() if at else None, tensor.dtype)


def written_within(body, given):
    """{what a region writes in place: the tensor of floats that it was given and that is written so}, as a whole or in a view of it."""
    places, found = [node for node in body.nodes if node.op == "placeholder"], {}
    for node in filter(is_in_place, body.nodes):
        written = node.args[0]
        while written.op == "call_function" and (views(written) or is_in_place(written)):
            written = written.args[0]
        taken = given[places.index(written)] if written.op == "placeholder" else written
        if taken.op != "placeholder" and taken is not written and taken.meta["val"].is_floating_point():
            found[node] = taken
    return found


def keep_gradient_of_before(graph, region, value):
    """What torch.no_grad() writes into a tensor has no gradient, and the tensor keeps the one that it had: the tracer notes that it is written, and not that."""
    call, aten = Parts(graph), torch.ops.aten
    with graph.inserting_before(region):
        before = call(aten.clone.default, value)
    with graph.inserting_before(region.next):
        slope = call(aten.sub.Tensor, before, call(aten.detach.default, before))  # zero, and of infinite numbers none
        slope = call(aten.where.ScalarOther, call(aten.isfinite.default, before), slope, 0.0)
        call(aten.copy_.default, value, call(aten.add.Tensor, call(aten.detach.default, value), slope))


def view_by_copies(program):
    """torch.onnx takes ops apart, whose results may lie otherwise than when they were traced: no view of them has the shape then."""
    for node in [node for node in program.graph.nodes if node.target is torch.ops.aten.view.default]:
        with program.graph.inserting_before(node):
            copied = program.graph.call_function(torch.ops.aten.clone.default, node.args[:1], {"memory_format": torch.contiguous_format})
        copied.meta = dict(node.args[0].meta)
        node.replace_input_with(node.args[0], copied)
    program.graph_module.recompile()


def change_copies(program):
    """A view that is changed in place and through which alone anything is read is a copy: of what lies otherwise, torch.export does not make the tensor anew
    of which it is a view."""
    for node in [node for node in program.graph.nodes if is_in_place(node)]:
        view = node.args[0]
        while views(node.args[0]) and views(view) and len(view.args[0].users) == 1:
            view = view.args[0]
        if view is node.args[0] or views(view) or view.op != "call_function":
            continue
        view = node.args[0]
        with program.graph.inserting_after(view):
            copied = program.graph.call_function(torch.ops.aten.clone.default, (view,), {"memory_format": torch.contiguous_format})
        copied.meta = dict(view.meta)
        view.replace_all_uses_with(copied, delete_user_cb=lambda user: user is not copied)
    program.graph_module.recompile()


def is_in_place(node):
    return writes_first(node) is True and isinstance(node.args[0], torch.fx.Node)


def views(node):
    return isinstance(node, torch.fx.Node) and writes_first(node) is False


def writes_first(node):
    """Whether a call changes its first argument; None where its result is no part of that."""
    schema = getattr(node.target, "_schema", None)
    alias = schema.arguments[0].alias_info if schema and schema.arguments and node.args else None
    return None if alias is None else alias.is_write


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
    """torch.onnx writes few functions of complex numbers: the others are written of their two parts."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten._neg_view.default:  # of the imaginary part of a conjugate
            node.target = torch.ops.aten.neg.default
    for node in [node for node in program.graph.nodes if node.target in OF_PARTS]:
        leaves = [leaf.meta.get("val") for leaf in node.all_input_nodes]
        if not any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves) and not any(isinstance(arg, complex) for arg in node.args):
            continue
        with program.graph.inserting_before(node):
            made = OF_PARTS[node.target](Parts(program.graph), *node.args, **node.kwargs)
        if made is None:
            continue
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        program.graph.erase_node(node)
    program.graph_module.recompile()


class Parts:
    """Adds calls to a graph, each with the tensor that it returns."""

    def __init__(self, graph):
        self.graph = graph

    def __call__(self, function, *args, **kwargs):
        node = self.graph.call_function(function, args, kwargs)
        node.meta["val"] = function(*torch.fx.node.map_arg(args, lambda one: one.meta["val"]), **kwargs)
        return node

    def real(self, value):
        """A real tensor with a last dim of two parts, of a complex one."""
        return self(torch.ops.aten.view_as_real.default, value)

    def both(self, value):
        """As real() of a complex tensor, of a real one with zeros as the second."""
        if value.meta["val"].is_complex():
            return self.real(value)
        return self(torch.ops.aten.stack.default, [value, self(torch.ops.aten.zeros_like.default, value)], -1)

    def whole(self, parts):
        return self(torch.ops.aten.view_as_complex.default, parts)

    def pair(self, value):
        """Both parts; the second of a real tensor is None."""
        if not value.meta["val"].is_complex():
            return value, None
        parts = self.real(value)
        return [self(torch.ops.aten.select.int, parts, -1, k) for k in (0, 1)]

    def join(self, real, imaginary):
        return self.whole(self(torch.ops.aten.stack.default, [real, imaginary], -1))

    def add(self, a, b, sign=1):
        if a is None or b is None:
            return a if b is None else b if sign > 0 else self(torch.ops.aten.neg.default, b)
        return self(torch.ops.aten.add.Tensor if sign > 0 else torch.ops.aten.sub.Tensor, a, b)


def along(function):
    """A function that takes a dim, or moves what lies in it, whatever the numbers are."""
    def apply(parts, value, dim=0, *args, **kwargs):
        return parts.whole(parts(function, parts.real(value), dim if dim >= 0 else dim - 1, *args, **kwargs))
    return apply


def written_along(function):
    """Into some of complex numbers, others or real ones."""
    def apply(parts, value, source, dim=0, *args, **kwargs):
        return parts.whole(parts(function, parts.real(value), parts.both(source), dim % value.meta["val"].dim(), *args, **kwargs))
    return apply


def copy_of_parts(parts, value, source, *args):
    return parts.whole(parts(torch.ops.aten.copy.default, parts.real(value), parts.both(source), *args))


def zeros_of_parts(parts, value, **kwargs):
    return parts.whole(parts(torch.ops.aten.zeros_like.default, parts.real(value)))


def exp_of_parts(parts, value):
    a, b = parts.pair(value)
    return exp_of(parts, a, b)


def exp_of(parts, a, b):
    aten, size = torch.ops.aten, parts(torch.ops.aten.exp.default, a)
    return parts.join(*(parts(aten.mul.Tensor, size, parts(part, b)) for part in (aten.cos.default, aten.sin.default)))


def log_of(parts, value):
    """The logarithm of the size, and the angle."""
    aten, (a, b) = torch.ops.aten, parts.pair(value)
    square = parts(aten.add.Tensor, parts(aten.mul.Tensor, a, a), parts(aten.mul.Tensor, b, b))
    return parts(aten.mul.Tensor, parts(aten.log.default, square), 0.5), parts(aten.atan2.default, b, a)


def log_of_parts(parts, value):
    return parts.join(*log_of(parts, value))


def power_of_parts(parts, value, power):
    """By the principal logarithm; powers are real."""
    if isinstance(power, complex) or isinstance(power, torch.fx.Node) and power.meta["val"].is_complex() or not value.meta["val"].is_complex():
        return None
    return exp_of(parts, *(parts(torch.ops.aten.mul.Tensor, part, power) for part in log_of(parts, value)))


def scaled_parts(parts, value, factor):
    """Times a number, such as 1j."""
    if not isinstance(factor, complex) or not isinstance(value, torch.fx.Node):
        return None
    a, b = parts.pair(value)
    times = lambda part, by: None if part is None else parts(torch.ops.aten.mul.Tensor, part, by)  # noqa: E731
    return parts.join(parts.add(times(a, factor.real), times(b, factor.imag), -1), parts.add(times(a, factor.imag), times(b, factor.real)))


def divided_parts(parts, value, divisor):
    return scaled_parts(parts, value, 1 / divisor) if isinstance(divisor, complex) else None


def sqrt_of_parts(parts, value):
    return power_of_parts(parts, value, 0.5)


def expand_parts(parts, value, sizes, **kwargs):
    return parts.whole(parts(torch.ops.aten.expand.default, parts.real(value), [*sizes, 2]))


def index_parts(parts, value, indices):
    return parts.whole(parts(torch.ops.aten.index.Tensor, parts.real(value), list(indices))) if value.meta["val"].is_complex() else None


def pad_parts(parts, value, pads, mode="constant", filled=None):
    return None if mode != "constant" or filled else parts.whole(parts(torch.ops.aten.constant_pad_nd.default, parts.real(value), [0, 0, *pads]))


def where_parts(parts, condition, one, other):
    if not one.meta["val"].is_complex() or not other.meta["val"].is_complex():
        return None
    wide = parts(torch.ops.aten.unsqueeze.default, condition, -1)
    return parts.whole(parts(torch.ops.aten.where.self, wide, parts.real(one), parts.real(other)))


def einsum_of_parts(parts, equation, operands, **kwargs):
    """A sum over the choices of a part of each operand, two at most."""
    if len(operands) > 2:
        return None
    of = lambda *chosen: None if None in chosen else parts(torch.ops.aten.einsum.default, equation, list(chosen))  # noqa: E731
    pairs = [parts.pair(value) for value in operands]
    if len(pairs) == 1:
        return parts.join(*map(of, pairs[0]))
    (a, b), (c, d) = pairs
    return parts.join(parts.add(of(a, c), of(b, d), -1), parts.add(of(a, d), of(b, c)))


OF_PARTS = {
    torch.ops.aten.unsqueeze.default: along(torch.ops.aten.unsqueeze.default), torch.ops.aten.select.int: along(torch.ops.aten.select.int),
    torch.ops.aten.zeros_like.default: zeros_of_parts, torch.ops.aten.copy.default: copy_of_parts,
    torch.ops.aten.slice_scatter.default: written_along(torch.ops.aten.slice_scatter.default), torch.ops.aten.select_scatter.default: written_along(torch.ops.aten.select_scatter.default),
    torch.ops.aten.cumsum.default: along(torch.ops.aten.cumsum.default), torch.ops.aten.exp.default: exp_of_parts, torch.ops.aten.log.default: log_of_parts,
    torch.ops.aten.sqrt.default: sqrt_of_parts, torch.ops.aten.pow.Tensor_Scalar: power_of_parts, torch.ops.aten.pow.Tensor_Tensor: power_of_parts,
    torch.ops.aten.expand.default: expand_parts, torch.ops.aten.index.Tensor: index_parts,
    torch.ops.aten.mul.Tensor: scaled_parts, torch.ops.aten.mul.Scalar: scaled_parts, torch.ops.aten.div.Tensor: divided_parts,
    torch.ops.aten.div.Scalar: divided_parts, torch.ops.aten.pad.default: pad_parts, torch.ops.aten.where.self: where_parts, torch.ops.aten.einsum.default: einsum_of_parts,
}


def write_diagonals(program):
    """What is written into a diagonal is chosen there: torch.onnx has views for it, which a graph of values has not."""
    aten = torch.ops.aten
    for node in [node for node in program.graph.nodes if node.target is aten.diagonal_scatter.default]:
        given = {"offset": 0, "dim1": 0, "dim2": 1, **dict(zip(("input", "src", "offset", "dim1", "dim2"), node.args)), **node.kwargs}
        value, source, offset = given["input"], given["src"], given["offset"]
        shape = value.meta["val"].shape
        first, second = (given[name] % len(shape) for name in ("dim1", "dim2"))
        before = max(-offset, 0)  # rows above the diagonal
        square = shape[first] is shape[second] or shape[first] == shape[second]
        behind = max(offset, 0) if square else shape[first] - source.meta["val"].shape[-1] - before
        order = [dim for dim in range(len(shape)) if dim not in (first, second)] + [first, second]
        with program.graph.inserting_before(node):
            call = Parts(program.graph)
            rows, columns = (call(aten.arange.default, call(aten.sym_size.int, value, dim)) for dim in (first, second))
            chosen = call(aten.eq.Tensor, call(aten.unsqueeze.default, call(aten.add.Tensor, rows, offset), 1), columns)
            if before or behind:
                source = call(aten.constant_pad_nd.default, source, [before, behind])
            whole = call(aten.where.self, chosen, call(aten.unsqueeze.default, source, -1), call(aten.permute.default, value, order))
            made = call(aten.permute.default, whole, [order.index(dim) for dim in range(len(shape))])
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        program.graph.erase_node(node)
    program.graph_module.recompile()


def write_statistics(program, read):
    """What becomes of the running statistics of batch norms of which nothing else is `read`: the file has no such norm."""
    aten = torch.ops.aten
    for node in [node for node in program.graph.nodes if node.target is aten._native_batch_norm_legit_functional.default and node not in read and node.args[5]]:
        input, momentum = node.args[0], node.args[6]
        dims = [0, *range(2, input.meta["val"].dim())]
        with program.graph.inserting_before(node):
            call = Parts(program.graph)
            now = call(aten.mean.dim, input, dims), call(aten.var.correction, input, dims, correction=1)
            after = [call(aten.add.Tensor, call(aten.mul.Tensor, before, 1 - momentum), call(aten.mul.Tensor, one, momentum)) for before, one in zip(node.args[3:5], now)]
        for user in [user for user in node.users if user.args[1] in (3, 4)]:
            made = after[user.args[1] - 3]
            user.replace_all_uses_with(made)
            for spec in program.graph_signature.output_specs:
                if spec.arg.name == user.name:
                    spec.arg = torch.export.graph_signature.TensorArgument(name=made.name)
    program.graph_module.recompile()


def drop_assertions(program):
    """What is asserted of values, and what is computed for that alone."""
    asserted = {"aten._assert_scalar", "aten._assert_async", "aten._assert_tensor_metadata", "aten.sym_constrain_range", "aten.sym_constrain_range_for_size"}
    for node in reversed(program.graph.nodes):
        of_call = node.op == "call_function" and not node.users
        if of_call and (str(node.target).rpartition(".")[0] in asserted or not node.is_impure()):
            program.graph.erase_node(node)
    program.graph_module.recompile()
