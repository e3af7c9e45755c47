OperandFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
OutputFields = tuple[int, int, int, int, int, int]

def isa_variants() -> list[str]: ...
def built_variants() -> list[str]: ...
def gemm(
    a: OperandFields,
    b: OperandFields,
    out: OutputFields,
    alpha: float,
    threads: int,
    isa: str | None = None,
    allows_bf16: bool = True,
    row_invariant: bool = False,
) -> None: ...
def decode(
    operand: OperandFields,
    row0: int,
    row1: int,
    out: int,
    is_fp32: bool,
    pitch: int,
    apply_scales: bool,
    threads: int,
    isa: str | None = None,
) -> None: ...
def is_exact_in_bf16(operand: OperandFields) -> bool: ...
def weighted_relu_sum(
    dots: int,
    dots_pitch: tuple[int, int],
    weights: int,
    weights_pitch: tuple[int, int],
    out: int,
    out_pitch: int,
    sizes: tuple[int, int, int],
    threads: int,
    isa: str | None = None,
) -> None: ...
def peak_scratch_bytes() -> int: ...
def reset_peak_scratch_bytes() -> None: ...
