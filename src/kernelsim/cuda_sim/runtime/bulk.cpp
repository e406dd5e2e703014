// Bulk copies from shared to global memory, which complete in groups, and copies of the boxes of tensor maps.

#include <string.h>

#include "checker.h"
#include "tensor_map.h"

namespace kernelsim {

namespace {

constexpr int64_t row_unit = 16;

// A row of a box, as far as it lies in the tensor.
struct Row {
  uint32_t number;
  char* at;
  uint32_t skipped, bytes;  // of the row's bytes: those before the tensor's first, and those within it
};

// Calls `visit` for each row of the box at the coordinates that has elements in the tensor.
template <class Visit>
void for_each_row(const TensorMap& map, const int32_t* coordinates, Visit visit) {
  const uint32_t rows = map.box_bytes() / map.row_bytes();
  const int64_t first = std::max<int64_t>(0, coordinates[0]);
  const int64_t end = std::min<int64_t>(map.sizes[0], int64_t(coordinates[0]) + map.box[0]);
  if (first >= end) return;
  for (uint32_t row = 0; row < rows; row++) {
    uint64_t address = map.address + uint64_t(first) * map.element_bytes;
    bool inside = true;
    for (uint32_t i = 1, left = row; i < map.rank; left /= map.box[i], i++) {
      const int64_t at = int64_t(coordinates[i]) + left % map.box[i];
      inside &= 0 <= at && at < int64_t(map.sizes[i]);
      address += uint64_t(at) * map.strides[i];
    }
    if (!inside) continue;
    visit(Row{row, reinterpret_cast<char*>(address), uint32_t(first - coordinates[0]) * map.element_bytes,
              uint32_t(end - first) * map.element_bytes});
  }
}

// Copies between a row of memory and its place in a tile, piece by piece of at most 16 bytes.
template <class Move>
void in_swizzled_pieces(const TensorMap& map, uint64_t tile, const Row& row, Move move) {
  for (uint32_t done = 0; done < row.bytes;) {
    const uint64_t place = tile + uint64_t(row.number) * map.row_bytes() + row.skipped + done;
    const uint32_t size = std::min(row.bytes - done, uint32_t(16 - place % 16));
    move(swizzled(place, map.swizzle_bytes) - tile, done, size);
    done += size;
  }
}

}  // namespace

const TensorMap& Worker::tensor_map_at(const void* address, uint32_t rank, const char* tile, uint64_t pc) {
  const auto& map = *static_cast<const TensorMap*>(address);
  const char* wrong = nullptr;
  if (map.mark != tensor_map_mark) {
    wrong = "the tensor map was not made by ow.tensor_map for a tensor on the CPU";
  } else if (map.rank != rank) {
    wrong = "the tensor map has another number of dimensions than the copy";
  }
  if (wrong) report_trap(pc, wrong);
  constexpr uint64_t tile_alignment = 128;
  const auto at = reinterpret_cast<uint64_t>(tile);
  if (checker_ && at % tile_alignment) {
    checker_->fault(FindingKind::misaligned, pc, at, tile_alignment, "a bulk copy of a tensor's box");
  }
  return map;
}

// Elements outside of the tensor become zero; their bytes count as well.
void Worker::tensor_load(char* to, const void* map_address, const BoxAt& box, uint64_t mbarrier, uint32_t blocks,
                         uint64_t pc) {
  const TensorMap& map = tensor_map_at(map_address, box.rank, to, pc);
  if (int64_t(box.coordinates[0]) * map.element_bytes % row_unit) {  // seen on an H100; not in PTX's documentation
    report_trap(pc, "a copy of a box begins at an innermost coordinate that is no multiple of 16 bytes, an illegal instruction");
  }
  BulkCopy copy{to, std::vector<char>(map.box_bytes(), 0), agent(rank()), false, pc};
  for_each_row(map, box.coordinates, [&](const Row& row) {
    if (checker_) checker_->bulk_load_reads(row.at, row.bytes, pc);
    in_swizzled_pieces(map, reinterpret_cast<uint64_t>(to), row, [&](uint64_t place, uint32_t at, uint32_t size) {
      memcpy(&copy.data[place], row.at + at, size);
    });
  });
  send_to(blocks, copy, mbarrier);
}

void Worker::tensor_store(const void* map_address, const BoxAt& box, const char* from, Combine operation, uint64_t pc) {
  const TensorMap& map = tensor_map_at(map_address, box.rank, from, pc);
  const Combination how{operation, map.type};
  if (!is_known(how)) report_trap(pc, "a reduction that the hardware does not have for the elements of the tensor map");
  if (checker_) checker_->bulk_store_reads(from, map.box_bytes(), pc);
  for_each_row(map, box.coordinates, [&](const Row& row) {
    if (checker_) checker_->bulk_store_writes(row.at, row.bytes, access_of(how), pc);
    in_swizzled_pieces(map, reinterpret_cast<uint64_t>(from), row, [&](uint64_t place, uint32_t at, uint32_t size) {
      put(row.at + at, from + place, size, how);
    });
  });
}

void Worker::bulk_store(const Bulk& bulk, const Combination& how, uint64_t pc) {
  if (bulk.size == 0) return;
  if (checker_) {
    checker_->check_units(bulk, pc);
    checker_->bulk_store_reads(bulk.from, bulk.size, pc);
    checker_->bulk_store_writes(bulk.to, bulk.size, access_of(how), pc);
  }
  put(bulk.to, bulk.from, bulk.size, how);
}

}  // namespace kernelsim
