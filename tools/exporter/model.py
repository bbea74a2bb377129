"""Traces a module and writes the file: the graph, and in its metadata what training needs to know of parameters and buffers."""
import copy
import functools
import inspect
import json
import re
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import filterfalse

import onnxscript.ir
import torch
from torch.utils import _pytree as pytree

from .arguments import choose_batch, find_loss, flat_inputs, in_order, output_names, register_classes, shapes_of_classes, size_of_batch, tensors_of, with_names
from .counted import wholes_in
from .decompositions import change_copies, complex_by_parts, detach_what_has_no_gradient, drop_assertions, read_parameters_by_name, take_losses_apart, view_by_copies, write_diagonals, write_statistics
from .equivalents import adaptive_softmax_whole, averages_of_all_steps
from .errors import NotExported, cause_of, depends_on_values, first_line, is_transformed, makes_a_constant, place_of_error, place_of_node
from .first_run import Begins, look_for_first_run, refuse_changed
from .functions import CURVED, OTHER, SCALES, SUMS, Functions
from .gradients import transforms_in_graph, write_gradients
from .kept import Kept, are_close, copy_of
from .output import MOST_INLINE, size_of
from .packed import packed_whole
from .selection import choosing_some, lengths_of_chosen
from .ties import Ties, depends_on_ties
from .unsupported import refuse_parts
from .watching import BUFFER, Asked, Expected, HostDraws, Watch, experts_in_batches, hooks_of, inference_is_no_grad, lengths_are_sizes, parameters_stay, quietly, untold, unvalidated, words_are_names
from .weightless import leave_out

PARAMETERS, UNTOUCHED, SIGNATURE = "piper.parameters", "piper.untouched", "pkg.torch.export.ExportedProgram.graph_signature"
STORED = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
FLOAT = onnxscript.ir.DataType.FLOAT
FLOATS = {FLOAT, onnxscript.ir.DataType.DOUBLE, onnxscript.ir.DataType.FLOAT16, onnxscript.ir.DataType.BFLOAT16}
MOST_INTEGER = 2**24  # up to which float32 has all of them
SEEDS = 40  # with which a forward that draws on the host is run: a layer that is left out once in ten is seen


