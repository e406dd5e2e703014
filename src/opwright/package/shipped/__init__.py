"""The part of opwright in a shipped package: the names that the user's modules use.

This folder is copied into every package that ``opwright package`` writes, with the files of ``contract/`` and
``runtime/`` that it imports. In opwright itself only tests import it.
"""
