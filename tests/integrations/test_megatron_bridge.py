"""Megatron-Bridge's own training loop and callbacks on the CPU.

Real: ``megatron.bridge.training``'s train, train_step, callbacks and TensorInspectConfig; megatron-core's
model, schedule and optimizer (``megatron_cpu``). Stand-ins: packages that need a GPU and Megatron-Bridge's
library of models while it is imported, its global state, and what it does beside training: checkpoints,
profiling, its own log, and the evaluation's passes.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from tests.integrations.megatron_cpu import LENGTH, batch, model_and_optimizer, on_cpu
from tests.integrations.one_rank import flat_weights, rows_of, settings, tensors_with
from tests.integrations.stand_ins import empty_packages

STEPS = 4
MICRO_BATCHES = 2
GPU_PACKAGES = (
    "transformer_engine", "transformer_engine_torch", "triton", "modelopt", "nvidia_resiliency_ext",
    "nvdlfw_inspect", "multistorageclient", "wandb", "mlflow", "transformers", "datasets",
    "megatron.bridge.models", "megatron.bridge.data", "megatron.bridge.peft",
)  # fmt: skip


@pytest.fixture(scope="module")
def bridge() -> Iterator[Any]:
    """The module ``megatron.bridge.training.train``, on a job of one rank."""
    for name in ("torch._dynamo", "torch.utils.flop_counter", "torch._functorch.partitioners"):
        importlib.import_module(name)
    megatron: Any = importlib.import_module("megatron")
    package = types.ModuleType("megatron.bridge")  # its own __init__ imports the library of models
    package.__path__ = [str(Path(place) / "bridge") for place in megatron.__path__]
    with pytest.MonkeyPatch.context() as patch, empty_packages(*GPU_PACKAGES), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "megatron.bridge", package)
        patch.setattr(megatron, "bridge", package, raising=False)
        train = importlib.import_module("megatron.bridge.training.train")
        with on_cpu():
            yield train
    for name in [loaded for loaded in sys.modules if loaded.startswith("megatron.bridge")]:
        del sys.modules[name]


def forward_step(iterator: Any, model: Any) -> Any:
    """As users write it: the output, and a function from it to (loss, what is logged)."""
    ids = next(iterator)
    places = torch.arange(LENGTH).expand_as(ids)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1) > 0

    def loss_function(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = output.float().mean()
        return loss, {"lm loss": loss.detach()}

    return model(ids, places, mask, labels=ids), loss_function


def state_of(*, eval_interval: int, clip_grad: float) -> Any:
    """Megatron-Bridge's global state, as far as ``train`` reads it."""
    state = MagicMock()
    state.train_state = types.SimpleNamespace(
        step=0,
        consumed_train_samples=0,
        skipped_train_samples=0,
        floating_point_operations_so_far=0,
        do_valid=True,
    )
    state.energy_monitor = state.nvrx_straggler_manager = state.tensorboard_logger = state.wandb_logger = None
    cfg = state.cfg
    cfg.to_dict = lambda: {"train": {"train_iters": STEPS}}
    cfg.train.train_iters, cfg.train.micro_batch_size = STEPS, 2
    cfg.train.manual_gc, cfg.train.iterations_to_skip, cfg.train.eval_iters = False, [], 1
    cfg.train.check_weight_hash_across_dp_replicas_interval = None
    cfg.train.empty_unused_memory_level, cfg.train.eval_interval = 0, eval_interval
    cfg.data_parallel_size = 1
    cfg.profiling = cfg.straggler = cfg.tensor_inspect = cfg.dist.distributed_timeout_seconds_after_init = (
        None
    )
    cfg.ddp.use_megatron_fsdp = cfg.dist.use_decentralized_pg = cfg.logger.log_params_norm = False
    cfg.optimizer.use_distributed_optimizer = cfg.optimizer.reuse_grad_buf_for_mxfp8_param_ag = False
    cfg.optimizer.log_num_zeros_in_grad = cfg.model.qk_clip = cfg.logger.log_throughput_to_tensorboard = False
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.cuda_graph_impl, cfg.dataset.dataloader_type = "none", "single"
    return state


