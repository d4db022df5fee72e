"""Tests of the local tasks: scored as by mteb, reproducible, refused where they make no sense."""

from __future__ import annotations

import json
import random

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from mteb._evaluators.classification_metrics import hamming_score
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.clustering import AbsTaskClustering
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining
from mteb.abstasks.text.summarization import AbsTaskSummarization
from mteb.models.models_protocols import EncoderProtocol, SearchProtocol
from sklearn.metrics import accuracy_score, label_ranking_average_precision_score
from task_data import TYPES, records, specs
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.evaluation import nested
from domain_embeddings.core.evaluation.embed import embed
from domain_embeddings.core.evaluation.encoder import BankEncoder, BankView, task_prompts
from domain_embeddings.core.evaluation.metrics import METRIC_NAME
from domain_embeddings.core.evaluation.resampling import draw_counts
from domain_embeddings.core.evaluation.tasks import TASK_CLASSES, TaskOptions, build_tasks
from domain_embeddings.core.evaluation.tasks.classification import multilabel_outcomes
from domain_embeddings.core.evaluation.transforms import Transform
from domain_embeddings.core.statistics.axes import principal_axes

SEED = 7
OPTIONS = TaskOptions(
    samples_per_label=3,
    classification_experiments=4,
    clustering_documents=30,
    clustering_experiments=3,
)
IDENTITY = Transform("none")
WIDTH = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_sentence_transformer(tmp_path_factory.mktemp("tiny"), width=WIDTH)


@pytest.fixture(scope="module")
def tasks():
    return {task.name: task for task in make()}


@pytest.fixture(scope="module")
def bank(model, tasks):
    """Hold the texts that the tasks announce, and no others."""
    pairs = records().iloc[:0].assign(anchor=[], positive=[])
    bundle = embed(
        model, list(tasks.values()), pairs, specs(), batch_tokens=4_096, show_progress=False
    )
    return EmbeddingBank(bundle)


def make(frame=None, *types, options=OPTIONS, seed=SEED):
    frame = records() if frame is None else frame
    return build_tasks(frame, specs(*types), split="test", seed=seed, options=options)


def encoder(bank, width=WIDTH, transform=IDENTITY):
    return BankEncoder(BankView(bank, task_prompts(specs(), {}), transform), width)


def plain_task(kind):
    """Build the task directly on mteb's classes, without anything of ours."""
    rows = records()
    rows = rows[rows["task"] == kind]
    base, mteb_type, main, settings, data = _plain(kind, rows)

    class Plain(base):
        metadata = TaskMetadata(
            name=f"plain_{kind}",
            description="d",
            dataset={"path": "none", "revision": "none"},
            type=mteb_type,
            eval_langs=["eng-Latn"],
            main_score=main,
        )

        def load_data(self, *args, **kwargs):
            self.dataset, self.data_loaded = data, True

    for name, value in settings.items():
        setattr(Plain, name, value)
    return Plain(seed=SEED)


