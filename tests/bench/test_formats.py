"""Oracle: the rows that the records were made of, which every format must give alike."""

from __future__ import annotations

from bench import formats


def test_every_format_is_measured_and_gives_the_same_rows() -> None:
    found = formats.run(200, 0.01)
    assert {"json", "csv", "avro", "protobuf", "debezium-json"} < set(found)
    assert all(
        set(rate.cpu_us) >= {"1", "100"} and rate.record_bytes > 50 for rate in found.values()
    )
