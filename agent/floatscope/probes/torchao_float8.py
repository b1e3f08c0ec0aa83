"""torchao's float8 training: every cast of a ``Float8Linear`` on looked-at steps.

torchao keeps no state. All its dynamic casts go through ``hp_tensor_to_float8_dynamic``, which its layers and
its FSDP2 all-gather call by the global name of their own module (torchao/float8/float8_linear.py,
fsdp_utils.py). So the probe wraps those two names, while a monitor watches, and only in a process that has
loaded torchao. Each call carries the ``linear_mm_config`` object of its layer, forward and backward, which
tells the layer by identity, however alike layers are.

torchao multiplies by its scale, as the protocol does; Transformer Engine stores the inverse.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from floatscope.catalog import Catalog
from floatscope.guard import Area, Guard
from floatscope.probes.function_patch import FunctionPatch, Observer
from floatscope.probes.naming import in_backward
from floatscope.probes.probe import Probe, Scene
from floatscope.probes.readout import Readout
from floatscope.probes.row_sample import RowSample
from floatscope.probes.statistics import block_of
from floatscope.probes.tensor_stats import TensorStats
from floatscope.probes.torchao_recipe import describe, format_of_cast, recipe_name, word
from floatscope.protocol.formats import FORMATS
from floatscope.rows import Row

CAST = "hp_tensor_to_float8_dynamic"
CALLERS = ("torchao.float8.float8_linear", "torchao.float8.fsdp_utils")


def find_float8_layers(scene: Scene) -> Iterable[Probe]:
    """The probe of the model's float8 layers, if it has any."""
    layers = {m: layer for m, layer in scene.layers.items() if is_float8_linear(m)}
    if not layers:
        return []
    _describe(scene.catalog, layers)
    area = scene.guard.area("torchao casts", loses="statistics of torchao's FP8 tensors")
    return [Float8Casts(scene.stats, layers, scene.catalog, area, guard=scene.guard)]


def is_float8_linear(module: nn.Module) -> bool:
    """Whether it is torchao's ``Float8Linear`` or made from it."""
    kind = getattr(sys.modules.get(CALLERS[0]), "Float8Linear", None)
    return isinstance(kind, type) and isinstance(module, kind) and hasattr(module, "linear_mm_config")


def cast_again(module: Any, role: str, tensor: Tensor) -> None:
    """Casts as the layer does in compiled code, where the probe cannot see it; the probe sees this cast.

    role: "input" or "grad_output".  tensor: before the cast; with an input the weight is cast as well.
    """
    caller: Any = sys.modules[CALLERS[0]]
    found = {role: (tensor.reshape(-1, tensor.shape[-1]), -1)}
    if role == "input":
        found["weight"] = (module.weight.t(), 0)  # in the order of the layer's own matrix product
    for name, (values, dim) in found.items():
        cast = getattr(module.config, f"cast_config_{name}")
        if word(cast.scaling_type) == "disabled" or not _is_real(values):
            continue  # not cast, or cast by the FSDP2 all-gather
        getattr(caller, CAST)(
            values,
            cast.target_dtype,
            module.linear_mm_config,
            gemm_input_role=caller.GemmInputRole[name.upper()],
            scaling_granularity=cast.scaling_granularity,
            axiswise_dim=caller.get_maybe_axiswise_dim(dim, cast.scaling_granularity),
            round_scales_to_power_of_2=module.config.round_scales_to_power_of_2,
        )


def _describe(catalog: Catalog, layers: Mapping[nn.Module, str]) -> None:
    configs = {layer: getattr(module, "config", None) for module, layer in layers.items()}
    version = str(getattr(sys.modules.get("torchao"), "__version__", "unknown"))
    facts = describe(configs.values(), version=version)
    catalog.describe(recipe=facts)
    for layer, config in configs.items():
        if recipe_name(config) != facts["name"]:
            roles = ("input", "weight", "grad_output")
            catalog.describe_tensors({f"{layer}/{role}": {"recipe": recipe_name(config)} for role in roles})


