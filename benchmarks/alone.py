"""Measure one contender in a separate process; see `dualcba.bench.alone`."""

from benchmarks.contenders import everyone
from dualcba.bench.alone import main

if __name__ == "__main__":
    main(everyone())
