"""Every private name of torch and Triton that opwright uses: one row each.

``seen`` is the range of versions in which the name exists and passes its probe (``.ci/versions`` tests these).
``without`` is the fallback if it is missing or behaves differently: slower or with fewer features, never
with wrong results. ``opwright doctor`` prints a line for each name that is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["INTERNALS", "Internal"]


@dataclass(frozen=True)
class Internal:
    """One private name. ``key`` is its name in opwright's own files."""

    key: str
    name: str
    used_for: str
    without: str
    seen: str = "torch 2.11 – 2.15"


_DISPATCHER = "calls go through torch's dispatcher"
_PUBLIC_AUTOGRAD = "gradients go through torch.library.register_autograd, which torch.func refuses"
_OPAQUE = "torch.compile keeps Triton operators opaque"
_NO_NUMPY = "NumPy code is not compiled, and nothing is derived from references in NumPy"
_CPU_ARRAYS = "arrays that compiled NumPy code makes are on the CPU; arguments on a GPU are refused with them"
_NO_DTYPE = "NumPy code that asks for an array's dtype is not compiled"
_NO_TARGET = "no code is shown for GPUs that are not present"
_THREAD = "a rule that differentiates runs in a new thread"
_NO_STAGES = "Triton's stages are not shown"
_TRITON = "triton 3.4 – 3.9"

