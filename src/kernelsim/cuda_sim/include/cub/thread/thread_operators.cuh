// The operators of CUB, those of libcu++ that replace them, and pairs of a key and a value.
#pragma once
#include "../../kernelsim.h"

namespace cub {

struct Sum {
  template <class T>
  KERNELSIM_INLINE T operator()(const T& a, const T& b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  KERNELSIM_INLINE T operator()(const T& a, const T& b) const {
    return a < b ? b : a;
  }
};
struct Min {
  template <class T>
  KERNELSIM_INLINE T operator()(const T& a, const T& b) const {
    return b < a ? b : a;
  }
};

template <class Key, class Value>
struct KeyValuePair {
  Key key;
  Value value;
  KERNELSIM_INLINE KeyValuePair() {}
  KERNELSIM_INLINE KeyValuePair(const Key& key, const Value& value) : key(key), value(value) {}
};
// Of pairs of an index and a value: the largest or smallest value, the first of equal ones.
struct ArgMax {
  template <class T, class Index>
  KERNELSIM_INLINE KeyValuePair<Index, T> operator()(const KeyValuePair<Index, T>& a,
                                                   const KeyValuePair<Index, T>& b) const {
    return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class T, class Index>
  KERNELSIM_INLINE KeyValuePair<Index, T> operator()(const KeyValuePair<Index, T>& a,
                                                   const KeyValuePair<Index, T>& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};

}  // namespace cub

namespace cuda {

template <class T = void>
struct maximum {
  template <class U>
  KERNELSIM_INLINE U operator()(const U& a, const U& b) const {
    return cub::Max()(a, b);
  }
};
template <class T = void>
struct minimum {
  template <class U>
  KERNELSIM_INLINE U operator()(const U& a, const U& b) const {
    return cub::Min()(a, b);
  }
};

}  // namespace cuda
