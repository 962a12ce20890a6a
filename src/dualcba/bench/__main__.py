"""Measure one contender in a separate process; see `dualcba.bench.alone`."""

import sys

from dualcba.bench.alone import main
from dualcba.bench.contenders import contenders

if __name__ == "__main__":
    main(contenders([sys.argv[1]]))
