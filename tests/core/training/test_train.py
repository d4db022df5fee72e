from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import tiny_training
import torch
from pydantic import ValidationError
from tiny_training import SPECS, batch_of, settings, weights

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.pair_vectors import PairVectors
from domain_embeddings.core.encoders.rotation import fit_rotation
from domain_embeddings.core.errors import ParameterError, ProvenanceError
from domain_embeddings.core.tasks.negatives import add_negatives
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.objective import Objective, layer_indices
from domain_embeddings.core.training.train import resolve_device, train
from domain_embeddings.core.training.trainer import TrainingError
from domain_embeddings.parameters import METHODS, UNTRAINED, RotationParameters

WIDTHS = [4, 8, 16, 32]
run = partial(tiny_training.run, widths=WIDTHS)
objective = partial(tiny_training.objective, widths=WIDTHS)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_names_its_components(world, method):
    before = weights(world[0]).clone()
    model, history, report = run(world, method=method)
    assert torch.equal(weights(world[0]), before), "the reference model was changed"
    assert report["method"] == method
    if method in UNTRAINED:
        assert torch.equal(weights(model[0]), before)
        assert history.empty
        return
    assert not torch.equal(weights(model), before)
    names = set(history["component"])
    assert {"loss", "info_nce"} <= names
    assert ("soft_collapse_corr" in names) == ("mic" in method)
    assert ("reze" in names) == ("reze" in method)
    assert history["value"].notna().all()
    assert sorted(history["step"].unique()) == [1, 2, 3]


@pytest.mark.parametrize("axes", ["contrastive", "shared"])
def test_the_method_rotation_takes_no_step_and_encodes_nothing(world, axes, monkeypatch):
    model, pairs, relations, _ = world

    def never(*_):
        raise AssertionError

    monkeypatch.setattr(type(model), "forward", never)
    rotated, history, report = run(world, method="rotation", rotation={"axes": axes})
    monkeypatch.undo()
    assert (report["method"], report["steps"], len(history)) == ("rotation", 0, 0)
    assert rotated.trained_widths == WIDTHS
    assert torch.equal(weights(rotated[0]), weights(model))
    stored = np.split(np.asarray(relations["vectors"], dtype=np.float64), 2, axis=1)
    basis, _ = fit_rotation(PairVectors.of(pairs, *stored), WIDTHS, axes=axes)
    expected = model.encode(["lost card", "new loan"]) @ basis
    np.testing.assert_allclose(rotated.encode(["lost card", "new loan"]), expected, atol=1e-5)


def test_the_method_rotation_needs_one():
    with pytest.raises(
        ValidationError, match=r"rotation needs rotation\.when; .*init, final, both"
    ):
        settings(method="rotation", rotation={"when": "none"})


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(world):
    first, second = (weights(run(world, method="reze_mic")[0]) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, weights(run(world, method="reze_mic", seed=1)[0]))


def test_gamma_and_alpha_zero_give_mrl_exactly(world):
    mrl = weights(run(world, method="mrl")[0])
    assert torch.equal(mrl, weights(run(world, method="reze_mic", gamma=0.0, alpha=0.0)[0]))
    assert not torch.equal(mrl, weights(run(world, method="reze_mic")[0]))


def test_an_empty_shrinkage_gives_distillation_to_the_reference(world):
    model, _, relations, shrinkage = world
    empty = Bundle(
        {
            "basis": np.zeros((64, 0)), "mean": shrinkage["mean"],
            "offset": np.zeros((3, 0)), "scale": np.ones((3, 0)), "columns": np.zeros(0, int),
        },
        shrinkage.header,
    )  # fmt: skip
    loss = Objective(model.eval(), WIDTHS, settings(method="reze"), relations, empty)
    batch, _ = batch_of(world)
    _, components = loss(batch)
    # An untrained model is its own reference: nothing to distil yet.
    assert components["reze"].item() == pytest.approx(0, abs=1e-6)


