"""Shows records: on a terminal, as HTML, Markdown, pictures and JSON. Nothing here imports torch."""
