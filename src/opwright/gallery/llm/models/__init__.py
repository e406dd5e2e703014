"""Models of ``transformers`` on the operators of ``gallery.llm``: patched, trained, and generating."""

from opwright.gallery.llm.models.generate import generate
from opwright.gallery.llm.models.optimizer import AdamW
from opwright.gallery.llm.models.patch import patch, unpatch

__all__ = ["AdamW", "generate", "patch", "unpatch"]
