"""Fixtures of the reader tests."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dualcba.data.readers import decoding


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, and workers for few images."""
    monkeypatch.setattr(decoding, "BLOCK", 4)
    monkeypatch.setattr(decoding, "MIN_PARALLEL", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})


@pytest.fixture
def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of images decoded so far, one per call."""
    decoded: list[int] = []
    original = decoding._decode

    def decode(paths: Any, shape: Any) -> Any:
        decoded.append(len(paths))
        return original(paths, shape)

    monkeypatch.setattr(decoding, "_decode", decode)
    return decoded
