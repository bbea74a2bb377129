"""PyTorch's side of tests/bench/against-torch: one process for each rank, which does what the lines of its standard input ask.

    torch_worker.py CASE RANK WORLD PORT
    losses N        -> [loss of N first steps], from the initial weights
    run WAY N       -> [milliseconds of each of N steps]; WAY is eager or compile
    memory N        -> bytes that N eager steps add to this process
Rank 0 answers with a line of JSON for each.
"""
import json, logging, os, sys, time, warnings

import torch
import torch.distributed as dist

import torch_models as models

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)


class Single:
    """One step of one process: a replica when there are several."""

    def __init__(self, case, rank, world, compiled=False):
        self.model = models.build(case)
        self.optimizer = adamw(self.model.parameters())
        self.call = self.model
        if world > 1:
            self.call = torch.nn.parallel.DistributedDataParallel(self.model)
        if compiled:
            self.call = torch.compile(self.call)
        self.batches = [[v.chunk(world)[rank] for v in one.values()] for one in models.batches(case)]
        self.world = world

    def step(self, k):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.call(*self.batches[k % len(self.batches)])
        loss.backward()
        self.optimizer.step()
        return loss

    def loss(self, k):
        loss = self.step(k).detach()
        if self.world > 1:
            dist.all_reduce(loss)
        return loss.item() / self.world


class Pipeline:
    def __init__(self, case, rank, world):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        whole = models.build(case).model
        first, last = rank == 0, rank == world - 1
        count = len(whole.h) // world
        layers = range(rank * count, (rank + 1) * count)
        self.part = models.Gpt(layers, first=first, last=last, **models.SAMPLE)
        mine = self.part.state_dict()
        self.part.load_state_dict({k: v for k, v in whole.state_dict().items() if k in mine})
        self.batches = [list(one.values()) for one in models.batches(case)]
        self.first, self.last = first, last
        stage = PipelineStage(self.part, rank, world, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, models.MICROBATCHES, loss_fn=models.token_loss)
        self.optimizer = adamw(self.part.parameters())

    def step(self, k):
        ids, labels = self.batches[k % len(self.batches)]
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        inputs = (ids,) if self.first else ()
        self.schedule.step(*inputs, **({"target": labels, "losses": losses} if self.last else {}))
        self.optimizer.step()
        return torch.stack([l.detach() for l in losses]).mean() if self.last else torch.zeros(())

    def loss(self, k):
        loss = self.step(k)
        dist.all_reduce(loss)
        return loss.item()


def resident(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024


def serve(case, rank, world, say):
    ways = models.CASES[case][5]
    make = lambda compiled=False: Pipeline(case, rank, world) if ways == "pp" else Single(case, rank, world, compiled)
    made, counts = {}, {}
    for line in sys.stdin:
        command, *words = line.split()
        if command == "losses":
            job = make()
            say([job.loss(k) for k in range(int(words[0]))])
        elif command == "memory":
            empty = resident("VmRSS")
            job = make()
            for k in range(int(words[0])):
                job.step(k)
            say(resident("VmHWM") - empty)
        elif command == "run":
            way, steps = words[0], int(words[1])
            if way not in made:
                made[way], counts[way] = make(way == "compile"), 0
                for k in range(3):
                    made[way].step(k)
            times = []
            for _ in range(steps):
                start = time.perf_counter()
                made[way].step(counts[way])
                counts[way] += 1
                times.append((time.perf_counter() - start) * 1e3)
            say(times)


def main():
    case, rank, world, port = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")  # libraries print to standard output, too
    os.dup2(2, 1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)

    def say(answer):
        if rank == 0:
            print(json.dumps(answer), file=answers, flush=True)

    serve(case, rank, world, say)


main()
