"""torch.autograd.Function: a file has its forward, which Piper differentiates. Where its backward is another gradient, as that of a reversal, of a
straight-through estimate or of a spike is, it is written if it takes each element of the gradient times a number: as a term that is zero and has
that number as its slope. It may sum these, as that of a learned step size does."""
import contextlib
import types

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

PROBES = 4  # calls of each class that are looked at
FAR = 2.0**30  # times which a gradient is still a number: a backward that clips it does not hide there
PLAIN, SCALES, OTHER, CURVED = "the derivative of its forward", "a factor of each element", "another", "no linear function of the gradient"
SUMS = "sums of a factor of each element"


class Functions:
    """While it is entered, keeps what classes of them are called with."""

    def __enter__(self):
        self.calls, self.kinds, self.again = {}, {}, []
        self.seen = handled(self.keep)
        self.seen.__enter__()
        return self

    def __exit__(self, *error):
        self.seen.__exit__(*error)

    def keep(self, own, cls, args, kwargs):
        if cls is CheckpointFunction:  # whose backward runs forward again: of tensors of which none has a gradient, it has none either
            self.again.append(any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args))
            return own(cls, *args, **kwargs)
        calls = self.calls.setdefault(cls, [])
        if len(calls) < PROBES and not cls.__module__.startswith("torch."):
            calls.append([arg.detach().clone().requires_grad_(arg.requires_grad) if isinstance(arg, torch.Tensor) else arg for arg in args])
        return own(cls, *args, **kwargs)

    def look(self):
        """What the backward of each class is, by its numbers: one that is seldom another than the derivative is another."""
        with torch._C.DisableTorchFunction(), torch.enable_grad():
            for cls, calls in self.calls.items():
                kinds = {self.kind_of(cls, args) for args in calls}
                self.kinds[cls] = next(kind for kind in (CURVED, OTHER, SUMS, SCALES, PLAIN) if kind in kinds or kind is OTHER and not kinds)
        self.calls = {}

    def kind_of(self, cls, args):
        trained = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        try:
            out = cls.apply(*args)
            if not isinstance(out, torch.Tensor) or not trained:
                return OTHER if trained else PLAIN
            along = torch.linspace(-1.7, 2, out.numel(), dtype=out.dtype).view(out.shape)
            each, far, whole = (torch.autograd.grad(out, trained, by, retain_graph=True, allow_unused=True) for by in (along, along * FAR, torch.ones_like(out)))
            if not all(one is None or torch.allclose(one * FAR, by_far, rtol=1e-4) for one, by_far in zip(each, far)):
                return CURVED
            if is_derivative(cls, args, trained, along, each):
                return PLAIN
            scales = (one is None or one.shape == out.shape and torch.allclose(one, along * by_one, rtol=1e-4) for one, by_one in zip(each, whole))
            return SCALES if all(scales) else SUMS if are_sums(cls, args, along, each) else OTHER
        except Exception:  # the function's own: of which nothing is known then
            return OTHER

    def of_kind(self, kind):
        return sorted(cls.__name__ for cls, one in self.kinds.items() if one is kind)

    def written(self):
        """While it is entered, forward is called with the slope beside it where the backward scales."""
        self.left = [*self.again]
        return handled(self.call)

    def call(self, own, cls, args, kwargs):
        if cls is CheckpointFunction:
            with contextlib.nullcontext() if self.left.pop(0) else torch.no_grad():
                return args[0](*args[2:])
        if self.kinds.get(cls) not in (SCALES, SUMS):
            return own(cls, *args, **kwargs)
        out, context = forward_of(cls, args)
        out = out.detach()
        for arg, slope in zip(args, slopes_of(cls, context, out, self.kinds[cls] is SUMS)):
            if isinstance(arg, torch.Tensor) and slope is not None:
                out = out + (arg - arg.detach()) * slope.detach()
        return out


class Handled:
    def apply(cls, *args, **kwargs):
        """The code that torch.autograd.Function.apply gets, whose names are those of its file."""
        __class__
        return handle_apply(cls, args, kwargs)  # noqa: F821


@contextlib.contextmanager
def handled(handle):
    """Calls of apply go to `handle(own, cls, args, kwargs)`. Modules hold the bound function, `reverse = Reversal.apply`: it gets other code."""
    apply, names = torch.autograd.Function.apply.__func__, vars(torch.autograd.function)
    own = types.FunctionType(apply.__code__, apply.__globals__, apply.__name__, apply.__defaults__, apply.__closure__)
    before = apply.__code__, names.get("handle_apply")
    names["handle_apply"] = lambda cls, args, kwargs: handle(own, cls, args, kwargs)
    apply.__code__ = Handled.apply.__code__
    try:
        yield
    finally:
        apply.__code__, names["handle_apply"] = before


class Context:
    """What forward leaves to backward."""

    saved_tensors = ()

    def __init__(self, args):
        self.needs_input_grad = tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def ignore(self, *_):
        pass

    mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_forward = ignore


def forward_of(cls, args):
    """What forward returns, computed in the open, and what it leaves to backward."""
    context = Context(args)
    if cls.setup_context is torch.autograd.function._SingleLevelFunction.setup_context:
        return cls.forward(context, *args), context
    out = cls.forward(*args)
    cls.setup_context(context, args, out)
    return out, context


class Unsummed(TorchFunctionMode):
    """Leaves out sums, by which a backward comes to the shape of an argument, and what is done to their shapes."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, summed = getattr(func, "__name__", ""), any(hasattr(arg, "unsummed") for arg in args)
        if summed and name in ("reshape", "reshape_as", "squeeze", "sum", "sum_to_size", "unsqueeze", "view", "view_as"):
            return args[0]
        out = args[0].clone() if name in ("sum", "sum_to_size") else func(*args, **kwargs or {})
        if isinstance(out, torch.Tensor) and (summed or name in ("sum", "sum_to_size")):
            out.unsummed = True
        return out


def slopes_of(cls, context, out, unsummed):
    with torch._C._EnableTorchFunction(), Unsummed() if unsummed else contextlib.nullcontext():
        slopes = cls.backward(context, torch.ones_like(out))
    return slopes if isinstance(slopes, tuple) else (slopes,)


def are_sums(cls, args, along, gradients):
    """Whether the gradients are sums, in the shape of an argument, of `along` times a number for each of its elements."""
    out, context = forward_of(cls, args)
    slopes = [slope for arg, slope in zip(args, slopes_of(cls, context, out.detach(), True)) if isinstance(arg, torch.Tensor) and arg.requires_grad]
    return all(one is None and slope is None or torch.allclose((along * slope).sum_to_size(one.shape), one, rtol=1e-4, atol=1e-6) for one, slope in zip(gradients, slopes))


def is_derivative(cls, args, trained, along, gradients):
    try:
        found = torch.autograd.grad(forward_of(cls, args)[0], trained, along, allow_unused=True)
    except Exception:  # forward has none
        return False
    pairs = [[torch.zeros_like(value) if one is None else one for one in pair] for value, pair in zip(trained, zip(found, gradients)) if any(one is not None for one in pair)]
    return all(torch.allclose(*pair, rtol=1e-4) for pair in pairs)

