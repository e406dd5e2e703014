"""PTX statements as C++, by the names and semantics of NVIDIA's PTX ISA (PTX 8.x, "Instruction Set")."""

from __future__ import annotations

import re
from collections.abc import Callable

from kernelsim.cuda_sim.ptx.arithmetic import (
    address_conversion,
    approximation,
    binary,
    call,
    compare,
    convert,
    division,
    fused,
    least,
    move,
    multiply,
    multiply_add,
)
from kernelsim.cuda_sim.ptx.clusters import map_to_block, rank_of_block
from kernelsim.cuda_sim.ptx.instruction import (
    PTX,
    REGISTER_TYPES,
    Instruction,
    NotTranslatedError,
    Registers,
)
from kernelsim.cuda_sim.ptx.mbarriers import mbarrier
from kernelsim.cuda_sim.ptx.memory import asynchronous, atomic, load, store
from kernelsim.cuda_sim.ptx.warpgroups import warpgroup
from kernelsim.cuda_sim.ptx.warps import (
    barrier,
    elect,
    load_matrix,
    multiply_matrices,
    shuffle,
    store_matrix,
    vote,
)

__all__ = ["is_declaration", "label", "statement"]


def is_declaration(text: str) -> bool:
    return text.startswith(".reg")


def label(text: str) -> tuple[str, str] | None:
    """The C++ name of the label that a statement begins with, and the rest of it."""
    found = re.match(r"([A-Za-z_$%][\w$%]*)\s*:(?!:)\s*", text)
    return (label_name(found[1]), text[found.end() :]) if found else None


def statement(text: str, registers: Registers) -> str:
    """The C++ of one PTX statement. Registers that it declares are added to ``registers``.

    Raises:
        NotTranslatedError: of the instruction or an operand there is no translation.
    """
    if is_declaration(text):
        return _declaration(text, registers)
    found = re.fullmatch(r"(?:@(!?)([%\w]+)\s+)?([a-z][\w.:]*)(?:\s+(.*))?", text, re.DOTALL)
    if found is None:
        raise NotTranslatedError(" ".join(text.split())[:40], "it is not an instruction that the simulator knows")
    negated, predicate, opcode, rest = found.groups()
    instruction = Instruction(opcode, opcode.replace("::", "_").split("."), _split(rest or ""), registers)
    translate = _TABLE.get(instruction.name)
    if translate is None:
        why = _OTHERS.get(instruction.name, "this instruction is not among those that the simulator has")
        raise instruction.refused(why)
    try:
        code = translate(instruction)
    except IndexError:
        raise instruction.refused("it has other operands than expected") from None
    if predicate:
        return f"if ({negated}{instruction.read(predicate, 'bool')}) {{ {code} }}"
    return code


def _declaration(text: str, registers: Registers) -> str:
    found = re.fullmatch(r"\.reg\s*((?:\.\w+\s*)+)\s+(.*)", text)
    kinds = re.findall(r"\.(\w+)", found[1]) if found else []
    if found is None or kinds[-1] not in REGISTER_TYPES or len(kinds) > 1:
        raise NotTranslatedError(text, "this declaration is not translated")
    names: list[str] = []
    for name in re.split(r"\s*,\s*", found[2].strip()):
        many = re.fullmatch(r"([%\w]+)<(\d+)>", name)
        names += [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
    kind = REGISTER_TYPES[kinds[0]]
    for name in names:
        registers[name] = (f"kernelsim_r_{re.sub(r'[^0-9A-Za-z_]', '_', name)}", kind)
    return " ".join(f"{kind} {registers[name][0]}{{}};" for name in names)


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{(") - (letter in ")}]")
        if (letter == "," and depth == 0) or (letter == "|" and depth == 0):
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def label_name(written: str) -> str:
    """The C++ label of a PTX one."""
    return f"kernelsim_l_{re.sub(r'[^0-9A-Za-z_]', '_', written)}"


def branch(i: Instruction) -> str:
    return f"goto {label_name(i.operands[0])};"