class Float8Casts(Probe):
    """Measures the casts of one model's float8 layers."""

    def __init__(
        self,
        stats: TensorStats,
        layers: Mapping[nn.Module, str],
        catalog: Catalog,
        area: Area,
        *,
        guard: Guard,
    ) -> None:
        self._stats = stats
        self._layers = layers
        self._catalog = catalog
        self._area = area
        self._guard = guard
        self._patches: list[FunctionPatch] = []
        self._owners: dict[int, tuple[Any, nn.Module, str]] = {}
        self._last_gradient: dict[str, weakref.ref[Tensor]] = {}
        self._has_cast = False
        self._is_first = True

    def install(self) -> None:
        """Wraps the function where torchao's modules look it up."""
        shared: set[int] = set()
        for module, layer in self._layers.items():
            config: Any = module.linear_mm_config
            if id(config) in self._owners:
                shared.add(id(config))
            self._owners[id(config)] = (config, module, layer)
        for key in shared:
            del self._owners[key]
        if shared:
            self._guard.say_once(
                "torchao shared",
                "some torchao layers are shallow copies of each other and cannot be told apart; "
                "statistics of those layers are left out.",
            )
        observer = Observer(self._area, self._see)
        for name in CALLERS:
            caller = sys.modules.get(name)
            if caller is not None and hasattr(caller, CAST):
                self._patches.append(FunctionPatch(caller, CAST, observer))

    def _see(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After a cast, inside the area. args: (tensor, dtype, linear_mm_config, ...), as in torchao."""
        if self._stats.look.is_idle:
            return
        config = args[2] if len(args) > 2 else kwargs.get("linear_mm_config")
        _, module, layer = self._owners.get(id(config), (None, None, ""))
        if module is None or not module.training or not self._stats.look.wants(layer):
            return
        tensor = args[0] if args else kwargs.get("hp_tensor")
        role = str(getattr(kwargs.get("gemm_input_role"), "name", "INPUT")).lower()
        if role == "grad_output" and self._is_second_cast(layer, tensor):
            return
        self._measure(layer, role, tensor, result)

    def _is_second_cast(self, layer: str, gradient: Any) -> bool:
        """The backward pass casts one gradient for two products; only the first cast is measured."""
        last = self._last_gradient.get(layer)
        if last is not None and last() is gradient:
            return True
        self._last_gradient[layer] = weakref.ref(gradient)
        return False

    def _measure(self, layer: str, role: str, tensor: Any, result: Any) -> None:
        plain, cast = _local(tensor), _local(result)
        if not _is_real(plain) or not hasattr(cast, "_scale"):
            return
        if role == "input":
            self._has_cast = True
        codes, scale = cast._data.detach(), cast._scale.detach()

        def used(sample: RowSample) -> Tensor:
            return sample.of(codes).float() / sample.scales(scale)

        once = role == "weight" or (role == "input" and in_backward())
        fmt = format_of_cast(cast._data.dtype)
        self._stats.measure(layer, role, plain, used=used, scale=scale, fmt=fmt, once=once)

    def collect(self, readout: Readout, row: Row) -> None:
        """Reads the scales that the FSDP2 all-gather was given; says once what cannot be seen."""
        if self._area.tripped:
            return
        with self._area:
            self._read_precomputed(readout)
            if self._is_first and self._stats.look.is_sampled:
                self._is_first = False
                if not self._has_cast and self._owners and self._has_gradients():
                    self._guard.say_once(
                        "torchao compiled",
                        "torchao layers have trained without a cast that could be seen: inside compiled "
                        "code casts are not seen, so their amax, scale, underflow and SQNR are left out. "
                        "Gradients and weights are recorded. compiled_layers=True, given before the first "
                        "compiled call, has them measured.",
                    )

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for m in self._layers for p in m.parameters(recurse=False))

    def _read_precomputed(self, readout: Readout) -> None:
        """``precompute_float8_dynamic_scale_for_fsdp`` leaves each weight's scale; amax is max / scale."""
        groups: dict[torch.device, list[tuple[str, float, Tensor]]] = {}
        for module, layer in self._layers.items():
            weight: Any = getattr(getattr(module, "weight", None), "_local_tensor", None)
            scale = getattr(weight, "_precomputed_scale", None)
            fmt = format_of_cast(weight._dtype) if isinstance(scale, Tensor) else None
            if isinstance(scale, Tensor) and fmt is not None:
                name = f"{layer}/weight"
                groups.setdefault(scale.device, []).append((name, FORMATS[fmt].max_finite, scale.detach()))
                if name not in self._catalog.info().tensors:
                    self._catalog.describe_tensors({name: {"format": fmt}})
        for found in groups.values():
            names = tuple(name for name, _, _ in found)
            limits = np.array([limit for _, limit, _ in found])
            scales = torch.stack([scale.reshape(()) for _, _, scale in found])
            readout.add(scales, partial(_into_block, names, limits))

    def remove(self) -> None:
        """Puts torchao's function back."""
        for patch in self._patches:
            patch.remove()
        self._patches.clear()
        self._owners.clear()
        self._last_gradient.clear()


def _into_block(
    names: tuple[str, ...], limits: NDArray[np.float64], scales: NDArray[np.float64], row: Row
) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        amax = limits / scales
    known = np.isfinite(scales) & (scales > 0)
    row.blocks.append(block_of(names, {"amax": amax, "scale": scales}, {"amax": known}))


def _local(tensor: Any) -> Any:
    """This rank's part of a DTensor; anything else as it is."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def _is_real(tensor: Any) -> bool:
    """Whether it holds values: not a stand-in of a tracer, and not in a CUDA graph that is being captured."""
    if type(tensor) not in (Tensor, nn.Parameter):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
