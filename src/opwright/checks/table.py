"""The table of the checks: one file each, one line each. They run in this order."""

from __future__ import annotations

from opwright.checks import meaning
from opwright.checks.calls import concurrency, configurations, determinism, repeated_calls, streams, surroundings
from opwright.checks.context import Check, Checker
from opwright.checks.derivatives import gradients, own_backward, second_derivatives
from opwright.checks.memory import guard_bands, long_offsets, peak_memory, protected_memory
from opwright.checks.outputs import (
    afterwards,
    global_state,
    metadata,
    own_work,
    properties,
    purity,
    special_values,
    values,
)
from opwright.checks.ranks import check as ranks
from opwright.checks.ranks import sharded
from opwright.checks.registration import compiled, flops, opcheck, sharding, vmap
from opwright.checks.sanitizer import check as sanitizer

__all__ = ["BESIDE_THE_KERNEL", "CHECKS", "EACH_CASE", "OF_REGISTRATION", "SLICES"]

CHECKS: dict[str, Check] = {
    meaning.NAME: meaning.check,
    guard_bands.NAME: guard_bands.check,
    values.NAME: values.check,
    special_values.NAME: special_values.check,
    properties.NAME: properties.check,
    metadata.NAME: metadata.check,
    purity.NAME: purity.check,
    global_state.NAME: global_state.check,
    repeated_calls.NAME: repeated_calls.check,
    peak_memory.NAME: peak_memory.check,
    surroundings.NAME: surroundings.check,
    determinism.NAME: determinism.check,
    concurrency.NAME: concurrency.check,
    streams.NAME: streams.check,
    configurations.NAME: configurations.check,
    gradients.NAME: gradients.check,
    own_backward.NAME: own_backward.check,
    second_derivatives.NAME: second_derivatives.check,
    ranks.NAME: ranks.check,
    ranks.GRADIENTS: ranks.check_gradients,
    vmap.NAME: vmap.check,
    sharding.NAME: sharding.check,
    sharded.NAME: sharded.check,
    flops.NAME: flops.check,
    opcheck.NAME: opcheck.check,
    compiled.NAME: compiled.check,
    afterwards.NAME: afterwards.check,
    long_offsets.NAME: long_offsets.check,
    sanitizer.NAME: sanitizer.check,
    own_work.NAME: own_work.check,  # after it, this process cannot compile functions that it has not compiled before
    protected_memory.NAME: protected_memory.check,  # may end this process
}

# Those that look at what a kernel does in its own process, and run there. Others run in a process in which no kernel
# does, and are not to be deceived by it.
BESIDE_THE_KERNEL = frozenset({
    guard_bands.NAME, repeated_calls.NAME, peak_memory.NAME, surroundings.NAME, determinism.NAME, concurrency.NAME,
    streams.NAME, configurations.NAME, own_backward.NAME, second_derivatives.NAME, vmap.NAME, sharding.NAME, flops.NAME,
    opcheck.NAME, compiled.NAME, sanitizer.NAME, long_offsets.NAME, own_work.NAME, protected_memory.NAME,
})  # fmt: skip

# Those of them that are about what the operator has besides its kernel. They do not depend on earlier calls, and may
# run in a second process of the kernel, while the others go on.
OF_REGISTRATION = frozenset({
    own_backward.NAME, second_derivatives.NAME, vmap.NAME, sharding.NAME, flops.NAME, opcheck.NAME, compiled.NAME,
})  # fmt: skip

# Those that examine every case: each case runs once for all of them.
EACH_CASE: dict[str, Checker] = {
    metadata.NAME: metadata.find_error,
    purity.NAME: purity.find_error,
    global_state.NAME: global_state.find_error,
}

# Checks that a cluster may run at the same time, in processes of their own, on one kernel. What a check knows from an
# earlier one, or must not come after, is in its slice: what is compiled for all cases, in "values"; that writes outside
# of the arguments were found, in "memory". "afterwards" ends each slice, as each has made calls.
SLICES: dict[str, frozenset[str]] = {
    "values": frozenset({values.NAME, special_values.NAME, *EACH_CASE}),
    "memory": frozenset({
        meaning.NAME, guard_bands.NAME, properties.NAME, repeated_calls.NAME, peak_memory.NAME, surroundings.NAME,
        determinism.NAME, concurrency.NAME, streams.NAME, configurations.NAME, protected_memory.NAME,
    }),
    "derivatives": frozenset({
        gradients.NAME, ranks.NAME, ranks.GRADIENTS, sharded.NAME, long_offsets.NAME, sanitizer.NAME, own_work.NAME,
        *OF_REGISTRATION,
    }),
}  # fmt: skip
