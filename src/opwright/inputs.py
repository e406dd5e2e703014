"""How test inputs are drawn whose elements go together: ``Annotated[Float[Tensor, "n"], ow.inputs.offsets("total")]``.

``ow.values`` states ranges and choices.
"""

from __future__ import annotations

from opwright.contract.values import drawn_by, offsets, positive_definite, probabilities, well_conditioned

__all__ = ["drawn_by", "offsets", "positive_definite", "probabilities", "well_conditioned"]
