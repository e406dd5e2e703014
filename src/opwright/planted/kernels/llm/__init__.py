"""Kernels for the operators of ``gallery.llm``: ``language_model.py`` beside this folder has those of its layers."""
