"""No machine, however odd, makes a check raise, and nothing that was not read passes."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from floatscope.preflight.check import STATUSES
from floatscope.preflight.facts import Facts, GpuFacts, Wanted
from floatscope.preflight.machine import machine_checks
from floatscope.preflight.recipe_matrix import recipe_matrix
from floatscope.protocol.names import RECIPES
from tests.agent.preflight.machines import HEALTHY

VERSIONS = st.sampled_from(
    [
        "",
        "1.0",
        "2.19.0",
        "2.20.2",
        "12.10",
        "12.4",
        "9.23.0",
        "13.0",
        "0.18.0",
        "580.65",
        "odd",
        "٣.١",
        "9" * 30,
    ]
)
NAMES = st.sampled_from(
    ["NVIDIA H100 80GB HBM3", "NVIDIA B200", "NVIDIA GeForce RTX 5090", "AMD Instinct MI300X", "", "é\x00"]
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
DISTRIBUTIONS = st.sampled_from(
    [
        "torch", "transformer-engine", "transformer-engine-torch", "transformer-engine-cu12",
        "transformer-engine-cu13", "torchao", "flash-attn", "flash-attn-3", "accelerate", "transformers",
        "megatron-core",
    ]
)  # fmt: skip
ENVIRONMENT = st.sampled_from(
    ["CUDA_VISIBLE_DEVICES", "NVTE_NVFP4_DISABLE_RHT", "CUBLAS_WORKSPACE_CONFIG", "HIP_VISIBLE_DEVICES"]
)

gpus = st.builds(
    GpuFacts,
    st.integers(0, 7),
    NAMES,
    st.none() | st.tuples(st.integers(0, 20), st.integers(0, 9)),
    st.none() | st.integers(0, 2**40),
    st.sampled_from(["", "sm_90", "gfx942", "gfx950:x", "gfx90a", "odd"]),
    st.dictionaries(st.sampled_from(sorted(HEALTHY)), ODD, max_size=8).map(lambda more: {**HEALTHY, **more})
    | st.dictionaries(st.sampled_from(sorted(HEALTHY)), ODD, max_size=4),
    st.dictionaries(st.sampled_from([*HEALTHY, "handle"]), st.text(max_size=10), max_size=3),
)
machines = st.builds(
    Facts,
    python=st.just("3.11.7"),
    versions=st.dictionaries(DISTRIBUTIONS, VERSIONS, max_size=6),
    environment=st.dictionaries(
        ENVIRONMENT, st.sampled_from(["", "0", "1", "0,1", "GPU-x", ",", "MIG-1,MIG-2"])
    ),
    gpus=st.lists(gpus, max_size=3).map(tuple),
    nvml=st.sampled_from(["", "no answer within 5 s", "NVMLError_Odd: x"]),
    driver=VERSIONS,
    cuda_driver=st.sampled_from([(), (12, 8), (13, 0)]),
    torch=st.dictionaries(
        st.sampled_from(["version", "cuda", "hip", "cudnn", "nccl", "flags", "cuda_available", "devices"]),
        ODD | VERSIONS,
    ),
    libraries=st.dictionaries(
        st.sampled_from(["cublaslt", "te_import", "te_available", "kernel_driver", "xids", "nvml"]),
        ODD | VERSIONS,
    ),
    failed=st.dictionaries(st.sampled_from(["torch", "versions", "xids", "torch.cuda"]), st.text(max_size=8)),
)
wanted = st.builds(
    Wanted,
    recipe=st.sampled_from(["", *RECIPES, "no_such_recipe"]),
    library=st.sampled_from(["", "transformer_engine", "torchao", "torch", "megatron", "accelerate", "odd"]),
)


@settings(max_examples=60, deadline=None, phases=[Phase.generate, Phase.shrink])
@given(machines, wanted)
def test_no_machine_makes_a_check_raise(facts: Facts, asked: Wanted) -> None:
    checks = machine_checks(facts, asked)
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.status in STATUSES
        assert check.read
        assert check.why
        assert check.source
    matrix = recipe_matrix(facts)
    assert set(matrix) == set(RECIPES)
    assert all(status in STATUSES and why for status, why in matrix.values())


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(RECIPES), st.sampled_from(["", "torchao", "transformer_engine"]))
def test_nothing_read_is_nothing_passed(recipe: str, library: str) -> None:
    facts = Facts(nvml="not asked", failed={"versions": "not read", "torch": "not read"})
    statuses = {check.status for check in machine_checks(facts, Wanted(recipe=recipe, library=library))}
    assert "pass" not in statuses
