"""`python -m dualcba` is `dualcba`."""

from dualcba.cli.app import main

if __name__ == "__main__":
    main()
