"""Rehearsal methods: one file each, listed in `registry.METHODS`."""

from dualcba.methods.base import Context, Method, viewed
from dualcba.methods.naming import method_names, parse_method
from dualcba.methods.options import check_options, option_names
from dualcba.methods.registry import METHODS, SUFFIXES, WRAPPERS, register

__all__ = [
    "METHODS",
    "SUFFIXES",
    "WRAPPERS",
    "Context",
    "Method",
    "check_options",
    "method_names",
    "option_names",
    "parse_method",
    "register",
    "viewed",
]
