"""Equal numbers that forward puts in order: PyTorch leaves open which of them comes first. In a file, the first does."""
from contextlib import nullcontext

import torch
from torch.utils import _pytree as pytree

from .arguments import tensors_of
from .check import Step, largest, widened
from .errors import place_of_call
from .watching import Quiet, Through, quietly


def in_order(input, dim=-1, descending=False, stable=True):
    return torch.sort(input, dim=dim, descending=descending, stable=True)


def top(input, k, dim=-1, largest=True, sorted=True):
    return [part.narrow(dim, 0, k) for part in in_order(input, dim, largest)]


def smaller(input, k, dim=-1, keepdim=False):
    return [part if keepdim else part.squeeze(dim) for part in (whole.narrow(dim, k - 1, 1) for whole in in_order(input, dim))]


ORDERS = {"argsort": lambda *args, **kwargs: in_order(*args, **kwargs)[1], "kthvalue": smaller, "sort": in_order, "topk": top}
RESULTS = {"kthvalue": torch.return_types.kthvalue, "sort": torch.return_types.sort, "topk": torch.return_types.topk}


class Ties(Through):
    """Notes where PyTorch has ordered equal numbers otherwise than a file; with `first`, has the first of them come first."""

    def __init__(self, first=False):
        super().__init__()
        self.first, self.places = first, set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name not in ORDERS or "out" in kwargs or (args[0] if args else kwargs["input"]).is_meta:
            return self.within(func, args, kwargs)
        own, ordered = func(*args, **kwargs), ORDERS[name](*args, **kwargs)
        if not torch.equal(*(found if isinstance(found, torch.Tensor) else found[1] for found in (own, ordered))):
            self.places.add(place_of_call())
        if not self.first:
            return own
        return ordered if isinstance(ordered, torch.Tensor) else RESULTS[name](ordered)


def depends_on_ties(job):
    """Whether a step of PyTorch is another one where the first of equal numbers comes first."""
    for dtype in torch.float64, torch.float32:  # in one of which forward may not run
        try:
            own, ordered = (results_of(job, dtype, order) for order in (nullcontext(), Ties(first=True)))
        except Exception:  # forward's own
            continue
        scale = max(map(largest, own), default=0.0)
        return any(largest(a - b) > 1e-4 * largest(a) + 1e-6 * scale for a, b in zip(own, ordered))
    return False


def results_of(job, dtype, order):
    with job.host.seeded(0), order:
        if job.loss is None:
            module, args, kwargs = widened(job, dtype)
            with quietly(), Quiet():
                leaves = pytree.tree_leaves(tensors_of(module(*args, **kwargs)))
            return [leaf.detach().double() for leaf in leaves if isinstance(leaf, torch.Tensor) and not leaf.is_complex()]
        step = Step(job, dtype)
        return [value.double() for value in (torch.tensor(step.loss), *step.gradients.values(), *step.buffers.values())]
