"""Piper beside PyTorch: tests/bench/against-torch [CASE…] [--pairs N] (see there).

Every figure is a ratio torch ÷ piper (more than 1: Piper is faster, or needs less) of runs that alternate: torch, piper, torch, piper, … with
the same model, weights, batches, optimizer and threads on both sides. The first losses must agree before anything is timed.
"""
import argparse, json, os, pathlib, random, shutil, statistics, subprocess, sys, time

import torch
from safetensors.torch import save_file

import torch_models as models

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COMPARED_STEPS, LOSS_BOUND = 4, 1e-4
# What the ratios shall be: torch/piper of time at least, piper/torch of memory at most.
TIME_BARS = {"gpt": 1.8, "gpt-6x384": 1.4, "llama": 1.5, "bert": 1.5, "pp": 2.3, "pp-zbv": 2.3, "dp": 2.2}
MEMORY_BAR = 0.8
TRAIN = "train: {global_batch: %d, optimizer: {adamw: {lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01}}}\n"
STRATEGIES = {
    "": "piper: 1\n",
    "dp": "piper: 1\nmesh: {dp: 2}\ndirectives: [{replicate: {over: dp, bucket: 25MiB}}]\n",
    "pp": f"piper: 1\ninclude: {ROOT}/strategies/1f1b.yaml\nparams: {{stages: 2, microbatches: {models.MICROBATCHES}}}\n",
    "pp-zbv": f"piper: 1\ninclude: {ROOT}/strategies/zbv.yaml\nparams: {{stages: 2, microbatches: {models.MICROBATCHES}}}\n",
}


class Torch:
    """The worker processes of a case."""

    def __init__(self, case):
        world = 2 if models.CASES[case][5] else 1
        port = random.randint(20000, 50000)
        self.ranks = [subprocess.Popen([sys.executable, str(HERE / "torch_worker.py"), case, str(rank), str(world), str(port)],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE if rank else None, text=True)
                      for rank in range(world)]

    def ask(self, *words):
        for rank in self.ranks:
            print(*words, file=rank.stdin, flush=True)
        answer = self.ranks[0].stdout.readline()
        if not answer:
            raise RuntimeError(f"torch ended without an answer to '{' '.join(map(str, words))}'")
        return json.loads(answer)

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=20)
            except subprocess.TimeoutExpired:
                rank.kill()


