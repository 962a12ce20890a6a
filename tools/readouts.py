"""Train variants once, and score each learner with all read-outs, under BN and IBN.

usage: python -m tools.readouts OUT.json [--features FOLDER] [options of tools.variants]

Variants, streams and seeds are chosen as in `tools.variants`, and scored on a validation split of
the training data unless `--test` is given. OUT.json has the accuracy of each learner by statistics
and read-out, such as `ibn|both-lda+flip`; IBN is estimated as the variant says. `--features` writes
logits and features of the memory and of the scored images under IBN, a file per view, to try
further read-outs without a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dualcba.evaluation import STATISTICS
from dualcba.experiments import Hardware, Loader, Spec, read_toml
from dualcba.experiments.run import Run
from dualcba.experiments.scheduler import run_all
from dualcba.methods.nearest_mean import both_read_outs
from dualcba.prediction.batches import PREDICT_BATCH
from dualcba.prediction.memory_classifier import RULES
from tools import variants

Outputs = tuple[Tensor, Tensor]
"""Logits and features, or samples and labels."""


def outputs(run: Run, x: Tensor) -> Outputs:
    """Return logits and features of raw samples on the device, in float32."""
    parts = run.learner.parts
    found = []
    with parts.precision.cast_weights(), parts.precision.autocast():
        for batch in torch.split(x, PREDICT_BATCH):
            z, h = parts.method.outputs(parts.context.transform(batch))
            found.append((z.float(), h.float()))
    z, h = (torch.cat(part) for part in zip(*found, strict=True))
    return z, h


def read_outs(
    memory: Outputs, labels: Tensor, views: Sequence[Outputs]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the scores of each read-out for the first view, and their mean over all views."""
    made: dict[str, list[Tensor]] = {"head": [z for z, _ in views]}
    C, d = memory[0].shape[1], memory[1].shape[1]
    for readout, kind in RULES.items():
        rule = kind(C, memory[1].new_zeros(C, d))
        rule.update(rule.rows(*memory), labels)
        rule.finish()
        found = [(z, rule.scores(z, h).float()) for z, h in views]
        both = readout.startswith("both")
        made[readout] = [both_read_outs(z, scores) if both else scores for z, scores in found]
    for name, scores in made.items():
        yield name, scores[0]
        yield f"{name}+flip", torch.stack(scores).mean(0)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {"raw": lambda x: x, "flip": lambda x: x.flip(-1)}


def score(run: Run, features: Path | None) -> dict[str, float]:
    """Return the accuracy of a learner by statistics and read-out, in percent."""
    learner, evaluator = run.learner, run.evaluator
    memory, n = learner.parts.context.memory, int(evaluator.sizes.sum())
    x, y, labels = evaluator.x[:n], evaluator.y[:n], memory.y[: memory.filled]
    found: dict[str, float] = {}
    for statistics in STATISTICS:
        with learner.evaluating(statistics):
            kept = memory.samples(torch.arange(memory.filled, device=labels.device))
            views = [outputs(run, view(x)) for view in VIEWS.values()]
            for name, scores in read_outs(outputs(run, kept), labels, views):
                right = (scores.argmax(1) == y).double().mean()
                found[f"{statistics}|{name}"] = round(100 * float(right), 2)
            if features is not None and statistics == "ibn":
                keep(run, (x, y), (kept, labels), features)
    return found


def keep(run: Run, scored: Outputs, kept: Outputs, folder: Path) -> None:
    """Write features and labels of scored samples and of the memory, a file for each view."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, view in VIEWS.items():
        (z, h), (_, h_memory) = (outputs(run, view(x)) for x, _ in (scored, kept))
        arrays = {"z": z.half(), "h": h.half(), "h_memory": h_memory.half()}
        arrays |= {"y": scored[1], "y_memory": kept[1]}
        path = folder / f"{run.spec.name}-{name}.npz"
        np.savez(path, **{k: t.cpu().numpy() for k, t in arrays.items()})  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--features", type=Path)
    given, rest = own.parse_known_args(arguments)
    args = variants.parse(rest)
    try:
        planned = list(variants.plan(read_toml(args.file), args))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    variants.check(planned)
    collected = variants.Collected(args.out)
    collected.begin(arguments, "tools.readouts")
    # equal specs of several variants are run once
    waiting = variants.grouped(one for one in planned if not collected.holds(one))

    def failed(spec: Spec, error: Exception) -> None:
        variants.note_failure(waiting[variants.text(spec)], error, collected)

    specs, load = [group[0].spec for group in waiting.values()], Loader(args.data_dir)
    hardware = Hardware(device=args.device)
    for run, done in run_all(specs, load, hardware, abreast=args.abreast, failed=failed):
        if done:
            accuracy = score(run, given.features)
            shown = {k: v for k, v in accuracy.items() if k.endswith("flip")}
            for one in waiting[variants.text(run.spec)]:
                made = {"accuracy": accuracy, "options": one.options, "commit": args.commit}
                collected.add("runs", {**one.place, **made})
                print(f"{one}: {shown}", flush=True)
        del run
    return 1 if collected.content["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
