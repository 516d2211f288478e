"""Build a large dataset under attack, on a disk and in a store: `make soak`.

    make soak                                        an hour; writes docs/trust.md
    make soak SOAK="--images 20000 --attacks 8"      less of it; only prints

Moments and kinds of attacks follow from the seed; what a process is doing at that moment does not.
What the builds print is kept in the folder that is named at the end where anything went wrong.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from shardprep import __version__
from tests.documents import trust
from tests.soak.builds import Means, build_attacked, build_undisturbed
from tests.soak.clock import Clock
from tests.soak.place import Disk, FaultyStore, Place
from tests.soak.readings import read_all
from tests.soak.record import RECORD, Ordeal, Record
from tests.soak.source import CLASSES, SIDE, Size, write_source
from tests.soak.truth import Truth
from tests.support.object_store import ObjectStore
from tests.writer.faulty import own_disk

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_DISK_BYTES = 256 << 20
"""Size of the small disk, in addition to three times the source."""
_PATIENCE_S = 4 * 3600.0


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000, help="small images")
    parser.add_argument("--photos", type=int, help="photos; by default one for 50 small images")
    parser.add_argument("--attacks", type=int, default=40, help="in all places together")
    parser.add_argument("--places", default="disk,store", help="disk, store or both, with a comma")
    parser.add_argument("--stop", type=float, help="seconds for which a process is paused")
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--record", type=Path, help="write the record there, as JSON")
    parser.add_argument("--folder", type=Path, help="for all files, in place of a temporary one")
    parser.add_argument("--write", action="store_true", help="report this soak in docs/trust.md")
    found = parser.parse_args(given)
    if found.photos is None:
        found.photos = found.images // 50
    if found.stop is None:
        found.stop = 150.0 if found.images >= 1_000_000 else 15.0
    return found


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def soak(asked: argparse.Namespace, folder: Path) -> Record:
    begun = time.monotonic()
    size = Size(asked.images, asked.photos)
    source, disk = folder / "soak.zip", folder / "disk"
    disk.mkdir()
    write_source(source, size, asked.seed)
    truth = Truth.of(source)
    _say(f"{source}: {len(truth.images):,} images, {source.stat().st_size >> 20:,} MB")
    has_disk = own_disk(disk, _DISK_BYTES + 3 * source.stat().st_size)
    options = (
        "--labels", "csv:labels.csv:id:label", "--classes", ",".join(CLASSES),
        "--size", f"{SIDE}x{SIDE}", "--format", "keep", "--shards", str(asked.shards),
        "--split", "train=0.9,test=0.1", "--workers", "2", "--timeout", str(asked.stop / 2),
    )  # fmt: skip
    means = Means(
        source, options, folder, disk if has_disk else None, Clock.made(folder), asked.stop, _say
    )
    (folder / "whole").mkdir()
    whole = build_undisturbed(means, Disk(folder / "whole", name="undisturbed"), _PATIENCE_S)
    shutil.rmtree(folder / "whole")
    _say(f"undisturbed: {whole.elapsed_s:.1f} s, the first shard after {whole.start_s:.1f} s")
    (disk / "out").mkdir()
    ordeals = []
    with ObjectStore() as store:
        faulty = FaultyStore(store, asked.seed)
        with faulty.proxy:
            known: tuple[Place, ...] = (Disk(disk / "out"), faulty)
            places = [place for place in known if place.name in asked.places.split(",")]
            for number, place in enumerate(places):
                attacks = len(range(number, asked.attacks, len(places)))
                attacked = build_attacked(means, place, whole, attacks, asked.seed + number)
                requests = place.faults()
                _say(f"{place.name}: {attacked.num_builds} built in {attacked.elapsed_s:.1f} s")
                reading = read_all(place, truth)
                _say(f"{place.name}: {reading.verify} ({reading.elapsed_s:.1f} s)")
                ordeals.append(
                    Ordeal(
                        place=place.name,
                        undisturbed_s=whole.elapsed_s,
                        attacked_s=attacked.elapsed_s,
                        num_builds=attacked.num_builds,
                        num_written=reading.num_written,
                        num_rejected=reading.num_rejected,
                        requests=requests,
                        verify=reading.verify,
                        lost=reading.lost,
                        wrong=[*attacked.wrong_files, *reading.wrong],
                        faults=attacked.faults,
                        blows=attacked.blows,
                    )
                )
                place.clear()
    return Record(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        version=__version__,
        seed=asked.seed,
        num_images=asked.images,
        num_photos=asked.photos,
        stop_s=asked.stop,
        elapsed_s=time.monotonic() - begun,
        ordeals=ordeals,
    )


def main(given: list[str] | None = None) -> int:
    asked = _arguments(given)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    record = soak(asked, folder)
    if asked.record:
        asked.record.write_text(record.dumps())
    for line in record.problems:
        _say(line)
    if record.problems:
        _say(f"{len(record.problems)} problems; what the builds printed is in {folder}")
        return 1
    if asked.write:
        RECORD.write_text(record.dumps())
        trust.main()
    shutil.rmtree(folder, ignore_errors=True)
    _say(f"{sum(len(one.blows) for one in record.ordeals)} attacks, nothing lost, nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