class Export:
    def __init__(self, module, args, kwargs, batch, opset, weights=True):
        self.module, self.opset, self.weights = module, opset, weights
        refuse_parts(module)
        register_classes((args, kwargs))
        self.args, self.kwargs = pytree.tree_map(without_gradient, (args, kwargs))
        self.inputs = flat_inputs(module, self.args, self.kwargs)
        self.kwargs = in_order(module, self.kwargs)
        self.dims = choose_batch(self.inputs, batch)
        self.size = size_of_batch(self.inputs, self.dims)
        self.fixed = ""  # why the batch is, where it was to be left open
        self.takes_some = False  # masks are taken to choose something, as they do of the example batch
        self.most = 0  # samples with which forward takes the way that is written; 0: any number of them
        self.quiet = False
        self.begins, self.undo = [], ExitStack()  # what is set as forward sets it in its first run, and how the module becomes what it was
        self.refuse_hooks(hooks_of(module))

    @staticmethod
    def refuse_hooks(hooks):
        if hooks:
            raise NotExported(f"the hook {', '.join(hooks[:4])} is called with gradients, and the file has none to call it with: that is not supported. Remove it "
                              "if it only looks; else have forward do it: freeze the parameter (requires_grad_(False)), or compute with "
                              "torch.where(mask, weight, weight.detach())")

    def trace(self):
        """The exported program, with everything that forward returns and changes."""
        self.watch, self.functions, kept = Watch(self.quiet), Functions(), Kept(self.module)
        try:
            with Ties() as self.ties, self.watch, self.functions, HostDraws() as self.host:
                out, self.answers = self.ask(self.args, self.kwargs)
            if not self.begins:
                look_for_first_run(self, kept)
            if not self.reads_uniform:
                self.watch.draws -= {"rand", "rand_like", "uniform_"}
            self.leaves, self.names = pytree.tree_leaves(out), output_names(out)
            self.loss = find_loss(self.leaves, self.names)
            if self.loss is None:  # which would say that a batch has other numbers
                self.answers = {place: [None if isinstance(answer, Expected) else answer for answer in each] for place, each in self.answers.items()}
            self.after = {name: value.detach().clone() for name, value in self.module.named_buffers()}
            self.functions.look()
            self.backwards = self.functions.of_kind(OTHER)
            for name in self.functions.of_kind(CURVED):
                raise NotExported(f"the backward of {name} (torch.autograd.Function) is no linear function of the gradient, as one that clips it is: that is not "
                                  "supported, as it belongs to no function. Clip gradients in the strategy")
            self.refuse_hooks(sorted(self.watch.hooks))
            self.refuse_what_it_holds(kept)
            self.refuse_draws_of_host(kept)
            kept.put_back()
            self.refuse_open_orders()
            kept.put_back()
            if self.answers and self.size and not self.fixed:
                self.fixed = self.reason_for_this_size()
            kept.put_back()
            with quietly(), torch.enable_grad(), Watch(self.quiet, traced=True), experts_in_batches(self.module):
                return self.traced()
        finally:
            kept.put_back()

    def refuse_what_it_holds(self, kept):
        """After forward has run: what it reads beside parameters and buffers is a constant in the file."""
        for name in kept.results():
            raise NotExported(f"the module holds '{name}', a result of an earlier forward, through which no gradient flows: export it before forward has run, "
                              "or in training mode")
        changed = kept.changed()
        if not changed or self.watch.draws:
            return
        results = []
        for whole in (True, False):
            kept.put_back(whole)
            with Watch(quiet=True):
                results.append(self.ask(self.args, self.kwargs)[0])
        if not are_close(*results):
            raise NotExported(f"what forward returns depends on {', '.join(changed[:4])}, which it changes: as neither a parameter nor a buffer, that would stay "
                              "what it is in the file. Make it a buffer of floats (register_buffer)")

    def refuse_draws_of_host(self, kept):
        """What random numbers of Python, of numpy or of a generator that the module holds decide would be as it was traced."""
        first = None
        for seed in range((SEEDS if self.host.drawn else 2) if self.weights and not self.quiet else 0):
            kept.put_back()
            with Watch(quiet=True), self.host.seeded(seed):
                result = self.ask(self.args, self.kwargs)[0]
            first = result if first is None else first
            if not are_close(first, result):
                raise NotExported(f"what forward returns depends on random numbers of {self.host.drawn or 'a generator of its own'}, which would be constants in the file: "
                                  "draw them by torch.rand, or export it with training=False if it draws only in training")

    def refuse_open_orders(self):
        """A step that the order of equal numbers decides may be another one in the file."""
        if self.ties.places and self.weights and not self.quiet and depends_on_ties(self):
            raise NotExported(f"what forward returns depends on the order of equal numbers, which PyTorch leaves open{', '.join(sorted(self.ties.places)[:4])}: in a file, the "
                              "first of them comes first. Sort with stable=True, or numbers of which no two are equal")

    def ask(self, args, kwargs):
        """What forward returns, and the answers to what it asks of constants."""
        given = args, kwargs
        args, kwargs = copy.deepcopy(given)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        whole = lambda leaf: not leaf.is_floating_point() and not leaf.is_complex()  # noqa: E731
        trained = lambda value: value.requires_grad  # noqa: E731
        parameters = [*self.module.parameters()]
        asked = Asked(filter(trained, parameters), filter(whole, tensors), filterfalse(whole, tensors), [*self.module.buffers(), *filterfalse(trained, parameters)])
        with quietly(), torch.enable_grad(), lengths_of_chosen(), asked:
            try:
                out = tensors_of(self.module(*args, **kwargs))
                self.asks_finite, self.checks, self.asks_found, self.asks_inputs = asked.asks_finite, asked.checks, asked.asks_found, asked.asks_inputs
                self.reads_uniform, self.programs = asked.reads_uniform, asked.programs
                return out, asked.answered()
            except Exception as error:
                if not type(error).__module__.startswith("torch._dynamo"):
                    if isinstance(error, NotExported) or not self.runs_otherwise(*given):
                        raise
                    raise NotExported(f"a way in which forward goes on with what masks choose, or with functions that the exporter writes by others, is not supported, though PyTorch "
                                      f"runs it: {first_line(error)}. Compute it for all elements there, and choose by torch.where") from error
                raise NotExported(f"forward compiles parts of itself while it runs, as torch.cond and torch.compile do{place_of_error(error)}: that is not supported. "
                                  "Compute all ways and choose by torch.where, or export the module that is not compiled") from None

    def runs_otherwise(self, args, kwargs):
        """Whether forward runs where nobody watches it."""
        try:
            with torch._C.DisableTorchFunction(), torch.enable_grad():
                args, kwargs = copy.deepcopy((args, kwargs))
                copy_of(self.module)(*args, **kwargs)
            return True
        except Exception:  # forward's own
            return False

    def reason_for_this_size(self):
        """Why the batch is not left open, where forward takes no other or asks other things of it."""
        try:
            with Watch(self.quiet):
                asked = self.ask(*self.doubled())[1]
            for place in [place for place in self.answers if place[2] == "places" and self.answers[place] != asked.get(place)]:
                del self.answers[place]  # masks with an element for each sample
                asked.pop(place, None)
            return "" if self.answers == asked else "what it asks of tensors depends on the size of the batch"
        except Exception as error:  # forward's own
            return first_line(error)

    def doubled(self):
        """The arguments with each sample twice."""
        dims = {id(self.inputs[name]): dim for name, dim in self.dims.items() if dim is not None}
        twice = lambda leaf: torch.cat([leaf, leaf], dims[id(leaf)]) if isinstance(leaf, torch.Tensor) and id(leaf) in dims else leaf  # noqa: E731
        return pytree.tree_map(twice, (self.args, self.kwargs))

    def traced(self):
        def shaped(most):
            dim = torch.export.Dim("batch", min=1, max=most) if most else None
            by_id = {id(self.inputs[name]): {at: dim} for name, at in self.dims.items() if at is not None and most}
            return shapes_of_classes(pytree.tree_map(lambda leaf: by_id.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None, self.signature_arguments()))

        def in_the_open(most, program):
            """The program of the way without operators of a library's own, where forward has one when it is not told that it is traced: their gradients are not in a file."""
            if not operators_of_others(program):
                return program
            try:
                with untold():
                    other = traced(most)
            except Exception:  # forward's own
                other = program
            left = [name for name in operators_of_others(other) if torch._C._dispatch_has_kernel_for_dispatch_key(name, "Autograd")]
            if left:
                raise NotExported(f"forward calls the operator {left[0]} of a library, which has a gradient of its own that is not in the file: that is not supported. Call what it is "
                                  "made of, or a class of torch.autograd.Function")
            return other

        def attempt(most):
            try:
                return in_the_open(most, traced(most))
            except NotExported:
                raise
            except Exception as error:  # the tracer has many classes of them
                fewer = most_samples(error, most)
                if fewer and fewer >= self.size:
                    self.most = fewer
                    return attempt(fewer)
                for way in (*([counting] if asks_buffers else []), choosing_some, untold) if depends_on_values(error) else (untold,):
                    try:
                        with way():
                            program = traced(most)
                        self.takes_some = way is choosing_some
                        return program
                    except Exception as second:
                        if depends_on_values(second) and not depends_on_values(error) or way is counting and makes_a_constant(second):
                            raise second from None
                raise error from None

        asks_buffers, counts = any(BUFFER in each for each in self.answers.values()), []

        @contextmanager
        def counting():
            """Numbers of buffers that forward changes stay tensors."""
            counts.append(True)
            try:
                with wholes_in(self.programs):
                    yield
            finally:
                counts.pop()

        def traced(most):
            with (Asked(answers=self.answers, counts=bool(counts)) as asked, self.compared_with_expected(asked.expected), parameters_stay(), unvalidated(), lengths_of_chosen(), packed_whole(),
                  adaptive_softmax_whole(), averages_of_all_steps(), transforms_in_graph(), inference_is_no_grad(), self.functions.written()):
                return torch.export.export(self.module, self.args, self.kwargs, dynamic_shapes=shaped(most), strict=False)

        if self.size and not self.fixed:
            reason = ""
            for way in nullcontext, lengths_are_sizes:
                try:
                    self.most = 0
                    with way():
                        return attempt(2**31 - 1)
                except Exception as error:
                    reason = reason or first_line(error)
                    if not makes_a_constant(error):
                        break
            self.fixed = reason
        try:
            return attempt(0)
        except NotExported:
            raise
        except Exception as error:
            if is_transformed(error):
                raise NotExported(f"forward calls torch.func.jacfwd, or another transform by forward differentiation{place_of_error(error)}: that is not supported. Call "
                                  "torch.func.grad, vjp, jacrev or hessian instead") from error
            if self.watch.gradients:
                raise NotExported(f"forward computes gradients itself ({', '.join(sorted(self.watch.gradients))}): that is supported by torch.autograd.grad alone, of what "
                                  f"the tracer follows. {first_line(error)}") from error
            raise NotExported(f"torch.export does not trace {type(self.module).__name__}: {first_line(error)}") from error

    @contextmanager
    def compared_with_expected(self, expected):
        """Forward's loss is NaN for a batch of which it asks and gets other numbers than of the example batch."""
        own, held = self.module.forward, vars(self.module).copy()

        @functools.wraps(own)
        def forward(*args, **kwargs):
            leaves, tree = pytree.tree_flatten(tensors_of(own(*args, **kwargs)))
            if expected:
                other = torch.stack([value != number for value, number in expected]).any()
                leaves[self.loss] = leaves[self.loss] + torch.zeros_like(leaves[self.loss]).masked_fill(other, torch.nan)
                expected.clear()
            return pytree.tree_unflatten(leaves, tree)

        forward.__signature__ = with_names(inspect.signature(own), self.kwargs)
        self.module.forward = forward
        try:
            yield
        finally:
            del self.module.forward
            vars(self.module).update((name, value) for name, value in held.items() if name == "forward")

    def signature_arguments(self):
        return dict(inspect.signature(self.module.forward).bind(*self.args, **self.kwargs).arguments)

    def keep_changed_buffers(self, program):
        """What buffers become is returned, so that it is in the file: (the signature before, their names). Frozen parameters that forward
        changes, as those of a momentum encoder, are such buffers, too."""
        told = str(program.graph_signature)
        kinds = torch.export.graph_signature.OutputKind
        norms = self.statistics_of_norms(program)
        kept, self.overwritten = [], []
        self.constants = {}  # what buffers become that forward sets to the same whatever it is given
        self.mutated = {spec.target for spec in program.graph_signature.output_specs if spec.kind in (kinds.PARAMETER_MUTATION, kinds.BUFFER_MUTATION)}
        for spec in program.graph_signature.output_specs:
            if spec.kind is kinds.PARAMETER_MUTATION:
                if self.module.get_parameter(spec.target).requires_grad:
                    refuse_changed(spec.target)
                place = re.escape(f"target='{spec.target}'")
                told = re.sub(rf"(?m)PARAMETER(?=(?:_MUTATION)? {place}$)", "BUFFER", told)
            elif spec.kind is kinds.USER_INPUT_MUTATION:
                self.overwritten.append(spec.target)
                continue
            elif spec.kind is not kinds.BUFFER_MUTATION or spec.target in norms:
                continue
            elif is_constant(program, spec.arg.name):
                if any(buffer == spec.target and read(program, name) for name, buffer in program.graph_signature.inputs_to_buffers.items()):
                    raise NotExported(f"forward reads the buffer '{spec.target}' and sets it to a constant: that is not supported. Set it when the module is made")
                self.constants[spec.target] = self.after[spec.target]
                told = re.sub(rf"(?m)^.*: BUFFER_MUTATION target='{re.escape(spec.target)}'$", "", told)
                continue
            else:
                refuse_large_integers(spec.target, self.module.get_buffer(spec.target))
            kept.append(spec.target)
            spec.kind, spec.target = kinds.USER_OUTPUT, None
        self.mutated -= self.constants.keys()
        returned = sum(spec.kind is kinds.USER_OUTPUT for spec in program.graph_signature.output_specs)
        program.module_call_graph[0].signature.out_spec = pytree.tree_structure(tuple(range(returned)))
        return told, kept

    def statistics_of_norms(self, program):
        """Buffers that are running statistics: batch norms that the loss reads say themselves what becomes of them."""
        buffers = program.graph_signature.inputs_to_buffers
        return {buffers[arg.name] for node in self.read_by_loss(program) if "batch_norm" in str(node.target)
                for arg in node.args if isinstance(arg, torch.fx.Node) and arg.name in buffers}

    def read_by_loss(self, program):
        """The nodes that decide the loss, or, where there is none, all that forward returns."""
        kind = torch.export.graph_signature.OutputKind.USER_OUTPUT
        returned = [spec.arg.name for spec in program.graph_signature.output_specs if spec.kind is kind]
        wanted = set(returned if self.loss is None else [returned[self.loss]])
        found = {node for node in program.graph.nodes if node.name in wanted}
        for node in reversed(program.graph.nodes):
            if node in found:
                found.update(node.all_input_nodes)
        return found

    def write(self, path):
        try:
            program = self.trace()
        except Begins as first:
            first.apply(self)
            program = self.trace()
        self.program = program
        read_parameters_by_name(program)
        self.detached = detach_what_has_no_gradient(program)
        try:
            with words_are_names():
                try:
                    written, told = self.convert(program)
                except Exception as error:
                    if "Cannot view" not in first_line(error):
                        raise
                    written, told = self.convert(program, copies=True)
        except NotExported:
            raise
        except Exception as error:
            raise NotExported(f"torch.onnx does not write {type(self.module).__name__}: {place_of_node(error, self.program)}{first_line(error)}") from error
        listed = self.listed()
        self.describe(written.model, told, listed)
        with quietly():
            if not self.weights:
                leave_out(written.model, listed, path)
                onnxscript.ir.save(written.model, str(path))
                return listed
            held = (*self.module.parameters(), *self.module.buffers())
            written.save(str(path), external_data=size_of(held) > MOST_INLINE)
        return listed

    def convert(self, program, copies=False):
        """What torch.onnx makes of it, and the signature before forward's changes were returned."""
        with quietly():
            take_losses_apart(program)
            if copies:
                change_copies(program)
            program = decomposed(program)
            drop_assertions(program)
            write_gradients(program)
            complex_by_parts(program)
            write_diagonals(program)
            write_statistics(program, self.read_by_loss(program))
            if copies:
                view_by_copies(program)
            told, self.changed = self.keep_changed_buffers(program)
            self.program = program
            return torch.onnx.export(program, dynamo=True, optimize=False, opset_version=self.opset, verbose=False), told

    def listed(self):
        """By tensor, in the module's order: its first name, its others, its shape and whether it is trained."""
        by_tensor = {}
        for name, value in self.module.named_parameters(remove_duplicate=False):
            entry = by_tensor.setdefault(id(value), {"name": name, "shape": list(value.shape), "trained": bool(value.requires_grad)})
            if entry["name"] != name:
                entry.setdefault("also", []).append(name)
        return [entry for entry in by_tensor.values() if entry["name"] not in self.changed]

    def describe(self, model, told, listed):
        """Parameters under their first names, inputs and the loss under theirs, and the list."""
        graph = model.graph
        for entry in listed:
            for name in [entry["name"], *entry.get("also", [])]:
                if name in graph.initializers and name != entry["name"]:
                    value = graph.initializers.pop(name)
                    value.name = entry["name"]
                    graph.initializers[entry["name"]] = value
        self.keep_values(graph, self.changed)  # which an evaluation reads, if no step does
        used = {value.name for node in graph for value in node.inputs if value is not None} | {value.name for value in graph.outputs}
        for entry in listed:
            if entry["name"] not in used:
                entry["unused"] = True
        for value, name in zip(graph.inputs, self.inputs):
            value.name = name
        self.name_outputs(graph)
        for name in self.changed:
            float_buffer(graph, name)
        for target, value in zip(self.changed, graph.outputs):  # torch.onnx numbers results anew
            told = re.sub(rf"(?m)^.*(?=: BUFFER_MUTATION target='{re.escape(target)}'$)", value.name, told)
        graph.metadata_props[SIGNATURE] = told
        graph.metadata_props[PARAMETERS] = json.dumps(listed, separators=(",", ":"))
        untouched = self.untouched(listed) if self.weights else {}
        if untouched:
            self.keep_values(graph, [*untouched.values()])
            graph.metadata_props[UNTOUCHED] = json.dumps(untouched, separators=(",", ":"))

    def keep_values(self, graph, names):
        """Has the file hold these parameters and buffers, also where nothing reads them."""
        held = dict((*self.module.named_parameters(), *self.module.named_buffers())) | self.constants
        taken = {*graph.initializers, *self.inputs, *names}
        for value in [value for node in graph for value in node.outputs if value.name in taken]:
            value.name += "_result"  # of a call that has the name of a buffer, such as 'mean'
        for name in [name for name in names if self.weights and name not in graph.initializers]:
            value = onnxscript.ir.tensor(held[name].detach().clone(), name=name)
            graph.initializers[name] = onnxscript.ir.Value(name=name, shape=value.shape, type=onnxscript.ir.TensorType(value.dtype), const_value=value)

    def untouched(self, listed):
        """{name: the first name of that tensor} of what load_state_dict wants beside trained parameters, and no step changes."""
        states = {name for entry in listed if not entry.get("unused") for name in (entry["name"], *entry.get("also", []))} | self.mutated
        tensors = (*self.module.named_parameters(remove_duplicate=False), *self.module.named_buffers(remove_duplicate=False))
        first, names = {}, self.module.state_dict().keys()
        for name, value in tensors:
            first.setdefault(id(value), name)
        return {name: first[id(value)] for name, value in tensors if name in names and name not in states and value.dtype in STORED}

    def name_outputs(self, graph):
        """The loss alone, where there is one, and what buffers become."""
        count = len(self.changed)
        of_user = list(graph.outputs)[count:]
        if self.loss is not None and len(of_user) == len(self.leaves):
            loss = of_user[self.loss]
            loss.name = "loss"
            keep = [copied(graph, value) if value is loss or value.uses() or value.dtype not in FLOATS else value for value in list(graph.outputs)[:count]] + [loss]
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
            more = f" and {len(self.changed) - 8} more" if len(self.changed) > 8 else ""
            lines.append(f"  forward changes the buffers {', '.join(self.changed[:8])}{more}")
            integers = [name for name in self.changed if name in dict(self.module.named_buffers()) and not self.module.get_buffer(name).is_floating_point()]
            if integers:
                lines.append(f"  {len(integers)} of them hold integers, which are saved as float32: load_state_dict takes them as they are")
        lines += self.begins
        if self.overwritten:
            lines.append(f"  forward changes its input {', '.join(self.overwritten[:4])} in place: each step of Piper begins with what the data holds")
        if self.detached:
            lines.append(f"  {self.detached} results of torch.no_grad() stop gradients")
        scaled = sorted(self.functions.of_kind(SCALES) + self.functions.of_kind(SUMS))
        if scaled:
            lines.append(f"  the backward of {', '.join(scaled)} (torch.autograd.Function) is no derivative of its forward: it is written as a factor of each element")
        if self.backwards:
            lines.append(f"  the backward of {', '.join(self.backwards)} (torch.autograd.Function) is not in the file: Piper differentiates its forward")
        if self.host.drawn:
            lines.append(f"  forward draws random numbers of {self.host.drawn}, which change nothing here: they are constants in the file")
        if self.fixed:
            lines.append(f"  the batch stays {self.size}: the module does not take another ({self.fixed})")
        if self.watch.pads:
            lines.append("  pad_packed_sequence keeps all steps that were packed, as it does with total_length, also where each sequence of a batch is shorter")
        if self.watch.counts:
            lines.append("  bincount returns `minlength` counts, also where a number is larger, which it leaves out")
        if self.most and not self.fixed:
            lines.append(f"  forward takes another way for batches of more than {self.most} samples: the file has the one for fewer")
        if not self.weights:
            lines.append("  without their values, for piperc --dry-run; not compared with PyTorch")
        if self.asks_finite:
            lines.append("  forward asks whether numbers are finite: in the file they are as on the example batch")
        if self.asks_found or self.takes_some:
            where = f" ({', '.join(sorted(self.asks_found)[:4])})" if self.asks_found else ""
            lines.append(f"  forward asks whether a mask has such an element{where}: the file has the way of the example batch, on which it has, also for masks without one")
        if self.asks_inputs and self.loss is not None:
            lines.append(f"  forward asks inputs for numbers, such as how long the longest is, or which way to go ({', '.join(sorted(self.asks_inputs)[:4])}): the file has those of the "
                         "example batch. For a batch with others its loss is NaN, at which a run stops")
        if self.checks:
            lines.append(f"  forward checks values and raises errors ({', '.join(sorted(self.checks)[:4])}): the file does not")
        if self.loss is None:
            lines.append("  forward returns no single scalar: name its loss in the strategy")
        return "\n".join(lines)

    @staticmethod
    def count(entry):
        return torch.Size(entry["shape"]).numel()


