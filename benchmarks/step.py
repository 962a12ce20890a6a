"""Time a learner's step and its evaluation on this machine, on synthetic images.

usage: python -m benchmarks.step [--methods er,er-dual-cba] [--network resnet18] [--device auto]
           [--turns] [--seeds-abreast 8] [--whole made-up] [--randaugment] [--profile]
           [--json FILE --commit HASH]

Prints one row per method and engine: median milliseconds per step, microseconds per evaluated
image, seconds until the first step and until all graphs are captured. Ratios are to the first row.
To compare methods or precisions use `--turns`, which times them in turns.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.abreast import in_turns, steps_abreast, whole_run
from benchmarks.learners import Ready, synthetic
from benchmarks.profiling import profiled, roofline, show
from dualcba.bench.command import command, machine, versions
from dualcba.bench.timing import time_in_turns
from dualcba.data import Dataset, load_dataset
from dualcba.data.randaugment import RandAugment
from dualcba.engine import make_engine, resolve_device
from dualcba.evaluation import Evaluator
from dualcba.experiments import Hardware, Spec
from dualcba.io import write_json

ROUNDS = 5
EVALUATIONS = 3
WHOLE = "er-dual-cba"
COLUMNS = (
    "method", "engine", "precision", "ms_per_step", "ratio_to_first", "us_per_image_bn",
    "us_per_image_ibn", "first_step_s", "ready_s",
)  # fmt: skip


def measure(ready: Ready, data: Dataset, steps: int) -> dict[str, float]:
    """Return the times of steps, evaluation and start-up of one learner."""
    part = max(1, steps // ROUNDS)
    watch = time_in_turns({"step": partial(ready.steps, part)}, ROUNDS, ready.device, units=part)
    out = {"ms_per_step": 1e3 * watch["step"].median}
    learner = ready.learner
    evaluator = Evaluator(learner, data, ready.stream)
    for _ in range(4):
        learner._predictor.forget()  # estimate anew, as after a step
        evaluator.evaluate("end")

    def evaluate(norm: str) -> None:
        learner._predictor.forget()
        with learner.evaluating(norm):
            evaluator._correct(len(ready.stream))

    for norm in ("bn", "ibn"):
        work, images = {norm: partial(evaluate, norm)}, len(data.test_x)
        watch = time_in_turns(work, EVALUATIONS, ready.device, units=images)
        out[f"us_per_image_{norm}"] = 1e6 * watch[norm].median
    return out | {"first_step_s": ready.first, "ready_s": ready.ready}


def randaugment(device: torch.device, batch: int = 96, times: int = 50) -> list[dict[str, Any]]:
    """Return the images per second of RandAugment, captured as a graph on CUDA."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (batch, 3, 32, 32), dtype=np.uint8)).to(device)
    rows = []
    for augment in (RandAugment(1, 14), RandAugment(2, 10, cutout=True)):
        engine = make_engine("auto", device)
        into = torch.empty_like(x)

        def run(x: torch.Tensor, params: torch.Tensor, augment=augment, into=into) -> None:
            into.copy_(augment(x, params))

        drawn = [augment.draw(rng, batch) for _ in range(times)]

        def work(drawn=drawn, engine=engine, run=run) -> None:
            for params in drawn:
                engine.run("augment", run, x, params)

        work()
        images = batch * times
        watch = time_in_turns({"augment": work}, ROUNDS, device, units=images)["augment"]
        rows.append({
            "operations": augment.operations, "cutout": augment.cutout, "batch": batch,
            "images_per_second": round(1 / watch.median),
        })  # fmt: skip
    return rows


