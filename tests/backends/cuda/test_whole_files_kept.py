"""Whole CUDA files: what looks like host code or a function's declaration and is neither, stays."""

from __future__ import annotations

import pytest
import torch

import opwright as ow
from opwright.backends.cuda.nvrtc import available
from opwright.errors import CompileError
from opwright.results import Accepted
from tests.kernelsim.loading import device_text

# A function for the host that no kernel names: with it, the text is cut.
HOST = "int unused_host(int a) { return a + 1; }\n"
WITH_TORCH = "#include <torch/extension.h>\nvoid launch(torch::Tensor x) { k<<<1, 1>>>(x.data_ptr<float>()); }\n"

# Members with parentheses that are no functions. Of each class, the size is compared.
LAYOUTS = """
#include <type_traits>
#define DIVUP(a, b) (((a) + (b) - 1) / (b))
#define ALIGN(n) alignas(n)
#define WIDTH(n) n
constexpr int kAlign = 16, kRows = 10, kWarps = 4;
struct A { float f; __device__ float g() { return f; } };
struct Sized { char pad[sizeof(float)]; float v; };
struct Aligned { alignas(kAlign) float v[4]; int n; };
struct OfMacro { ALIGN(kAlign) float v; };
template <class T> struct Raw { std::aligned_storage_t<sizeof(T), alignof(T)> raw; int used; };
struct Typed { decltype(A::f) x; int n; };
struct Pointers { float (A::*method)(); float (*function)(float); int n; };
template <class X, class Y> union Both { char a[sizeof(X)]; char b[sizeof(Y)]; };
struct Tile { float regs[DIVUP(kRows, kWarps)]; int n; void reset(); __device__ Tile() : n(1) {} };
struct Bits { unsigned low : WIDTH(kWarps); unsigned high : WIDTH(kAlign); };
alignas(kAlign) __constant__ float table[4];
static const int block(kRows);
static const int product(kRows * kWarps);
__global__ void k(float* out) {
  static_assert(sizeof(Sized) == 8 && sizeof(Aligned) == 32 && sizeof(OfMacro) == 16 && sizeof(Raw<double>) == 16, "");
  static_assert(sizeof(Typed) == 8 && sizeof(Pointers) == 32 && sizeof(Both<float, double>) == 8, "");
  static_assert(sizeof(Tile) == 16 && sizeof(Bits) == 4 && alignof(Aligned) == 16, "");
  out[0] = Tile().n + table[1] + block + product;
}
"""

# Functions for the device whose execution space stands after parentheses, or at their declaration only.
FUNCTIONS = """
#include <type_traits>
#define HD __host__ __device__
#define hd_inline __host__ __device__ __forceinline__
template <class T> struct Scaled {
  T x;
  template <int N, std::enable_if_t<(N > 1), int> = 0> HD T get() const { return x * N; }
  __device__ T twice(T by);
};
template <class T> T Scaled<T>::twice(T by) { return x * by * 2; }
__attribute__((always_inline)) HD inline float next(float x) { return x + 1; }
template <class T, class = decltype(T(0))> hd_inline T same(T x) { return x; }
template <class T> __device__ std::enable_if_t<sizeof(T) == 4, T> later(T);
__device__ float declared(float x);
float declared(float x) { return x + 3; }
template <class T> struct Pair { T a, b; };
template <class T> Pair(T, T) -> Pair<T>;
struct Point { int x, y; Point(int a, int b) : x{a}, y{b} {} __device__ Point() : x{1}, y{2} {} };
struct Op { float s; __device__ float operator()(float x) const { return s * x; } };
__device__ float2 operator+(float2 a, float2 b);
__global__ void k(float* out) {
  Scaled<float> s{2.f};
  Pair pair{1.f, 2.f};
  Point point;
  out[0] = s.get<2>() + s.twice(1.f) + next(1.f) + same(1.f) + later(1.f) + declared(1.f);
  out[0] += pair.b + point.y + Op{2.f}(1.f) + (float2{1, 2} + float2{1, 2}).y;
}
template <class T> __device__ std::enable_if_t<sizeof(T) == 4, T> later(T x) { return x + 1; }
__device__ float2 operator+(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
"""


def is_left(part: str, text: str) -> bool:
    return part.replace(" ", "") in device_text(text, ["k"]).replace(" ", "")


