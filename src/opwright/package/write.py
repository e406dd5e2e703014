"""``opwright package``: a folder that pip can install, from the operators of a module."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import keyword
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import torch

from opwright.backends.build_tools import build_tools
from opwright.errors import CheckError, KernelRefusedError, TargetError
from opwright.languages import LANGUAGES
from opwright.package.kernels import LeftOut, ShippedKernel, ship_kernels
from opwright.package.kernels_hub import write_layout
from opwright.package.library import build_libraries
from opwright.package.native import baseline
from opwright.package.project import (
    init_text,
    licence_text,
    manifest_text,
    pyproject_text,
    readme_text,
    setup_text,
)
from opwright.package.sbom import sbom
from opwright.package.sources import SHIM, SourceModule, UserModules, modules_needed, user_modules_of
from opwright.package.stable_abi import AbiAudit, audit_abi
from opwright.package.vendored import opwright_version, requirements, vendored_files, vendored_modules
from opwright.package.wheel import Audit, add_metadata, audit, build_wheel
from opwright.runtime.op import Op, defined_in
from opwright.runtime.targets import load_target

__all__ = ["Packaged", "make_package"]

_MANIFEST = "manifest.json"
# Epoch, release, pre, post and development releases, and the local part (PEP 440, normal form).
_VERSION = re.compile(
    r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Packaged:
    """The result: the folder, the wheel if one was built, and the shipped and omitted kernels.

    Attributes:
        tuned_on: for operators with ``use_tuning``, the devices of the tables; none if these are for other kernels.
    """

    folder: Path
    wheel: Path | None
    operators: tuple[str, ...]
    shipped: tuple[ShippedKernel, ...]
    left_out: tuple[LeftOut, ...]
    version: str = ""
    licence_files: tuple[str, ...] = ()
    audited: Audit | None = None
    abi: AbiAudit | None = None
    layout: tuple[Path, ...] = ()
    tuned_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def make_package(
    target: str, name: str, out: Path, *, include: Sequence[str] = (), version: str = "0.1.0",
    march: str | None = None, wheel: bool = False, force: bool = False, allow_missing: Sequence[str] = (),
    license: str = "", license_files: Sequence[Path] = (), kernels_layout: bool = False,
) -> Packaged:  # fmt: skip
    """Write a package with the operators of a module.

    Args:
        target: a file or a module, as for the other commands.
        name: the package's name, in ``import`` and for pip.
        out: the folder to write; it must be empty, or not exist.
        include: names of modules beside the operators' to ship in addition to those that they import.
        march: the processors that C++ is built for (default: ``native.BASELINES``).
        wheel: build a wheel into ``out/dist`` too.
        force: replace an earlier package.
        allow_missing: languages whose kernels may be left out, or "all".
        license: the SPDX expression of the package's licence.
        license_files: its texts; by default those beside the module, such as LICENSE.
        kernels_layout: also write the layout of Hugging Face's ``kernels``, into ``out/kernels``.

    Raises:
        TargetError: there is no such module, or it cannot be shipped.
        CheckError: the name or the folder is not valid, or ``allow_missing`` names no language.
        KernelRefusedError: a kernel cannot be in the package and may not be left out; nothing is written.
        CompileError: a kernel, or the wheel, cannot be built.
    """
    _refuse_name(name, version)
    _refuse_languages(allow_missing)
    _refuse_folder(out, name, force)
    main_module = _load(target)
    assert main_module.__file__ is not None  # load_target imports files only
    modules_of_user = user_modules_of(main_module, name, frozenset(vendored_modules()))
    main_files = [Path(main_module.__file__).resolve(), *(_included(modules_of_user, module) for module in include)]
    operators = _operators_of(modules_needed(modules_of_user, main_files))
    kernels = tuple(ship_kernels(operators, modules_of_user, build_tools(), march or baseline()))
    shipped = tuple(k for k in kernels if isinstance(k, ShippedKernel))
    left_out = tuple(k for k in kernels if isinstance(k, LeftOut))
    _refuse_missing([k for k in left_out if not {k.language, "all"} & {*allow_missing}], name)
    modules = modules_needed(modules_of_user, [*main_files, *_python_files(shipped)])
    public = [m for m in modules if m.file in main_files]
    version = _version_for_torch(version, shipped)
    licences = _licence_files(license_files, modules_of_user.folder)
    files = _texts(modules_of_user, modules, public, operators, kernels, version)
    stated = licence_text(license, [file.name for file in licences])
    files["pyproject.toml"] = files["pyproject.toml"].replace("requires-python", f"{stated}requires-python", 1)
    _write(out, name, files | {file.name: file.read_text() for file in licences}, shipped)
    if any(k.library for k in shipped):
        build_libraries(out / name / "native", name, operators, shipped, build_tools().machine)
    made = Packaged(
        out, None, tuple(o.contract.qualname for o in operators), shipped, left_out, version,
        tuple(file.name for file in licences), tuned_on=_tuned_on(operators),
    )  # fmt: skip
    if kernels_layout:
        layout = write_layout(out / name, out / "kernels", version, license, shipped, build_tools().machine)
        made = replace(made, layout=tuple(layout))
    return _with_wheel(made, name, license, _needed(modules, kernels)[0]) if wheel else made


def _tuned_on(operators: Sequence[Op]) -> dict[str, tuple[str, ...]]:
    with_tables = [o for o in operators if o._exported]
    return {o.contract.qualname: tuple(dict.fromkeys(t.device_name for t in o._shipped_tuning())) for o in with_tables}


def _with_wheel(made: Packaged, name: str, license: str, requirements: Sequence[str]) -> Packaged:
    """Build the wheel, have it audited if it has libraries, and put audit and SBOM into its metadata."""
    package = made.folder / name
    libraries = {str(f.relative_to(made.folder)): f for f in sorted((package / "native").glob("*.so"))}
    built = build_wheel(made.folder, name)
    audited = audit(built) if libraries else Audit(built, not_audited="it has no libraries")
    one_torch = any(kernel.holds_for_one_torch for kernel in made.shipped)
    abi = audit_abi(package, one_torch=one_torch) if libraries else AbiAudit()
    bill = sbom(name, made.version, license, requirements, libraries, opwright_version())
    found = audited.to_json() | ({"torch_abi": abi.to_json()} if abi.tool else {})
    record = {"opwright-audit.json": json.dumps(found, indent=2) + "\n"} if found else {}
    add_metadata(audited.wheel, {f"sboms/{name}.cdx.json": bill, **record})
    return replace(made, wheel=audited.wheel, audited=audited, abi=abi)


def _version_for_torch(version: str, shipped: Sequence[ShippedKernel]) -> str:
    """The version; with torch's release where kernels run on no other, so that there can be a wheel for each."""
    own = [k for k in shipped if k.holds_for_one_torch]
    if not own or "+" in version:
        return version
    cuda = f".cu{torch.version.cuda.replace('.', '')}" if torch.version.cuda else ""
    return f"{version}+torch{_torch_release()}{cuda * any('cuda' in k.spec.devices for k in own)}"


