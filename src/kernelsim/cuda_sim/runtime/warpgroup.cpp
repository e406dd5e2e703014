// wgmma: products of matrices in shared memory by the tensor cores of a warpgroup, which go on while its threads do. Here
// a product is computed when its warp issues it; the checker says what a thread may touch before it has waited. Each
// result is the sum in double, rounded once: tensor cores keep fewer bits of the sum, so their last bits differ.

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checker.h"
#include "../include/kernelsim/language.h"
#include "../include/kernelsim/warpgroup.h"
#include "tensor_map.h"

namespace kernelsim {

namespace {

constexpr unsigned most_k = 32, most_n = 256, rows_of_a_warp = 16, threads_of_a_warpgroup = 128;

unsigned bytes_of(Element type) {
  return type == Element::tf32 ? 4 : type == Element::f16 || type == Element::bf16 ? 2 : 1;
}

// An 8-bit float. e4m3 has no infinities, and NaN only with all bits set; e5m2 is as IEEE 754 would have it.
double decoded_fp8(uint8_t bits, int exponent_bits) {
  const int fraction_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1), fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  if (exponent_bits == 4 && (bits & 0x7f) == 0x7f) return NAN;
  if (exponent_bits == 5 && exponent == 31) return fraction ? double(NAN) : sign * INFINITY;
  const int scale = (exponent ? exponent : 1) - bias - fraction_bits;
  return sign * ldexp(fraction + (exponent ? 1 << fraction_bits : 0), scale);
}

double decoded(Element type, const char* at) {
  uint32_t bits = 0;
  memcpy(&bits, at, bytes_of(type));
  switch (type) {
    case Element::f16: return decode_half(uint16_t(bits));
    case Element::bf16: return bits_as<float>(bits << 16);
    case Element::tf32: return bits_as<float>(bits & 0xffffe000u);  // 10 bits of fraction
    case Element::s8: return int8_t(bits);
    case Element::u8: return uint8_t(bits);
    case Element::e4m3: return decoded_fp8(uint8_t(bits), 4);
    case Element::e5m2: return decoded_fp8(uint8_t(bits), 5);
    default: return 0;
  }
}

// A matrix in shared memory as its descriptor says (PTX ISA, "Shared Memory Matrix Layout"). It consists of pieces of 16
// bytes, which a pattern of 32, 64 or 128 bytes may permute.
struct Tile {
  char* begin;
  uint64_t leading, stride;  // byte offsets
  uint32_t span;             // of the pattern; 0: none
  bool transposed;

  // Of the piece with elements from (row, k); these are multiples of a piece where they are contiguous.
  char* piece(unsigned row, unsigned k, unsigned element_bytes) const {
    const unsigned pitch = span ? span : 16;
    uint64_t at;
    if (!transposed) {
      const unsigned byte = k * element_bytes;
      at = row % 8 * pitch + row / 8 * stride + byte / 16 * (span ? 16 : leading);
    } else {
      const unsigned byte = row * element_bytes;
      const uint64_t atoms = span ? leading : stride, eights = span ? stride : leading;
      at = byte % pitch + byte / pitch * atoms + k % 8 * pitch + k / 8 * eights;
    }
    return reinterpret_cast<char*>(swizzled(reinterpret_cast<uint64_t>(begin) + at, span));
  }
};

struct Product {
  double a[rows_of_a_warp][most_k];
  double b[most_k][most_n];
};

// Reads the pieces of a tile; `put` gets each element's value.
template <class Put>
void read_tile(Checker* checker, const Tile& tile, Element type, unsigned first, unsigned rows, unsigned k, uint64_t pc,
               Put put) {
  const unsigned bytes = bytes_of(type), in_piece = 16 / bytes;
  const unsigned row_step = tile.transposed ? in_piece : 1, k_step = tile.transposed ? 1 : in_piece;
  for (unsigned row = 0; row < rows; row += row_step) {
    for (unsigned at = 0; at < k; at += k_step) {
      const char* piece = tile.piece(first + row, at, bytes);
      if (checker) checker->tensor_cores_read(piece, 16, pc);
      for (unsigned i = 0; i < in_piece; i++) {
        put(tile.transposed ? row + i : row, tile.transposed ? at : at + i, decoded(type, piece + i * bytes));
      }
    }
  }
}

void read_fragments(const WarpgroupProduct* const* lanes, unsigned pack, Product& product) {
  const Element type = lanes[0]->a_type;
  for (unsigned lane = 0; lane < 32; lane++) {
    for (unsigned i = 0; i < 4; i++) {  // rows `lane / 4` and 8 more of the first half of k, then of the second
      for (unsigned e = 0; e < pack; e++) {
        const unsigned row = lane / 4 + i % 2 * 8, k = i / 2 * 4 * pack + lane % 4 * pack + e;
        product.a[row][k] = decoded(type, reinterpret_cast<const char*>(&lanes[lane]->a[i]) + e * bytes_of(type));
      }
    }
  }
}

void put_result(const WarpgroupProduct& mine, unsigned i, double sum) {
  if (mine.d_type == Element::f16) {
    auto* half = static_cast<uint16_t*>(mine.d[i / 2]) + i % 2;
    *half = encode<HalfFormat>(sum + (mine.accumulates ? decode_half(*half) : 0));
  } else if (mine.d_type == Element::s32) {
    auto* whole = static_cast<int32_t*>(mine.d[i]);
    *whole = int32_t(uint32_t(int64_t(sum)) + (mine.accumulates ? uint32_t(*whole) : 0));
  } else {
    auto* single = static_cast<float*>(mine.d[i]);
    *single = float(sum + (mine.accumulates ? double(*single) : 0));
  }
}

void multiply_warp(void* const* values) {
  const WarpgroupProduct* lanes[32];
  for (unsigned i = 0; i < 32; i++) {
    lanes[i] = static_cast<const WarpgroupProduct*>(values[i]);
    if (!lanes[i]) return;  // a lane has ended: what the others get is undefined
  }
  Worker& worker = *current_worker();
  const WarpgroupProduct& one = *lanes[0];
  const unsigned pack = 4 / bytes_of(one.a_type), k = 8 * pack;
  auto& product = *static_cast<Product*>(worker.scratch(sizeof(Product)));
  const auto tile = [&](uint64_t descriptor, bool transposed) {
    static constexpr uint32_t spans[] = {0, 128, 64, 32};
    const auto field = [&](unsigned from) { return (descriptor >> from & 0x3fff) << 4; };
    if (descriptor >> 49 & 7) worker.refuse_descriptor(one.pc);
    return Tile{worker.shared_at(field(0), one.pc), field(16), field(32), spans[descriptor >> 62], transposed};
  };
  if (one.a_in_registers) {
    read_fragments(lanes, pack, product);
  } else {
    read_tile(worker.checker(), tile(one.a_tile, one.a_is_transposed), one.a_type, worker.rank() / 32 % 4 * 16,
              rows_of_a_warp, k, one.pc, [&](unsigned row, unsigned at, double value) { product.a[row][at] = value; });
  }
  read_tile(worker.checker(), tile(one.b_tile, one.b_is_transposed), one.b_type, 0, one.n, k, one.pc,
            [&](unsigned column, unsigned at, double value) { product.b[at][column] = value; });
  const double sign = one.a_is_negated != one.b_is_negated ? -1 : 1;
  for (unsigned lane = 0; lane < 32; lane++) {
    for (unsigned i = 0; i < one.n / 2; i++) {
      const unsigned row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = 0;
      for (unsigned at = 0; at < k; at++) sum += product.a[row][at] * product.b[at][column];
      put_result(*lanes[lane], i, sign * sum);
    }
  }
}

}  // namespace