def fence(i: Instruction) -> str:
    """A fence. That of an mbarrier's initialisation is for the other blocks of a cluster."""
    if i.has("proxy"):
        return "kernelsim::fence_proxy();" if i.has("async") else ""
    return f"kernelsim::fence{'_mbarrier_init' if i.has('mbarrier_init') else ''}();"


def _nothing(i: Instruction) -> str:
    return ""


def _always(code: str) -> Callable[[Instruction], str]:
    return lambda i: code


_TABLE: dict[str, Callable[[Instruction], str]] = {
    "mov": move, "add": binary("+"), "sub": binary("-"), "mul": multiply, "mad": multiply_add, "fma": fused,
    "and": binary("&"), "or": binary("|"), "xor": binary("^"), "min": least("min"), "max": least("max"),
    "not": lambda i: i.write(0, "!" + i.value(1) if i.type == "bool" else f"{i.type}(~{i.value(1)})"),
    "neg": lambda i: i.write(0, f"-{i.value(1)}"), "div": division, "rem": division,
    "abs": lambda i: i.write(0, f"{i.type}({i.value(1)} < 0 ? -{i.value(1)} : {i.value(1)})"),
    "shl": call(f"{PTX}::shifted_left"), "shr": call(f"{PTX}::shifted_right"),
    "lop3": call(f"{PTX}::lop3"), "prmt": call("__byte_perm"),
    "bfe": lambda i: i.write(
        0, f"{PTX}::bit_field({i.value(1)}, {i.value(2, 'uint32_t')}, {i.value(3, 'uint32_t')})"),
    "bfi": lambda i: i.write(
        0, f"{PTX}::insert_bits({i.value(1)}, {i.value(2)}, {i.value(3, 'uint32_t')}, {i.value(4, 'uint32_t')})"),
    "bfind": call(f"{PTX}::highest_bit"), "brev": call("__brev"), "popc": call("__popc"), "clz": call("__clz"),
    "shf": lambda i: i.write(0, f"__funnelshift_{i.parts[1]}{'c' if i.has('clamp') else ''}"
                                f"({i.value(1)}, {i.value(2)}, {i.value(3)})"),
    "setp": compare,
    "selp": lambda i: i.write(0, f"({i.value(3, 'bool')} ? {i.value(1)} : {i.value(2)})"),
    "cvt": convert, "cvta": address_conversion, "ex2": approximation("exp2f"), "lg2": approximation("log2f"),
    "rcp": approximation("1.0f / "), "rsqrt": approximation("rsqrtf"), "sqrt": approximation("sqrtf"),
    "sin": approximation("sinf"), "cos": approximation("cosf"), "tanh": approximation("tanhf"),
    "dp4a": call("__dp4a"), "ld": load, "ldu": load, "st": store, "red": atomic, "atom": atomic,
    "cp": asynchronous, "shfl": shuffle, "vote": vote, "bar": barrier, "barrier": barrier,
    "activemask": lambda i: i.write(0, "__activemask()"), "ldmatrix": load_matrix, "mma": multiply_matrices,
    "stmatrix": store_matrix,
    "membar": _always("kernelsim::fence();"), "fence": fence,
    "trap": _always("__trap();"), "brkpt": _always("__trap();"),
    "prefetch": _nothing, "prefetchu": _nothing, "discard": _nothing,
    "nanosleep": _always("kernelsim::yield_to_others();"), "mbarrier": mbarrier, "wgmma": warpgroup, "elect": elect,
    "setmaxnreg": _nothing, "griddepcontrol": _nothing,
    "mapa": map_to_block, "getctarank": rank_of_block,
    "bra": branch,
}  # fmt: skip
_OTHERS = {
    **dict.fromkeys(("tcgen05", "wmma"), "this tensor-core operation is not simulated"),
    **dict.fromkeys(("tex", "suld", "sust", "tld4"), "textures and surfaces are not simulated"),
    **dict.fromkeys(("call", "ret", "exit", "brx"), "calls and ends of a function in inline PTX are not translated"),
}
