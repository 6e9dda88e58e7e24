"""A fuzzer of .mnn files: `python tests/fuzz_documents.py FILE.mnn… [--minutes 10] [--seed 0]`.

Every mutant must be refused with a ModelError, or be read and then written so that it reads back the same (what the
format cannot say again is refused then). Anything else stops the run and leaves the mutant in a file.
"""

from __future__ import annotations

import argparse
import random
import resource
import struct
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graphkit.errors import ModelError
from graphkit.mnn.document import dump, parse
from graphkit.mnn.document.tree import first_difference

_SIGNALLING_NAN = 0x7FA00001
_SMALL = (0, 1, 2, 3, 4, 8, 64, 127, 128, 255)
_LARGE = (32767, 32768, 65534, 65535, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)
_NUMBERS = (*_SMALL, *_LARGE, _SIGNALLING_NAN)
_SECONDS = 20  # for one mutant
_KILOBYTES = 1_500_000  # this process, with the originals


def fuzz(good: bytes, seconds: float, draw: random.Random) -> int:
    """Try mutants of a good file for some time; how many were tried. Raises AssertionError for a finding."""
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        attempt(mutant(good, draw))
        tried += 1
    return tried


def attempt(data: bytes) -> bool:
    """Read one mutant and write it again; whether it was readable."""
    start = time.monotonic()
    try:
        document = parse(data)
        document.unknown()
        list(document.graphs())
        written = dump(document)
        readable = True
    except ModelError:
        readable = False
    else:
        assert first_difference(document.net, parse(written).net) is None
    assert time.monotonic() - start < _SECONDS, "too slow"
    return readable


def mutant(good: bytes, draw: random.Random) -> bytes:
    """The file with a few changes: numbers, bytes, pieces copied, cut or put in, the head more often than the rest."""
    data = bytearray(good)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        if len(data) < 16:
            break
        span = len(data) if draw.random() < 0.7 else min(len(data), 4096)
        _CHANGES[draw.randrange(len(_CHANGES))](data, draw.randrange(span), draw)
    return bytes(data)


def _byte(data: bytearray, at: int, draw: random.Random) -> None:
    data[at] = draw.randrange(256)


def _bit(data: bytearray, at: int, draw: random.Random) -> None:
    data[at] ^= 1 << draw.randrange(8)


def _word(data: bytearray, at: int, draw: random.Random) -> None:
    at = min(at & ~3, len(data) - 4)
    struct.pack_into("<I", data, at, draw.choice(_NUMBERS))


def _half(data: bytearray, at: int, draw: random.Random) -> None:
    at = min(at & ~1, len(data) - 2)
    struct.pack_into("<H", data, at, draw.choice(_NUMBERS) & 0xFFFF)


def _nudge(data: bytearray, at: int, draw: random.Random) -> None:
    at = min(at & ~3, len(data) - 4)
    number = struct.unpack_from("<I", data, at)[0] + draw.choice((-64, -8, -4, -2, -1, 1, 2, 4, 8, 64))
    struct.pack_into("<I", data, at, number & 0xFFFFFFFF)


def _aim(data: bytearray, at: int, draw: random.Random) -> None:
    """An offset to anywhere."""
    at = min(at & ~3, len(data) - 4)
    struct.pack_into("<I", data, at, (draw.randrange(len(data)) & ~3) - at & 0xFFFFFFFF)


def _copy(data: bytearray, at: int, draw: random.Random) -> None:
    size = draw.choice((4, 8, 32, 256))
    piece = data[at : at + size]
    to = draw.randrange(len(data))
    data[to : to + len(piece)] = piece


def _cut(data: bytearray, at: int, draw: random.Random) -> None:
    del data[at : at + draw.choice((1, 2, 4, 64, 4096))]


def _truncate(data: bytearray, at: int, draw: random.Random) -> None:
    del data[max(at, 16) :]


def _insert(data: bytearray, at: int, draw: random.Random) -> None:
    data[at:at] = draw.randbytes(draw.choice((1, 2, 4, 64)))


_CHANGES = (_byte, _bit, _word, _word, _half, _half, _nudge, _aim, _aim, _copy, _cut, _truncate, _insert)


def main() -> None:
    """Fuzz the files given, by turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    originals = [path.read_bytes() for path in options.files]
    end = time.monotonic() + 60 * options.minutes
    tried = readable = 0
    while time.monotonic() < end:
        data = mutant(draw.choice(originals), draw)
        try:
            readable += attempt(data)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < _KILOBYTES, "too much memory"
        except BaseException:
            Path("finding.mnn").write_bytes(data)
            print(f"finding.mnn: mutant {tried} of seed {options.seed}", file=sys.stderr)
            raise
        tried += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{tried} mutants, {readable} of them readable, no finding; peak {peak} MB")


if __name__ == "__main__":
    main()
