// Type traits of std that the prelude has none of: libcu++'s.
#pragma once

#include <cuda/std/type_traits>

namespace std {
using ::cuda::std::is_trivially_default_constructible; using ::cuda::std::is_trivially_default_constructible_v;
using ::cuda::std::is_trivially_copyable; using ::cuda::std::is_trivially_copyable_v;
using ::cuda::std::is_trivially_constructible; using ::cuda::std::is_trivially_constructible_v;
using ::cuda::std::is_trivially_destructible; using ::cuda::std::is_trivially_destructible_v;
using ::cuda::std::is_trivial; using ::cuda::std::is_trivial_v; using ::cuda::std::is_standard_layout;
using ::cuda::std::is_standard_layout_v; using ::cuda::std::is_default_constructible;
using ::cuda::std::is_default_constructible_v; using ::cuda::std::is_constructible;
using ::cuda::std::is_constructible_v; using ::cuda::std::is_copy_constructible;
using ::cuda::std::is_copy_constructible_v; using ::cuda::std::is_move_constructible;
using ::cuda::std::is_move_constructible_v; using ::cuda::std::is_assignable; using ::cuda::std::is_assignable_v;
using ::cuda::std::is_base_of; using ::cuda::std::is_base_of_v; using ::cuda::std::is_convertible;
using ::cuda::std::is_convertible_v; using ::cuda::std::is_empty; using ::cuda::std::is_empty_v;
using ::cuda::std::is_aggregate; using ::cuda::std::is_aggregate_v; using ::cuda::std::is_invocable;
using ::cuda::std::is_invocable_v; using ::cuda::std::is_array; using ::cuda::std::is_array_v;
using ::cuda::std::is_class; using ::cuda::std::is_class_v; using ::cuda::std::is_union;
using ::cuda::std::is_union_v; using ::cuda::std::is_enum; using ::cuda::std::is_enum_v; using ::cuda::std::is_void;
using ::cuda::std::is_void_v; using ::cuda::std::is_pointer; using ::cuda::std::is_pointer_v;
using ::cuda::std::is_reference; using ::cuda::std::is_reference_v; using ::cuda::std::is_const;
using ::cuda::std::is_const_v; using ::cuda::std::is_arithmetic; using ::cuda::std::is_arithmetic_v;
using ::cuda::std::is_unsigned; using ::cuda::std::is_unsigned_v; using ::cuda::std::is_function;
using ::cuda::std::is_function_v; using ::cuda::std::is_scalar; using ::cuda::std::is_scalar_v;
using ::cuda::std::is_object; using ::cuda::std::is_object_v; using ::cuda::std::is_fundamental;
using ::cuda::std::is_fundamental_v; using ::cuda::std::is_null_pointer; using ::cuda::std::is_null_pointer_v;
using ::cuda::std::is_destructible; using ::cuda::std::is_destructible_v;
using ::cuda::std::is_nothrow_default_constructible; using ::cuda::std::is_nothrow_default_constructible_v;
using ::cuda::std::conjunction; using ::cuda::std::disjunction; using ::cuda::std::negation;
using ::cuda::std::invoke_result; using ::cuda::std::invoke_result_t; using ::cuda::std::underlying_type;
using ::cuda::std::underlying_type_t; using ::cuda::std::common_type; using ::cuda::std::common_type_t;
using ::cuda::std::remove_extent; using ::cuda::std::remove_extent_t; using ::cuda::std::extent;
using ::cuda::std::rank; using ::cuda::std::remove_all_extents; using ::cuda::std::remove_all_extents_t;
using ::cuda::std::conjunction_v; using ::cuda::std::disjunction_v; using ::cuda::std::negation_v;
using ::cuda::std::is_trivially_copy_assignable; using ::cuda::std::is_trivially_copy_assignable_v;
using ::cuda::std::is_trivially_move_assignable; using ::cuda::std::is_trivially_move_assignable_v;
using ::cuda::std::is_trivially_copy_constructible; using ::cuda::std::is_trivially_copy_constructible_v;
using ::cuda::std::is_trivially_move_constructible; using ::cuda::std::is_trivially_move_constructible_v;
using ::cuda::std::is_copy_assignable; using ::cuda::std::is_copy_assignable_v;
using ::cuda::std::is_move_assignable; using ::cuda::std::is_move_assignable_v;
}  // namespace std
