"""The names that are harmless in a pickle, with the reason. Each is so with any arguments, and together with any other.

A name that would break that does not belong here, however often it is met. Names that call what they are given are told in
`CALLS_WHAT_IT_IS_GIVEN`: what they are given is judged as called.
"""

from __future__ import annotations

_SIZES = {  # bytes of an element: torch.<name>
    16: "complex128",
    8: "float64 complex64 int64 uint64",
    4: "float32 complex32 int32 uint32 qint32",
    2: "float16 bfloat16 int16 uint16 bits16",
    1: "int8 uint8 bool float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
    "qint8 quint8 quint4x2 quint2x4 bits8 bits1x8 bits2x4 bits4x2 "
    "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7",
}
ITEM_SIZES = {name: size for size, names in _SIZES.items() for name in names.split()}
_OF_STORAGES = """
    Double:float64 Float:float32 Half:float16 BFloat16:bfloat16 Long:int64 Int:int32 Short:int16 Char:int8 Byte:uint8 Bool:bool
    ComplexDouble:complex128 ComplexFloat:complex64 QInt8:qint8 QInt32:qint32 QUInt8:quint8 QUInt4x2:quint4x2 QUInt2x4:quint2x4
    Untyped:uint8 Typed:uint8 _Untyped:uint8 _Typed:uint8
"""
STORAGES = {f"{name}Storage": dtype for name, dtype in (pair.split(":") for pair in _OF_STORAGES.split())}
_TENSORS = " ".join(f"{kind.removesuffix('Storage')}Tensor" for kind in STORAGES if "typed" not in kind.lower())
_PATHS = "Path PurePath PosixPath WindowsPath PurePosixPath PureWindowsPath"
_RANDOM = "generators of random numbers"
_ERRORS = "errors, as values"

