"""What a shipped package has in the place of opwright: the names that its author's modules use.

This folder is copied into every package that ``opwright package`` writes, with the files of ``contract/`` and
``runtime/`` that it imports. Here it only is imported by tests.
"""
