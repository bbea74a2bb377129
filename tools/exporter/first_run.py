"""What forward does in its first run alone: it gives a buffer its shape, as layers of spikes do with their membranes, or parameters their values, as norms do that the
first batch scales. The file has the module as it is where that run computes its loss."""
import torch

from .errors import NotExported
from .kept import Kept, are_close, is_same
from .watching import Watch

FLAGS = bool, int, float, str, type(None)


class Begins(Exception):
    """What forward sets in its first run: by place, the values with which a run goes the same way and does not set them."""

    def __init__(self, shaped, parameters, others):
        super().__init__()
        self.shaped, self.parameters, self.others = shaped, parameters, others

    def apply(self, job):
        """Sets it, until `job` is done; refuses it where forward returns something else then."""
        kept = Kept(job.module)
        job.undo.callback(kept.put_back)
        before = result_of(job)
        kept.put_back()
        for holder, key, value in (*self.shaped.values(), *self.others):
            holder[key] = value
        with torch.no_grad():
            for _, parameter, value in self.parameters:
                parameter.copy_(value)
        begun = Kept(job.module)
        after = result_of(job)
        begun.put_back()
        if not are_close(before, after):
            if self.parameters:
                refuse_changed(self.parameters[0][0])
            raise NotExported(f"what the first run of forward makes of the buffer '{next(iter(self.shaped))}' is not supported: it is neither the same in the next run, nor zeros of its last "
                              "shape. Make it of that shape when the module is made, and export with batch=None")
        job.begins = self.said(job)

    def said(self, job):
        lines = []
        if self.shaped:
            lines.append(f"  forward gives the buffers {', '.join([*self.shaped][:4])} the shapes that they have for {job.size or 'these'} samples, which are those in the file")
        if self.parameters:
            lines.append(f"  forward gives {', '.join([name for name, *_ in self.parameters][:4])} their values in its first run: in the file they are those of the example batch")
        return lines


def refuse_changed(name):
    raise NotExported(f"forward changes the parameter '{name}', which is trained: that is not supported. Compute with a changed copy, or freeze it (requires_grad_(False))")


def look_for_first_run(job, kept):
    """Raises Begins where the run that has just been, of what `kept` was, has set what the next leaves as it is."""
    shaped, set_now = buffers_of_other_shapes(kept), parameters_set(job, kept)
    if not shaped and not set_now:
        return
    after = Kept(job.module)
    flags = values_changed(kept)
    result_of(job)
    again = values_changed(after)
    others = [(holder, key, value) for name, (holder, key, value) in flags.items() if name not in again and name not in shaped] if set_now else []
    for name, (holder, key, value, old) in shaped.items():
        beginning = value if name not in again else old.expand(value.shape) if old.numel() == 1 else torch.zeros_like(value)
        shaped[name] = holder, key, beginning.detach().clone()
    raise Begins(shaped, set_now, others)


def buffers_of_other_shapes(kept):
    held = {id(value): before for value, before in kept.tensors}
    found = {}
    for prefix, now, was in kept.parts:
        for key, old in kept.contents[id(was["_buffers"])].items():
            new = now["_buffers"].get(key)
            if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and new.shape != held[id(old)].shape:
                found[prefix + key] = now["_buffers"], key, new, held[id(old)]
    return found


def parameters_set(job, kept):
    held = {id(value): before for value, before in kept.tensors}
    trained = [(name, value) for name, value in job.module.named_parameters() if value.requires_grad] if job.weights else []
    return [(name, value, value.detach().clone()) for name, value in trained if not is_same(value.detach(), held[id(value)])]


def values_changed(kept):
    """{name: (its holder, its key, its value)} of buffers, and of numbers and words that parts hold, that are no longer what they were."""
    held = {id(value): before for value, before in kept.tensors}
    found = {}
    for prefix, now, was in kept.parts:
        for key, old in kept.contents[id(was["_buffers"])].items():
            new = now["_buffers"].get(key)
            if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and not is_same(new.detach(), held[id(old)]):
                found[prefix + key] = now["_buffers"], key, new.detach().clone()
        for key, new in now.items():
            if isinstance(new, FLAGS) and not is_same(new, was.get(key)):
                found[prefix + key] = now, key, new
    return found


def result_of(job):
    """What forward returns, with nothing dropped and the same numbers drawn."""
    with torch.random.fork_rng(), Watch(quiet=True):
        torch.manual_seed(0)
        return job.ask(job.args, job.kwargs)[0]
