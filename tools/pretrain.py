"""Train the class-agnostic part in the package, and write it with its provenance.

usage: python -m tools.pretrain --commit HASH [--kind dual-cba] [--dataset cifar100] [--out FILE]

The run is that of the paper's table on inter-dataset transfer: ER with an adaptor and individual
class-specific parts on Split CIFAR-100, with a memory of 2000. A JSON file next to the output has
the provenance and the accuracy of the run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dualcba import load_dataset
from dualcba.adaptors.pretrained import SHIPPED
from dualcba.experiments import Hardware, Run, Spec
from tools.variants import name_and_value


def train(spec: Spec, data_dir: Path | None, device: str) -> Run:
    run = Run(spec, load_dataset(spec.dataset, data_dir), Hardware(device=device))
    for _ in run.steps():
        pass
    return run


def provenance(run: Run, commit: str) -> dict[str, Any]:
    result = run.result()
    acc = {norm: round(scores["acc"], 2) for norm, scores in result["scores"].items()}
    date = datetime.now(UTC).date().isoformat()
    made = {"commit": commit, "date": date, "device": result["versions"]["device"]}
    return run.provenance() | made | {"acc": acc}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--kind", choices=SHIPPED, default="dual-cba", help="of the adaptor")
    parser.add_argument("--set", type=name_and_value, action="append", default=[])
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--buffer", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    args.out = args.out or SHIPPED[args.kind]
    options = {"specific": "individual", "eval_every": 0} | dict(args.set)
    spec = Spec(
        method=f"er-{args.kind}", dataset=args.dataset, buffer=args.buffer, seed=args.seed,
        **options,
    )  # fmt: skip
    run = train(spec, args.data_dir, args.device)
    made = provenance(run, args.commit)
    run.learner.save_agnostic(args.out, made)
    args.out.with_suffix(".json").write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made))


if __name__ == "__main__":
    main()
