"""Compressed streams: gzip and zstd are unpacked, redacted and packed again, with bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from guard.errors import GuardError
from guard.redact.stream import Redactor

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PIECE: Final = 1 << 20


def pump(chunks: Iterable[bytes], redactor: Redactor, write: Callable[[bytes], object]) -> None:
    """Redact a stream of chunks into `write`; a packed stream stays packed the same way.

    Raises:
        GuardError: the packed stream is damaged, or zstd cannot be read on this machine. Nothing of it is
        given out raw.
    """
    source = iter(chunks)
    head = b""
    for chunk in source:
        head += chunk
        if len(head) >= 4 or not (GZIP.startswith(head[:2]) or ZSTD.startswith(head)):
            break
    if head[:2] == GZIP:
        _gzip(_chain(head, source), redactor, write)
    elif head[:4] == ZSTD:
        _zstd(_chain(head, source), redactor, write)
    else:
        for chunk in _chain(head, source):
            out = redactor.feed(chunk)
            if out:
                write(out)
        out = redactor.finish()
        if out:
            write(out)


def _chain(head: bytes, source: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from source


def _gzip(source: Iterator[bytes], redactor: Redactor, write: Callable[[bytes], object]) -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    unpacker = zlib.decompressobj(31)
    try:
        for chunk in source:
            while chunk:
                if unpacker.eof:
                    if not chunk.strip(b"\0"):
                        break  # padding behind the last member, as tar leaves it
                    unpacker = zlib.decompressobj(31)
                text = unpacker.decompress(chunk, _PIECE)
                chunk = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
                if text:
                    write(packer.compress(redactor.feed(text)))
                elif not unpacker.eof:
                    break
    except zlib.error as error:
        raise GuardError(f"damaged gzip data ({error})", "unpack what can be saved with zcat and redact that") from None
    if not unpacker.eof:
        raise GuardError("the gzip data ends too early", "unpack what can be saved with zcat and redact that")
    write(packer.compress(redactor.finish()) + packer.flush())


def _zstd(source: Iterator[bytes], redactor: Redactor, write: Callable[[bytes], object]) -> None:
    try:
        import zstandard
    except ImportError:
        raise GuardError(
            "zstd data, and the package zstandard is not installed", "install it, or pipe through zstdcat"
        ) from None
    backend: Any = zstandard
    packer = backend.ZstdCompressor(level=3).compressobj()

    class _Source:
        """A file-like view of the chunks, which is what the multi-frame reader takes."""

        def __init__(self) -> None:
            self._rest = b""

        def read(self, size: int = -1) -> bytes:
            if not self._rest:
                self._rest = next(source, b"")
            out, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
            return out

    reader = backend.ZstdDecompressor().stream_reader(_Source(), read_across_frames=True)
    try:
        while text := reader.read(_PIECE):
            write(packer.compress(redactor.feed(text)))
    except backend.ZstdError as error:
        raise GuardError(
            f"damaged zstd data ({error})", "unpack what can be saved with zstdcat and redact that"
        ) from None
    write(packer.compress(redactor.finish()) + packer.flush())