def test_chunks_change_neither_loss_nor_gradient(world):
    results = []
    for chunks in (1, 2, 6):
        loss = objective(world, method="reze_mic", layers="all")
        loss.model[0].auto_model.config.output_hidden_states = True
        loss.zero_grad()
        batch, _ = batch_of(world, chunks)
        total, _ = loss(batch)
        total.backward()
        gradient = torch.cat(
            [p.grad.flatten() for p in loss.model.parameters() if p.grad is not None]
        )
        results.append((total.item(), gradient))
        loss.model[0].auto_model.config.output_hidden_states = False
    for total, gradient in results[1:]:
        assert total == pytest.approx(results[0][0], abs=1e-5)
        assert torch.allclose(gradient, results[0][1], atol=1e-5)


def test_the_batch_restores_the_order_of_texts_and_pads_less_with_more_chunks(world):
    model = world[0]
    batch, collator = batch_of(world, chunks=1)
    one = collator.padding_ratio()
    batch, collator = batch_of(world, chunks=6)
    assert 1 <= collator.padding_ratio() < one
    rows = [row for chunk in batch["chunks"] for row in zip(*chunk.values(), strict=True)]
    lengths = torch.tensor(
        [int(row[list(batch["chunks"][0]).index("attention_mask")].sum()) for row in rows]
    )
    expected = [len(collator.pairs.rows[i]["input_ids"]) for i in batch["text_id"]]
    assert lengths[batch["inverse"]].tolist() == expected
    assert model.tokenizer.pad_token_id == 0


def test_prompts_reach_training(world):
    model, pairs, *_ = world
    tokens = tokenise_pairs(model, pairs, SPECS)
    fast = model.tokenizer.convert_tokens_to_ids("fast")
    first = {
        task: tokens.rows[tokens.anchor[i]]["input_ids"][1] for i, task in enumerate(pairs["task"])
    }
    assert first["faq"] == fast
    positive = pairs.index[pairs["task"] == "faq"][0]
    assert tokens.rows[tokens.positive[positive]]["input_ids"][1] != fast


def test_classes_are_told_apart_by_task_and_pairs_without_one_have_none(world):
    model, pairs, *_ = world
    labels = pairs.assign(label=["1", "1", None] * 20)
    codes = tokenise_pairs(model, labels, SPECS).label
    assert codes[0] == codes[3] != codes[1]
    assert codes[1] == codes[4]
    assert set(codes[2::3]) == {-1}
    nothing = pairs.assign(label=pd.Series([None] * len(pairs), dtype="string"))
    assert set(tokenise_pairs(model, nothing, SPECS).label) == {-1}


def test_vectors_of_another_model_or_table_are_refused(world):
    model, pairs, relations, shrinkage = world
    stale = Bundle(relations.arrays, {**relations.header, "weight_hash": "0000"})
    with pytest.raises(ProvenanceError, match="weight_hash"):
        train(model, pairs, SPECS, stale, shrinkage, parameters=settings(), widths=WIDTHS, seed=0)
    shuffled = pairs.iloc[::-1]
    with pytest.raises(ProvenanceError, match="pair_table_hash"):
        train(
            model, shuffled, SPECS, relations, shrinkage,
            parameters=settings(), widths=WIDTHS, seed=0,
        )  # fmt: skip


def test_a_loss_that_is_not_finite_stops_training_and_names_component_step_and_pairs(world):
    model, pairs, relations, shrinkage = world
    vectors = relations["vectors"].copy()
    vectors[:] = np.nan
    broken = Bundle({**relations.arrays, "vectors": vectors}, relations.header)
    with pytest.raises(TrainingError, match=r"step 1: .*reze.*pair_id"):
        train(
            model, pairs, SPECS, broken, shrinkage,
            parameters=settings(method="reze", rotation={"when": "none"}), widths=WIDTHS, seed=0,
        )  # fmt: skip
    assert not model[0].auto_model.config.output_hidden_states


def test_mixed_precision_leaves_no_wrapper_on_the_model(world):
    model, *_ = run(world, method="mrl", precision="bf16")
    assert not {"forward", "_original_forward"} & set(vars(model))
    first = model.encode("lost card")
    model.float()
    np.testing.assert_array_equal(model.encode("lost card"), first)


