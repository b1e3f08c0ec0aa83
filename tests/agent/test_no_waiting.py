"""Nothing in the hot path waits for a device.

Without a GPU, the probes run on fake CUDA tensors, on which everything that would look at a value raises:
item, bool, float, tolist, boolean masks, nonzero, cpu, numpy. A dispatch mode refuses blocking copies and
counts kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

import floatscope
from floatscope.catalog import Catalog
from floatscope.guard import Guard
from floatscope.look import GLANCE, SAMPLE, Look
from floatscope.probes.inputs import InputCheck
from floatscope.probes.layer_hooks import PlainLayers
from floatscope.probes.loss_scaler import LossScalerProbe
from floatscope.probes.measure import on_device
from floatscope.probes.naming import CallOrder
from floatscope.probes.optimizer import OptimizerProbe
from floatscope.probes.readout import Readout
from floatscope.probes.weight_updates import WeightUpdates
from floatscope.protocol.formats import FORMATS
from floatscope.protocol.runinfo import RunInfo
from floatscope.rows import Row
from tests.agent.conftest import read_log
from tests.agent.fake_cuda import FakeCuda

VIEWS = frozenset(
    {
        "view",
        "detach",
        "reshape",
        "alias",
        "split",
        "split_with_sizes",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "narrow",
        "_unsafe_view",
        "device",
        "lift_fresh",
    }
)
"""Operations without a kernel."""


class NoWaiting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses copies to the host that block, and counts kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    @property
    def kernels(self) -> int:
        """How many were launched; an upper bound, since a few operations launch none."""
        return self.names.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        operation = name.split(".")[1]
        self.names[operation] += operation not in VIEWS
        to_host = (
            name.startswith("aten._to_copy") and args[0].device.type == "cuda" and result.device.type == "cpu"
        )
        if to_host or name.startswith("aten._local_scalar_dense"):
            raise AssertionError(f"{name} waits for the device")
        return result


def catalog(**known: Any) -> Catalog:
    return Catalog(RunInfo(name="x", **known))


@pytest.mark.parametrize(
    "look", [lambda x: x.item(), bool, lambda x: x.cpu(), lambda x: x[x > 0], lambda x: float(x.sum())]
)
def test_the_fake_gpu_catches_what_waits(look: Callable[[Tensor], object]) -> None:
    with FakeTensorMode():
        x = torch.ones((), device="cuda")
        with NoWaiting(), pytest.raises(Exception, match=r".+"):
            look(x)


def test_the_optimizer_probe() -> None:
    with FakeTensorMode():
        model = nn.ParameterList([nn.Parameter(torch.ones(64, 64, device="cuda")) for _ in range(40)])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        guard = Guard(strict=True)
        probe = OptimizerProbe(
            model,
            optimizer,
            catalog=catalog(),
            order=CallOrder(),
            area=guard.area("probe", loses="all"),
            updates=WeightUpdates(budget_bytes=2**25, turn_steps=50),
            on_first_steps=lambda: None,
        )
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for is_sampled, most in ((False, 3), (True, 400)):
            probe.is_sampled = is_sampled
            with NoWaiting() as mode:
                probe._before_step(optimizer, (), {})
                probe._after_step(optimizer, (), {})
                readout = Readout()
                probe.collect(readout, Row(0, 0.0))
            assert not readout.is_empty
            assert mode.kernels <= most, f"sampled: {is_sampled}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", ["e4m3", "mxfp8_e4m3", "fp16", "bf16"])
def test_the_measurement_of_a_tensor(dtype: torch.dtype, fmt: str) -> None:
    with FakeTensorMode():
        x = torch.ones(64, 256, device="cuda", dtype=dtype)
        scale = torch.ones(64, 8, device="cuda") if fmt.startswith("mx") else torch.ones((), device="cuda")
        with NoWaiting() as mode:
            vector = on_device(x, x, scale if FORMATS[fmt].is_scaled else None, FORMATS[fmt])
        assert vector.shape == (12,)
        assert mode.kernels < 140


def test_the_input_check_and_the_loss_scale() -> None:
    with FakeTensorMode():
        guard = Guard(strict=True)
        check = InputCheck(catalog=catalog(vocab_size=100), area=guard.area("inputs", loses="all"))
        ids = torch.ones(4, 16, device="cuda", dtype=torch.int64)
        pixels = torch.ones(3, device="cuda")

        class Scaler:
            _scale = torch.ones((), device="cuda")

        with NoWaiting():
            check.see({"input_ids": ids, "labels": ids, "pixels": pixels})
            readout = Readout()
            check.collect(readout, Row(0, 0.0))
            LossScalerProbe(Scaler(), area=guard.area("scaler", loses="all")).collect(readout)
        assert not readout.is_empty


class FakeLinear(nn.Linear):
    """A linear layer on the fake GPU. Autograd needs a real one, so it stays out of it."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight.detach(), self.bias.detach())


