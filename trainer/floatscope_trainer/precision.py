"""Layer-wise precision: which layers leave the run's precision, as in `embedding=bf16,first=1,last=1`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from floatscope_trainer.config import PRECISIONS, Precision


class PrecisionMapError(ValueError):
    """A precision map that cannot be read; the message names the entry and what is allowed."""


@dataclass(frozen=True)
class PrecisionMap:
    """A read precision map.

    embedding, head: their precision.  first, last: so many blocks at each end compute in bf16.  layers: (glob
    over layer names, precision), the first match wins and goes before first and last.
    """

    embedding: Precision = "fp32"
    head: Precision = "fp32"
    first: int = 0
    last: int = 0
    layers: tuple[tuple[str, Precision], ...] = ()

    def of(self, layer: str, *, default: Precision, depth: int) -> Precision:
        """The precision of a linear layer ("blocks.2.mlp.fc1") in a model with `depth` blocks."""
        for pattern, precision in self.layers:
            if fnmatchcase(layer, pattern):
                return precision
        block = int(layer.split(".")[1])
        if block < self.first or block >= depth - self.last:
            return "bf16"
        return default


def parse_precision_map(text: str, *, layers: tuple[str, ...]) -> PrecisionMap:
    """Reads `key=value,...`: embedding and head = fp32 or bf16; first and last = a number of blocks; a layer
    or glob = a precision.

    layers: the names of the model's linear layers. Raises PrecisionMapError.
    """
    depth = 1 + max(int(name.split(".")[1]) for name in layers)
    ends: dict[str, Precision] = {"embedding": "fp32", "head": "fp32"}
    counts = {"first": 0, "last": 0}
    globs: list[tuple[str, Precision]] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals:
            raise PrecisionMapError(
                f"--precision-map {entry!r}: expected key=value, as in embedding=bf16,first=1,last=1"
            )
        if key in counts:
            if not value.isdecimal() or int(value) > depth:
                raise PrecisionMapError(
                    f"--precision-map {entry!r}: expected a number of blocks from 0 to {depth}"
                )
            counts[key] = int(value)
            continue
        precision = _precision(entry, value)
        if key in ends:
            if precision not in ("fp32", "bf16"):
                raise PrecisionMapError(
                    f"--precision-map {entry!r}: {key} stays in high precision, fp32 or bf16"
                )
            ends[key] = precision
        elif any(fnmatchcase(name, key) for name in layers):
            globs.append((key, precision))
        else:
            raise PrecisionMapError(
                f"--precision-map {entry!r}: no layer is called so; layers are embedding, head and "
                f"{', '.join(layers[:4])}, ..."
            )
    return PrecisionMap(
        embedding=ends["embedding"],
        head=ends["head"],
        first=counts["first"],
        last=counts["last"],
        layers=tuple(globs),
    )


def _precision(entry: str, value: str) -> Precision:
    for precision in PRECISIONS:
        if value == precision:
            return precision
    raise PrecisionMapError(
        f"--precision-map {entry!r}: expected one of {', '.join(PRECISIONS)} after the equals sign"
    )


def linear_names(depth: int) -> tuple[str, ...]:
    """Names of the linear layers of a model with `depth` blocks, in call order."""
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    return tuple(f"blocks.{i}.{part}" for i in range(depth) for part in parts)