def _plain(kind, rows):  # noqa: PLR0911
    test = rows[rows["split"] == "test"]
    both = {"sentence1": test["text"].tolist(), "sentence2": test["text2"].tolist()}
    if kind == "classification":
        splits = {
            split: Dataset.from_dict({"text": r["text"].tolist(), "label": r["label"].tolist()})
            for split, r in rows.groupby("split")
        }
        settings = {"samples_per_label": 3, "n_experiments": 4}
        return AbsTaskClassification, "Classification", "accuracy", settings, DatasetDict(splits)
    if kind == "multilabel":
        splits = {
            split: Dataset.from_dict(
                {"text": r["text"].tolist(), "label": [json.loads(text) for text in r["label"]]}
            )
            for split, r in rows.groupby("split")
        }
        settings = {"samples_per_label": 3, "n_experiments": 4}
        return (
            *(AbsTaskMultilabelClassification, "MultilabelClassification", "accuracy", settings),
            DatasetDict(splits),
        )
    if kind == "summarization":
        settings, texts = {"min_score": 1.0, "max_score": 6.0}, []
        for text, r in test.groupby("text", sort=False):
            rated = r["score"].notna()
            texts.append(
                {
                    "text": text,
                    "human_summaries": r["text2"][~rated].tolist(),
                    "machine_summaries": r["text2"][rated].tolist(),
                    "relevance": r["score"][rated].tolist(),
                }
            )
        data = DatasetDict(test=Dataset.from_list(texts))
        return AbsTaskSummarization, "Summarization", "cosine_spearman", settings, data
    if kind == "clustering":
        columns = {"sentences": test["text"].tolist(), "labels": test["label"].tolist()}
        settings = {
            "max_fraction_of_documents_to_embed": None,
            "max_documents_per_cluster": 30,
            "n_clusters": 3,
        }
        data = DatasetDict(test=Dataset.from_dict(columns))
        return AbsTaskClustering, "Clustering", "v_measure", settings, data
    if kind == "pair_classification":
        data = DatasetDict(test=Dataset.from_dict({**both, "labels": test["label"].astype(int)}))
        return AbsTaskPairClassification, "PairClassification", "cosine_ap", {}, data
    if kind == "sts":
        data = DatasetDict(test=Dataset.from_dict({**both, "score": test["score"].tolist()}))
        return AbsTaskSTS, "STS", "cosine_spearman", {}, data
    if kind == "bitext_mining":
        return (
            *(AbsTaskBitextMining, "BitextMining", "accuracy", {}),
            DatasetDict(test=Dataset.from_dict(both)),
        )
    asked = test[test["text"].notna()]
    split = {
        "corpus": Dataset.from_dict(
            {"id": test["text2_id"].tolist(), "text": test["text2"].tolist()}
        ),
        "queries": Dataset.from_list(
            [{"id": i, "text": t} for i, t in dict(zip(asked.text_id, asked.text)).items()]
        ),
        "relevant_docs": {
            query: {row.text2_id: int(row.score) for row in group.itertuples()}
            for query, group in asked.groupby("text_id", sort=False)
        },
        "top_ranked": None,
    }
    if kind == "reranking":
        split["top_ranked"] = {
            query: group["text2_id"].tolist() for query, group in asked.groupby("text_id")
        }
    name = "Reranking" if kind == "reranking" else "Retrieval"
    return AbsTaskRetrieval, name, "ndcg_at_10", {}, {"default": {"test": split}}


@pytest.mark.parametrize("kind", TYPES)
def test_full_width_equals_what_plain_mteb_says_about_the_model(model, bank, tasks, kind):
    result = mteb.evaluate(
        model, plain_task(kind), cache=None, show_progress_bar=False, co2_tracker=False
    )
    expected = result.task_results[0].scores["test"][0]
    ours = tasks[kind].run(encoder(bank))
    for name, theirs in tasks[kind].reported.items():
        found = ours.values[name.replace("@", "_at_")]
        assert found == pytest.approx(expected[theirs], abs=1e-6), name
    assert ours.values[ours.main] == pytest.approx(expected["main_score"], abs=1e-6)
    assert 0.02 < expected["main_score"] < 1.0, "the comparison says nothing at the extremes"


def test_the_cosine_decides_about_pairs_and_the_best_measure_stands_beside_it(bank, tasks):
    result = tasks["pair_classification"].run(encoder(bank, 4))
    assert result.main == "cosine_ap"
    assert result.values["ap"] > result.values["cosine_ap"]


@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_searching_finds_what_a_sorted_list_of_all_documents_begins_with(bank, tasks, kind):
    split = tasks[kind].dataset["default"]["test"]
    searched = encoder(bank, 8)
    searched.index(split["corpus"], task_metadata=tasks[kind].metadata)
    found = searched.search(
        split["queries"],
        task_metadata=tasks[kind].metadata,
        top_k=3,
        top_ranked=split["top_ranked"],
    )
    documents = dict(zip(split["corpus"]["id"], split["corpus"]["text"], strict=True))
    prompts = searched.view.prompts[kind]
    assert set(prompts.values()) == {""}
    for query, text in zip(split["queries"]["id"], split["queries"]["text"], strict=True):
        names = split["top_ranked"][query] if split["top_ranked"] else list(documents)
        asked = searched.embed([text], kind, "anchor")[0]
        similar = searched.embed([documents[name] for name in names], kind, "positive") @ asked
        best = [names[row] for row in np.argsort(-similar)[:3]]
        assert list(found[query]) == best
        np.testing.assert_allclose(
            list(found[query].values()), np.sort(similar)[::-1][:3], atol=1e-6
        )


