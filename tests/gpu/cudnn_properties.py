"""Prints what cuDNN knows of the device that is here, as the JSON by which it plans for one that is not (tests/cuda/cudnn_test.cc)."""
import ctypes
import glob
import os
import sys

PROPERTIES, HANDLE_ATTRIBUTE, TEXT_ATTRIBUTE = 38, 2701, 2702  # descriptor, attributes: of cudnn_graph.h
TYPE_HANDLE, TYPE_CHAR = 0, 24


def load():
    folders = os.environ.get("PIPER_CUDA_PATH", "").split(":")
    for path in [found for folder in folders for found in glob.glob(f"{folder}/libcudnn.so.9")] + ["libcudnn.so.9"]:
        try:
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as problem:
            reason = problem
    sys.exit(f"no cuDNN: {reason}")


def main():
    cudnn = load()

    def call(name, *arguments):
        status = getattr(cudnn, name)(*arguments)
        if status != 0:
            sys.exit(f"{name}: {status}")

    handle, descriptor = ctypes.c_void_p(), ctypes.c_void_p()
    call("cudnnCreate", ctypes.byref(handle))
    call("cudnnBackendCreateDescriptor", PROPERTIES, ctypes.byref(descriptor))
    call("cudnnBackendSetAttribute", descriptor, HANDLE_ATTRIBUTE, TYPE_HANDLE, ctypes.c_int64(1), ctypes.byref(handle))
    call("cudnnBackendFinalize", descriptor)
    count, text = ctypes.c_int64(), ctypes.create_string_buffer(1 << 16)
    call("cudnnBackendGetAttribute", descriptor, TEXT_ATTRIBUTE, TYPE_CHAR, ctypes.c_int64(len(text)), ctypes.byref(count), text)
    print(text.value.decode())


if __name__ == "__main__":
    main()
