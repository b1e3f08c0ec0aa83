"""The feature FloatscopeStats: hands tensors before and after their cast to the monitors that look.

nvdlfw-inspect loads this file when its folder is among the ``feature_dirs``. In a configuration:

    floatscope:
      enabled: True
      layers: {layer_name_regex_pattern: .*}
      transformer_engine:
        FloatscopeStats: {enabled: True, tensors: [activation, weight, gradient]}
"""

from __future__ import annotations

from typing import Any

from nvdlfw_inspect.registry import Registry, api_method
from transformer_engine.debug.features.api import TEConfigAPIMapper

from floatscope.probes.te_watchers import Watchers


@Registry.register_feature(namespace="transformer_engine")
class FloatscopeStats(TEConfigAPIMapper):  # type: ignore[misc]
    """Statistics of whole tensors for floatscope: amax, scale, NaN, Inf, overflow, underflow, SQNR.

    It computes only on steps that a monitor looks at, waits for nothing and changes nothing.
    """

    def __init__(self) -> None:
        self.watchers = Watchers()

    @api_method  # type: ignore[untyped-decorator]
    def inspect_tensor_enabled(
        self, config: dict[str, Any], layer_name: str, tensor_name: str, iteration: int
    ) -> bool | tuple[bool, int | None]:
        """Whether the layer's tensors are wanted now, and that it need not ask again by itself."""
        return self.watchers.answer(layer_name)

    @api_method  # type: ignore[untyped-decorator]
    def inspect_tensor(
        self,
        config: dict[str, Any],
        layer_name: str,
        tensor_name: str,
        iteration: int,
        tp_group: Any,
        tensor: Any,
        rowwise_quantized_tensor: Any = None,
        columnwise_quantized_tensor: Any = None,
        quantizer: Any = None,
        tp_size: int = 1,
    ) -> None:
        """Called at each cast of a layer that was wanted."""
        self.watchers.show(layer_name, tensor_name, tensor, rowwise_quantized_tensor, quantizer)