INTERNALS: tuple[Internal, ...] = (
    # -- process groups ------------------------------------------------------------------------------------------
    Internal(
        "resolve_process_group",
        "torch.distributed.distributed_c10d._resolve_process_group",
        "process groups by name",
        "operators with an argument ow.ProcessGroup cannot be called",
    ),
    Internal(
        "functional_collectives",
        "torch.distributed._functional_collectives",
        "kernels of the self-test that communicate",
        "these fail",
    ),
    Internal(
        "collective_operators",
        "torch.ops._c10d_functional",
        "results of functional collectives are waited for before the reference's rounding is measured",
        "references that communicate are compared within wider tolerances",
    ),
    Internal(
        "work_registry_size",
        "torch._C._distributed_c10d._get_work_registry_size",
        "collectives that nothing has waited for",
        "the check of ranks does not find them",
    ),
    Internal("native_overrides", "torch._native.registry._graphs", "overrides in torch's tree", "pass the functions"),
    # -- the state of a call: dispatch keys, modes, transforms -----------------------------------------------------
    Internal("include_keys", "torch._C._dispatch_tls_local_include_set", "keys that a thread includes", _DISPATCHER),
    Internal("exclude_keys", "torch._C._dispatch_tls_local_exclude_set", "keys that a thread excludes", _DISPATCHER),
    Internal("tensor_keys", "torch._C._dispatch_keys", "a tensor's dispatch keys", _DISPATCHER),
    Internal("key_set", "torch._C.DispatchKeySet", "sets of dispatch keys, and their names", _DISPATCHER),
    Internal("key", "torch._C.DispatchKey", "dispatch keys by name", _DISPATCHER),
    Internal("function_modes", "torch._C._is_torch_function_mode_enabled", "is a TorchFunctionMode on", _DISPATCHER),
    Internal("dispatch_modes", "torch._C._len_torch_dispatch_stack", "is a TorchDispatchMode on", _DISPATCHER),
    Internal("profiler", "torch._C._autograd._profiler_enabled", "is the profiler on", _DISPATCHER),
    Internal("forward_level", "torch.autograd.forward_ad._current_level", "is forward mode on", _DISPATCHER),
    Internal(
        "guards",
        "torch._C._dynamo.guards.TensorGuards",
        "calls of ow.cuda_graphed that can share graphs",
        "these calls are compared in Python, which takes a few microseconds",
    ),
    Internal("force_keys", "torch._C._ForceDispatchKeyGuard", "calls within a rule, with the default keys", _THREAD),
    Internal("functorch_stack", "torch._C._functorch.peek_interpreter_stack", "is torch.func active", _DISPATCHER),
    Internal("is_excluded", "torch._C._dispatch_tls_is_dispatch_key_excluded", "are lazy conjugates ignored", _THREAD),
    # -- autograd and torch.func ------------------------------------------------------------------------------------
    Internal("below_autograd", "torch._C._AutoDispatchBelowAutograd", "a kernel below autograd", _PUBLIC_AUTOGRAD),
    Internal("after_autograd", "torch._C._after_autograd_keyset", "the keys that follow autograd's", _PUBLIC_AUTOGRAD),
    Internal("any_requires_grad", "torch._C._any_requires_grad", "is a gradient required", _PUBLIC_AUTOGRAD),
    Internal(
        "exclude_guard", "torch._C._ExcludeDispatchKeyGuard", "calls below autocast", "torch.autocast(enabled=False)"
    ),
    Internal(
        "saved_tensors_hooks",
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "does a kernel leave hooks of saved tensors",
        "that is not checked",
    ),
    Internal(
        "pop_saved_tensors_hooks",
        "torch._C._autograd._pop_saved_tensors_default_hooks",
        "removing hooks of saved tensors that a kernel has left",
        "they stay for later calls",
    ),
    Internal("transform_type", "torch._C._functorch.TransformType", "is the transform functionalize", _PUBLIC_AUTOGRAD),
    Internal("transforms_on", "torch._C._are_functorch_transforms_active", "is any transform on", _PUBLIC_AUTOGRAD),
    Internal(
        "is_wrapped",
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "does a tensor belong to a transform",
        _DISPATCHER,
    ),
    Internal(
        "pop_interpreters",
        "torch._functorch.pyfunctorch.temporarily_pop_interpreter_stack",
        "vmap within an operator's vmap rule",
        "operators register their vmap rule with torch.library.register_vmap only",
    ),
    # -- registration ------------------------------------------------------------------------------------------------
    Internal(
        "variable_functions",
        "torch._C._VariableFunctions",
        "which functions of torch are operations on tensors",
        "gradients are not recorded, and computed in Python",
    ),
    Internal(
        "registered_kernels",
        "torch._C._dispatch_dump",
        "has anybody registered another kernel for an operator",
        _DISPATCHER,
    ),
    Internal(
        "overload",
        "torch._ops.OpOverload",
        "calls of torch.ops.namespace.name.default like earlier ones, as in code that torch.compile generates",
        _DISPATCHER,
    ),
    Internal(
        "destroy_library",
        "torch.library.Library._destroy",
        "redefining an operator",
        "redefining an operator is refused",
    ),
    Internal(
        "decompositions", "torch._decomp.global_decomposition_table", "removing a decomposition", "it stays registered"
    ),
    Internal(
        "decompose",
        "torch._decomp.register_decomposition",
        "DTensor placements, run_decompositions",
        "DTensor placements are not derived",
    ),
    Internal(
        "sharding_dispatcher",
        "torch.distributed.tensor.DTensor._op_dispatcher",
        "removing a custom sharding rule",
        "it stays registered until Python ends",
    ),
    Internal("lowerings", "torch._inductor.lowering", "decomposed operators, if CI is set", "Inductor decides"),
    Internal(
        "layout_tag",
        "torch._library.utils.get_layout_constraint_tag",
        "the layouts of such an operator's arguments",
        "Inductor decides",
    ),
    Internal(
        "functional_tensor",
        "torch._subclasses.functional_tensor.FunctionalTensor",
        "tracing into Triton kernels",
        _OPAQUE,
    ),
    Internal(
        "functional_mode", "torch._subclasses.functional_tensor.FunctionalTensorMode", "is AOTAutograd tracing", _OPAQUE
    ),
    Internal(
        "triton_ops_opaque",
        "torch.export._trace.custom_triton_ops_decomposition_disabled",
        "is export tracing",
        _OPAQUE,
    ),
    Internal(
        "overload_function",
        "torch.ops.aten.relu.default._op",
        "calling an operator without its Python wrapper",
        "it is called through the wrapper",
    ),
    Internal(
        "overload_schema",
        "torch.ops.aten.relu.default._schema",
        "does a library match its operator",
        "only the name is compared",
    ),
    Internal("parse_schema", "torch._C.parse_schema", "a schema as torch prints it", "only the name is compared"),
    # -- tensors -----------------------------------------------------------------------------------------------------
    Internal(
        "version",
        "torch.Tensor._version",
        "was a tensor written",
        "writes are found by comparing values; no CUDA graphs",
    ),
    Internal(
        "check",
        "torch._check",
        "comparisons of sizes that depend on data",
        "an operator that compares such sizes is refused under torch.compile",
    ),
    Internal(
        "storage_identity", "torch.UntypedStorage._cdata", "do two tensors share memory", "their addresses are compared"
    ),
    Internal(
        "tensor_address", "torch.Tensor._cdata", "the C++ tensor of a Python tensor", "kernels are called from Python"
    ),
    Internal(
        "mode_stack",
        "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
        "are only shapes wanted, of symbolic sizes",
        "the reference runs on symbolic sizes, instead of the fake",
    ),
    Internal(
        "proxy_mode",
        "torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode",
        "is a graph being traced",
        "a derived gradient is one opaque operator in compiled code",
    ),
    Internal(
        "shape_env",
        "torch.fx.experimental.symbolic_shapes.ShapeEnv",
        "fakes with sizes that depend on data",
        "the fakes of such operators are not compared with their outputs",
    ),
    Internal(
        "fake_mode",
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "shapes without memory",
        "meta tensors are used instead",
    ),
    Internal(
        "operator_schema",
        "torch._C._get_schema",
        "recording derived gradients",
        "a derived gradient runs in Python in every call",
    ),
    Internal(
        "fake_tensor",
        "torch._subclasses.fake_tensor.FakeTensor",
        "tracing into Triton kernels, fakes in less time",
        _OPAQUE,
    ),
    Internal(
        "dispatch_mode",
        "torch.utils._python_dispatch.TorchDispatchMode",
        "counting FLOPs, simulated rounding errors",
        "FLOPs are not counted",
    ),
    # -- CUDA --------------------------------------------------------------------------------------------------------
    Internal("current_device", "torch._C._cuda_getDevice", "the current GPU", "torch.cuda.current_device"),
    Internal(
        "current_stream", "torch._C._cuda_getCurrentRawStream", "a current stream's handle", "torch.cuda.current_stream"
    ),
    Internal(
        "bad_fork",
        "torch._C._cuda_isInBadFork",
        "whether a fork may use a GPU",
        "each worker of a check imports Inductor itself",
    ),
    Internal(
        "clear_cublas_workspaces",
        "torch._C._cuda_clearCublasWorkspaces",
        "freeing cuBLAS's memory before a capture",
        "a CUDA graph may use memory of cuBLAS that others free",
    ),
    Internal("add_to_each", "torch._foreach_add_", "numbers of the CPU in CUDA graphs", "each of them has a launch"),
    Internal("gpu_sleep", "torch.cuda._sleep", "keeping a GPU busy", "matrix products keep it busy"),
    Internal(
        "storage_holders",
        "torch._C._storage_Use_Count",
        "is a graph's memory still referenced",
        "results of CUDA graphs are copied",
    ),
    Internal(
        "keeps_graph",
        "torch._C._autograd._get_current_graph_task_keep_graph",
        "will a backward run again",
        "gradients of CUDA graphs are copied",
    ),
    # -- torch.compile -----------------------------------------------------------------------------------------------
    Internal("compile_fx", "torch._inductor.compile_fx.compile_fx", "code from a graph of NumPy calls", _NO_NUMPY),
    Internal("dynamo_errors", "torch._dynamo.exc", "the cause of a tracing error", "torch's own message is shown"),
    Internal("dynamo_counters", "torch._dynamo.utils.counters", "the reasons of graph breaks", "they are not listed"),
    Internal(
        "code_of_run", "torch._inductor.utils.run_and_get_code", "showing what Inductor generates", "it is not shown"
    ),
    Internal(
        "inner_compile", "torch._inductor.compile_fx.compile_fx_inner", "code for a GPU that is not present", _NO_TARGET
    ),
    Internal("inductor_config", "torch._inductor.config", "Inductor's settings for that code", _NO_TARGET),
    Internal(
        "inductor_cache",
        "torch._inductor.runtime.cache_dir_utils.cache_dir",
        "Inductor's cache for kernels that are checked",
        "each check compiles anew",
    ),
    Internal(
        "inductor_cache_default",
        "torch._inductor.runtime.cache_dir_utils.default_cache_dir",
        "a server of checks that is started before torch is imported",
        "it is started anew",
    ),
    Internal("graph_lowering", "torch._inductor.graph.GraphLowering", "the compilation of that code", _NO_TARGET),
    Internal(
        "cuda_interface", "torch._dynamo.device_interface.CudaInterface", "Inductor's queries of a GPU", _NO_TARGET
    ),
    Internal(
        "precompile",
        "torch._inductor.runtime.triton_heuristics.CachingAutotuner._precompile_config",
        "compiling one of Inductor's Triton kernels",
        _NO_TARGET,
    ),
    Internal("exchange_device", "torch.cuda._exchange_device", "Inductor's switch to another GPU", "the switch fails"),
    Internal(
        "maybe_exchange_device", "torch.cuda._maybe_exchange_device", "Inductor's switch back", "the switch fails"
    ),
    Internal("triton_facts", "torch.utils._triton", "Inductor's queries of Triton", _NO_TARGET),
    # -- torch's NumPy layer -----------------------------------------------------------------------------------------
    Internal("numpy", "torch._numpy", "NumPy's functions on tensors", _NO_NUMPY),
    Internal("numpy_array", "torch._numpy._ndarray.ndarray", "NumPy's array on a tensor", _NO_NUMPY),
    Internal("numpy_dtypes", "torch._numpy._dtypes_impl", "the dtype of np.zeros", _NO_NUMPY),
    Internal(
        "numpy_calls",
        "torch._dynamo.utils.numpy_to_tensor_wrapper",
        "the device of arrays that compiled NumPy code makes",
        _CPU_ARRAYS,
    ),
    Internal("numpy_methods", "torch._dynamo.utils.numpy_method_wrapper", "the same, for arrays' methods", _CPU_ARRAYS),
    Internal("numpy_operators", "torch._dynamo.utils.numpy_operator_wrapper", "the same, for operators", _CPU_ARRAYS),
    Internal(
        "traced_array",
        "torch._dynamo.variables.tensor.NumpyNdarrayVariable",
        "an array's dtype while tracing",
        _NO_DTYPE,
    ),
    Internal("traced_dtype", "torch._dynamo.variables.misc.NumpyDTypeVariable", "an array's dtype, too", _NO_DTYPE),
    Internal(
        "side_effects",
        "torch._dynamo.side_effects.SideEffects",
        "writes to Python objects in NumPy code, which are refused while it is traced",
        _NO_NUMPY,
    ),
    Internal("device_context", "torch.utils._device.DeviceContext", "is torch.device(...) active", _CPU_ARRAYS),
    Internal(
        "device_constructors", "torch.utils._device._device_constructors", "functions that make tensors", _CPU_ARRAYS
    ),
    Internal("pop_function_mode", "torch.overrides._pop_mode_temporarily", "suspending torch.device(...)", _CPU_ARRAYS),
    Internal(
        "function_mode_count", "torch._C._len_torch_function_stack", "the number of active function modes", _CPU_ARRAYS
    ),
    Internal("function_mode_at", "torch._C._get_function_stack_at", "the active function modes", _CPU_ARRAYS),
    # -- Triton ------------------------------------------------------------------------------------------------------
    Internal(
        "triton_target",
        "triton.backends.compiler.GPUTarget",
        "compiling for a GPU that is not present",
        _NO_STAGES,
        _TRITON,
    ),
    Internal("triton_source", "triton.compiler.ASTSource", "the source that Triton compiles", _NO_STAGES, _TRITON),
    Internal(
        "gluon_source",
        "triton.experimental.gluon._runtime.GluonASTSource",
        "the source that Triton compiles of a Gluon kernel",
        "the stages of Gluon kernels are not shown",
        _TRITON,
    ),
    Internal("triton_ir", "triton._C.libtriton.ir", "Triton kernels in the simulator", _NO_STAGES, _TRITON),
    Internal(
        "triton_passes",
        "triton._C.libtriton.passes",
        "block pointers in the Triton simulator (Triton 3.4 – 3.7; later ones need no pass)",
        "the simulator refuses them",
        _TRITON,
    ),
    Internal(
        "triton_make_backend",
        "triton.compiler.compiler.make_backend",
        "Triton kernels in the simulator",
        _NO_STAGES,
        _TRITON,
    ),
    Internal(
        "triton_jit_function", "triton.runtime.jit.JITFunction", "Triton kernels in the simulator", _NO_STAGES, _TRITON
    ),
    Internal("triton_autotuner", "triton.runtime.Autotuner", "Triton kernels in the simulator", _NO_STAGES, _TRITON),
    Internal(
        "autotuner_timer",
        "triton.runtime.Autotuner.do_bench",
        "autotuned kernels in Triton's interpreter (its _do_bench)",
        "they are timed with Triton's own timer, which needs a GPU",
        _TRITON,
    ),
    Internal("triton_backends", "triton.backends.backends", "code for a GPU that is not present", _NO_TARGET, _TRITON),
)
