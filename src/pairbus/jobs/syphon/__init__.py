"""The syphon as a Structured Streaming job: the backlog queues in, each message to its destination."""