void Worker::report_trap(uint64_t pc, const char* what) {
  Finding found = finding(FindingKind::trap);
  found.pc = launch_.relative(pc);
  snprintf(found.text, sizeof found.text, "%s", what);
  launch_.report(found);
  abandon();
}

void Worker::refuse_descriptor(uint64_t pc) {
  report_trap(pc, "a matrix descriptor with a base offset, which the simulator does not have");
}

// Where 18 bits of an address in shared memory point to. Addresses count from dynamic shared memory, and variables may lie
// before it.
char* Worker::shared_at(uint64_t low_bits, uint64_t pc) {
  constexpr int64_t window = 1 << 18;
  const Request& request = launch_.request;
  for (const int64_t at : {int64_t(low_bits), int64_t(low_bits) - window}) {
    char* address = kernelsim_dynamic_shared + at;
    const uint64_t offset = shared_offset(reinterpret_cast<uint64_t>(address));
    for (uint64_t i = 0; i < request.shared_count; i++) {
      const SharedVariable& variable = request.shared[i];
      if (variable.kind == uint32_t(StorageKind::shared) && offset - variable.offset < variable.size) return address;
    }
  }
  report_trap(pc, "a matrix descriptor whose address is in no variable in shared memory");
}

void Worker::warpgroup_multiply(WarpgroupProduct& mine, Site site) {
  if ((rank() / threads_of_a_warpgroup + 1) * threads_of_a_warpgroup > threads_.size()) {
    report_trap(mine.pc, "wgmma needs the four warps of a warpgroup: the block has fewer threads");
  }
  const unsigned registers = mine.d_type == Element::f16 ? mine.n / 4 : mine.n / 2;
  if (checker_) checker_->accumulators_taken(mine.d, registers, mine.pc);
  Wait& wait = warp_operation(Operation::collective, 0xffffffffu, site);
  wait.value = &mine;
  wait.compute = multiply_warp;
  wait_in_warp();
}

// A group of products is one of the whole warpgroup: none of its threads goes on before all have issued it.
void Worker::meet_in_warpgroup(uint64_t pc) {
  const uint64_t warpgroup = rank() / threads_of_a_warpgroup;
  const auto found = mbarriers_.try_emplace(warpgroup, Mbarrier{threads_of_a_warpgroup, threads_of_a_warpgroup}).first;
  Mbarrier& meeting = found->second;
  const PhaseWait phase{warpgroup, meeting.phase, false, false, pc};
  meeting.pending--;
  cluster_.note_event();
  complete_phase(meeting);
  if (!phase.is_over(meeting)) wait_for_phase(meeting, phase);
}

void warpgroup_multiply(WarpgroupProduct& mine, Site site) {
  mine.pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  current_worker()->warpgroup_multiply(mine, site);
}
void warpgroup_fence() {
  if (Checker* checker = running_checker()) checker->accumulators_fenced();
}
void warpgroup_commit() {
  if (Checker* checker = running_checker()) checker->commit_products();
}
void warpgroup_wait(uint32_t groups) {
  current_worker()->meet_in_warpgroup(reinterpret_cast<uint64_t>(__builtin_return_address(0)));
  if (Checker* checker = running_checker()) checker->wait_for_products(groups);
}

}  // namespace kernelsim
