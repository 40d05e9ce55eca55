"""The client's ends of connections and links."""