def run_train(
    train: Any, callbacks: Any, *, dtype: str = "fp32", eval_interval: int = 100, overflow_at: int = -1
) -> tuple[list[Any], Tensor, Any]:
    """Megatron-Bridge's ``train``: what its ``training_log`` was given, the weights, the state."""
    from megatron.core import num_microbatches_calculator, rerun_state_machine
    from megatron.core.process_groups_config import ProcessGroupCollection

    num_microbatches_calculator.destroy_num_microbatches_calculator()
    num_microbatches_calculator.init_num_microbatches_calculator(0, None, 2 * MICRO_BATCHES, 2, 1)
    rerun_state_machine.destroy_rerun_state_machine()
    rerun_state_machine.initialize_rerun_state_machine(mode=rerun_state_machine.RerunMode.DISABLED)
    model, optimizer = model_and_optimizer(dtype)
    for group in optimizer.param_groups:
        group.setdefault("is_decoupled_lr", False)
    model[0].config.seq_length = LENGTH
    model[0].config.grad_scale_func = optimizer.scale_loss
    state = state_of(eval_interval=eval_interval, clip_grad=0.5)
    log: list[Any] = []
    manager = train.CallbackManager()
    manager.add(callbacks)

    def data() -> Iterator[Tensor]:
        for index in range(STEPS * MICRO_BATCHES):
            yield batch(index)

    def forward(iterator: Any, model: Any) -> Any:
        output, loss_function = forward_step(iterator, model)
        is_bad = state.train_state.step == overflow_at
        return (output * float("inf") if is_bad else output), loss_function

    def training_log(losses: Any, totals: Any, rate: Any, decoupled: Any, scale: Any, *args: Any) -> bool:
        log.append(({name: value.item() for name, value in losses.items()}, rate, scale, args[2]))
        return False

    def evaluate(
        state: Any, prefix: str, function: Any, iterator: Any, model: Any, *args: Any, **kwargs: Any
    ) -> None:
        given = {"state": state, "model": model, "user_state": manager.user_state}
        manager.fire("on_eval_start", train.CallbackContext(**given))
        losses = {"lm loss": torch.tensor(10.0 + state.train_state.step)}
        manager.fire("on_eval_end", train.CallbackContext(**given, total_loss_dict=losses))

    with pytest.MonkeyPatch.context() as patch:
        for name, function in (
            ("training_log", training_log),
            ("evaluate_and_print_results", evaluate),
            ("checkpoint_and_decide_exit", lambda *args: False),
            ("get_tensor_shapes_adjust_fn_for_distillation", lambda *args, **kwargs: None),
            ("maybe_report_stragglers", lambda *args: 0.0),
            ("handle_profiling_step", lambda *args: None),
        ):
            patch.setattr(train, name, function)
        patch.setattr(train.flop_utils, "num_floating_point_operations", lambda *args: 0)
        for name in (
            "fault_tolerance", "maybe_finalize_async_save", "maybe_synchronize_training_step",
            "handle_profiling_stop", "safe_shutdown_nvrx_straggler_manager", "_delete_cuda_graphs",
        ):  # fmt: skip
            patch.setattr(train, name, MagicMock())
        scheduler = MagicMock()
        groups = ProcessGroupCollection.use_mpu_process_groups()
        train.train(
            forward, model, optimizer, scheduler, data(), None, state, {}, groups, callback_manager=manager
        )
    return log, flat_weights(model), state


def callback_of(folder: Path, **more: Any) -> Any:
    """The callback under test; importable only beside the real package."""
    from floatscope.integrations.megatron_bridge import FloatscopeCallback

    return FloatscopeCallback("bridge", **settings(folder), **more)


def test_a_training_is_recorded_and_weights_stay(tmp_path: Path, bridge: Any) -> None:
    """One row a step with what Megatron-Bridge logs of it; an evaluation belongs to the step before it."""
    plain_log, expected, _ = run_train(bridge, [], dtype="bf16")
    callback = callback_of(tmp_path)
    log, weights, _ = run_train(bridge, [callback], dtype="bf16", eval_interval=2)
    assert torch.equal(weights, expected)
    assert log == plain_log

    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row, (losses, rate, _, norm) in zip(rows, log, strict=True):
        assert row["loss"] == row["lm loss"] == pytest.approx(losses["lm loss"])
        assert (row["lr"], row["grad_norm"]) == (rate, pytest.approx(norm))
    assert [row.get("eval_loss") for row in rows] == [None, 12.0, None, 14.0]
    assert [row.get("eval/lm loss") for row in rows] == [None, 12.0, None, 14.0]
    assert "decoder.layers.0.mlp.linear_fc1/weight" in tensors_with(rows[0], "grad_norm")


def test_loss_scale_and_skipped_steps(tmp_path: Path, bridge: Any) -> None:
    """The scale in force in each step, and how many were skipped so far."""
    run_train(bridge, [callback_of(tmp_path)], dtype="fp16", overflow_at=1)
    rows = rows_of(tmp_path)
    assert [row["loss_scale"] for row in rows] == [1024.0, 1024.0, 512.0, 512.0]
    assert [row["skipped_steps"] for row in rows] == [0, 1, 1, 1]


def test_a_finding_can_stop_the_training(tmp_path: Path, bridge: Any) -> None:
    """Only where asked to; and other callbacks are told whether the step is clean."""
    from megatron.bridge.training.callbacks import Callback

    from tests.integrations.recorded import diagnose_as_critical

    told: list[Any] = []

    class Other(Callback):  # type: ignore[misc]
        def on_train_step_end(self, context: Any) -> None:
            told.append(context.user_state["floatscope_is_clean"])
            if context.state.train_state.step == 1:
                diagnose_as_critical(callback.monitor, onset_step=2)

    callback = callback_of(tmp_path, stop=True)
    _, _, state = run_train(bridge, [callback, Other()])
    assert state.train_state.step == 3
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2, 3]
    assert told == [None, None, False]


def test_tensor_inspect_names_the_feature(bridge: Any) -> None:
    """``config.tensor_inspect`` as Megatron-Bridge reads it, beside Transformer Engine's own features."""
    from floatscope.integrations import megatron_bridge

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron_bridge, "_features_of_transformer_engine", lambda: ["/te"])
        config = megatron_bridge.tensor_inspect(log_dir="logs")
    config.finalize()
    assert type(config).__name__ == "TensorInspectConfig"
    assert (config.enabled, config.log_dir, config.feature_dirs[0]) == (True, "logs", "/te")
    assert list(Path(config.feature_dirs[1]).glob("*.py"))
    (section,) = config.features.values()
    assert "FloatscopeStats" in section["transformer_engine"]
