"""Builders of hostile and damaged archives: each does one thing that an archive should not do.

Nearly all also contain two good images, which must not be lost.
"""

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial

from tests.support.builders import jpeg, tar_bytes, zip_bytes
from tests.support.paths import DATA

Make = Callable[[], bytes]

GOOD = {"cat/0.jpg": jpeg(9, 8, seed=1), "dog/0.jpg": jpeg(8, 9, seed=2)}
EVIL = jpeg(8, 8, seed=3)
BOMB_BYTES = 80 << 20
"""Zeros: more than the ratio is not asked of, and no more than a test can bear."""


def tar_of(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a tar of entries; each states the size of its bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, data in entries:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tar_entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


_CENTRAL = {"flags": "<8xH", "method": "<10xH", "crc": "<16xI", "packed": "<20xI", "size": "<24xI"}
_CENTRAL |= {"header": "<42xI"}


def patched(data: bytes, index: int = 0, **fields: int) -> bytes:
    """Return a zip whose central directory says something else of one member (APPNOTE 4.3.12)."""
    out = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        at = archive.start_dir
    for _ in range(index):
        at += 46 + sum(struct.unpack_from("<3H", out, at + 28))
    for field, value in fields.items():
        form = struct.Struct(_CENTRAL[field])
        number = form.format[-1]
        struct.pack_into(f"<{number}", out, at + form.size - struct.calcsize(number), value)
    return bytes(out)


def with_damage(data: bytes, at: int, damage: bytes) -> bytes:
    return data[:at] + damage + data[at + len(damage) :]


def with_member(name: str, data: bytes = EVIL, *, tar: bool) -> bytes:
    """Return an archive of two good images and one more member."""
    members = {**GOOD, name: data}
    return tar_bytes(members) if tar else zip_bytes(members)


def stored(members: dict[str, bytes]) -> bytes:
    return zip_bytes(members, method=zipfile.ZIP_STORED)


def odd_zip_entry(kind: int) -> bytes:
    """Return a zip with a link or a device."""
    odd = zipfile.ZipInfo("odd.jpg")
    odd.create_system = 3
    odd.external_attr = (kind | 0o777) << 16
    out = io.BytesIO(zip_bytes(GOOD))
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(odd, "../../evil")
    return out.getvalue()


def odd_tar_entry(name: str, kind: bytes, target: str = "", size: int = 0) -> bytes:
    """Return a tar of two good images, an entry that states any size, and one below that entry."""
    info = tar_entry(name, kind, target)
    info.size = size
    good = tar_bytes(GOOD)
    below = tar_bytes({f"{name}/evil.jpg": EVIL})
    return good[: _end(good)] + info.tobuf(tarfile.GNU_FORMAT) + below


def _end(tar: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        last = archive.getmembers()[-1]
        return last.offset_data + last.size + -last.size % tarfile.BLOCKSIZE


def stating(size: int, *, name: str = "evil.jpg", packed: bool = True) -> bytes:
    """Return a zip with a member that states a size of 64 bits (APPNOTE 4.5.3)."""
    info = zipfile.ZipInfo(name)
    info.extra = struct.pack("<HHQ", 1, 8, size)
    out = io.BytesIO(zip_bytes(GOOD))
    method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(info, EVIL, compress_type=method)
    return patched(out.getvalue(), 2, size=2**32 - 1)


def with_end(data: bytes, *, num_members: int, directory_bytes: int) -> bytes:
    """Return a zip whose end states another directory (APPNOTE 4.3.16)."""
    out = bytearray(data)
    struct.pack_into("<2HL", out, data.rindex(b"PK\5\6") + 8, *[num_members] * 2, directory_bytes)
    return bytes(out)


def without_directory(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = data[: archive.start_dir]
    return members + zip_bytes({})


def one_member_twice() -> bytes:
    two = zip_bytes({**GOOD, "evil.jpg": EVIL, "evi2.jpg": EVIL})
    return patched(two, 3, header=_header_of(two, 2))


def _header_of(data: bytes, index: int) -> int:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.infolist()[index].header_offset


def nested(depth: int) -> bytes:
    """Return a zip in a zip, and so on."""
    data = zip_bytes(GOOD)
    for _ in range(depth - 1):
        data = zip_bytes({"in.zip": data})
    return data


def gzipped(times: int) -> bytes:
    """Return a tar that is compressed again and again."""
    data = tar_bytes(GOOD)
    for _ in range(times):
        data = gzip.compress(data, 0)
    return data


@cache
def zeros_tar(compression: str) -> bytes:
    """Return a sound tar of zeros; bz2 and xz have a stream for each (equal) megabyte."""
    if compression == "gz":
        return tar_bytes({**GOOD, "zeros": bytes(BOMB_BYTES)}, compression)
    tar = tar_bytes({**GOOD, "zeros": bytes(BOMB_BYTES)})
    compress = cache(bz2.compress if compression == "bz2" else partial(lzma.compress, preset=0))
    return b"".join(compress(tar[at : at + (1 << 20)]) for at in range(0, len(tar), 1 << 20))


def pax(data: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    info = tar_entry("pax", kind)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


def global_headers(number: int) -> bytes:
    """Return a tar that sets many headers for all members; a library copies them for each."""
    records = b"".join(b"12 %07d=\n" % i for i in range(number))
    many = tar_of(*((tar_entry(f"{i}.jpg"), b"") for i in range(4000)))
    return pax(records, tarfile.XGLTYPE) + many


def with_extras(number: int) -> bytes:
    """Return a zip whose directory is nothing but empty extra fields (APPNOTE 4.5.1)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i in range(number):
            info = zipfile.ZipInfo(f"{i}.jpg")
            info.extra = struct.pack("<HH", 0xCAFE, 0) * 16000
            archive.writestr(info, EVIL)
    return out.getvalue()


def sevenzip(password: str | None = None, size: int = 0) -> bytes:
    """Return a 7z; needs py7zr."""
    import py7zr

    out = io.BytesIO()
    quick = [{"id": py7zr.FILTER_LZMA2, "preset": 0}] if size else None
    with py7zr.SevenZipFile(out, "w", password=password, filters=quick) as archive:
        for name, data in GOOD.items():
            archive.writestr(data, name)
        if size:
            archive.writestr(bytes(size), "zeros")
    return out.getvalue()


_NAMES = {
    "..": "../../evil.jpg",
    ".. inside": "cat/../../../evil.jpg",
    "absolute": "/tmp/evil.jpg",
    "drive": "C:\\evil.jpg",
    "drive without a slash": "c:evil.jpg",
    "backslashes": "..\\..\\evil.jpg",
    "network": "\\\\host\\share\\evil.jpg",
    "of an archive": "../../evil.zip",
}
_ODD_NAMES = {
    "NUL": "evil\0.jpg",
    "ANSI escape": "\x1b[2J\x1b]0;evil\x07.jpg",
    "line break": "evil\nok.jpg",
    "right to left": "\u202egpj.live.jpg",
    "case": "CAT/0.JPG",
    "Unicode form": "e\u0301vil.jpg",
    "of a folder": "cat",
    "5,000 letters": "e" * 5000 + ".jpg",
    "blank": " .jpg",
}


def _by_name() -> Iterator[tuple[str, Make]]:
    for form, tar in (("zip", False), ("tar", True)):
        for what, name in _NAMES.items():
            yield f"path: {what}, {form}", partial(with_member, name, tar=tar)
        for what, name in _ODD_NAMES.items():
            yield f"name: {what}, {form}", partial(with_member, name, tar=tar)
    yield (
        "name: two Unicode forms, zip",
        lambda: zip_bytes({**GOOD, "\u00e9.jpg": EVIL, "e\u0301.jpg": EVIL}),
    )
    yield "name: twice, zip", lambda: zip_bytes({**GOOD, "cat//0.jpg": EVIL})
    yield "name: twice, tar", partial(with_member, "./cat/0.jpg", tar=True)
    for what, mode in {"link": stat.S_IFLNK, "device": stat.S_IFCHR, "pipe": stat.S_IFIFO}.items():
        yield f"link: {what}, zip", partial(odd_zip_entry, mode)
    kinds = {
        "link": (tarfile.SYMTYPE, "../.."),
        "hard link": (tarfile.LNKTYPE, "../../evil.jpg"),
        "hard link to nothing": (tarfile.LNKTYPE, "absent"),
        "device": (tarfile.CHRTYPE, ""),
        "pipe": (tarfile.FIFOTYPE, ""),
        "unknown": (b"Z", ""),
    }
    for what, (kind, target) in kinds.items():
        yield f"link: {what}, tar", partial(odd_tar_entry, "odd", kind, target)


def _by_member() -> Iterator[tuple[str, Make]]:
    three = zip_bytes({**GOOD, "evil.jpg": EVIL})
    yield "member: encrypted", lambda: patched(three, 2, flags=1)
    yield "member: strongly encrypted", lambda: patched(three, 2, flags=0x41)
    yield "member: unknown method", lambda: patched(three, 2, method=77)
    yield "member: wrong CRC-32", lambda: patched(three, 2, crc=1)
    yield "member: no header", lambda: patched(three, 2, header=2**32 - 2)
    yield "member: beyond the file", lambda: patched(three, 2, packed=2**31)
    yield "archive: encrypted 7z", partial(sevenzip, "secret")
    for size in (10, 10**6, 2**32, 2**63 - 1, 2**63, 2**64 - 1):
        yield f"size: {size:,}, deflated", partial(stating, size)
        yield f"size: {size:,}, stored", partial(stating, size, packed=False)
    yield "size: negative, tar", partial(odd_tar_entry, "odd", tarfile.REGTYPE, size=-1024)
    yield "size: 8 GiB, tar", partial(odd_tar_entry, "odd", tarfile.REGTYPE, size=8 << 30)
    yield "size: 2**70 of a link, tar", partial(odd_tar_entry, "odd", tarfile.SYMTYPE, size=2**70)


def _by_damage() -> Iterator[tuple[str, Make]]:
    three = zip_bytes({**GOOD, "evil.jpg": EVIL})
    tar = tar_bytes({**GOOD, "evil.jpg": EVIL})
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        last = archive.getmember("evil.jpg")
    yield "cut: zip, half", partial(_half, three)
    yield "cut: zip, one byte", lambda: three[:-1]
    yield "cut: tar, in a member", lambda: tar[: last.offset_data + 100]
    yield "cut: tar, between members", lambda: tar[: last.offset]
    yield "cut: tar, in a header", lambda: tar[: last.offset + 100]
    yield "cut: tar.gz, half", partial(_half, gzip.compress(tar))
    yield "cut: tar.bz2, half", partial(_half, bz2.compress(tar))
    yield "cut: tar.xz, half", partial(_half, lzma.compress(tar))
    damaged = stored({"in.tar": tar, **GOOD})
    at = damaged.index(EVIL)
    yield "damage: stored tar in a zip", lambda: with_damage(damaged, at + 300, b"damage")
    yield "damage: deflated zip in a zip", lambda: patched(zip_bytes({"in": three}), crc=1)
    yield "damage: directory", lambda: with_damage(three, three.index(b"PK\1\2"), b"\xff" * 4)
    yield "damage: tar header", lambda: with_damage(tar, last.offset, b"damage")
    yield "hidden: zip before a zip", lambda: zip_bytes({"old.jpg": EVIL}) + zip_bytes(GOOD)
    yield "hidden: zip behind a zip", lambda: zip_bytes(GOOD) + without_directory(three)[:-22]
    yield "hidden: directory of nothing", lambda: without_directory(three)
    yield "hidden: directory of less", lambda: _hidden_last(three)
    yield (
        "hidden: other number",
        lambda: with_end(three, num_members=9, directory_bytes=_directory_bytes(three)),
    )
    yield "hidden: tar behind a tar", lambda: tar_bytes(GOOD) + tar
    yield "hidden: tar.gz behind a tar.gz", lambda: tar_bytes(GOOD, "gz") + gzip.compress(tar)


def _by_growth() -> Iterator[tuple[str, Make]]:
    tar = tar_bytes({**GOOD, "evil.jpg": EVIL})
    yield "overlap: one member twice", one_member_twice
    # The better zip bomb of David Fifield: members begin with a stored block that contains the
    # header of the next.
    yield "overlap: each in the one before", (DATA / "overlapping.zip").read_bytes
    for what in ("gz", "bz2", "xz"):
        yield f"bomb: tar.{what}", partial(zeros_tar, what)
        yield f"bomb: tar.{what} in a zip", partial(_zipped, partial(zeros_tar, what))
    yield "bomb: member", lambda: zip_bytes({**GOOD, "evil.jpg": bytes(BOMB_BYTES)})
    yield (
        "bomb: member, bzip2",
        lambda: zip_bytes({**GOOD, "evil": bytes(BOMB_BYTES)}, method=zipfile.ZIP_BZIP2),
    )
    yield "bomb: zip in a zip", lambda: zip_bytes({"in.zip": stored({"a": bytes(BOMB_BYTES)})})
    yield "bomb: 7z", partial(sevenzip, size=BOMB_BYTES)
    yield "depth: zips", partial(nested, 12)
    yield "depth: gz", partial(gzipped, 40)
    yield "time: pax header of digits", lambda: pax(b"1" * (1 << 20)) + tar
    yield "time: pax headers in a row", lambda: pax(b"9 a=bcd\n\n") * 5000 + tar
    yield "time: global pax headers", partial(global_headers, 80_000)
    yield "time: name of megabytes", lambda: pax(b"e" * (4 << 20), tarfile.GNUTYPE_LONGNAME) + tar
    yield "time: extra fields", partial(with_extras, 20)
    yield "junk: before a zip", lambda: b"#!/bin/sh\nexit\n" * 100 + zip_bytes(GOOD)
    yield "junk: behind a zip", lambda: zip_bytes(GOOD) + bytes(500)
    yield "junk: behind a tar", lambda: tar_bytes(GOOD) + b"junk" * 500
    yield "junk: behind a tar.gz", lambda: tar_bytes(GOOD, "gz") + b"junk" * 500
    yield "nothing: no bytes", bytes
    yield "nothing: zip", lambda: zip_bytes({})
    yield "nothing: tar", lambda: tar_bytes({})
    yield "nothing: text", lambda: b"no archive\n" * 100


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _zipped(make: Make) -> bytes:
    return zip_bytes({"in": make()})


def _directory_bytes(data: bytes) -> int:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return len(data) - 22 - archive.start_dir


def _hidden_last(data: bytes) -> bytes:
    """Return a zip whose directory leaves its last member out."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start, last = archive.start_dir, archive.infolist()[-1]
    entry_bytes = 46 + len(last.filename)
    whole = data[start : len(data) - 22]
    cut = data[:start] + whole[:-entry_bytes] + data[-22:]
    return with_end(cut, num_members=2, directory_bytes=len(whole) - entry_bytes)


HOSTILE: dict[str, Make] = dict([*_by_name(), *_by_member(), *_by_damage(), *_by_growth()])
"""By "kind: what it does"."""