def test_blocks_of_queries_change_nothing(bank, tasks, monkeypatch):
    whole = tasks["retrieval"].run(encoder(bank)).values
    monkeypatch.setattr(nested, "_BLOCK_ELEMENTS", 100)
    assert tasks["retrieval"].run(encoder(bank)).values == pytest.approx(whole, abs=1e-9)


@pytest.mark.parametrize("kind", TYPES)
def test_drawing_every_row_once_reproduces_the_score(bank, tasks, kind):
    result = tasks[kind].run(encoder(bank, 4))
    once = draw_counts(np.arange(result.units)[None, :])
    assert result.main in result.statistics
    for name, statistic in result.statistics.items():
        # mteb rounds the scores of retrieval to five decimals.
        assert statistic(once)[0] == pytest.approx(result.values[name], abs=6e-6), name


@pytest.mark.parametrize("kind", TYPES)
def test_scores_do_not_depend_on_what_was_scored_before(bank, kind):
    first, second = make(None, kind)[0], make(None, kind)[0]
    forward = [first.run(encoder(bank, width)).values for width in (4, 32)]
    random.random()  # noqa: S311
    backward = [second.run(encoder(bank, width)).values for width in (32, 4)]
    assert forward == backward[::-1]
    assert first.run(encoder(bank, 4)).values == forward[0]


def test_other_seeds_draw_other_probes(model):
    def drawn(seed):
        return {text for _, text in make(None, "classification", seed=seed)[0].texts()}

    assert drawn(1) != drawn(2)
    assert drawn(1) == drawn(1)


def _seed_all():
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def _drawn():
    return random.random(), np.random.random(), torch.rand(1).item()  # noqa: S311


@pytest.mark.parametrize("kind", TYPES)
def test_global_random_generators_are_left_alone(bank, kind):
    _seed_all()
    expected = _drawn()
    _seed_all()
    make(None, kind)[0].run(encoder(bank, 4))
    assert _drawn() == expected


def test_the_probe_trains_on_the_rows_that_mteb_would_draw(tasks):
    plain = plain_task("classification")
    plain.load_data()
    order, expected = None, []
    for experiment in range(4):
        _, order, rows = plain._undersample_data(plain.dataset["train"], experiment, order)
        expected.append(rows)
    assert tasks["classification"].probes == expected
    assert expected[0] != expected[1]


def test_a_record_without_query_is_a_distractor_of_the_corpus(tasks):
    split = tasks["retrieval"].dataset["default"]["test"]
    assert len(split["queries"]) == tasks["retrieval"].count == 40
    assert len(split["corpus"]) == 80


def test_equal_documents_are_one_document_of_the_corpus():
    frame = records()
    rows = frame["task"] == "retrieval"
    doubled = frame[rows & (frame["text2_id"] == "d0")].assign(text_id="other", text="bank")
    task = make(frame[rows].merge(doubled, how="outer"), "retrieval")[0]
    assert len(task.dataset["default"]["test"]["corpus"]) == 80
    assert task.count == 41


def test_k_means_never_draws_more_documents_than_there_are():
    options = TaskOptions(clustering_documents=1_024)
    assert make(None, "clustering", options=options)[0].max_documents_per_cluster == 40


def test_a_rotation_changes_no_score_based_on_cosines(bank, tasks):
    _, basis = principal_axes(bank.vectors)
    rotated = Transform("rotated", basis.astype(np.float32))
    for kind, metric in [("sts", "spearman"), ("pair_classification", "cosine_ap")]:
        before = tasks[kind].run(encoder(bank)).values[metric]
        after = tasks[kind].run(encoder(bank, transform=rotated)).values[metric]
        assert after == pytest.approx(before, abs=1e-6)


