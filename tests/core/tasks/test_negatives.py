from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.relations import pair_table_hash, pair_texts
from domain_embeddings.core.errors import ParameterError, ProvenanceError
from domain_embeddings.core.tasks.negatives import add_negatives, mine_negatives
from domain_embeddings.core.tasks.normalise import comparison_key
from domain_embeddings.parameters import NegativesParameters, check_parameters

SPECS = [
    {"name": "faq", "type": "retrieval", "prompts": {"query": "q: ", "document": "d: "}},
    {"name": "topics", "type": "classification", "prompts": None},
]
WIDTH = 8


def vector_of(text: str) -> np.ndarray:
    """Return a random unit vector that depends on the text alone."""
    made = np.random.default_rng(list(text.encode())).normal(size=WIDTH)
    return made / np.linalg.norm(made)


def make(rows: list[tuple]) -> tuple[pd.DataFrame, Bundle]:
    pairs = pd.DataFrame(rows, columns=["task", "anchor", "positive", "label", "negatives"])
    pairs.insert(0, "pair_id", range(len(pairs)))
    texts = pair_texts(pairs, SPECS, {})
    vectors = [np.concatenate([vector_of(a), vector_of(p)]) for a, p in zip(*texts, strict=True)]
    header = {
        "prompts": {},
        "model": "made",
        "pair_table_hash": pair_table_hash(pairs["task"], *texts),
    }
    return pairs, Bundle({"vectors": np.array(vectors, dtype=np.float32)}, header)


def questions(count: int = 30) -> list[tuple]:
    return [("faq", f"question {i}", f"answer {i}", None, []) for i in range(count)]


def topics(count: int = 30, labels: int = 4) -> list[tuple]:
    """Return pairs of two texts of one label."""
    return [
        ("topics", f"text {i}", f"text {(i + labels) % count}", f"label {i % labels}", [])
        for i in range(count)
    ]


def mine(rows, seed=0, **settings):
    pairs, vectors = make(rows)
    values = {"per_pair": 2, "margin": {"absolute": None, "relative": None}}
    mined, report = mine_negatives(
        pairs, vectors, SPECS, NegativesParameters(**values | settings), seed
    )
    return pairs, mined, report


def score(anchor: str, text: str, task: str = "faq") -> float:
    before = ("q: ", "d: ") if task == "faq" else ("", "")
    return float(vector_of(before[0] + anchor) @ vector_of(before[1] + text))


def test_the_default_mines_nothing_and_reads_no_vector():
    mined, report = mine_negatives(
        make(questions())[0], Bundle({}, {}), SPECS, NegativesParameters(), 0
    )
    assert list(mined.columns) == ["pair_id", "rank", "negative", "score"]
    assert (len(mined), report["total"], report["tasks"]) == (0, 0, {})


def test_the_most_similar_other_texts_of_the_task_come_first_with_rank_and_score():
    pairs, mined, report = mine(questions() + topics())
    for pair in pairs[pairs["task"] == "faq"].itertuples():
        others = sorted(
            (f"answer {i}" for i in range(30) if f"answer {i}" != pair.positive),
            key=lambda text: -score(pair.anchor, text),
        )
        found = mined[mined["pair_id"] == pair.pair_id]
        assert found["negative"].tolist() == others[:2]
        assert found["rank"].tolist() == [1, 2]
        assert found["score"].tolist() == pytest.approx(
            [score(pair.anchor, text) for text in others[:2]], abs=1e-6
        )
    assert report["total"] == len(mined) == 120
    assert report["tasks"]["faq"]["dropped"] == {"known positive": 30}


@pytest.mark.parametrize(
    ("margin", "allowed"),
    [
        ({"absolute": 0.3, "relative": None}, lambda positive, s: s <= positive - 0.3),
        ({"absolute": None, "relative": 0.5}, lambda p, s: s <= p - abs(p) * 0.5),
        ({"absolute": 0.1, "relative": 0.1}, lambda p, s: s <= min(p - 0.1, p - abs(p) * 0.1)),
    ],
)
def test_the_margin_is_taken_from_the_positive(margin, allowed):
    pairs, mined, report = mine(questions(), margin=margin, per_pair=3, range_max=40)
    kept = dropped = 0
    for pair in pairs.itertuples():
        positive = score(pair.anchor, pair.positive)
        others = [score(pair.anchor, f"answer {i}") for i in range(30) if i != pair.pair_id]
        fine = sorted((s for s in others if allowed(positive, s)), reverse=True)
        found = mined.loc[mined["pair_id"] == pair.pair_id, "score"].tolist()
        assert found == pytest.approx(fine[:3], abs=1e-6)
        kept += len(fine) >= 3
        dropped += len(others) - len(fine)
    assert 0 < kept < 30
    assert report["tasks"]["faq"]["pairs_with_fewer"] == 30 - kept
    assert report["tasks"]["faq"]["dropped"]["margin"] == dropped


def test_a_largest_score_and_a_range_pass_over_the_most_similar():
    pairs, mined, report = mine(questions(), max_score=0.5, range_min=3, range_max=10)
    above = 0
    for pair in pairs.itertuples():
        others = [score(pair.anchor, f"answer {i}") for i in range(30) if i != pair.pair_id]
        fine = sorted((s for s in others if s <= 0.5), reverse=True)
        above += len(others) - len(fine)
        found = mined.loc[mined["pair_id"] == pair.pair_id, "score"].tolist()
        assert found == pytest.approx(fine[3:5], abs=1e-6)
    assert report["tasks"]["faq"]["dropped"]["max_score"] == above > 0


