"""The base of the transforms that wrap another transform."""

from __future__ import annotations

from typing import Any

from fnopt.core import Member, Transformation, as_transformation


class Wrapper(Transformation):
    """A transform around one `inner` transform, whose state it keeps in `inner_state`.

    Extra arguments of `update` are the inner transform's: a wrapper hands on all that it gets.
    """

    inner: Any  # a Transformation once constructed; another library's pair is taken too

    def __post_init__(self) -> None:
        self._set("inner", as_transformation(self.inner, f"{type(self).__name__}: inner"))
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner transform, by its own name."""
        inner_state = None if state is None else state.inner_state
        return (Member(self.inner._place, self.inner, inner_state),)
