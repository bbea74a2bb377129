"""Watches a module while it runs or is traced: what it draws and asks, and functions in place of which it calls their equivalents."""
import ast
import builtins
import collections
import contextlib
import dataclasses
import functools
import keyword
import logging
import math
import os
import pathlib
import random
import sys
import warnings

import numpy
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .counted import Counted, at_counted, is_counted
from .equivalents import EQUIVALENTS, attention_of_four_dims, dropout_of_ones, instance_norm, projected_lstm
from .gradients import gradient_in_graph
from .kept import are_equal
from .packed import is_packed, of_packed
from .selection import ARITHMETIC, COMPARES, MAKES, as_many, by_counts, choose, is_chosen, leaves_of, noted, of_chosen, places_in_rows, places_of, version_of, with_recipe
from .small_integers import of_small_integers


DROPOUT = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"}
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def without_dropout(name, args, kwargs):
    """The arguments with which a function drops nothing; None of one that drops nothing with these."""
    if name == "scaled_dot_product_attention":
        bound = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args)) | kwargs
        return ((), bound | {"dropout_p": 0.0}) if bound.get("dropout_p", 0) else None
    if name in RECURRENT:
        at = 5 if isinstance(args[3], bool) else 6  # of packed sequences
        return ((*args[:at], 0.0, *args[at + 1:]), kwargs) if args[at] and args[at + 1] else None
    if name.rstrip("_") in DROPOUT:
        bound = dict(zip(("input", "p", "training", "inplace"), args)) | kwargs
        of_alpha = name.startswith(("alpha", "feature_alpha"))
        if bound.get("training", bound.get("train", not of_alpha)) and bound.get("p", 0.5) > 0:
            rest = {name: value for name, value in bound.items() if name not in ("input", "p", "training", "train")}
            return ((bound["input"], float(bound.get("p", 0.5) == 1), True), rest)
    return None


class Through(TorchFunctionMode):
    """Sees what functions of torch.nn.functional call, too, unless it knows the function itself: a mode is out of force while it handles one."""

    MODULES = {"torch.nn.functional", "torch.functional"}
    ASKS = "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"

    def within(self, func, args, kwargs):
        names = getattr(func, "__globals__", {}) if getattr(func, "__module__", "") in self.MODULES else {}
        own = {name: names[name] for name in self.ASKS if name in names}
        if not own:
            return func(*args, **kwargs)

        def first(*_):  # the function asks whether it is to be handled by others before all else
            names.update(own)
            return False

        names.update(dict.fromkeys(own, first))
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            names.update(own)


