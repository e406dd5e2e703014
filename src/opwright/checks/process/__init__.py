"""Worker processes: a fork server, a worker for each kernel, and the messages between them."""
