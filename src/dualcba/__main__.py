"""`python -m dualcba` is `dualcba`."""

from dualcba.cli import main

if __name__ == "__main__":
    main()
