#!/usr/bin/env python3
"""Writes a distributed checkpoint with PyTorch, as four ranks do, and its tensors whole.

    make_dcp.py FOLDER    # FOLDER/checkpoint and FOLDER/whole.safetensors

tests/data/dcp is what it wrote once; tests/torch/dcp_test.py writes one anew."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

RANKS = 4


def whole_tensors():
    torch.manual_seed(7)
    return {
        "rows.weight": torch.randn(7, 5),
        "boxes.weight": torch.randn(6, 7).bfloat16(),
        "few.weight": torch.randn(2, 3).half(),  # two of four ranks have nothing of it
        "same.bias": torch.randn(3).double(),
        "turned.weight": torch.randn(5, 4).t(),  # by strides
        "count": torch.tensor(12345678901),
        "seen": torch.tensor([True, False, True]),
        "codes": torch.arange(9, dtype=torch.int32),
        "bytes": torch.arange(4, dtype=torch.uint8),
    }


def rank_main(rank, folder, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "tensor"))
    line = init_device_mesh("cpu", (RANKS,))
    whole = whole_tensors()
    layouts = {
        "rows.weight": (line, [Shard(0)]),
        "boxes.weight": (mesh, [Shard(0), Shard(1)]),
        "few.weight": (line, [Shard(0)]),
        "same.bias": (mesh, [Replicate(), Replicate()]),
    }
    model = {name: distribute_tensor(value, *layouts[name]) if name in layouts else value
             for name, value in whole.items()}
    torch.manual_seed(8)
    layer = torch.nn.Linear(6, 5)
    original = {f"layer.{name}": value.detach().clone() for name, value in layer.state_dict().items()}
    fully_shard(layer, mesh=line)
    model.update({f"layer.{name}": value for name, value in get_model_state_dict(layer).items()})
    states = {"model": model, "optimizer": {"step": 3, "exp_avg": distribute_tensor(torch.ones(7, 5), line, [Shard(0)])},
              "rate": 0.25}
    dcp.save(states, checkpoint_id=os.path.join(folder, "checkpoint"))
    if rank == 0:
        whole.pop("bytes")
        kept = {f"model.{name}": value.contiguous() for name, value in (whole | original).items()}
        save_file(kept | {"optimizer.exp_avg": torch.ones(7, 5)}, os.path.join(folder, "whole.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.makedirs(sys.argv[1], exist_ok=True)
    mp.start_processes(rank_main, args=(sys.argv[1], port), nprocs=RANKS, start_method="fork")