@pytest.mark.compiler
@pytest.mark.parametrize("host", [HOST, WITH_TORCH])
@pytest.mark.parametrize(("text", "value"), [(LAYOUTS, 51.0), (FUNCTIONS, 27.0)])
def test_both_compilers_take_what_is_left(text: str, value: float, host: str) -> None:
    assert not is_left("unused_host", text + host)
    assert not is_left("torch", text + host)
    module = ow.cuda_module(text + host)
    if isinstance(available(), Accepted):
        assert [entry.name for entry in module.compile("sm_90").entries] == ["k"]
    out = torch.zeros(1)
    module["k"][1, 1](out)
    assert out.item() == value


@pytest.mark.parametrize("host", [HOST, WITH_TORCH])
def test_what_is_the_hosts_in_them_is_left_out(host: str) -> None:
    assert not is_left("reset", LAYOUTS + host)
    left = device_text(FUNCTIONS + host, ["k"])
    assert "Point(int a" not in left
    assert "y{b}" not in left
    assert left.count("{") == left.count("}")


CONSTRUCTORS = [
    "P(int a, int b) : x{a}, y{b} {}",
    "P(int a, int b) noexcept : x(a), y{b} { reset({a, b}); }",
    "template <class... T> P(T... values) : B<T>{values}..., y(f({1})) {}",
    "explicit P(int a) : x{a} {}",
]


@pytest.mark.parametrize("constructor", CONSTRUCTORS)
def test_a_constructor_for_the_host_is_left_out_whole(constructor: str) -> None:
    members = "int x, y; ", " __device__ int sum() const { return x + y; } "
    text = f"struct P {{ {constructor.join(members)} }};\n{HOST}__global__ void k(P* p) {{ p->sum(); }}\n"
    left = " ".join(device_text(text, ["k"]).split())
    assert left == " ".join(text.replace(constructor, "").replace(HOST, "").split())


DECLARATIONS = [
    "float* launch(const float* from, int n)",
    "void launch(Domain domain, int n = 3) noexcept",
    "template <class T, class = std::enable_if_t<(sizeof(T) > 4)>> void launch(T* x)",
    "__attribute__((visibility)) int launch(void)",
    "int launch(int n) noexcept(sizeof(int) == 4)",
    "auto launch(int n) -> int",
]


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_declarations_for_the_host_are_left_out(declaration: str) -> None:
    assert not is_left("launch", f"{declaration};\n__global__ void k() {{}}\n")
    members = f"struct S {{ int a; {declaration}; }};\n__global__ void k(S s) {{ }}\n{HOST}"
    assert not is_left("launch", members)
    assert is_left("struct S { int a;", members)


def test_a_definition_has_the_execution_space_of_its_own_declaration_only() -> None:
    """One with other parameters is an overload for the host, and so is one beside a definition for the device."""
    text = WITH_TORCH + "__device__ float f(float x);\nfloat f(float x) { return x; }\nfloat f() { return 1; }\n"
    text += "__device__ float g(float x);\n__device__ float g(float x) { return x; }\nfloat g(double y) { return y; }\n"
    text += "__global__ void k(float* x) { x[0] = f(g(x[0])); }\n"
    assert is_left("float f(float x) { return x; }", text)
    assert not is_left("float f()", text)
    assert not is_left("double y", text)


def test_what_is_evaluated_when_compiling_and_what_overrides_stays() -> None:
    text = """
consteval int three() { return 3; }
struct Base { virtual float g() = 0; };
struct Derived : Base { float g() override { return 1; } float h() final; float host() { return 2; } };
__global__ void k(float* out) { Derived d; out[0] = three(); }
"""
    for part in ("int three() { return 3; }", "float g() override { return 1; }", "float h() final;"):
        assert is_left(part, text + HOST)
    assert not is_left("host", text + HOST)


@pytest.mark.compiler
def test_without_a_word_of_the_host_a_helper_that_a_kernel_calls_stays_and_nvrtc_names_it() -> None:
    text = "float inner(float x) { return x; }\nfloat helper(float x) { return inner(x); }\n"
    text += f"{HOST}__global__ void k(float* x) {{ x[0] = helper(x[0]); }}\n"
    assert is_left("float helper", text)
    assert is_left("float inner", text)
    assert not is_left("unused_host", text)
    if isinstance(available(), Accepted):
        with pytest.raises(CompileError, match=r"\(1\): error: A function without execution space annotations"):
            ow.cuda_module(text).compile("sm_90")


def test_a_helper_whose_name_a_function_for_the_device_has_is_left_out() -> None:
    text = "namespace host { inline float f(float x) { return x; } }\n"
    text += "namespace dev { __device__ inline float f(float x) { return x + 1; } }\n"
    text += "__global__ void k(float* out) { out[0] = dev::f(1.f); }\n"
    assert not is_left("return x;", text)
    assert is_left("return x + 1;", text)


