"""Planning: a machine's resources, a config's needs, and the placement of processes.

Input is a config and a machine, both plain values; output is a plan and a config without "auto".
Nothing is loaded or started.
"""
