"""Public functions, one module per family; `unikernels` re-exports them."""