def test_texts_of_the_same_label_are_never_negatives_however_many_are_close():
    pairs, mined, report = mine(topics(), per_pair=3)
    label = {f"text {i}": i % 4 for i in range(30)}
    label |= {pair.positive: int(pair.label[-1]) for pair in pairs.itertuples()}
    both = {pair.anchor: pair.label for pair in pairs.itertuples()}
    carried = {}
    for pair in pairs.itertuples():
        carried.setdefault(pair.positive, set()).add(pair.label)
    for row in mined.itertuples():
        own = pairs.loc[row.pair_id, "label"]
        assert both[row.negative] != own
        assert own not in carried[row.negative]
    assert (mined["pair_id"].value_counts() == 3).all()
    assert report["tasks"]["topics"]["dropped"]["same label"] > 0


def test_what_belongs_together_in_any_task_or_spelling_is_no_negative():
    rows = questions(12)
    rows += [
        # Known from another task, from the other side, and in another spelling.
        ("topics", "question 0", "answer 1", "label 0", []),
        ("topics", "Answer 2!", "question 0", "label 1", []),
        ("faq", "question 0", "answer 3", None, []),
        ("faq", "question 99", "Question 0.", None, []),
        ("faq", "question 98", "answer  4", None, ["Answer 5"]),
    ]
    pairs, mined, report = mine(rows, per_pair=20, range_max=40)
    of = {pair: set(rows["negative"]) for pair, rows in mined.groupby("pair_id")}
    everything = set(pairs.loc[pairs["task"] == "faq", "positive"])
    mine_ = {"answer 0", "answer 1", "answer 2", "answer 3", "Question 0."}
    assert of[0] == everything - mine_
    # The same anchor again: the same negatives.
    assert of[14] == of[0]
    last = of[16]
    assert {"answer  4", "answer 4", "answer 5"} & last == set()
    assert report["tasks"]["faq"]["dropped"]["already a negative"] == 1
    for row in mined[mined["pair_id"] == 0].itertuples():
        assert comparison_key(row.negative) != comparison_key("question 0")


def test_candidates_come_from_the_own_task():
    pairs, mined, _ = mine(questions() + topics())
    task = pairs.set_index("positive")["task"]
    assert (task[mined["negative"]].to_numpy() == pairs.loc[mined["pair_id"], "task"]).all()


def test_random_negatives_repeat_with_the_seed_and_leave_the_global_generator_alone():
    state = random.getstate()
    first, again, other = (
        mine(questions(), seed, sampling="random", range_max=20)[1] for seed in (0, 0, 1)
    )
    assert random.getstate() == state
    pd.testing.assert_frame_equal(first, again)
    assert first["negative"].tolist() != other["negative"].tolist()
    top = mine(questions(), range_max=20)[1]
    assert first["negative"].tolist() != top["negative"].tolist()
    assert (first.groupby("pair_id")["score"].diff().dropna() <= 0).all()


def test_a_task_without_candidates_gets_none_and_is_counted():
    rows = [("faq", f"question {i}", "the only answer", None, []) for i in range(3)]
    _, mined, report = mine(rows + topics())
    assert set(mined["pair_id"]) == set(range(3, 33))
    faq = report["tasks"]["faq"]
    assert (faq["mined"], faq["pairs_with_fewer"], faq["pairs_without"]) == (0, 3, 3)
    assert faq["mean_score"] is None


def test_large_tasks_are_searched_in_pieces_with_the_same_result(monkeypatch):
    whole = mine(questions(), margin={"relative": 0.05})
    monkeypatch.setattr("domain_embeddings.core.tasks.negatives._SCORES", 7 * 30)
    pieces = mine(questions(), margin={"relative": 0.05})
    pd.testing.assert_frame_equal(whole[1], pieces[1])
    assert whole[2] == pieces[2]


def test_mined_negatives_join_those_that_a_pair_has_and_leave_the_pair_table_alone():
    rows = questions(10)
    rows[0] = ("faq", "question 0", "answer 0", None, ["mine", "answer 1"])
    pairs, vectors = make(rows)
    parameters = NegativesParameters(per_pair=9, margin={"relative": None}, range_max=40)
    mined, report = mine_negatives(pairs, vectors, SPECS, parameters, 0)
    joined = add_negatives(pairs, mined, report, vectors.header)
    assert joined["negatives"][0][:2] == ["mine", "answer 1"]
    assert sorted(joined["negatives"][0][2:]) == [f"answer {i}" for i in range(2, 10)]
    assert len(joined["negatives"][3]) == 9
    assert pairs["negatives"][3] == []
    texts = pair_texts(joined, SPECS, {})
    assert pair_table_hash(joined["task"], *texts) == vectors.header["pair_table_hash"]


def test_vectors_or_negatives_of_another_pair_table_are_refused():
    pairs, vectors = make(questions())
    other = make(questions(29))[1]
    with pytest.raises(ProvenanceError, match="pair_table_hash"):
        mine_negatives(pairs, other, SPECS, NegativesParameters(per_pair=1), 0)
    mined, report = mine_negatives(pairs, vectors, SPECS, NegativesParameters(per_pair=1), 0)
    with pytest.raises(ProvenanceError, match="relations"):
        add_negatives(pairs, mined, report, other.header)


def test_a_range_too_narrow_for_what_is_wanted_is_refused():
    with pytest.raises(ParameterError, match=r"range_max: 4 leaves 1 ranks.*allowed: 6 or more"):
        check_parameters({"negatives": {"per_pair": 3, "range_min": 3, "range_max": 4}})


def test_negatives_for_a_method_that_sees_single_texts_are_refused():
    with pytest.raises(ParameterError, match=r"negatives\.per_pair: 2 .*simcse.*allowed: 0"):
        check_parameters({"negatives": {"per_pair": 2}, "training": {"method": "simcse"}})
