"""The syphon on Spark, for those who run it by itself and want to read of its batches."""

from __future__ import annotations

from pairbus.jobs.lines import Fact, Line, Teller
from pairbus.jobs.syphon.batch_report import BatchReport
from pairbus.jobs.syphon.outcome import Kind
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.jobs.syphon.standalone import Engine
from pairbus.pairing.syphon import SyphonContext


def spark_engine(settings: SparkSyphonSettings, teller: Teller) -> Engine:
    """Makes syphons that tell of each batch."""

    def tell(report: BatchReport) -> None:
        teller.tell(batch_line(report))

    def make(context: SyphonContext) -> SparkSyphon:
        text = f"starting Spark on {settings.master}, which takes some seconds"
        teller.tell(Line(event="spark", text=text, facts={"master": settings.master}))
        return SparkSyphon(context, settings, tell)

    return make


def batch_line(report: BatchReport) -> Line:
    counts: dict[str, Fact] = {
        kind.value.replace(" ", "_").replace("-", "_"): report.counts.get(kind, 0) for kind in Kind
    }
    facts: dict[str, Fact] = {"batch": report.batch, **counts, "seconds": round(report.seconds, 3)}
    return Line(event="batch", text=str(report), facts=facts)
