"""The syphon as a Structured Streaming job, and the command that runs a syphon on its own."""