# What is fine however it is used: module, names, why.
PLAIN: tuple[tuple[str, str, str], ...] = (
    ("builtins", "bool int float complex str bytes bytearray list tuple dict set frozenset range slice object", "plain values"),
    ("builtins", "Exception ValueError TypeError KeyError IndexError RuntimeError StopIteration AssertionError", _ERRORS),
    ("builtins", "NotImplementedError AttributeError OSError ArithmeticError ZeroDivisionError", _ERRORS),
    ("_codecs", "encode", "bytes, as protocol 2 writes them"),
    ("copyreg", "_reconstructor __newobj__ __newobj_ex__", "how older protocols make an object of a class that is judged itself"),
    ("collections", "OrderedDict defaultdict Counter deque ChainMap UserDict UserList UserString", "containers"),
    ("datetime", "datetime date time timedelta timezone", "times"),
    ("pathlib", _PATHS, "a path is only text until it is opened"),
    ("pathlib._local", _PATHS, "the same in Python 3.13"),
    ("argparse", "Namespace", "settings of a command line"),
    ("types", "SimpleNamespace GenericAlias MappingProxyType", "settings and annotations"),
    ("typing", "Any Union Optional List Dict Tuple Set Callable Type Sequence Mapping Iterable Literal Generic", "annotations"),
    ("operator", "getitem", "annotations; an item of anything else is refused"),
    ("_operator", "getitem", "the same"),
    ("uuid", "UUID SafeUUID", "the number of a run"),
    ("decimal", "Decimal", "a number"),
    ("fractions", "Fraction", "a number"),
    ("functools", "partial", "a function with some of its arguments; the function is judged, and once more if it is called"),
    ("random", "Random", _RANDOM),
    ("re", "_compile compile", "a pattern"),
    ("logging", "getLogger", "a logger is a name"),
    ("time", "struct_time", "a time"),
    ("numpy", "ndarray dtype", "arrays"),
    ("numpy", "bool_ bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 intc uintc longlong ulonglong", "numbers"),
    ("numpy", "float16 float32 float64 longdouble complex64 complex128 clongdouble", "numbers"),
    ("numpy", "str_ bytes_ void object_ datetime64 timedelta64", "values of arrays"),
    ("numpy.core.multiarray", "_reconstruct scalar", "arrays and numbers"),
    ("numpy._core.multiarray", "_reconstruct scalar", "the same in numpy 2"),
    ("numpy.core.numeric", "_frombuffer", "arrays, in protocol 5"),
    ("numpy._core.numeric", "_frombuffer", "the same in numpy 2"),
    ("numpy.ma", "MaskedArray", "arrays with holes"),
    ("numpy.ma.core", "_mareconstruct MaskedArray MaskedConstant", "arrays with holes"),
    ("numpy.random._pickle", "__randomstate_ctor __generator_ctor __bit_generator_ctor", _RANDOM),
    ("numpy.random.bit_generator", "SeedSequence __pyx_unpickle_SeedSequence", _RANDOM),
    ("numpy.random._mt19937", "MT19937", _RANDOM),
    ("numpy.random._pcg64", "PCG64 PCG64DXSM", _RANDOM),
    ("numpy.random._philox", "Philox", _RANDOM),
    ("numpy.random._sfc64", "SFC64", _RANDOM),
    ("torch", " ".join(ITEM_SIZES), "kinds of numbers"),
    ("torch", " ".join(STORAGES), "storages"),
    ("torch.cuda", " ".join(STORAGES), "storages"),
    ("torch.storage", " ".join(STORAGES), "storages"),
    (
        "torch.storage",
        "_load_from_bytes",
        "a storage in a pickle; what it is given is read by the same rules",
    ),
    ("torch", f"Tensor Size device Generator {_TENSORS}", "tensors"),
    ("torch.cuda", _TENSORS, "tensors"),
    ("torch.sparse", _TENSORS, "tensors"),
    ("torch.cuda.sparse", _TENSORS, "tensors"),
    ("torch", "strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc jagged _mkldnn", "how a tensor lies in memory"),
    ("torch._utils", "torch.contiguous_format torch.channels_last torch.channels_last_3d torch.preserve_format", "the same"),
    ("torch.serialization", "_get_layout", "the same"),
    ("torch", "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric", "how a tensor is quantized"),
    ("torch", "per_channel_affine_float_qparams", "how a tensor is quantized"),
    ("torch._utils", "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter", "tensors"),
    ("torch._utils", "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor _rebuild_nested_tensor", "tensors"),
    ("torch._utils", "_rebuild_sparse_csr_tensor _rebuild_meta_tensor_no_storage _rebuild_wrapper_subclass", "tensors"),
    ("torch._utils", "_rebuild_device_tensor_from_numpy _rebuild_device_tensor_from_cpu_tensor _rebuild_xla_tensor", "tensors"),
    ("torch._tensor", "_rebuild_from_type _rebuild_from_type_v2", "a tensor of a class; what makes it is judged as called"),
    ("torch.nn.parameter", "Parameter Buffer UninitializedParameter UninitializedBuffer", "tensors"),
    ("torch.nested._internal.nested_tensor", "NestedTensor _rebuild_njt", "tensors of several lengths"),
    ("torch._dynamo.decorators", "_DimRange", "tensors of several lengths"),
    ("torch.torch_version", "TorchVersion", "the version, a text"),
    (
        "torch.return_types",
        "max min sort topk median nanmedian mode kthvalue cummax cummin aminmax slogdet svd qr eigh",
        "tensors",
    ),
    (
        "torch.jit._pickle",
        "build_intlist build_doublelist build_boollist build_tensorlist restore_type_tag",
        "TorchScript's lists",
    ),
)

