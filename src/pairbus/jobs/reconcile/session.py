"""What Spark is told that is to reconcile large ledgers on one machine."""

from __future__ import annotations

from typing import Final

SESSION: Final = {
    "spark.sql.shuffle.partitions": "64",  # Spark puts small ones together; large ones fit into memory
    "spark.driver.memory": "4g",  # at most: it takes what it needs
}
