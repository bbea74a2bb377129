"""The exporters, as the tests of this folder call them."""


def export(module, batch, exporter, opset, path):
    """Writes a module that returns its loss, with an example batch {name: tensor}, by

    dynamo, plain, static  PyTorch's newer exporter: with its optimisations, without them, and with the sizes of the batch, which it writes otherwise
    older                  PyTorch's older one
    tool                   tools/export.py
    """
    import torch
    inputs = tuple(batch.values())
    if exporter == "tool":
        from export import export as lossless
        lossless(module, inputs, path, opset=opset, check=False, log=lambda text: None)
        return
    names = dict(input_names=list(batch), output_names=["loss"], opset_version=opset, verbose=False)
    if exporter == "older":
        torch.onnx.export(module, inputs, path, dynamo=False, dynamic_axes={key: {0: "batch"} for key in batch}, **names)
        return
    shapes = tuple({0: torch.export.Dim("batch", min=1, max=4096)} for _ in batch)
    options = dict(dynamo=True, optimize=exporter != "plain", external_data=False, **names)
    try:
        torch.onnx.export(module, inputs, path, dynamic_shapes=None if exporter == "static" else shapes, **options)
    except Exception:  # some families fix the batch
        torch.onnx.export(module, inputs, path, **options)