def test_every_metric_name_is_safe(bank, tasks):
    for task in tasks.values():
        assert all(METRIC_NAME.fullmatch(name) for name in task.run(encoder(bank, 4)).values)


def test_the_encoder_follows_both_protocols_of_mteb(bank):
    assert isinstance(encoder(bank), EncoderProtocol)
    assert isinstance(encoder(bank), SearchProtocol)


@pytest.mark.parametrize("width", [1, 5, 32])
def test_encoded_prefixes_have_norm_one(bank, tasks, width):
    seen = []

    class Spy(BankEncoder):
        def embed(self, *args, **kwargs):
            seen.append(super().embed(*args, **kwargs))
            return seen[-1]

    tasks["sts"].run(Spy(BankView(bank, task_prompts(specs(), {}), IDENTITY), width))
    for vectors in seen:
        assert vectors.dtype == np.float32
        assert vectors.shape == (40, width)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_queries_and_documents_are_looked_up_under_their_own_prompts(model):
    described = specs("retrieval", prompts={"query": "find ", "document": "write "})
    task = build_tasks(records(), described, split="test", seed=0)[0]
    pairs = records().iloc[:0].assign(anchor=[], positive=[])
    bundle = embed(model, [task], pairs, described, batch_tokens=4_096, show_progress=False)
    bank = EmbeddingBank(bundle)
    asked = []

    class Spy(EmbeddingBank):
        def rows(self, texts, prompt=""):
            asked.append((prompt, len(texts)))
            return super().rows(texts, prompt)

    task.run(
        BankEncoder(BankView(Spy(bundle), task_prompts(described, model.prompts), IDENTITY), 8)
    )
    assert sorted(asked) == [("find ", 40), ("write ", 80)]
    assert len(bank) == 120


def test_an_unevaluated_task_is_left_out():
    described = specs("sts", "clustering")
    described[0]["uses"] = ["train"]
    tasks = build_tasks(records(), described, split="test", seed=0)
    assert [task.name for task in tasks] == ["clustering"]


def test_a_type_without_a_score_is_left_out_aloud(caplog):
    described = [*specs("sts"), {"name": "notes", "type": "unlabelled", "uses": ["evaluate"]}]
    assert len(build_tasks(records(), described, split="test", seed=0)) == 1
    assert "'notes' is not scored" in caplog.text


def test_no_task_at_all_is_refused():
    described = specs("sts")
    described[0]["uses"] = ["train"]
    with pytest.raises(DataError, match="No task can be evaluated"):
        build_tasks(records(), described, split="test", seed=0)


@pytest.mark.parametrize("kind", TASK_CLASSES)
def test_a_missing_split_is_named(kind):
    with pytest.raises(DataError, match=f"'{kind}'.*no rows in the split 'dev'"):
        build_tasks(records(), specs(kind), split="dev", seed=0)


def _one_class(frame):
    return frame.assign(label=frame["label"].where(frame["split"] == "train", "1"))


BROKEN = [
    ("classification", _one_class, "only the label.*'1'.*split 'test'"),
    ("classification", lambda f: f[f["split"] == "test"], "no rows in the split 'train'"),
    ("classification", lambda f: f[(f.split == "test") | (f.label == "label 0")], "split 'train'"),
    ("clustering", _one_class, "only the label"),
    ("classification", lambda f: f.assign(label=None), "rows without a label in the split 'test'"),
    ("clustering", lambda f: f.assign(label=np.nan), "rows without a label in the split 'test'"),
    ("pair_classification", lambda f: f.assign(label=None), "rows without a label"),
    ("multilabel", lambda f: f.assign(label=None), "rows without a label in the split 'test'"),
    ("multilabel", lambda f: f.assign(label='["a"]'), "only the label.*'a'.*split 'test'"),
    ("multilabel", lambda f: f[f["split"] == "test"], "no rows in the split 'train'"),
    (
        "multilabel",
        lambda f: f[(f["split"] == "test") | (f["row"] < 4)],
        "4 training rows for a probe of 5 nearest neighbours",
    ),
    ("summarization", lambda f: f.assign(score=1.0), "no text with summaries of different scores"),
    ("summarization", lambda f: f.assign(score=np.nan), "no text with summaries of different sc"),
    ("pair_classification", _one_class, "only the label"),
    ("pair_classification", lambda f: f.assign(label="yes"), "'yes'; allowed: 1"),
    ("sts", lambda f: f.assign(score=1.0), "gold scores that vary"),
    ("sts", lambda f: f.assign(score=[np.nan, *f["score"][1:]]), "without gaps"),
    ("retrieval", lambda f: f.assign(score=0.0), "no query with a relevant document"),
]


