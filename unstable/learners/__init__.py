"""Learners: the one owner of the trained weights and their optimizer; batches in, versions out."""
