// Tuples of Thrust: those of the C++ library, as device code of the simulator may call it.
#pragma once

#include <tuple>

namespace thrust {
using ::std::get;
using ::std::ignore;
using ::std::make_tuple;
using ::std::swap;
using ::std::tie;
using ::std::tuple;
using ::std::tuple_element;
using ::std::tuple_size;
}  // namespace thrust
