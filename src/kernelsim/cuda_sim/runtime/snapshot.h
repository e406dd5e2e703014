// What the memory that a kernel may write contained at some time.
#pragma once

#include <string.h>

#include <algorithm>
#include <new>
#include <vector>

#include "abi.h"

namespace kernelsim {

class Snapshot {
 public:
  explicit Snapshot(const Request& request) {
    for (uint64_t i = 0; i < request.region_count; i++) {
      const Region& region = request.regions[i];
      if (region.kind == uint32_t(RegionKind::read_only)) continue;
      if (region.end - region.begin > most_bytes) {  // of a view whose rows lie far apart
        if (region.read_only) continue;
        throw std::bad_alloc();
      }
      keep(reinterpret_cast<uint8_t*>(region.begin), region.end - region.begin);
      if (region.written) keep(region.written, region.end - region.begin);
    }
  }
  void restore() const {
    for (const Part& part : parts_) {
      for (uint64_t begin = 0; begin < part.bytes.size(); begin += piece) {
        const uint8_t* before = &part.bytes[begin];
        const uint64_t size = std::min<uint64_t>(piece, part.bytes.size() - begin);
        // What did not change is not written: it may be a constant, in pages that are read-only.
        if (memcmp(part.at + begin, before, size) != 0) memcpy(part.at + begin, before, size);
      }
    }
  }
  bool is_what_there_is() const {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
      return memcmp(part.at, part.bytes.data(), part.bytes.size()) == 0;
    });
  }

 private:
  static constexpr uint64_t piece = 4096, most_bytes = uint64_t(1) << 30;
  struct Part {
    uint8_t* at;
    std::vector<uint8_t> bytes;
  };
  void keep(uint8_t* at, uint64_t size) { parts_.push_back({at, std::vector<uint8_t>(at, at + size)}); }
  std::vector<Part> parts_;
};

}  // namespace kernelsim
