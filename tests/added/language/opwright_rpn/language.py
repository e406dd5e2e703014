"""The row of a language. It imports no backend: that is done when a kernel is attached."""

from opwright.languages import Language

RPN = Language("reverse Polish notation", "opwright_rpn.backend:RpnBackend")
