"""A Kedro data set for results in mteb's own format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kedro.io import AbstractVersionedDataset

from domain_embeddings.datasets.local import OnLocalDisk, folder_beside


class MtebResultsDataset(OnLocalDisk, AbstractVersionedDataset):
    """A folder that mteb's ``ResultCache`` reads: ``results/<model>/<revision>/<task>.json``.

    Narrower and otherwise changed variants of a model lie below ``experiments/<variant>``, each
    with its ``model_meta.json``. The folder appears under its name only when it is complete.

    Example:
        ::

            mteb_results:
              type: domain_embeddings.datasets.mteb_results.MtebResultsDataset
              filepath: data/07_model_output/mteb_results
              versioned: true
    """

    def load(self) -> Any:
        """Return mteb's ``BenchmarkResults`` of all models and variants."""
        from mteb.cache import ResultCache

        cache = ResultCache(Path(self._get_load_path()))
        return cache.load_results(include_remote=False, load_experiments="match_name")

    def save(self, data: Sequence[Any]) -> None:
        """Write results (``core.evaluation.mteb_results.MtebResult``)."""
        from mteb.cache import ResultCache

        path = Path(self._get_save_path())
        with folder_beside(path) as partial:
            cache = ResultCache(partial)
            for item in data:
                cache.save_to_cache(item.result, item.model)
            partial.rename(path)

    def _exists(self) -> bool:
        return Path(self._get_load_path()).is_dir()