# Host code in classes only: of each, a member for the host, and what the kernel k does with the rest.
OF_CLASSES = {
    "a member function": (
        "struct P { float x; float get() const { return x; } __device__ float twice() const { return 2 * x; } };",
        "float get", "P p, float* y", "y[0] = p.twice();"),
    "constructors": (
        "struct P { float x; P() : x(1) {} P(float v) : x{v} {} ~P() {} __device__ float same() const { return x; } };",
        "P(float v)", "P p, float* y", "y[0] = p.same();"),
    "one that is defined elsewhere": (
        "struct P { float x; float get() const; void set(float v);\n"
        "  __device__ float same() const { return x; } };\n"
        "float P::get() const { return x; }\nvoid P::set(float v) { x = v; }",
        "void P::set", "P p, float* y", "y[0] = p.same();"),
    "a member of a template in a namespace": (
        "namespace n { template <class T> class Q { T* data; int n; public: int size() const { return n; }\n"
        "  __host__ __device__ T& operator[](int i) { return data[i]; } Q(T* d, int m) : data(d), n(m) {} }; }",
        "int size", "n::Q<float> q, float* y", "y[0] = q[0];"),
    "a member of an inner class": (
        "struct P { struct In { int a; int get() { return a; } __device__ int same() { return a; } } in; };",
        "int get", "P p, float* y", "y[0] = p.in.same();"),
    "a member whose name one for the device has": (
        "struct H { int n; int size() const { return n; } };\n"
        "struct D { H h; __device__ int size() const { return h.n; } };",
        "int size() const { return n; }", "D d, float* y", "y[0] = d.size();"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("beside", ["", HOST])
def test_classes_lose_their_members_for_the_host_and_nothing_else(name: str, beside: str) -> None:
    classes, host, parameters, body = OF_CLASSES[name]
    kernel = f"__global__ void k({parameters}) {{ {body} }}\n"
    text = beside + classes + "\n" + kernel
    left = device_text(text)
    assert host in text
    assert host not in left
    assert kernel in left
    assert left.count("\n") == text.count("\n")
    for member in ("twice() const", "same()", "d.size()", "operator[]"):
        assert (member in left) == (member in text)
    if isinstance(available(), Accepted):
        assert ow.cuda_module(text).compile("sm_90").entries


MISTAKES = {
    "a member function": ("struct P { float x; float get() const { return x; } };", "y[0] = p.get();", "get"),
    "a constructor": ("struct P { float x; P(float v) : x(v) {} };", "P q(2); y[0] = q.x;", "P(float v)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_member_for_the_host_that_a_kernel_calls_stays_and_nvrtc_says_what_it_is(name: str) -> None:
    text, body, member = MISTAKES[name]
    text = f"{HOST}{text}\n__global__ void k(P p, float* y) {{ {body} }}\n"
    assert member in device_text(text)
    if isinstance(available(), Accepted):
        with pytest.raises(CompileError, match="without execution space annotations"):
            ow.cuda_module(text).compile("sm_90")


DETECTED = """
template <class F> class HasApply {
  typedef char one;
  struct two { char x[2]; };
  template <class C> static one test(decltype(&C::apply));
  template <class C> static two test(...);
 public:
  enum { value = sizeof(test<F>(0)) == sizeof(char) };
};
struct With { __device__ int apply(int x) { return x; } };
struct Without {};
__global__ void k(float* y) {
  y[0] = HasApply<With>::value;
  y[1] = HasApply<Without>::value;
}
"""


@pytest.mark.compiler
@pytest.mark.parametrize("beside", ["", HOST, WITH_TORCH.replace("1>>>(x", "1>>>((x")])
def test_functions_that_are_asked_for_their_type_only_are_no_mistake(beside: str) -> None:
    text = DETECTED + beside
    y = torch.zeros(2)
    ow.cuda_module(text)["k"][1, 1](y)
    assert y.tolist() == [1, 0]
    if isinstance(available(), Accepted):
        assert ow.cuda_module(text).compile("sm_90").entries


# Heads of classes and functions with parentheses and capitals in them.
HEADS = """
#include <cuda_runtime.h>
template <class T, int n> struct alignas(sizeof(T) * n) Pack { T v[n]; };
template <class T, int n> struct __align__(((n) * (sizeof(T)))) Other { T v[n]; };
template <class LOAD, class STORE> __global__ void k(LOAD load, STORE* store, float* y) {
  Pack<float, 4> p{{1, 2, 3, 4}};
  Other<float, 2> o{{5, 6}};
  y[0] = sizeof(p) + alignof(Pack<float, 4>) + alignof(Other<float, 2>) + p.v[3] + o.v[1] + load(1);
}
struct One { __device__ float operator()(int i) const { return i; } };
template <class LOAD, class STORE> inline cudaError_t launch(LOAD load, STORE* store, float* y) {
  k<LOAD, STORE><<<1, 1>>>(load, store, y);
  return cudaPeekAtLastError();
}
"""


@pytest.mark.compiler
def test_alignments_and_names_of_template_parameters_are_no_functions_and_no_macros() -> None:
    module = ow.cuda_module(HEADS, instances=["k<One, float>"])
    y = torch.zeros(1)
    module["k<One, float>"][1, 1](bytes_of_one(), torch.zeros(1), y)
    assert y.item() == 16 + 16 + 8 + 4 + 6 + 1
    assert "<<<" not in device_text(HEADS, ["k"])
    if isinstance(available(), Accepted):
        assert module.compile("sm_90").entries


def bytes_of_one() -> object:
    """A structure without members."""
    import ctypes

    class One(ctypes.Structure):
        _fields_ = [("unused", ctypes.c_char)]

    return One()


@pytest.mark.compiler
def test_a_source_may_have_its_own_addition_of_torchs_halves() -> None:
    own = "__device__ inline at::Half atomicAdd(at::Half* at, at::Half value) { return value; }\n"
    adds = "__global__ void k(at::Half* h, float* y) { {} }\n"
    for text, value in (
        (own + adds.replace("{}", "y[0] = atomicAdd(h, at::Half(2.0f));"), 2.0),
        (adds.replace("{}", "atomicAdd(h, at::Half(2.0f)); y[0] = *h;"), 3.0),
    ):
        y = torch.zeros(1)
        ow.cuda_module(text)["k"][1, 1](torch.ones(1, dtype=torch.float16), y)
        assert y.item() == value
        if isinstance(available(), Accepted):
            assert ow.cuda_module(text).compile("sm_90").entries


# As glm has them: the execution space of operators is in a macro, and each is declared before it is defined.
OPERATORS = """
#define FUNC __device__ __host__ inline
template <class T> struct V { T x, y; };
template <class T> FUNC V<T> operator+(V<T> const& a, V<T> const& b);
template <class T> FUNC V<T> operator+(V<T> const& a, V<T> const& b) { return {a.x + b.x, a.y + b.y}; }
template <class T> V<T> operator-(V<T> const& a, V<T> const& b) { return a; }
__global__ void k(float* y) { y[0] = (V<float>{1, 2} + V<float>{3, 4}).y; }
"""


@pytest.mark.compiler
def test_operators_whose_execution_space_is_a_macros_stay() -> None:
    text = OPERATORS + WITH_TORCH
    assert "operator-" not in device_text(text, ["k"])
    y = torch.zeros(1)
    ow.cuda_module(text)["k"][1, 1](y)
    assert y.item() == 6
    if isinstance(available(), Accepted):
        assert ow.cuda_module(text).compile("sm_90").entries


@pytest.mark.compiler
def test_a_class_of_torchs_with_tensors_in_it_may_have_what_kernels_use() -> None:
    text = """
    struct Camera : public torch::CustomClassHolder {
      static constexpr int most = 7;
      at::Tensor poses;
      c10::intrusive_ptr<Camera> other;
      at::Tensor all() const { return poses; }
    };
    __global__ void k(float* y) { y[0] = Camera::most; }
    """
    y = torch.zeros(1)
    ow.cuda_module(text + WITH_TORCH)["k"][1, 1](y)
    assert y.item() == 7
    if isinstance(available(), Accepted):
        assert ow.cuda_module(text + WITH_TORCH).compile("sm_90").entries


def test_explicit_instances_that_a_macro_makes_are_left_out() -> None:
    text = (
        "template <class T> __global__ void k(T* y) { y[0] = 1; }\n"
        "#define MAKE(T) \\\n  template __global__ void k<T>(T * y)\nMAKE(float);\nMAKE(int);\n"
        "#define ALSO(T) __device__ T of_##T(T x) { return x; }\nALSO(float)\n"
    )
    left = device_text(text + WITH_TORCH)
    assert "MAKE(float);" not in left
    assert "ALSO(float)" in left