class Quiet(Through):
    """Drops nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        without = without_dropout(getattr(func, "__name__", ""), args, kwargs or {})
        return func(*without[0], **without[1]) if without else self.within(func, args, kwargs or {})


class Watch(Through):
    """Notes what draws random numbers, and hooks on gradients; with `quiet`, dropout passes everything on; with `traced`, gradients are calls."""

    DRAWS = {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal", "normal_", "uniform_",
             "multinomial", "randperm", "exponential_", "poisson", "gumbel_softmax"}

    def __init__(self, quiet=False, traced=False):
        super().__init__()
        self.traced = traced
        self.quiet, self.dropout, self.pads, self.counts, self.draws, self.hooks, self.gradients = quiet, False, False, False, set(), set(), set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        self.pads |= name == "_pad_packed_sequence"
        self.counts |= name == "bincount"
        if any(is_packed(value) for value in args):
            found = of_packed(name, args)
            if found is not None:
                return found
        if name.strip("_") in ARITHMETIC:
            args = by_counts(args)
        small = of_small_integers(EQUIVALENTS.get(name, func), name, args, kwargs)
        if small is not None:
            return small
        if name == "uniform_" and self.traced and ends_of(args, kwargs):
            self.draws.add(name)
            first, last = ends_of(args, kwargs)
            return args[0].copy_(torch.rand_like(args[0]) * (last - first) + first)
        if name == "randperm":
            self.draws.add(name)
            return order_drawn(*args, **kwargs)
        made = as_many(func, name, args, kwargs) if name in MAKES else None
        if made is not None:
            return made
        drops = name.rstrip("_") in DROPOUT
        if any(map(is_chosen, leaves_of(args, kwargs))) and name != "ctc_loss":  # which knows of what its targets are joined
            if not drops:
                return of_chosen(EQUIVALENTS.get(name, func), name, args, kwargs)
            return noted(self.__torch_function__(func, types, (args[0].view_as(args[0]), *args[1:]), kwargs), *args[0].chosen)
        if name == "__getitem__":
            return choose(*args)
        if name == "where" and len(args) == 1 and not kwargs or name == "nonzero" and kwargs.get("as_tuple", False):
            return places_of(args[0])
        if name in ("argwhere", "nonzero"):
            return places_in_rows(args[0])
        if name in COMPARES and not kwargs:
            return with_recipe(EQUIVALENTS.get(name, func)(*args), name, args)
        without = without_dropout(name, args, kwargs)
        self.dropout |= without is not None
        if without and self.quiet:
            args, kwargs = without
        if name == "scaled_dot_product_attention":
            return attention_of_four_dims(func, dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args)) | kwargs)
        if drops and without:
            input, p = without[0][:2]
            if self.quiet:
                return torch.zeros_like(input) if p else input
            if name.rstrip("_") != "dropout" or p:
                out = dropout_of_ones(name.rstrip("_"), input, args[1] if len(args) > 1 else kwargs.get("p", 0.5))
                return input.copy_(out) if without[1].get("inplace") or name.endswith("_") else out
        elif func is torch.nn.functional.instance_norm:
            return instance_norm(*args, **kwargs)
        elif getattr(func, "__self__", None) is torch.Tensor.data:  # of which the tracer makes a constant
            if name != "__set__":
                return args[0].detach()
            with torch.no_grad():
                args[0].copy_(args[1])
            return None
        elif name == "lstm" and len(args[2]) == (5 if args[3] else 3) * args[4] * (1 + args[7]):
            return projected_lstm(*args)
        elif name in EQUIVALENTS:
            return EQUIVALENTS[name](*args, **kwargs)
        elif func is torch.where and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.uint8:
            return func(args[0].bool(), *args[1:], **kwargs)
        elif name.rstrip("_") == "rrelu":
            bound = dict(zip(("input", "lower", "upper", "training"), args)) | kwargs
            if not bound.get("training", False):  # ONNX has it without the name
                return torch.nn.functional.leaky_relu(bound["input"], (bound.get("lower", 1 / 8) + bound.get("upper", 1 / 3)) / 2)
            self.draws.add(name)
        elif name in self.DRAWS:
            self.draws.add(name)
        elif name in ("register_hook", "register_post_accumulate_grad_hook"):
            self.hooks.add(f"'{name_of(args[1] if len(args) > 1 else kwargs['hook'])}' on a tensor of forward")
        elif func is torch.autograd.grad and self.traced:
            return gradient_in_graph(*args, **kwargs)
        elif func in (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward):
            file, line, _ = place_of(name)
            self.gradients.add(f"{file}:{line}")
        if drops or name in self.DRAWS:
            return func(*args, **kwargs)
        return self.within(func, args, kwargs)


def order_drawn(n, *, dtype=torch.int64, device=None, **others):
    """torch.randperm, by numbers that are drawn."""
    return torch.rand(n, device=device).argsort().to(dtype)


GIVEN, FED, BUFFER = "an input of integers", "an input of floats", "a number of a buffer that changes"


@dataclasses.dataclass(frozen=True)
class Expected:
    """A number that inputs of integers decide, on the example batch, or a truth that inputs decide."""
    number: int


class Asked(TorchFunctionMode):
    """Notes what forward asks of tensors, a number for a branch say, and answers the same to the tracer, which knows no values: where it is
    asked of constants alone, neither of `open` tensors, which other batches and steps change, nor of what is made or drawn beside them. Buffers
    that forward leaves as they are, flags say, are constants, too. So are numbers that inputs of integers alone decide, such as the longest of some lengths, and
    branches that inputs alone decide: the file has those of the example batch, and its loss is NaN for a batch with others. Numbers of buffers that change stay tensors. Whether numbers are finite is taken to be answered alike, as a step in which
    they are not is no step to learn from; and so is what decides between an error and all else, and whether a mask has an element that is true (or
    one that is false) where it has one: what is done with such elements alone is done with none of them, too."""

    NUMBERS = {"item", "__int__", "__index__"}
    OF_SOME = {"eq": 0, "ge": 1, "gt": 0, "le": 0, "lt": 1, "ne": 0}  # number with which a comparison asks whether there is one
    QUESTIONS = {"item", "__bool__", "__int__", "__float__", "__index__", "tolist", "is_nonzero", "equal", "allclose"}
    FINITE, OF_FINITE = {"isfinite", "isinf", "isnan"}, {"all", "any", "logical_not", "__invert__", "bitwise_not", "logical_or", "logical_and", "__or__", "__and__"}

    TRUTHS = {"__bool__", "allclose", "equal", "is_nonzero", "item"}

    def __init__(self, open=(), given=(), fed=(), buffers=(), answers=None, counts=False):
        super().__init__()
        self.made, self.recipes = {}, {}  # what functions have returned, with its recipe, which is a number; and recipes by function and what it takes
        self.counts, self.programs = counts, []  # whether numbers of buffers that change stay tensors; and the globals of what asks for numbers by int(…)
        self.buffers = [(value, version_of(value), value.detach().clone()) for value in buffers]
        self.open = {}  # what each memory depends on: numbers of buffers, GIVEN, FED, or None for all else that changes. Tensors are kept, or another would have their place
        for k, value in [*((None, value) for value in open), *((GIVEN, value) for value in given), *((FED, value) for value in fed), *((k, value) for k, (value, *_) in enumerate(self.buffers))]:
            self.depends(value, {k})
        self.finite, self.asks_finite, self.checks = {}, False, set()
        self.uniform, self.reads_uniform = {}, False  # what is drawn from between two numbers, with these, and whether anything depends on it
        self.found, self.asks_found = {}, set()  # what any() and all() have returned, and where they are asked
        self.expected, self.asks_inputs = [], set()  # while it is traced, numbers of inputs with what they were; and where they are asked
        self.tracing, self.answers = answers is not None, {place: list(each) for place, each in (answers or {}).items()}

    def depends(self, value, on):
        memory = memory_of(value)
        self.open[memory] = value, on | self.open.get(memory, (value, set()))[1]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if self.counts and is_counted((*args, *kwargs.values())):
            return at_counted(func, name, args, kwargs)
        masks = masks_of(name, args, kwargs)
        places = self.places_of_constants(masks) if masks else None
        if places is not None and name != "__getitem__":
            return tuple(places[0]) if name == "where" or kwargs.get("as_tuple") else torch.stack(places[0], -1)
        if places is not None:
            args = args[0], without_masks(args[1], masks, places)
        if self.tracing:
            told = self.answers.get(place_of("item" if name == "tolist" else name)) if name in self.QUESTIONS else None
            if told and name == "tolist":  # of a tensor whose numbers the tracer knows; of others, it asks number by number
                del told[:args[0].numel()]
                return func(*args, **kwargs)
            answer = told.pop(0) if told else None
            if isinstance(answer, Expected):
                self.expected.append((asked_of(name, args, kwargs), answer.number))
                return answer.number
            if answer == BUFFER:
                return Counted(args[0].detach().clone().reshape(())) if self.counts else func(*args, **kwargs)
            return func(*args, **kwargs) if answer is None else answer
        out = func(*args, **kwargs)
        drawn = name in Watch.DRAWS or name.rstrip("_") in DROPOUT
        if not drawn:
            self.note_recipe(func, args, kwargs, out)
        memories = [memory_of(leaf) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        depends = {None} if drawn else set()
        depends = depends.union(*(self.open[memory][1] for memory in memories if memory in self.open))
        if name in self.FINITE or name in self.OF_FINITE and memories and all(memory in self.finite for memory in memories):
            self.finite[memory_of(out)] = out
        elif name in ("linalg_cholesky_ex", "linalg_inv_ex"):  # with where it has failed
            self.finite[memory_of(out[1])] = out[1]
        drawn_from = self.uniform.get(memories[0], (None, None))[1] if memories else None
        if name in ("rand", "rand_like") and isinstance(out, torch.Tensor):
            self.uniform[memory_of(out)] = out, (0, 1)
        elif name == "uniform_":
            self.uniform[memory_of(out)] = out, ends_of(args, kwargs)
        elif drawn_from and is_certain(name, args[1:], *drawn_from):  # of a layer that is left out with a probability of 0
            depends = set()
        elif drawn_from and name == "item" and is_whole(place_of(name), *drawn_from):
            out = float(drawn_from[0])
            depends = set()
        else:
            self.reads_uniform |= any(memory in self.uniform for memory in memories)
            if name.endswith("_") and drawn_from:
                self.uniform[memories[0]] = args[0], None
        if name in ("any", "all") and isinstance(out, torch.Tensor) and out.dim() == 0:
            self.found[memory_of(out)] = out, name == "any"
        if name.strip("_") in self.OF_SOME and getattr(args[0], "counted", False) and args[1] == self.OF_SOME[name.strip("_")]:  # of how many a mask chooses
            self.found[memory_of(out)] = out, name.strip("_") in ("ge", "gt", "ne")
        if name in self.QUESTIONS:
            if name == "equal" and (args[0].shape != args[1].shape or self.recipe_of(args[0]) == self.recipe_of(args[1])):
                depends = set()
            elif depends and all(memory in self.finite for memory in memories):
                depends, self.asks_finite = set(), True
            elif depends and is_of_check(place_of(name)):
                depends = set()
                self.checks.add("{}:{}".format(*place_of(name)))
            elif depends and len(memories) == 1 and (memories[0] in self.found and bool(out) is self.found[memories[0]][1] or
                                                     name == "__bool__" and getattr(args[0], "counted", False) and out):
                depends = set()
                self.asks_found.add("{}:{}".format(*place_of(name)))
            elif depends == {GIVEN} and name in self.NUMBERS and type(out) is int or None not in depends and depends & {GIVEN, FED} and name in self.TRUTHS and type(out) is bool:
                depends, out = depends - {GIVEN, FED}, Expected(out)
                self.asks_inputs.add("{}:{}".format(*place_of(name)))
            if name == "__int__":
                self.programs.append(frame_of_program().f_globals)
            numbers = pytree.tree_leaves(out) if name == "tolist" else [out]
            self.answers.setdefault(place_of("item" if name == "tolist" else name), []).extend((number, depends) for number in numbers)
            return out.number if isinstance(out, Expected) else out
        elif depends:
            written = args[:1] if name.endswith("_") else kwargs.get("out")
            for leaf in pytree.tree_leaves((out, written)):
                if isinstance(leaf, torch.Tensor):
                    self.depends(leaf, depends)
        return out

    def note_recipe(self, func, args, kwargs, out):
        """Tensors that the same functions make of the same tensors are equal in each step."""
        recipe = self.recipes.setdefault((func, self.recipe_of((args, tuple(kwargs.items())))), len(self.recipes))
        for k, leaf in enumerate(pytree.tree_leaves(out)):
            if isinstance(leaf, torch.Tensor) and self.made.get(id(leaf), (None, None))[1] != version_of(leaf):
                self.made[id(leaf)] = leaf, version_of(leaf), (recipe, k)

    def recipe_of(self, value):
        if isinstance(value, torch.Tensor):
            version = version_of(value)
            _, before, recipe = self.made.setdefault(id(value), (value, version, object()))
            return recipe if before == version else object()
        if isinstance(value, (list, tuple)):
            return type(value), *map(self.recipe_of, value)
        if isinstance(value, slice):
            return slice, *map(self.recipe_of, (value.start, value.stop, value.step))
        return (type(value), value) if isinstance(value, (bool, int, float, str, type(None), type(...), torch.dtype, torch.device)) else object()

    def places_of_constants(self, masks):
        """Where constant masks are true: tensors of places, by dim of each; None of masks that change."""
        place = place_of("places")
        if self.tracing:
            told = self.answers.get(place)
            found = told.pop(0) if told else None
        else:
            depends = set().union(*(self.open[memory][1] for memory in map(memory_of, masks) if memory in self.open))
            with torch._C.DisableTorchFunction():
                known = not depends & {None, GIVEN, FED} and sum(mask.numel() for mask in masks) <= MOST_PLACES and not any(map(self.has_changed, depends))
                found = [[dim.tolist() for dim in mask.nonzero(as_tuple=True)] for mask in masks] if known else None
            self.answers.setdefault(place, []).append((found, depends))
        if found is None:
            return None
        return [[torch.tensor(dim, dtype=torch.int64, device=mask.device) for dim in dims] for mask, dims in zip(masks, found)]

    def has_changed(self, buffer):
        value, version, before = self.buffers[buffer]
        return version_of(value) != version or not are_equal(value, before)

    def answered(self):
        """By place, the answers that every step gives, and None for others."""
        with torch._C.DisableTorchFunction():  # it is no question of forward's
            changed = set(filter(self.has_changed, range(len(self.buffers))))
        changes = {None, GIVEN, FED} | changed
        of_buffer = lambda place, out, depends: place[2] in ("item", "__int__") and type(out) is int and not depends & {None, GIVEN, FED}  # noqa: E731
        answers = {place: [out if not depends & changes else BUFFER if of_buffer(place, out, depends) else None for out, depends in each] for place, each in self.answers.items()}
        return {place: each for place, each in answers.items() if any(answer is not None for answer in each)}


def asked_of(question, args, kwargs):
    """The tensor of one number that a question is asked of, as it is now."""
    if question in ("equal", "allclose"):
        same_shape = len(args) < 2 or args[0].shape == args[1].shape
        return (torch.isclose(*args, **kwargs) if question == "allclose" else torch.eq(*args)).all() if same_shape else torch.tensor(False)
    value = args[0].detach().clone().reshape(())
    return value.bool() if question in ("__bool__", "is_nonzero") else value


MOST_PLACES = 1 << 16  # elements of masks; larger ones would make large constants


def masks_of(name, args, kwargs):
    """The masks of which a function takes the places: x[mask], mask.nonzero()."""
    if name in ("argwhere", "nonzero") or name == "where" and len(args) == 1 and not kwargs:
        masks = args[:1]
    elif name == "__getitem__" and not is_chosen(args[0]):
        masks = [place for place in (args[1] if isinstance(args[1], tuple) else args[1:2]) if isinstance(place, torch.Tensor) and place.dtype is torch.bool]
    else:
        return []
    return list(masks) if all(isinstance(mask, torch.Tensor) and mask.dim() and not is_chosen(mask) for mask in masks) else []


def without_masks(index, masks, places):
    """An index with the places of masks in their place."""
    by_mask = {id(mask): each for mask, each in zip(masks, places)}
    return tuple(at for place in (index if isinstance(index, tuple) else (index,)) for at in by_mask.get(id(place), [place]))


def ends_of(args, kwargs):
    """Between which numbers uniform_ draws; None where they are others than numbers."""
    first, last = (kwargs.get(name, args[at] if len(args) > at else otherwise) for at, name, otherwise in ((1, "from", 0.0), (2, "to", 1.0)))
    return (first, last) if all(type(end) in (int, float) for end in (first, last)) else None


def is_certain(name, bounds, first, last):
    """Whether a number that is drawn compares alike with this bound whatever it is (the first itself, which is one in millions, left aside)."""
    return name.strip("_") in ("ge", "gt", "le", "lt") and len(bounds) == 1 and isinstance(bounds[0], (int, float)) and not first < bounds[0] < last


def is_whole(place, first, last):
    """Whether int() is taken of a number that is drawn, and is the same whatever it is."""
    return 0 <= math.floor(first) >= last - 1 and place[1] in lines_of_wholes(place[0])


def hooks_of(module):
    """What is to be called with gradients of the module's parameters, and of what its parts take and return."""
    globals_ = torch.nn.modules.module
    of_parts = [("all modules", globals_._global_backward_hooks), ("all modules", globals_._global_backward_pre_hooks)]
    for name, part in module.named_modules():
        of_parts += [(f"'{name or type(part).__name__}'", hooks) for hooks in (part._backward_hooks, part._backward_pre_hooks)]
    for name, value in module.named_parameters():
        of_parts += [(f"'{name}'", getattr(value, kind, None)) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks") if value.requires_grad]
    return [f"'{name_of(hook)}' on {of}" for of, hooks in of_parts for hook in (hooks or {}).values()]


def name_of(function):
    return getattr(function, "__qualname__", type(function).__name__)


def memory_of(tensor):
    """Of which views have parts."""
    if isinstance(tensor, FakeTensor):
        return tensor.untyped_storage()._cdata
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):  # of a tensor that has none
        return id(tensor)


