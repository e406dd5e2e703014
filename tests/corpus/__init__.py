"""Published kernels that nobody here wrote: fetched by whoever runs them, and not stored."""
