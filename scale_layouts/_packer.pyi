def transcode(
    source: int,
    source_kind: int,
    source_shape: tuple[int, int, int],
    source_strides: tuple[int, int, int],
    sink: int,
    sink_kind: int,
    sink_shape: tuple[int, int],
    sink_strides: tuple[int, int, int],
    gran_mn: int,
    k_repeat: int,
    valid_rows: int,
    num_threads: int,
) -> int: ...
def use_portable_steps(only_portable: bool) -> None: ...
