"""The record of a benchmark run: an interrupted run is no loss, and a table can be made again."""

from __future__ import annotations

from benchmarks import record, report
from benchmarks.catalog import MEASURES
from benchmarks.runner import Outcome


def test_a_run_reads_the_same_after_it_was_kept(tmp_path):
    run = report.Run(
        systems=["monarch_nb", "raw", "ray"],
        measures=list(MEASURES[:3]),
        versions={"peers": {"ray": "2.0"}},
        remarks=["a remark"],
    )
    run.outcomes["monarch_nb", "call"] = [Outcome({"time": 1e-4}), Outcome(error="it hung", left=2)]
    run.outcomes["raw", "call"] = [Outcome({"time": 5e-5})]
    run.outcomes["ray", "flight"] = [Outcome({"rate": "no figure today"})]
    path = tmp_path / "results.json"
    record.save(run, path)
    text = report.text(record.load(path))
    assert text == report.text(run)
    assert "| 100 us; 1 of 3 rounds failed [1] | 50 us (0.5 x) |" in text
    assert "- [1] it hung" in text
    assert [each.name for each in tmp_path.iterdir()] == ["results.json"]
