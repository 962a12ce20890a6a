"""Profile a step: its kernels, the busy time of the GPU, and the share of peak performance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.learners import Ready
from dualcba.bench import step_flops
from dualcba.bench.timing import seconds
from dualcba.learner import Learner

STEPS = 20  # a multiple of 5, for the same share of outer steps as in training
TOP = 25


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the total length of the union of intervals."""
    covered, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return covered


def profiled(ready: Ready) -> dict[str, Any]:
    """Return events on the device (operators on a CPU), busy time and slowest events per step."""
    cuda = ready.device.type == "cuda"
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=kinds) as prof:
        seconds(partial(ready.steps, STEPS), ready.device)
    wanted = DeviceType.CUDA if cuda else DeviceType.CPU
    events = [
        e
        for e in prof.events()
        if e.device_type == wanted and not getattr(e, "is_user_annotation", False)
    ]
    times: dict[str, list[float]] = defaultdict(list)
    for e in events:
        took = e.time_range.elapsed_us() if cuda else e.self_cpu_time_total
        times[e.name].append(took)
    ranked = sorted(times.items(), key=lambda item: -sum(item[1]))
    busy = union((e.time_range.start, e.time_range.end) for e in events)
    copies = sum(len(t) for name, t in times.items() if name.startswith(("Memcpy", "Memset")))
    return {
        "on": "device" if cuda else "host",
        "events_per_step": round((len(events) - copies) / STEPS, 1),
        "copies_per_step": round(copies / STEPS, 1),
        "busy_us_per_step": round(busy / STEPS, 1),
        "top": [
            {"name": n, "us_per_step": round(sum(t) / STEPS, 2), "per_step": len(t) / STEPS}
            for n, t in ranked[:TOP]
        ],
    }


def roofline(learner: Learner, ms: float, busy_us: float, peak_tflops: float) -> dict[str, Any]:
    """Return the operations of a step, its time at peak performance, and the measured time."""
    b = learner.batch_size
    loop = learner.parts.outer_loop
    outer_batch = b / loop.every if loop.optimizer is not None else 0
    trained = b * (1 + learner.method.draws)
    shape = learner.network.input_shape
    flops = step_flops(learner.network.module, shape, trained, outer_batch)
    floor = flops / (peak_tflops * 1e9)
    return {
        "gflop_per_step": round(flops / 1e9, 2),
        "peak_tflops": peak_tflops,
        "floor_ms": round(floor, 4),
        "ms_per_step": round(ms, 4),
        "busy_ms": round(busy_us / 1e3, 4),
        "achieved_tflops": round(flops / (ms * 1e9), 2),
        "of_peak": round(floor / ms, 4),
    }


def show(method: str, found: dict[str, Any], roof: dict[str, Any]) -> None:
    """Print a profile and its roofline."""
    counts = f"{found['events_per_step']} events and {found['copies_per_step']} copies"
    busy = f"busy for {found['busy_us_per_step']} µs"
    print(f"\n{method}: {counts} a step on the {found['on']}, {busy}")
    for row in found["top"]:
        print(f"{row['us_per_step']:>10.2f} µs {row['per_step']:>7.1f} ×  {row['name'][:90]}")
    floor = f"{roof['floor_ms']} ms at {roof['peak_tflops']} TFLOP/s"
    share = f"{100 * roof['of_peak']:.1f} % of the peak"
    print(f"{roof['gflop_per_step']} GFLOP: {floor}, {roof['ms_per_step']} ms achieved, {share}")
    if not torch.cuda.is_available():
        print("skipped without CUDA: kernels and busy time of the GPU")
