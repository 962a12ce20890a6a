"""Learning from a folder of images that grows: `dualcba learn` and `dualcba ask`."""
