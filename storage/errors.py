"""What the layers above are told of a state that cannot be used."""

from __future__ import annotations


class StorageError(Exception):
    """State cannot be trusted or used. `code` is stable and listed in docs/ERRORS.md."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.hint = hint


class NegativeWeightError(StorageError):
    """A row left an arrangement more often than it came in."""

    def __init__(self, name: str, row: str, weight: int) -> None:
        detail = f'arrangement "{name}" would keep row {row} with weight {weight}'
        super().__init__("state.negative_weight", detail, "rebuild the view that owns it")


class OutOfSpaceError(StorageError):
    """What is asked for takes more memory at once than there is."""

    def __init__(self, nbytes: int) -> None:
        detail = f"another {nbytes >> 20} MiB are needed at once, and there is less"
        hint = "a larger --memory and limit, or a query that needs fewer rows together"
        super().__init__("state.out_of_room", detail, hint)