def decomposed(program):
    """Where gradients are on, PyTorch refuses to write into a part of complex numbers."""
    try:
        return program.run_decompositions({})
    except RuntimeError as error:
        if "outputs with complex dtype" not in str(cause_of(error)):
            raise
        with torch.no_grad():
            return program.run_decompositions({})


NAMESPACES = {"aten", "piper", "prim", "prims", "quantized_decomposed", "torchvision"}


def operators_of_others(program):
    """The names of operators that a library has registered, such as kernels of its own."""
    targets = [node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return sorted({target.name() for target in targets if target.namespace not in NAMESPACES})


def without_gradient(leaf):
    """The tensor, without what an earlier backward() has left in it, which the tracer does not take."""
    return leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) and (leaf.requires_grad or leaf.grad is not None) else leaf


def most_samples(error, before):
    """The most with which forward takes the way that the tracer followed, which its error says; 0 where it says none, or no fewer than before."""
    said = re.search(r"(?m)^\s*batch = Dim\('batch', max=(\d+)\)\s*$", str(error))
    return int(said[1]) if said and int(said[1]) < before else 0


def is_constant(program, name):
    """Whether a value of the program depends on nothing that it takes, and draws nothing."""
    queue = [node for node in program.graph.nodes if node.name == name]
    seen = set(queue)
    while queue:
        node = queue.pop()
        if node.op == "placeholder" or getattr(node.target, "tags", None) and torch.Tag.nondeterministic_seeded in node.target.tags:
            return False
        values = values_read(node)
        queue += [one for one in values if one not in seen]
        seen.update(values)
    return True


