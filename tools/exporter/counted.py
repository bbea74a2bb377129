"""Numbers that buffers count, such as the place in a queue: `place = int(self.place); self.queue[place:place + n] = rows`. The tracer knows no numbers of buffers that forward
changes; here they stay tensors, also in slices of which the length is known."""
import contextlib

import torch

from .errors import NotExported, place_of_call


class Counted:
    """A number that a buffer decides: `base`, a tensor without dims, and what was added to it since."""

    def __init__(self, base, more=0):
        self.base, self.more = base, more

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return at_counted(func, func.__name__, args, kwargs or {})

    def tensor(self):
        return self.base if type(self.more) is int and self.more == 0 else self.base + self.more

    def __add__(self, other):
        if isinstance(other, float):
            return self.tensor() + other
        return NotImplemented if not is_size(other) else Counted(self.base, self.more + other)

    def __sub__(self, other):
        if isinstance(other, Counted) and other.base is self.base:
            return self.more - other.more
        return self + -other if is_size(other) else self.computed("sub", other)

    def computed(self, name, other, turned=False):
        """Of numbers, another one; of tensors, a tensor."""
        own, other = self.tensor(), plain(other)
        out = getattr(torch, name)(*((torch.as_tensor(other), own) if turned else (own, other)))
        return out if isinstance(other, torch.Tensor) or out.is_floating_point() else Counted(out)

    def refused(self, *_):
        raise NotExported(f"forward goes a way, or makes something of a size, that a buffer's number decides{place_of_call()}: that is not supported. Compute it for all numbers and choose by "
                          "torch.where; a place in a queue goes round by %: queue[(place + torch.arange(n)) % len(queue)] = rows")

    __radd__ = lambda self, other: self + other if is_size(other) else self.computed("add", other)  # noqa: E731
    __rsub__ = lambda self, other: self.computed("sub", other, True)  # noqa: E731
    __mul__ = __rmul__ = lambda self, other: self.computed("mul", other)  # noqa: E731
    __mod__ = lambda self, other: self.computed("remainder", other)  # noqa: E731
    __floordiv__ = lambda self, other: self.computed("floor_divide", other)  # noqa: E731
    __truediv__ = lambda self, other: self.computed("true_divide", other)  # noqa: E731
    __neg__ = lambda self: self.computed("mul", -1)  # noqa: E731
    __bool__ = __index__ = __float__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = refused
    __hash__ = object.__hash__


def is_size(value):
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def plain(value):
    """The same with tensors in place of numbers that buffers decide."""
    if isinstance(value, Counted):
        return value.tensor()
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(plain, value))
    return value


def is_counted(value):
    """Whether such a number is in it."""
    if isinstance(value, slice):
        return isinstance(value.start, Counted) or isinstance(value.stop, Counted)
    return isinstance(value, Counted) or isinstance(value, (list, tuple)) and any(map(is_counted, value))


def at_counted(func, name, args, kwargs):
    """What a function does with such numbers."""
    if name not in ("__getitem__", "__setitem__") or not is_counted(args[1]):
        return func(*plain(args), **{key: plain(value) for key, value in kwargs.items()})
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    at = next(k for k, place in enumerate(index) if is_counted(place))
    before, place = index[:at], index[at]
    if not all(isinstance(one, slice) or is_size(one) for one in before) or any(map(is_counted, index[at + 1:])):
        Counted.refused(place)
    whole, dim = args[0][(*before, slice(None), *index[at + 1:])], sum(isinstance(one, slice) for one in before)
    rows = rows_of(place)
    if name == "__getitem__":
        found = whole.index_select(dim, rows)
        return found if isinstance(place, slice) else found.squeeze(dim)
    value, first, last = torch.as_tensor(plain(args[2]), dtype=whole.dtype, device=whole.device), whole.shape[:dim], whole.shape[dim + 1:]
    value = value.expand([*first, len_of(place), *last]) if isinstance(place, slice) else value.expand([*first, *last]).unsqueeze(dim)
    whole.index_copy_(dim, rows, value)
    return None


def rows_of(place):
    """The places that one chooses, in a row."""
    if isinstance(place, Counted):
        return place.tensor().reshape(1)
    return place.start.tensor() + torch.arange(len_of(place), device=place.start.base.device)


def len_of(place):
    first, last = place.start, place.stop
    if not isinstance(first, Counted) or not isinstance(last, Counted) or first.base is not last.base or place.step not in (None, 1):
        Counted.refused(place)
    return last.more - first.more


class OfInt(type):
    def __instancecheck__(cls, value):
        return isinstance(value, int)

    def __subclasscheck__(cls, kind):
        return issubclass(kind, int)


class Whole(int, metaclass=OfInt):
    """In place of `int`, which makes a number of whatever a tensor answers."""

    def __new__(cls, value=0, *base):
        value = value.__int__() if isinstance(value, torch.Tensor) else value
        return value if isinstance(value, Counted) else int(value, *base)


@contextlib.contextmanager
def wholes_in(programs):
    """In these modules of Python, by their globals, int(…) may be a number that a buffer decides."""
    own = [(names, "int" in names, names.get("int")) for names in programs]
    for names, known, _ in own:
        if not known:
            names["int"] = Whole
    try:
        yield
    finally:
        for names, known, _ in own:
            if not known:
                names.pop("int", None)
