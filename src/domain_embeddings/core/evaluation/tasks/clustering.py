"""Clusters compared with labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from datasets import DatasetDict
from mteb.abstasks.clustering import AbsTaskClustering

from domain_embeddings.core.encoders.prompts import Role
from domain_embeddings.core.evaluation.resampling import Statistic, mean_statistic
from domain_embeddings.core.evaluation.tasks.base import (
    LocalTask,
    columns_of,
    require_classes,
    require_labels,
)


class ClusteringTask(LocalTask, AbsTaskClustering):
    """Repeated k-means on documents drawn with replacement.

    The unit of the bootstrap is the k-means run, not the document: the interval says how much the
    score depends on the documents drawn and on the start of k-means. Every encoder clusters the
    same draws, so differences are paired.
    """

    mteb_type = "Clustering"
    reported: ClassVar[Mapping[str, str]] = {"v_measure": "v_measure", "ami": "ami"}
    max_fraction_of_documents_to_embed = None
    max_document_to_embed = None
    # A sequence means that the column is called like its modality; a single name would be copied
    # row by row into a new data set for every encoder.
    input_column_name = ("text",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set the number of runs."""
        self.n_clusters = kwargs["options"].clustering_experiments
        super().__init__(*args, **kwargs)
        # mteb's default draws 16,384 documents with replacement, however few there are.
        self.max_documents_per_cluster = min(self.options.clustering_documents, self.count)

    def check(self) -> None:
        """Require two clusters."""
        super().check()
        require_labels(self, self.rows["label"], self.split)
        require_classes(self, self.rows["label"], self.split)

    def make_dataset(self) -> DatasetDict:
        """Return the evaluated split with the columns text and labels."""
        columns = {"text": "text", "labels": "label"}
        return DatasetDict({self.split: columns_of(self.rows, columns)})

    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield the documents."""
        yield from (("anchor", text) for text in self.rows["text"])

    @property
    def units(self) -> int:
        """Number of k-means runs."""
        return self.options.clustering_experiments

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return V-measure and AMI as means over the k-means runs."""
        return {
            "v_measure": mean_statistic(scores["v_measures"]["Level 0"]),
            "ami": mean_statistic(scores["ami_scores"]["Level 0"]),
        }
