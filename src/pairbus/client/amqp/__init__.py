"""AMQP connections and links of the client."""