def print_rows(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...] = ()) -> None:
    table = Table(title=title)
    for name in columns or tuple(rows[0]):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*[str(value) for value in row.values()])
    Console(width=130).print(table)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step")
    parser.add_argument("--methods", default="er,er-cba,er-dual-cba")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engines", default="auto")
    parser.add_argument("--precisions", default="auto")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument(
        "--turns", action="store_true", help="methods and precisions in turns, for their ratio"
    )
    parser.add_argument("--seeds-abreast", type=int, nargs="+", default=[], metavar="K")
    parser.add_argument(
        "--whole", metavar="DATA", help=f"whole runs of {WHOLE} on a dataset, or `made-up` images"
    )
    parser.add_argument("--randaugment", action="store_true", help="images per second")
    parser.add_argument("--profile", action="store_true", help="kernels and roofline of a step")
    parser.add_argument("--peak-tflops", type=float, default=990, help="of the device, in bf16")
    parser.add_argument("--commit", default="", help="for the file")
    parser.add_argument("--machine", default="", help="the kind of machine, for the file")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make the measurements selected by the options, and print each when it is done."""
    device = resolve_device(args.device)
    out: dict[str, Any] = {
        "command": command("python -m benchmarks.step"), "commit": args.commit,
        "machine": args.machine or machine(str(device)), "device": device.type,
        "threads": torch.get_num_threads(), "versions": versions("dualcba", "torch", "triton"),
        "network": args.network, "batch": 32, "buffer": 2000, "classes": 100, "rows": [],
    }  # fmt: skip
    data = synthetic()
    precisions = args.precisions.split(",")
    for engine in args.engines.split(","):
        for precision in precisions:
            hardware = Hardware(device=args.device, engine=engine, precision=precision)
            for method in args.methods.split(","):
                _one(method, hardware, data, args, out)
    print_rows(f"{args.network}, batch 32 + 32, memory 2000, 100 classes", out["rows"], COLUMNS)
    hardware = Hardware(device=args.device)
    specs = [_spec(method, args) for method in args.methods.split(",")]
    if args.turns:
        each = [replace(hardware, precision=precision) for precision in precisions]
        out["turns"] = in_turns(specs, each, data, args.steps)
        print_rows("in turns", out["turns"])
    if args.seeds_abreast:
        out["abreast"] = [
            steps_abreast(s, hardware, data, k, args.steps)
            for s in specs
            for k in args.seeds_abreast
        ]
        print_rows("seeds abreast", out["abreast"])
    if args.randaugment:
        out["randaugment"] = randaugment(device)
        print_rows("RandAugment", out["randaugment"])
    if args.whole and device.type != "cuda":
        print("skipped without CUDA: --whole")
    elif args.whole:
        made_up = args.whole == "made-up"
        full = synthetic(train=50_000, test=10_000) if made_up else load_dataset(args.whole)
        spec = replace(_spec(WHOLE, args), anytime="ibn")
        cases = [(0, 1), (5, 1), (5, 8)]
        out["whole_data"] = args.whole
        out["whole"] = [whole_run(spec, hardware, full, every=e, seeds=k) for e, k in cases]
        print_rows("whole runs", out["whole"])
    return out


def _spec(method: str, args: argparse.Namespace) -> Spec:
    return Spec(dataset="cifar100", method=method, network=args.network)


def _one(
    method: str, hardware: Hardware, data: Dataset, args: argparse.Namespace, out: dict[str, Any]
) -> None:
    """Add the row of one method, and with `--profile` its profile."""
    ready = Ready(_spec(method, args), hardware, data)
    found = measure(ready, data, args.steps)
    ms = found["ms_per_step"]
    base = out["rows"][0]["ms_per_step"] if out["rows"] else ms
    row = {"method": method, "engine": hardware.engine, "precision": hardware.precision}
    row |= {"ms_per_step": round(ms, 4), "ratio_to_first": round(ms / base, 3)}
    row |= {key: round(value, 2) for key, value in found.items() if key != "ms_per_step"}
    out["rows"].append(row)
    if args.profile:
        profile = profiled(ready)
        roof = roofline(ready.learner, ms, profile["busy_us_per_step"], args.peak_tflops)
        show(method, profile, roof)
        key = f"{method} {hardware.engine} {hardware.precision}"
        out.setdefault("profile", {})[key] = profile | {"roofline": roof}


def main() -> None:
    args = options().parse_args()
    found = run(args)
    if args.json:
        write_json(args.json, found)


if __name__ == "__main__":
    main()
