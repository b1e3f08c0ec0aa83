"""floatscope: watches a low-precision training run and says what goes wrong, since when and where.

monitor = floatscope.watch(model, optimizer, run="qwen2-7b-fp8")
for step, batch in enumerate(loader):
    monitor.batch(batch)
    loss = train_step(batch)
    monitor.step(loss=loss, lr=lr)
monitor.finish()
"""

from __future__ import annotations

from floatscope.assembly import watch
from floatscope.integrations.transformer_engine import te_debug
from floatscope.monitor import Monitor
from floatscope.version import version

__version__ = version()

__all__ = ["Monitor", "__version__", "te_debug", "watch"]
