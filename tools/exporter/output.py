"""Checks the place of a file before work of minutes that would end without it, as piperc and piper-run do."""
import os
import pathlib
import shutil

from torch.nn.parameter import is_lazy

from .errors import NotExported

MOST_INLINE = 2**20  # bytes of values that are in the file itself


def size_of(values):
    """The bytes of those that have a shape: a lazy module's have one after the first run."""
    return sum(value.numel() * value.element_size() for value in values if not is_lazy(value))


def check_is_other(path, source):
    """Refuses to replace the file that is exported."""
    if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
        raise NotExported(f"-o {path}: this file is read, and would be replaced. Name another file")


def check_output(path):
    """Refuses a path at which no file can be written."""
    path, folder = pathlib.Path(path), pathlib.Path(path).resolve().parent
    if path.is_dir():
        raise NotExported(f"cannot write {path}: it is a directory. Name a file in it")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise NotExported(f"cannot write {path}: {folder} is not a directory one can write to")
    if path.exists() and not os.access(path, os.W_OK):
        raise NotExported(f"cannot write {path}: the file that is there may not be changed")


def check_room(path, values):
    """Refuses a path whose disk has no room for the values; if they are many, they are written to a file beside it."""
    takes, folder = size_of(values), pathlib.Path(path).resolve().parent
    if takes > MOST_INLINE:
        check_output(f"{path}.data")
    room = shutil.disk_usage(folder).free
    if takes > room:
        raise NotExported(f"the values take {takes} bytes, and the disk of {folder} has room for {room}")