def values_read(node):
    """What a node takes and of which it reads more than the shape."""
    of_shape = ("full_like", "zeros_like", "ones_like", "empty_like", "fill", "copy", "new_zeros", "new_ones", "new_full")
    name = str(node.target).split(".")[1] if str(node.target).startswith("aten.") else ""
    return [one for one in node.all_input_nodes if name not in of_shape or one is not node.args[0]]


def read(program, name):
    return any(node.name == name and any(user.op != "output" and node in values_read(user) for user in node.users) for node in program.graph.nodes)


def refuse_large_integers(name, value):
    if not value.is_floating_point() and value.numel() and value.long().abs().max() > MOST_INTEGER:
        raise NotExported(f"forward changes the buffer '{name}', which has integers beyond {MOST_INTEGER}: that is not supported, as such buffers are kept as "
                          "float32. Make it a buffer of float64, or count from zero")


def copied(graph, value):
    """What a buffer becomes apart from the value, through which gradients flow; integers as floats, which is what Piper keeps from step to step."""
    whole = value.dtype in FLOATS
    node = onnxscript.ir.node("Identity", [value]) if whole else onnxscript.ir.node("Cast", [value], {"to": FLOAT.value})
    graph.append(node)
    out = node.outputs[0]
    out.name, out.type, out.shape = f"{value.name}_kept", value.type if whole else onnxscript.ir.TensorType(FLOAT), value.shape
    return out


def float_buffer(graph, name):
    """A buffer of integers that forward changes is held as floats, and read as integers."""
    old = graph.initializers.get(name)
    if old is None or old.dtype in FLOATS:
        return
    values = onnxscript.ir.tensor(torch.from_numpy(old.const_value.numpy().copy()).float(), name=name)
    graph.initializers.pop(name)
    held = onnxscript.ir.Value(name=name, shape=values.shape, type=onnxscript.ir.TensorType(FLOAT), const_value=values)
    graph.initializers[name] = held
    read = onnxscript.ir.node("Cast", [held], {"to": old.dtype.value})
    read.outputs[0].name, read.outputs[0].type, read.outputs[0].shape = f"{name}_read", old.type, old.shape
    old.replace_all_uses_with(read.outputs[0])
    graph.insert_before(graph[0], read)