def place_of(question):
    """Where the program asks it: the file, the line and the question."""
    frame = frame_of_program()
    return frame.f_code.co_filename, frame.f_lineno, question


def frame_of_program():
    """The call that is under way outside of the tracer and of this package."""
    frame, own = sys._getframe(1), (os.path.dirname(__file__), os.path.dirname(torch.__file__))
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return frame


def is_of_check(place):
    """Whether it is asked in the condition of an error: of a branch that does nothing but raise one, or of an assertion."""
    return any(first <= place[1] <= last for first, last in conditions_of_errors(place[0]))


@functools.cache
def conditions_of_errors(file):
    """The lines of each."""
    try:
        tree = ast.parse(pathlib.Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return []
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.Assert) or isinstance(node, ast.If) and ends_in_error(node.body)]
    # A test that gives the answer a name hands it on, and so may another statement in its line.
    begins = collections.Counter(node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt))
    named = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.NamedExpr)]

    def is_alone(check):
        within = sum(node.lineno == check.lineno for node in getattr(check, "body", []))  # `if …: raise …`
        lines = range(check.test.lineno, check.test.end_lineno + 1)
        return begins[check.lineno] == 1 + within and not any(line in lines for line in named)

    return [(check.test.lineno, check.test.end_lineno) for check in checks if is_alone(check)]


