"""Write Parquet files, which pandas, polars, DuckDB and Arrow can read.

This is the minimum for a table of curves, without a dependency: integers, floating-point numbers
and text, one row group, one page per column, plain encoding, gzip. See
https://parquet.apache.org/docs/file-format/ for the format. Its metadata are Thrift structures in
the compact protocol.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MAGIC = b"PAR1"
TYPES = {"int": 2, "float": 5, "text": 6}  # INT64, DOUBLE, BYTE_ARRAY
PLAIN, RLE, GZIP, UTF8, DATA_PAGE = 0, 3, 2, 0, 0
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
"""The types of fields in Thrift's compact protocol."""

Field = tuple[int, int, Any]
"""The number of a field, its type and its value."""


@dataclass(frozen=True)
class Column:
    """A column of a table; an optional one may have None as a missing value."""

    name: str
    kind: Literal["int", "float", "text"]
    values: Sequence[Any]
    optional: bool = False


def parquet(columns: Sequence[Column], metadata: Mapping[str, str]) -> bytes:
    """Return the content of a Parquet file.

    >>> content = parquet([Column("step", "int", [1, 2])], {"schema": "1"})
    >>> content[:4], content[-4:]
    (b'PAR1', b'PAR1')
    """
    body, chunks = MAGIC, []
    for column in columns:
        page, plain_size = _page(column)
        chunks.append(_chunk(column, len(body), plain_size, len(page)))
        body += page
    footer = _footer(columns, chunks, metadata)
    return body + footer + struct.pack("<I", len(footer)) + MAGIC


# ---------------------------------------------------------------------- values


def _page(column: Column) -> tuple[bytes, int]:
    """Return a page with its header, and its size before compression."""
    there = [value for value in column.values if value is not None]
    plain = _levels(column.values) if column.optional else b""
    plain += _plain(column.kind, there)
    packed = gzip.compress(plain, compresslevel=6, mtime=0)
    data = [(1, I32, len(column.values)), (2, I32, PLAIN), (3, I32, RLE), (4, I32, RLE)]
    sizes = [(1, I32, DATA_PAGE), (2, I32, len(plain)), (3, I32, len(packed))]
    header = _struct([*sizes, (5, STRUCT, data)])
    return header + packed, len(header) + len(plain)


def _plain(kind: str, values: Sequence[Any]) -> bytes:
    if kind == "text":
        words = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(word)) + word for word in words)
    return struct.pack(f"<{len(values)}{'q' if kind == 'int' else 'd'}", *values)


def _levels(values: Sequence[Any]) -> bytes:
    """Return the definition levels: a bit per value that is not None, with the length first."""
    groups = -(-len(values) // 8)
    bits = sum(1 << k for k, value in enumerate(values) if value is not None)
    run = _varint(groups << 1 | 1) + bits.to_bytes(groups, "little")
    return struct.pack("<I", len(run)) + run


# ---------------------------------------------------------------------- metadata


def _footer(
    columns: Sequence[Column], chunks: list[list[Field]], metadata: Mapping[str, str]
) -> bytes:
    rows = len(columns[0].values)
    root = [(4, BINARY, "schema"), (5, I32, len(columns))]
    size = sum(value for chunk in chunks for number, _, value in chunk[1][2] if number == 6)
    group = [(1, LIST, (STRUCT, chunks)), (2, I64, size), (3, I64, rows)]
    pairs = [[(1, BINARY, name), (2, BINARY, text)] for name, text in metadata.items()]
    return _struct(
        [
            (1, I32, 1),
            (2, LIST, (STRUCT, [root, *map(_element, columns)])),
            (3, I64, rows),
            (4, LIST, (STRUCT, [group])),
            (5, LIST, (STRUCT, pairs)),
            (6, BINARY, "dualcba"),
        ]
    )


def _element(column: Column) -> list[Field]:
    """Return the schema element of a column."""
    head = [(1, I32, TYPES[column.kind]), (3, I32, int(column.optional)), (4, BINARY, column.name)]
    return head + ([(6, I32, UTF8)] if column.kind == "text" else [])


def _chunk(column: Column, offset: int, plain_size: int, size: int) -> list[Field]:
    """Return the metadata of a column chunk."""
    about: list[Field] = [
        (1, I32, TYPES[column.kind]),
        (2, LIST, (I32, [PLAIN, RLE])),
        (3, LIST, (BINARY, [column.name])),
        (4, I32, GZIP),
        (5, I64, len(column.values)),
        (6, I64, plain_size),
        (7, I64, size),
        (9, I64, offset),
    ]
    return [(2, I64, offset), (3, STRUCT, about)]


# ---------------------------------------------------------------------- Thrift


def _struct(fields: Sequence[Field]) -> bytes:
    out, before = b"", 0
    for number, kind, value in fields:
        out += bytes([(number - before) << 4 | kind]) + _value(kind, value)
        before = number
    return out + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind == STRUCT:
        return _struct(value)
    if kind == BINARY:
        text: bytes = value.encode()
        return _varint(len(text)) + text
    if kind == LIST:
        inner, values = value
        few = len(values) < 15
        head = bytes([len(values) << 4 | inner]) if few else bytes([0xF0 | inner])
        size = b"" if few else _varint(len(values))
        return head + size + b"".join(_value(inner, each) for each in values)
    return _varint(value << 1)  # zigzag; no number here is negative


def _varint(value: int) -> bytes:
    """Return an integer as a varint: groups of seven bits, lowest first.

    >>> _varint(300)
    b'\\xac\\x02'
    """
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
