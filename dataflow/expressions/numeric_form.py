"""Static bounds of a numeric column: its display scales and its largest number of digits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NumericForm:
    """integral: digits before the point at most; scales: display scales; () only for NULL."""

    integral: int
    scales: frozenset[int]

    @property
    def scale(self) -> int:
        """The greatest display scale."""
        return max(self.scales, default=0)

    @property
    def digits(self) -> int:
        """Digits at the greatest scale."""
        return self.integral + self.scale