def test_a_text_is_the_same_text_under_another_prompt(world):
    model, pairs, *_ = world
    twin = pairs.copy()
    faq = twin.index[twin["task"] == "faq"][0]
    twin.loc[faq, "positive"] = twin.loc[faq, "anchor"]
    tokens = tokenise_pairs(model, twin, SPECS)
    assert tokens.anchor[faq] != tokens.positive[faq], "the prompt makes other tokens"
    assert tokens.text[tokens.anchor[faq]] == tokens.text[tokens.positive[faq]]


def test_another_prompt_is_another_pair_table(world):
    model, pairs, relations, shrinkage = world
    specs = [dict(spec, prompts={"query": "slow "}) for spec in SPECS]
    with pytest.raises(ProvenanceError, match="pair_table_hash"):
        train(
            model, pairs, specs, relations, shrinkage,
            parameters=settings(), widths=WIDTHS, seed=0,
        )  # fmt: skip


def test_only_methods_that_train_prefixes_name_them(world):
    methods = ("reference", "rotation", "plain", "mrl")
    nested = {m: run(world, method=m)[0].trained_widths for m in methods}
    assert nested == {"reference": [], "rotation": WIDTHS, "plain": [], "mrl": WIDTHS}
    assert run(world, method="reze", reze_main="full")[0].trained_widths == []


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError, match=r"training\.device: .*allowed: auto, cpu"):
        resolve_device("cuda")


def test_a_batch_larger_than_the_data_is_refused(world):
    with pytest.raises(ParameterError, match=r"training\.batch_size: 64.*2 to 60"):
        run(world, batch_size=64)


def test_weights_are_one_per_width_with_the_full_one(world):
    with pytest.raises(ParameterError, match=r"training\.weights: .*\[4, 8, 16, 32\].*got 3"):
        run(world, weights=[1.0, 1.0, 1.0])
    run(world, weights=[1.0, 1.0, 1.0, 2.0])


def test_truncated_texts_are_reported_by_task_and_can_be_refused(world):
    model, pairs, relations, shrinkage = world
    _, _, report = run(world, method="plain")
    assert set(report["truncated"]) == {"intents", "faq", "pairs"}
    longest = model.max_seq_length
    model.max_seq_length = 5
    header = {**relations.header, "max_length": 5}
    try:
        with pytest.raises(ParameterError, match=r"training\.max_truncated.*faq"):
            train(
                model, pairs, SPECS, Bundle(relations.arrays, header),
                Bundle(shrinkage.arrays, header),
                parameters=settings(max_truncated=0.0), widths=WIDTHS, seed=0,
            )  # fmt: skip
    finally:
        model.max_seq_length = longest


def test_middle_last_and_all_layers():
    assert layer_indices("middle", 6) == [2, 3, 4]
    assert layer_indices("last", 6) == [6]
    assert layer_indices("all", 3) == [1, 2, 3]
    assert layer_indices([2, 6], 6) == [2, 6]
    with pytest.raises(ParameterError, match=r"training\.layers: \[7\].*1 to 6"):
        layer_indices([7], 6)


@pytest.mark.parametrize("axes", ["contrastive", "shared", "principal"])
def test_a_rotated_start_leaves_the_reze_loss_as_it_was(world, axes):
    batch, _ = batch_of(world)
    from domain_embeddings.core.training.rotation import rotate_start
    from domain_embeddings.core.training.train import _copy

    model, _, relations, shrinkage = world
    _, plain = objective(world, method="reze", reze_main="full")(batch)
    rotated = _copy(model).eval()
    rotation = RotationParameters(axes=axes)
    moved = rotate_start(rotated, world[1], relations, shrinkage, rotation, widths=WIDTHS, seed=0)
    loss = Objective(rotated, WIDTHS, settings(method="reze", reze_main="full"), relations, moved)
    _, turned = loss(batch)
    for name in ("reze", "info_nce"):
        assert turned[name].item() == pytest.approx(plain[name].item(), abs=2e-6)