def ends_in_error(body):
    """Whether statements, once they have begun, leave by nothing but an error."""
    if any(isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Try, ast.Yield, ast.YieldFrom)) for statement in body for node in ast.walk(statement)):
        return False
    last = body[-1]
    fails = last.test if isinstance(last, ast.Assert) else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and isinstance(last.value.func, ast.Attribute) and last.value.func.attr == "_assert":
        fails = last.value.args[0] if last.value.args else None
    return isinstance(last, ast.Raise) or isinstance(fails, ast.Constant) and not fails.value


@functools.cache
def lines_of_wholes(file):
    """Where int(….item()) stands."""
    try:
        tree = ast.parse(pathlib.Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return set()
    items = lambda node: isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item"  # noqa: E731
    calls = [node for node in ast.walk(tree) if items(node)]
    whole = [node.args[0] for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int"
             and len(node.args) == 1 and items(node.args[0])]
    return {node.lineno for node in whole if sum(node.lineno == other.lineno for other in calls) == 1}


class HostDraws:
    """While it is entered, notes whether Python's or numpy's random numbers are drawn, which the tracer takes for constants."""

    def __enter__(self):
        self.before = self.states()
        return self

    def __exit__(self, *_):
        after = self.states()
        self.drawn = " and ".join(name for name, state in self.before.items() if after[name] != state)

    @staticmethod
    def states():
        kind, keys, at, *rest = numpy.random.get_state()
        return {"Python's random": random.getstate(), "numpy.random": (kind, keys.tobytes(), at, *rest)}

    @contextlib.contextmanager
    def seeded(self, seed):
        """Others are drawn than with another seed, and by torch the same."""
        of_python, of_numpy = random.getstate(), numpy.random.get_state()
        try:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                random.seed(seed)
                numpy.random.seed(seed)
                yield
        finally:
            random.setstate(of_python)
            numpy.random.set_state(of_numpy)


@contextlib.contextmanager
def quietly():
    """Without what the exporter prints and logs."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    with warnings.catch_warnings(), open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(level)


@contextlib.contextmanager
def untold():
    """Forward is not told that it is traced: some models take a way then on which they do not run."""
    asked = {name: getattr(torch.compiler, name) for name in ("is_compiling", "is_dynamo_compiling", "is_exporting")}
    try:
        for name in asked:
            setattr(torch.compiler, name, lambda: False)
        yield
    finally:
        for name, own in asked.items():
            setattr(torch.compiler, name, own)


@contextlib.contextmanager
def words_are_names():
    """Parts may be called as words of Python are, 'in' say: the tracer writes programs, and asks whether a name is one by a method of str."""
    own = torch.fx.graph._format_target

    def written(base, target):
        first, *rest = target.split(".")
        if not any(map(keyword.iskeyword, (first, *rest))):
            return own(base, target)
        base = f'getattr({base}, "{first}")' if keyword.iskeyword(first) else own(base, first)
        return written(base, ".".join(rest)) if rest else base

    torch.fx.graph._format_target = written
    try:
        yield
    finally:
        torch.fx.graph._format_target = own


@contextlib.contextmanager
def lengths_are_sizes():
    """len(x) of a tensor is x.shape[0], which the tracer knows by its name: of what __len__ returns, Python makes a number."""
    own = builtins.len

    def length(value):
        return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else own(value)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = own


@contextlib.contextmanager
def parameters_stay():
    """Module.to(…) in forward makes no new parameters of those that are so already: the tracer knows the old ones alone."""
    own = torch.nn.Module.to

    def to(module, *args, **kwargs):
        device, dtype, _, form = torch._C._nn._parse_to(*args, **kwargs)
        tensors = *module.parameters(), *module.buffers()
        stays = all(device in (None, one.device) and (dtype in (None, one.dtype) or not one.is_floating_point()) for one in tensors)
        return module if stays and form is None else own(module, *args, **kwargs)

    torch.nn.Module.to = to
    try:
        yield
    finally:
        torch.nn.Module.to = own


@contextlib.contextmanager
def inference_is_no_grad():
    """What is computed in torch.inference_mode has no gradient, of which the tracer notes nothing, as it does of torch.no_grad."""
    kind, own = torch.inference_mode, (torch.inference_mode.__enter__, torch.inference_mode.__exit__)

    def enter(mode):
        mode.grads = torch.set_grad_enabled(False) if mode.mode else contextlib.nullcontext()
        mode.grads.__enter__()

    kind.__enter__, kind.__exit__ = enter, lambda mode, *error: mode.grads.__exit__(*error)
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = own


@contextlib.contextmanager
def unvalidated():
    """Distributions do not look at the numbers that they are given, which the tracer does not have."""
    kind = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


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
