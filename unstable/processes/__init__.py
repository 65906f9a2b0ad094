"""Code in other processes: `Worker`, `ForkServer` and `Child`.

Functions and requests go in, replies, sockets and exit codes come out. Every process started here
ends with its parent, however that one ends.
"""
