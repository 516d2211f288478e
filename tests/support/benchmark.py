"""A finished benchmark, without the minute that it takes."""

from shardprep.benchmark.pipelines import PIPELINES
from shardprep.benchmark.result import Benchmark, Round, Settings, Way


def example(**ways: Way) -> Benchmark:
    """Return one in which all ways took the same, but for those that are given."""
    rounds = [Round(0.2, 99_999, 2.0, 3.0)]
    found = (ways.get(name, Way.measured(name, rounds, "uint8", 214 << 20)) for name in PIPELINES)
    return Benchmark(
        path="tfrecords/dogs_vs_cats/1.0.0", split="train", num_records=1800,
        num_bytes=28_000_000, settings=Settings(), num_cores=2, ways=tuple(found),
    )  # fmt: skip