class FakeEmbedding(nn.Embedding):
    """An embedding on the fake GPU."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.embedding(input, self.weight.detach())


def on_fake_gpu(kind: type[nn.Module], *sizes: int) -> nn.Module:
    """A module without initial values: to draw them would need a GPU."""
    with unset_fake_temporarily():
        made = kind(*sizes, device="meta")
    for name, parameter in list(made.named_parameters(recurse=False)):
        setattr(made, name, nn.Parameter(torch.empty(parameter.shape, device="cuda")))
    return made


class Block(nn.Module):
    """An embedding, linear layers with an activation between them, a head."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = on_fake_gpu(FakeEmbedding, 100, 32)
        self.layers = nn.ModuleList([on_fake_gpu(FakeLinear, 32, 32) for _ in range(layers)])
        self.head = on_fake_gpu(FakeLinear, 32, 100)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        out: Tensor = self.head(x)
        return out


def backward_by_hand(model: Block, monitor: Any, ids: Tensor) -> None:
    """What autograd would do: gradients at the weights, and the hooks on the layers' outputs."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    probes = getattr(getattr(monitor, "_probes", None), "_probes", [])  # none of a monitor that has finished
    hooked = [probe for probe in probes if isinstance(probe, PlainLayers)]
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            gradient = torch.ones(*ids.shape, module.out_features, device="cuda")
            for probe in hooked:
                probe._gradient_hook(name, "fp32")(gradient)


class GradScaler:
    """As much of torch's as is looked at; the real one waits for the device itself."""

    def __init__(self) -> None:
        self._scale = torch.full((), 1024.0, device="cuda")

    def unscale_(self) -> None: ...

    def is_enabled(self) -> bool:
        return True


LAYERS = 40
TENSORS = 1 + 3 * (LAYERS + 1)  # the embedding's output; input, weight, gradient of each linear layer


def steps_of(monitor: Any, model: Block, optimizer: Any, looks: Sequence[Look]) -> list[Counter[str]]:
    """Kernels of each step by operation. looks: how closely each step is looked at."""
    counts = []
    ids = torch.ones(4, 16, device="cuda", dtype=torch.int64)
    for look in looks:
        with NoWaiting() as mode:
            if monitor is not None:
                monitor._probes.begin(look)
                monitor.batch({"input_ids": ids, "labels": ids})
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            backward_by_hand(model, monitor, ids)
            optimizer.step()
            if monitor is not None:
                monitor.log({"aux_loss": loss})
                monitor.step(loss=loss, lr=0.1)
            optimizer.zero_grad()
        counts.append(mode.names)
    return counts