class Piper:
    def __init__(self, case, folder, bin):
        self.run_program, self.folder = bin / "piper-run", folder
        _, _, _, batch, _, ways = models.CASES[case]
        (folder / "strategy.yaml").write_text(STRATEGIES.get(case, STRATEGIES[ways]) + TRAIN % batch)
        shutil.rmtree(folder / "plans", ignore_errors=True)
        subprocess.run([bin / "piperc", folder / "model.onnx", folder / "strategy.yaml", "-o", folder / "plans", "--no-oracles"], check=True)

    def steps(self, count):
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        subprocess.run([self.run_program, self.folder / "plans", "--data", self.folder / "batches.safetensors", "--steps", str(count),
                        "--threads", "1", "--metrics", metrics], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return [line for line in map(json.loads, metrics.read_text().splitlines()) if "step" in line]

    def losses(self, count):
        return [step["loss"] for step in self.steps(count)]

    def times(self, count):
        return [step["step_ms"] for step in self.steps(count + 2)[2:]]

    def memory(self, count):
        """What a run adds to a process that only prints its help."""
        def peak(*arguments):
            # Through a small process: a child's peak begins with that of the one it was forked from.
            small = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, "
                     "stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
            run = subprocess.run([sys.executable, "-I", "-S", "-c", small, self.run_program, *arguments], check=True, capture_output=True)
            return int(run.stdout) * 1024
        run = [self.folder / "plans", "--data", self.folder / "batches.safetensors", "--steps", str(count), "--threads", "1"]
        return peak(*run) - peak("--help")


def prepare(case, folder):
    """Exports the model once; the same files serve later runs."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "batches.safetensors").exists():
        models.export(case, str(folder / "model.onnx"))
        save_file({f"batch/{k}/{name}": value for k, one in enumerate(models.batches(case)) for name, value in one.items()},
                  folder / "batches.safetensors")


def idle_share(seconds):
    def read():
        numbers = [int(x) for x in open("/proc/stat").readline().split()[1:]]
        return numbers[3] + numbers[4], sum(numbers)
    first = read()
    time.sleep(seconds)
    second = read()
    return (second[0] - first[0]) / max(1, second[1] - first[1])


def sgemm_rate():
    torch.set_num_threads(1)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best / 1e9


def choose_way(peer, case):
    """The faster of PyTorch's ways, and how long a step of it takes."""
    medians = {"eager": statistics.median(peer.ask("run", "eager", 5))}
    if not models.CASES[case][5]:
        try:
            medians["compile"] = statistics.median(peer.ask("run", "compile", 5))
        except RuntimeError as error:
            print(f"  torch.compile does not work here: {error}")
            peer.end()
            return None, medians
    return min(medians, key=medians.get), medians


def compare(case, folder, bin, pairs):
    prepare(case, folder)
    ours = Piper(case, folder, bin)
    peer = Torch(case)
    try:
        expected, got = peer.ask("losses", COMPARED_STEPS), ours.losses(COMPARED_STEPS)
        worst = max(abs(a - b) / max(abs(a), 0.05) for a, b in zip(expected, got))
        if worst > LOSS_BOUND:
            raise RuntimeError(f"the losses differ by {worst:.1e}: torch {expected}, piper {got}")
        way, ways = choose_way(peer, case)
        if way is None:
            peer, way = Torch(case), "eager"
        count = max(3, min(30, int(1500 / ways[way])))
        theirs, own, idle = [], [], []
        for _ in range(pairs):
            idle.append(idle_share(0.3))
            theirs.append(statistics.median(peer.ask("run", way, count)))
            own.append(statistics.median(ours.times(count)))
        result = {"case": case, "what": models.CASES[case][0], "way": way, "loss_difference": worst, "torch_ms": theirs, "piper_ms": own,
                  "torch_ways_ms": ways, "ratio": statistics.median(t / p for t, p in zip(theirs, own)), "ratio_of_best": min(theirs) / min(own),
                  "idle_before": idle, "piper_again": statistics.median(b / a for a, b in zip(own, own[1:])) if pairs > 1 else 1.0}
    finally:
        peer.end()
    if not models.CASES[case][5]:
        fresh = Torch(case)
        result["torch_bytes"], result["piper_bytes"] = fresh.ask("memory", 3), ours.memory(3)
        result["memory_ratio"] = result["piper_bytes"] / result["torch_bytes"]
        fresh.end()
    return result


def verdict(met, bar):
    return f"{bar}: {'met' if met else 'NOT met'}"


def show(result):
    ways = ", ".join(f"{name} {ms:.1f}" for name, ms in result["torch_ways_ms"].items())
    quiet = min(result["idle_before"]) >= 0.88 and abs(result["piper_again"] - 1) <= 0.03
    print(f"{result['case']:10s} torch {statistics.median(result['torch_ms']):8.1f} ms ({result['way']}; at first {ways}), "
          f"piper {statistics.median(result['piper_ms']):8.1f} ms: torch/piper {result['ratio']:.2f} (of the best {result['ratio_of_best']:.2f})"
          f"{'' if quiet else ', NOISY'}, losses within {result['loss_difference']:.0e}; "
          f"{verdict(result['ratio'] >= TIME_BARS[result['case']], 'at least %g' % TIME_BARS[result['case']])}")
    if "memory_ratio" in result:
        print(f"{'':10s} memory of a step: torch {result['torch_bytes'] / 2**20:.0f} MiB, piper {result['piper_bytes'] / 2**20:.0f} MiB: "
              f"piper/torch {result['memory_ratio']:.2f}; {verdict(result['memory_ratio'] <= MEMORY_BAR, 'at most %g' % MEMORY_BAR)}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="tests/bench/against-torch")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(models.CASES) + " (default: all)")
    parser.add_argument("--pairs", type=int, default=5, help="how often the two alternate")
    options = parser.parse_args()
    if wrong := [case for case in options.cases if case not in models.CASES]:
        parser.error(f"there is no case {wrong[0]}; cases: {', '.join(models.CASES)}")
    bin = pathlib.Path(os.environ.get("BIN", ROOT / "build/bin"))
    out = ROOT / "build/torch/cases"
    machine = {"torch": torch.__version__, "cores": os.cpu_count(), "idle": idle_share(1), "load": os.getloadavg(), "sgemm_gflops": sgemm_rate(),
               "processor": next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "")}
    print(f"torch {machine['torch']}, {machine['processor']}, {machine['cores']} cores, {100 * machine['idle']:.0f} % idle, load {machine['load'][0]:.1f}, "
          f"sgemm {machine['sgemm_gflops']:.0f} GFLOP/s", flush=True)
    results, failed = [], False
    for case in options.cases or models.CASES:
        try:
            results.append(compare(case, out / case, bin, options.pairs))
            show(results[-1])
        except (RuntimeError, subprocess.CalledProcessError, AssertionError) as error:
            detail = getattr(error, "stderr", None)
            print(f"{case:10s} failed: {error} {detail.decode()[-500:] if detail else ''}", flush=True)
            failed = True
    machine["sgemm_gflops_after"] = sgemm_rate()
    (out.parent / "report.json").write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    print(f"sgemm afterwards {machine['sgemm_gflops_after']:.0f} GFLOP/s; all figures are in {(out.parent / 'report.json').relative_to(ROOT)}")
    sys.exit(1 if failed else 0)


main()