@pytest.mark.parametrize("when", ["init", "final", "both"])
def test_rotations_train_and_save(world, when, tmp_path):
    from sentence_transformers import SentenceTransformer

    model, *_ = run(world, method="reze_mic", rotation={"when": when, "centre": when == "final"})
    model.save_pretrained(str(tmp_path / when))
    loaded = SentenceTransformer(str(tmp_path / when))
    np.testing.assert_allclose(loaded.encode("lost card"), model.encode("lost card"), atol=1e-6)


@pytest.mark.parametrize("batches", ["mixed", "same_source"])
def test_the_sampling_report_counts_the_pairs_that_were_trained_on(world, batches, monkeypatch):
    drawn = []
    forward = Objective.forward

    def spy(self, batch):
        drawn.append(batch["pair_id"].numpy())
        return forward(self, batch)

    monkeypatch.setattr(Objective, "forward", spy)
    sampling = {"batches": batches, "sources": "temperature"}
    *_, report = run(world, method="mrl", steps=7, sampling=sampling)
    tasks = world[1]["task"].to_numpy()
    assert all((len(set(tasks[ids])) == 1) == (batches == "same_source") for ids in drawn)
    rows = np.concatenate(drawn)
    for source in report["sampling"]:
        mine = rows[tasks[rows] == source["task"]]
        assert (source["drawn"], source["distinct"]) == (len(mine), len(set(mine)))
    assert report["epochs"] == pytest.approx(7 / 5)


def test_own_and_mined_negatives_enter_the_loss_but_those_of_an_anchors_label_do_not(world):
    model, pairs, relations, shrinkage = world
    # Pairs 0, 3, 15 and 18 are of one task and have the labels 0, 3, 0, 3; only 0 and 3 are in the
    # batch. Pair 6 has the label 1.
    mined = pd.DataFrame({"pair_id": [6, 6, 1, 9], "rank": [1, 2, 1, 1]})
    mined["negative"] = [
        pairs.loc[15, "anchor"], pairs.loc[18, "positive"], pairs.loc[4, "positive"], "new loan",
    ]  # fmt: skip
    joined = add_negatives(pairs, mined, relations.header, relations.header)
    assert joined.loc[1, "negatives"] == ["good fish", pairs.loc[4, "positive"]]

    rows = joined.iloc[:12]
    prompts = {"faq": ("fast ", "")}
    texts = [
        (task, prompts.get(task, ("", ""))[1], text, label)
        for task, text, label in zip(rows["task"], rows["positive"], rows["label"], strict=True)
    ]
    label_of = {pairs.loc[15, "anchor"]: "0", pairs.loc[18, "positive"]: "3"}
    for task, negatives in zip(rows["task"], rows["negatives"], strict=True):
        texts += [(task, "", text, label_of.get(text)) for text in negatives]
    candidates = torch.tensor(model.encode([prompt + text for _, prompt, text, _ in texts]))
    anchors = torch.tensor(
        model.encode([prompts.get(r.task, ("", ""))[0] + r.anchor for r in rows.itertuples()])
    )
    losses, masked = [], 0
    for i, row in enumerate(rows.itertuples()):
        left_out = [
            j != i
            and (
                text in {row.anchor, row.positive}
                or (task == row.task and label is not None and label == row.label)
            )
            for j, (task, _, text, label) in enumerate(texts)
        ]
        masked += sum(left_out)
        scores = (anchors[i] @ candidates.T / 0.05).masked_fill(torch.tensor(left_out), -torch.inf)
        losses.append(-scores.log_softmax(0)[i])

    batch = PairCollator(model, tokenise_pairs(model, joined, SPECS), 4)(
        [{"pair_id": i} for i in range(12)]
    )
    loss = Objective(model.eval(), WIDTHS, settings(method="plain"), relations, shrinkage)
    total, components = loss(batch)
    assert total.item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    assert components["masked_negatives"].item() == masked
    without = {**batch, "negative_label": torch.full_like(batch["negative_label"], -1)}
    # Anchors 0 and 3 lose one candidate each: the negative of pair 6 that has their label.
    assert loss(without)[1]["masked_negatives"].item() == masked - 2


def test_auto_device_is_what_the_machine_has():
    assert resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    assert resolve_device("cpu") == "cpu"
