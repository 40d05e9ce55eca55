"""What Spark is told that has a few rows to work on."""

from __future__ import annotations

from typing import Final

QUICK: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a few rows, to plan and to compile takes longer than the work."""
