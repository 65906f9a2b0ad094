"""Code in other processes: `Worker`, `ForkServer` and `Child`.

Takes functions and requests; produces replies, sockets and exit codes. Every process started here
ends with its parent, however the parent ends.
"""
