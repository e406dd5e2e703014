"""Shapes: the language of dims, and relations of sizes."""