_LICENCES = re.compile(r"(?:LICEN[CS]E|COPYING|NOTICE|AUTHORS)(?:\.\w+)?", re.IGNORECASE)


def _licence_files(named: Sequence[Path], folder: Path) -> list[Path]:
    """The texts of licences: those that are named, else those in the module's folder."""
    for file in named:
        if not file.is_file():
            raise CheckError(f"--license-file must be a file that exists, got {file}", fix="name the licence's text")
    return [*named] or sorted(f for f in folder.iterdir() if f.is_file() and _LICENCES.fullmatch(f.name))


def _refuse_name(name: str, version: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        raise CheckError(
            f"--name must be a Python identifier that is not a standard module, got {name!r}",
            fix="write it like my_ops",
        )
    if name == "opwright":
        raise CheckError("--name must differ from 'opwright', got 'opwright'", fix="choose a name of your own")
    if not _VERSION.fullmatch(version):
        raise CheckError(
            f"--version must be one that pip accepts, got {version!r}",
            fix="write it like 1.2.0, 0.1.0rc1 or 1.2.0+cu130",
        )
    if (installed := _installed_distribution(name)) is not None:
        build_tools().notify(f"the package {installed} is installed here under the same name, which pip would replace")
    elif name not in sys.modules and (found := importlib.util.find_spec(name)) is not None and found.origin:
        build_tools().notify(f"the module {name} can be imported here, from {found.origin}: one would hide the other")


def _installed_distribution(name: str) -> str | None:
    """The distribution of this name that is installed here, as pip compares names."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return f"{found.metadata['Name']} {found.version}"


def _refuse_languages(allowed: Sequence[str]) -> None:
    known = [*LANGUAGES, "all"]
    if unknown := [language for language in allowed if language not in known]:
        raise CheckError(
            f"--allow-missing must be one of {', '.join(known)}, got {unknown[0]!r}", fix="name the kernel's language"
        )


def _refuse_missing(missing: Sequence[LeftOut], name: str) -> None:
    if not missing:
        return
    listed = [f"\n  {k.qualname} {k.kernel} ({k.language}): {k.why}" for k in missing]
    instead = [f"; {k.instead}" if k.instead else "" for k in missing]
    languages = dict.fromkeys(k.language for k in missing)
    raise KernelRefusedError(
        f"{name}: {len(missing)} kernel{'s' * (len(missing) > 1)} would be missing in the package"
        + "".join(map(str.__add__, listed, instead)),
        fix=f"to leave them out, pass {' '.join(f'--allow-missing {language}' for language in languages)}",
    )


def _refuse_folder(out: Path, name: str, force: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir():
        raise CheckError(f"--out must be a folder, got the file {out}", fix="name another one")
    if not force:
        raise CheckError(
            f"--out must be a new or an empty folder, got {out} with files",
            fix="name another folder, or replace an earlier package with --force",
        )
    if not (out / name / _MANIFEST).is_file():
        raise CheckError(
            f"--out must hold an earlier package {name!r} with --force, got {out} with other files",
            fix="name another folder",
        )


def _load(target: str) -> ModuleType:
    path, _, operator = target.partition(":")
    if operator:
        raise TargetError(
            f"the target must be a file or a module, got the operator {target}",
            fix=f"write {path}: a module is shipped as a whole",
        )
    load_target(target)  # raises if it is not valid
    return sys.modules[Path(path).stem if path.endswith(".py") or Path(path).is_file() else path]


def _included(modules_of_user: UserModules, module: str) -> Path:
    """The file of a module from ``include``. The module is imported, as it may define operators."""
    name = ".".join(filter(None, (modules_of_user.prefix, module)))
    file = modules_of_user.find(name)
    if file is None:
        raise TargetError(
            f"--include must be a module beside {modules_of_user.target}, got {module!r}",
            fix=f"name one of {modules_of_user.folder}",
        )
    importlib.import_module(name)
    return file


def _operators_of(modules: Sequence[SourceModule]) -> list[Op]:
    """Every operator that the modules define, in their order."""
    found: dict[str, Op] = {}
    for module in modules:
        loaded = sys.modules.get(module.name)
        for operator in defined_in(vars(loaded)) if loaded is not None else ():
            found.setdefault(operator.contract.qualname, operator)
    return list(found.values())


def _python_files(shipped: Sequence[ShippedKernel]) -> list[Path]:
    return [k.spec.source for k in shipped if "module" in k.record and isinstance(k.spec.source, Path)]


def _texts(
    modules_of_user: UserModules,
    modules: Sequence[SourceModule],
    public: Sequence[SourceModule],
    operators: Sequence[Op],
    kernels: Sequence[ShippedKernel | LeftOut],
    version: str,
) -> dict[str, str]:
    """Every text of the package, by its path below the folder."""
    name = modules_of_user.package
    inside = {m.path: m.text for m in modules}
    if clash := sorted(path for path in inside if path.split("/")[0] in (SHIM, "__init__.py", _MANIFEST, "native")):
        raise TargetError(f"{clash[0]} has a name that the package needs itself", fix="rename it")
    for path in list(inside):  # the user's folders that are namespace packages
        for folder in [*Path(path).parents][:-1]:
            inside.setdefault(str(folder / "__init__.py"), "")
    inside |= vendored_files(name)
    inside["__init__.py"] = init_text(version, public, operators)
    inside["py.typed"] = ""
    inside[_MANIFEST] = manifest_text(operators, kernels)
    files = {f"{name}/{path}": text for path, text in inside.items()}
    files["pyproject.toml"] = pyproject_text(name, version, operators, *_needed(modules, kernels))
    files["README.md"] = readme_text(name, operators, kernels)
    if any(isinstance(k, ShippedKernel) and k.library for k in kernels):
        own = any(isinstance(k, ShippedKernel) and k.holds_for_one_python for k in kernels)
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        files["setup.py"] = setup_text(f"{sys.platform}_{platform.machine()}", python if own else "")
    return files


def _needed(modules: Sequence[SourceModule], kernels: Sequence[ShippedKernel | LeftOut]) -> tuple[list[str], bool]:
    """The requirements, and whether Triton is an extra: only if no file but those of kernels imports it."""
    launchers = {k.spec.source for k in kernels if isinstance(k, ShippedKernel) and "module" in k.record}
    always = {d for m in modules if m.file not in launchers for d in m.distributions}
    extra = {d for m in modules for d in m.distributions if d.lower() == "triton"} - always
    own = requirements()
    if any(isinstance(k, ShippedKernel) and k.holds_for_one_torch for k in kernels):
        own = [f"torch=={_torch_release()}.*", *(r for r in own if not re.match(r"torch\b", r))]
    known = {re.split(r"[^\w-]", r)[0].lower() for r in own}
    others = {d for m in modules for d in m.distributions} - extra
    return sorted([*own, *(d for d in others if d.lower() not in known)]), bool(extra)


def _torch_release() -> str:
    return ".".join(torch.__version__.split(".")[:2])


def _write(out: Path, name: str, files: dict[str, str], shipped: Sequence[ShippedKernel]) -> None:
    for stale in (out / name, out / "build", out / f"{name}.egg-info"):
        shutil.rmtree(stale, ignore_errors=True)
    for path, text in files.items():
        file = out / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for kernel in shipped:
        if kernel.library is not None:
            file = out / name / kernel.record["library"]
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kernel.library, file)