@pytest.mark.parametrize(("kind", "spoil", "message"), BROKEN)
def test_data_that_cannot_be_scored_are_refused_with_task_and_place(kind, spoil, message):
    frame = records()
    with pytest.raises(DataError, match=f"Task '{kind}' .*{message}.*made.jsonl:1"):
        make(spoil(frame[frame["task"] == kind]), kind)


def test_labels_without_training_rows_are_told(caplog):
    frame = records()
    keep = (frame["split"] == "test") | (frame["label"] != "label 3")
    make(frame[keep], "classification")
    assert "1 labels of the split 'test' have no training row, for example 'label 3'" in caplog.text


def test_outcomes_of_several_labels_have_the_metrics_of_mteb_as_means():
    rng = np.random.default_rng(1)
    truth, predicted = (rng.integers(2, size=(200, 5)) for _ in range(2))
    truth[:3], predicted[:3] = [[0] * 5, [1] * 5, [0] * 5], [[0] * 5, [1] * 5, [1] * 5]
    found = multilabel_outcomes(truth, predicted)
    expected = {
        "accuracy": accuracy_score(truth, predicted),
        "lrap": label_ranking_average_precision_score(truth, predicted),
        "hamming": hamming_score(truth, predicted),
    }
    for name, value in expected.items():
        assert found[name].mean() == pytest.approx(value, abs=1e-12), name


def test_texts_without_a_reference_are_compared_with_their_summaries():
    frame = records()
    frame = frame[(frame["task"] == "summarization") & frame["score"].notna()]
    described = specs("summarization", prompts={"query": "whole ", "document": "short "})
    [task] = build_tasks(frame, described, split="test", seed=0)
    assert set(task.texts()) == {
        *(("anchor", text) for text in frame["text"]),
        *(("positive", text) for text in frame["text2"]),
    }


def test_a_text_whose_summaries_have_one_score_is_left_out_aloud(caplog):
    frame = records()
    frame = frame[frame["task"] == "summarization"]
    first = frame["text"] == frame["text"].iloc[0]
    equal = frame["score"].mask(first & frame["score"].notna(), 1.0)
    [task] = make(frame.assign(score=equal), "summarization")
    assert task.count == 9
    assert "1 of 10 texts have no summaries of different scores" in caplog.text


@pytest.fixture(scope="module")
def collapsed(bank):
    """Hold one and the same vector for every text."""
    vectors = np.full_like(bank.vectors, WIDTH**-0.5)
    keys = np.ascontiguousarray(bank._keys).view(np.uint8).reshape(-1, 16)
    return EmbeddingBank(Bundle({"vectors": vectors, "keys": keys}, bank.header))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("kind", TYPES)
def test_a_collapsed_model_has_a_score_on_every_type(collapsed, kind):
    result = make(None, kind)[0].run(encoder(collapsed, 4))
    assert all(0 <= value <= 1 for value in result.values.values())
    counts = draw_counts(np.arange(result.units)[None, :])
    for name, statistic in result.statistics.items():
        assert statistic(counts)[0] == pytest.approx(result.values[name], abs=6e-6), name


@pytest.mark.parametrize("kind", ["sts", "summarization"])
def test_equal_similarities_count_as_no_correlation_and_are_told(collapsed, caplog, kind):
    result = make(None, kind)[0].run(encoder(collapsed, 4))
    assert result.values == {"spearman": 0.0, "pearson": 0.0}
    assert f"Task '{kind}': spearman of 'local/bank' at width 4 is not defined" in caplog.text
