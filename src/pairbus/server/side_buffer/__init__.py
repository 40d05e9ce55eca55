"""Durable buffer for sends that the store cannot take, which are merged into the store once it works again.

Read in this order: ``batch`` (the stored form of a send), ``archive`` (the files), ``entity_buffers`` (the buffered
batches of each entity), ``compactor`` (frees disk space), ``writer`` (sends into the buffer), ``replayer`` (from the
buffer into the store), ``buffer`` (all of it together).
"""
