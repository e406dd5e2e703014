// Types that several of libcu++'s headers declare.
#pragma once

#include <stddef.h>

#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "language.h"

namespace cuda {

// The host's standard library, but for what is declared here: its atomics would not be simulated.
namespace std {
using namespace ::std;

// Templates that sources specialise for their own types, in cuda::std and in std besides.
template <class T>
struct tuple_size;
template <class... T>
struct tuple_size<::std::tuple<T...>> : ::std::tuple_size<::std::tuple<T...>> {};
template <class A, class B>
struct tuple_size<::std::pair<A, B>> : ::std::tuple_size<::std::pair<A, B>> {};
template <class T, size_t N>
struct tuple_size<::std::array<T, N>> : ::std::tuple_size<::std::array<T, N>> {};
template <class T, size_t = tuple_size<T>::value>
using WithSize = T;  // tuple_size<const T> has to be incomplete for another
template <class T>
struct tuple_size<const WithSize<T>> : tuple_size<T> {};
template <class T>
constexpr size_t tuple_size_v = tuple_size<T>::value;

template <size_t I, class T>
struct tuple_element;
template <size_t I, class... T>
struct tuple_element<I, ::std::tuple<T...>> : ::std::tuple_element<I, ::std::tuple<T...>> {};
template <size_t I, class A, class B>
struct tuple_element<I, ::std::pair<A, B>> : ::std::tuple_element<I, ::std::pair<A, B>> {};
template <size_t I, class T, size_t N>
struct tuple_element<I, ::std::array<T, N>> : ::std::tuple_element<I, ::std::array<T, N>> {};
template <size_t I, class T>
struct tuple_element<I, const T> : ::std::add_const<typename tuple_element<I, T>::type> {};
template <size_t I, class T>
using tuple_element_t = typename tuple_element<I, T>::type;
template <class T>
struct is_reference : ::std::is_reference<T> {};
}  // namespace std

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

template <size_t Alignment>
struct aligned_size_t {
  static constexpr size_t align = Alignment;
  size_t value;
  KERNELSIM_INLINE explicit aligned_size_t(size_t size) : value(size) {}
  KERNELSIM_INLINE operator size_t() const { return value; }
};

}  // namespace cuda
