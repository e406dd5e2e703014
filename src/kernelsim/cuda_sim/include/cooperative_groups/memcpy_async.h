// Asynchronous copies that a group makes together: each thread copies some pieces, and waits for its own.
#pragma once
#include "cooperative_groups.h"
#include "kernelsim/group_copy.h"

namespace cooperative_groups {

template <class Group, class T, class Bytes>
KERNELSIM_INLINE void memcpy_async(const Group& group, T* to, const T* from, const Bytes& bytes) {
  kernelsim::group_copy(group, to, from, size_t(bytes));
  kernelsim::commit_copies();
}
// With the numbers of elements of both, of which the smaller counts.
template <class Group, class T, class ToCount, class FromCount>
KERNELSIM_INLINE void memcpy_async(const Group& group, T* to, const ToCount& to_count, const T* from,
                                  const FromCount& from_count) {
  const size_t count = size_t(to_count) < size_t(from_count) ? size_t(to_count) : size_t(from_count);
  memcpy_async(group, to, from, count * sizeof(T));
}
template <class Group>
KERNELSIM_INLINE void wait(const Group& group, kernelsim::Site site = kernelsim::Site::here()) {
  kernelsim::wait_for_all_copies();
  group.sync(site);
}
template <unsigned Groups, class Group>
KERNELSIM_INLINE void wait_prior(const Group& group, kernelsim::Site site = kernelsim::Site::here()) {
  kernelsim::wait_for_copies(Groups);
  group.sync(site);
}

}  // namespace cooperative_groups
