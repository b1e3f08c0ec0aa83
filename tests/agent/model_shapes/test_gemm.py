"""Sizes of GEMMs on one GPU."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.model_shapes.gemm import Gemm, gemm_shapes
from floatscope.model_shapes.reading import published_names, read_model
from floatscope.model_shapes.shape import ModelConfigError, Parallelism


def gemms(
    name: str, parallelism: Parallelism, *, micro_batch: int = 1, sequence: int = 4096
) -> dict[str, Gemm]:
    found = gemm_shapes(read_model(name), micro_batch=micro_batch, sequence=sequence, parallelism=parallelism)
    return {one.name.rpartition(".")[2]: one for one in found}


def test_without_parallelism_they_are_the_layers() -> None:
    for one in gemms("llama-3-8b", Parallelism(), micro_batch=2).values():
        assert one.tokens == 8192
        assert one.on_rank == one.count


def test_tensor_parallelism_cuts_columns_and_rows() -> None:
    found = gemms("llama-2-7b", Parallelism(tensor=8))
    assert (found["gate_proj"].k, found["gate_proj"].n) == (4096, 11008 // 8)
    assert (found["down_proj"].k, found["down_proj"].n) == (11008 // 8, 4096)
    assert (found["o_proj"].k, found["lm_head"].n) == (512, 4000)


def test_key_and_value_heads_are_copied_rather_than_split() -> None:
    found = gemms("llama-3-8b", Parallelism(tensor=16))
    assert (found["q_proj"].n, found["k_proj"].n) == (256, 128)


def test_context_expert_and_pipeline_parallelism() -> None:
    found = gemms("mixtral-8x7b", Parallelism(context=2, expert=4, pipeline=8), micro_batch=2)
    assert found["q_proj"].tokens == 4096
    assert found["w1"].tokens == 4096 * 4 * 2 // 8
    assert found["w1"].on_rank == 32 * 8 / 4 / 8
    assert found["lm_head"].on_rank == 1


def test_sequence_parallelism_divides_tokens_of_replicated_layers_only() -> None:
    found = gemms("deepseek-v3", Parallelism(tensor=8, sequence=True))
    assert found["kv_a_proj_with_mqa"].tokens == 512
    assert found["q_b_proj"].tokens == 4096


def test_a_side_that_cannot_be_cut_is_said() -> None:
    assert gemms("gpt2", Parallelism(tensor=4))["lm_head"].uncut == "n"
    assert gemms("llama-3-8b", Parallelism(tensor=4))["lm_head"].uncut == ""


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [
        ("llama-3-8b", Parallelism(tensor=3)),
        ("falcon-7b", Parallelism(tensor=2)),
        ("llama-3-8b", Parallelism(pipeline=33)),
        ("llama-3-8b", Parallelism(expert=2)),
        ("mixtral-8x7b", Parallelism(expert=3)),
        ("llama-3-8b", Parallelism(tensor=0)),
        ("llama-3-8b", Parallelism(data=-1)),
        ("llama-3-8b", Parallelism(context=2**40)),
    ],
)
def test_parallelism_that_does_not_fit(name: str, parallelism: Parallelism) -> None:
    with pytest.raises(ModelConfigError):
        gemms(name, parallelism)


@pytest.mark.parametrize(("micro_batch", "sequence"), [(0, 1), (1, 0), (-1, 4096), (1, 2**41)])
def test_batches_that_are_none(micro_batch: int, sequence: int) -> None:
    with pytest.raises(ModelConfigError, match="expected"):
        gemms("gpt2", Parallelism(), micro_batch=micro_batch, sequence=sequence)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(published_names()),
    tensor=st.sampled_from([1, 2, 4, 8, 16]),
    expert=st.sampled_from([1, 2, 4, 8]),
    sequence=st.booleans(),
)
def test_no_work_is_lost_by_cutting(name: str, tensor: int, expert: int, sequence: bool) -> None:
    """All GPUs together multiply at least what one would; more where heads are copied or sides padded."""
    model = read_model(name)
    try:
        cut = gemm_shapes(
            model, micro_batch=1, sequence=4096,
            parallelism=Parallelism(tensor=tensor, expert=expert, sequence=sequence),
        )  # fmt: skip
    except ModelConfigError:
        return
    for one, linear in zip(cut, model.linears, strict=True):
        ways = tensor if linear.split else 1
        assert one.k * one.n * ways >= linear.k * linear.n
        assert one.k <= linear.k
        assert one.n <= linear.n
        assert one.tokens >= 1
