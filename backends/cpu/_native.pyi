"""Native kernels of the CPU backend: addresses, sizes and strides; nothing is checked."""

STEP: int

class Matrix:
    def __init__(
        self,
        data: int,
        kind: int,
        mn: int,
        k: int,
        stride_mn: int,
        stride_k: int,
        k_major: bool,
        scales: int,
        bytes_per_word: int,
        scale_stride_mn: int,
        scale_stride_k: int,
        gran_mn: int,
        gran_k: int,
        /,
    ) -> None: ...

def isa_variants() -> list[str]: ...
def isa_in_force() -> str: ...
def use_isa(name: str, /) -> None: ...
def decode(
    x: Matrix,
    row0: int,
    row1: int,
    k0: int,
    k1: int,
    scaled: bool,
    out: int,
    ld: int,
    to_bf16: bool,
    num_threads: int,
    /,
) -> None: ...
def multiply_few_rows(a: int, lda: int, rows: int, b: Matrix, acc: int, ldacc: int, num_threads: int, /) -> None: ...
def store(
    acc: int,
    ldacc: int,
    rows: int,
    columns: int,
    c: int,
    ldc: int,
    alpha: float,
    out: int,
    ldout: int,
    is_bf16: bool,
    num_threads: int,
    /,
) -> None: ...
