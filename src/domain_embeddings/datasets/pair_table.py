"""A Kedro data set for tables with a column of lists."""

from __future__ import annotations

from typing import NewType

from kedro_datasets.pandas import ParquetDataset

# Kedro-Viz chooses how to draw a preview by the name of its type.
TablePreview = NewType("TablePreview", dict)


class PairTableDataset(ParquetDataset):
    """Kedro's parquet data set, previewed with lists as lists.

    The original previews them as numpy arrays, which Kedro-Viz cannot send to the browser.
    """

    def preview(self, nrows: int = 5) -> TablePreview:
        """Return the first rows, for Kedro-Viz.

        Args:
            nrows: How many.

        Returns:
            Index, columns and data.
        """
        import pyarrow.parquet as pq

        # Read whole: the file may be anywhere that Kedro's file systems reach.
        with self._fs.open(str(self._get_load_path())) as file:
            rows = pq.read_table(file).slice(0, nrows).to_pylist()
        columns = list(rows[0]) if rows else []
        return TablePreview(
            {
                "index": list(range(len(rows))),
                "columns": columns,
                "data": [[row[column] for column in columns] for row in rows],
            }
        )
