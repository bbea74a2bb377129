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