def test_a_whole_monitor_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All probes over a whole training loop: nothing waits, in no tier, and each tier's kernels are few.

    Always on: a fixed number a step, however many layers there are. On a cadence: so many per tensor (with
    eager operations; two with the fused kernel). On alert: the same for the suspects alone, plus histograms.
    """
    monkeypatch.setattr("floatscope.probes.lanes.Cuda", FakeCuda)
    monkeypatch.setattr("floatscope.monitor.LAST_READ_S", 0.0)
    suspect = Look(suspects=frozenset({"layers.3"}))
    looks = [SAMPLE, GLANCE, GLANCE, GLANCE, SAMPLE, suspect, GLANCE]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = Block(LAYERS)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
        alone = steps_of(None, model, optimizer, looks)[-1]
        scaler = GradScaler()
    monitor = floatscope.watch(
        model, optimizer, run="fake", mode="local", log_path=tmp_path / "run.jsonl", strict=True, gpu=False,
        scaler=scaler, check_format="e4m3", diagnose=False, recorder_steps=0, capture=False,
    )  # fmt: skip
    with mode:
        found = [names - alone for names in steps_of(monitor, model, optimizer, looks)]
    monitor.finish()
    counts = [names.total() for names in found]
    always, sampled, alert = counts[2], counts[4], counts[5]
    with capsys.disabled():
        print(
            f"\nkernels per step over the training's own {alone.total()}: always on {always} "
            f"({', '.join(f'{n} {name}' for name, n in found[2].most_common())}); "
            f"sampled {sampled} ({sampled / TENSORS:.0f} per tensor), on alert {alert}"
        )
    assert [*counts[1:4], counts[6]] == [always] * 4, "no other step pays for a sampled one"
    assert always <= 20
    assert sampled <= 230 * TENSORS, "half of it for the format to check"
    assert alert <= always + 260 * 3


def test_the_always_on_tier_does_not_grow_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four layers or forty: the same number of kernels."""
    monkeypatch.setattr("floatscope.probes.lanes.Cuda", FakeCuda)
    monkeypatch.setattr("floatscope.monitor.LAST_READ_S", 0.0)
    found = []
    for layers in (4, 40):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            model = Block(layers)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
            alone = steps_of(None, model, optimizer, [GLANCE] * 2)[-1]
        monitor = floatscope.watch(
            model, optimizer, run="fake", mode="local", log_path=tmp_path / f"{layers}.jsonl", strict=True,
            gpu=False, diagnose=False, recorder_steps=0, capture=False,
        )  # fmt: skip
        with mode:
            found.append((steps_of(monitor, model, optimizer, [GLANCE] * 3)[-1] - alone).total())
        monitor.finish()
    assert found[0] == found[1]


def test_nothing_is_launched_while_a_graph_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampled step inside the recording of a CUDA graph launches the training's kernels and no others."""
    monkeypatch.setattr("floatscope.probes.lanes.Cuda", FakeCuda)
    monkeypatch.setattr("floatscope.monitor.LAST_READ_S", 0.0)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = Block(4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
        ids = torch.ones(4, 16, device="cuda", dtype=torch.int64)
    monitor = floatscope.watch(
        model, optimizer, run="fake", mode="local", log_path=tmp_path / "run.jsonl", strict=True, gpu=False,
        diagnose=False, recorder_steps=0, capture=False, stats_every=1,
    )  # fmt: skip

    def iteration() -> int:
        with NoWaiting() as counter:
            monitor.batch({"input_ids": ids, "labels": ids})
            model(ids)
            backward_by_hand(model, monitor, ids)
            optimizer.step()
            optimizer.zero_grad()
        return int(counter.kernels)

    with mode:
        watched = iteration()
        for module in (
            "floatscope.probes.tensor_stats", "floatscope.probes.optimizer", "floatscope.probes.hashes",
            "floatscope.probes.inputs",
        ):  # fmt: skip
            monkeypatch.setattr(f"{module}.is_capturing", lambda: True)
        recorded = iteration()
        monitor.step()
    monitor.finish()
    with mode:
        alone = iteration()
    assert watched > alone
    assert recorded == alone


@pytest.mark.gpu
def test_a_whole_monitor_on_a_real_gpu(tmp_path: Path) -> None:
    """With synchronisation made an error: every tier, the same weights as unwatched, all values."""

    def train(watched: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 100)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
        monitor = floatscope.watch(
            model, optimizer, run="gpu", mode="local", log_path=tmp_path / "run.jsonl", strict=True,
            stats_every=3, check_format="e4m3", gpu=False, diagnose=False,
        ) if watched else None  # fmt: skip
        ids = torch.arange(64, device="cuda").reshape(4, 16)
        for step in range(12):
            if step == 4:  # everything has been compiled and allocated
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            if monitor is not None:
                monitor.batch({"input_ids": ids, "labels": ids})
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            torch.autograd.backward(loss)
            optimizer.step()
            if monitor is not None:
                monitor.step(loss=loss)
            optimizer.zero_grad()
        torch.cuda.set_sync_debug_mode("default")
        if monitor is not None:
            monitor.finish()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    try:
        assert torch.equal(train(watched=True), train(watched=False))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    _, rows = read_log(tmp_path / "run.jsonl")
    assert [row["step"] for row in rows] == list(range(12))
    assert all(isinstance(row["loss"], float) and row["grad_norm"] > 0 for row in rows)
    assert all("1/input" in rows[step]["tensors"] for step in (0, 3, 6, 9))
