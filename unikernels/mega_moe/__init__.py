"""Mega MoE apart from its arithmetic: sizes, buffer memory, agreement of ranks, weight forms.

The operation is in operations/mega_moe.py, the public functions in api/mega_moe.py.
"""
