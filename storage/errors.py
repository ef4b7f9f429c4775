"""Errors of a state that cannot be used."""

from __future__ import annotations


class StorageError(Exception):
    """The state cannot be trusted or used. `code` is stable and listed in docs/ERRORS.md."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.hint = hint


class NegativeWeightError(StorageError):
    """More copies of a row were removed from an arrangement than were added."""

    def __init__(self, name: str, row: str, weight: int) -> None:
        detail = f'arrangement "{name}" would store row {row} with weight {weight}'
        super().__init__("state.negative_weight", detail, "rebuild the view that owns it")


class OutOfSpaceError(StorageError):
    """An operation needs more memory at once than is available."""

    def __init__(self, nbytes: int) -> None:
        detail = f"{nbytes >> 20} more MiB of memory are needed at once, but less is available"
        hint = (
            "raise --memory and the process's limit, or change the query to need fewer rows at once"
        )
        super().__init__("state.out_of_room", detail, hint)
