"""Search at the table: before each move, a policy takes one step of mirror descent on its values.

Update equivalence of search: Sokota et al., ICLR 2024, https://arxiv.org/abs/2304.13138.
"""