# What is fine as a value ("which function this layer uses") and refused when it is called.
NAMED_ONLY: tuple[tuple[str, str, str], ...] = (
    ("builtins", "type NoneType Ellipsis NotImplemented len abs min max sum round sorted any all", "types, functions of layers"),
    ("math", "*", "mathematics"),
    ("_operator", "add sub mul truediv neg matmul", "mathematics"),
    ("operator", "add sub mul truediv neg matmul", "mathematics"),
    ("numpy", "mean sum min max amin amax median std var argmax argmin abs sqrt exp log add multiply subtract", "mathematics"),
    ("torch._C", "_VariableFunctionsClass TensorBase _TensorBase _nn", "what torch.relu and Tensor.add are parts of"),
    ("torch.nn.functional", "*", "functions of layers"),
    ("torch._C._nn", "*", "functions of layers"),
    ("torch.nn.init", "*", "functions of layers"),
    ("torch.utils.data._utils.collate", "default_collate default_convert", "functions of a loader"),
)
# torch.relu is written as getattr(torch._C._VariableFunctionsClass, "relu").
PART_OF = ("torch._C._VariableFunctionsClass.", "torch._C.TensorBase.", "torch._C._TensorBase.")

# Code of torch and of other packages that a full load calls, and that does nothing but make a value: module, names, why.
_ENUMERATION = "members of an enumeration, pickled as a call with their value"
_PANDAS = "how tables of pandas are pickled"
CALLED: tuple[tuple[str, str, str], ...] = (
    ("torch.amp.grad_scaler", "OptState", _ENUMERATION),
    ("torch.ao.quantization.observer", "MappingType TorchAODType ZeroPointDomain", _ENUMERATION),
    ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", _ENUMERATION),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", _ENUMERATION),
    ("torch.distributed.checkpoint.planner", "LoadItemType WriteItemType", _ENUMERATION),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "CheckpointImpl", _ENUMERATION),
    ("torch.distributed.fsdp._common_utils", "HandleTrainingState TrainingState", _ENUMERATION),
    ("torch.distributed.fsdp._flat_param", "HandleShardingStrategy", _ENUMERATION),
    ("torch.distributed.fsdp.api", "BackwardPrefetch ShardingStrategy StateDictType", _ENUMERATION),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "OptimStateKeyType", _ENUMERATION),
    ("torch.nn.attention.bias", "CausalVariant", _ENUMERATION),
    ("torch.nn.parallel.distributed", "_BufferCommHookLocation", _ENUMERATION),
    ("torch.nn.utils.parametrizations", "_OrthMaps", _ENUMERATION),
    ("transformers.trainer_utils", "IntervalStrategy EvaluationStrategy SaveStrategy SchedulerType HubStrategy", _ENUMERATION),
    ("transformers.trainer_utils", "FSDPOption ShardedDDPOption", _ENUMERATION),
    ("transformers.training_args", "OptimizerNames ParallelMode", _ENUMERATION),
    ("transformers.debug_utils", "DebugOption", _ENUMERATION),
    ("sentence_transformers.base.sampler", "BatchSamplers MultiDatasetBatchSamplers", _ENUMERATION),
    ("sentence_transformers.training_args", "BatchSamplers MultiDatasetBatchSamplers", _ENUMERATION),
    ("accelerate.utils.dataclasses", "DistributedType PrecisionType LoggerType DynamoBackend RNGType", _ENUMERATION),
    ("ultralytics.utils", "IterableSimpleNamespace", "the settings of a model, as attributes"),
    ("pandas.core.indexes.base", "_new_Index", _PANDAS),
    ("pandas.core.indexes.datetimes", "_new_DatetimeIndex", _PANDAS),
    ("pandas._libs.internals", "_unpickle_block", _PANDAS),
    ("pandas.core.internals.blocks", "new_block", _PANDAS),
    ("pandas._libs.tslibs.timestamps", "_unpickle_timestamp", _PANDAS),
    ("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked", _PANDAS),
)

CALLS_WHAT_IT_IS_GIVEN = frozenset(
    f"numpy.random._pickle.{name}" for name in ("__randomstate_ctor", "__generator_ctor", "__bit_generator_ctor")
)
