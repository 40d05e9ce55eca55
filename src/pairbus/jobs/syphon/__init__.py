"""The syphon on Spark Structured Streaming, and the standalone syphon of the command line."""
