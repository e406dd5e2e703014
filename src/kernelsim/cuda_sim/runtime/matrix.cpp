// d = a * b + c for the fragments of a warp. Each result is the sum in double, rounded once: tensor cores keep fewer bits
// of the sum, so their last bits differ.

#include <math.h>
#include <string.h>

#define KERNELSIM_RUNTIME
#include "../include/kernelsim/language.h"
#include "../include/kernelsim/matrix.h"

namespace kernelsim {

namespace {

double decoded(Element type, const uint32_t* registers, unsigned index) {
  switch (type) {
    case Element::f16: return decode_half(uint16_t(registers[index / 2] >> (16 * (index % 2))));
    case Element::bf16: return bits_as<float>(registers[index / 2] >> (16 * (index % 2)) << 16);
    case Element::tf32: return bits_as<float>(registers[index] & 0xffffe000u);  // 10 bits of fraction
    case Element::s8: return int8_t(registers[index / 4] >> (8 * (index % 4)));
    case Element::u8: return uint8_t(registers[index / 4] >> (8 * (index % 4)));
    default: return 0;
  }
  return 0;
}

unsigned per_register(Element type) { return type == Element::tf32 ? 1 : type == Element::s8 || type == Element::u8 ? 4 : 2; }

}  // namespace

void multiply_fragments(void* const* values) {
  MatrixLane* lanes[32];
  for (int i = 0; i < 32; i++) {
    lanes[i] = static_cast<MatrixLane*>(values[i]);
    if (!lanes[i]) return;  // a lane has ended: what the others get is undefined
  }
  const Element type = lanes[0]->a_type, b_type = lanes[0]->b_type;
  const unsigned pack = per_register(type), halves = lanes[0]->a_count / 2, k = 4 * pack * halves;
  double a[16][32], b[32][8];
  for (unsigned lane = 0; lane < 32; lane++) {
    const unsigned group = lane / 4, rank = lane % 4;
    // Registers of a: rows `group` and `group + 8` of the first half of k, then of the second; of b: one for each half.
    for (unsigned half = 0; half < halves; half++) {
      for (unsigned i = 0; i < pack; i++) {
        const unsigned at = half * 4 * pack + rank * pack + i;
        a[group][at] = decoded(type, lanes[lane]->a, (2 * half) * pack + i);
        a[group + 8][at] = decoded(type, lanes[lane]->a, (2 * half + 1) * pack + i);
        b[at][group] = decoded(b_type, lanes[lane]->b, half * pack + i);
      }
    }
  }
  const bool integer = type == Element::s8 || type == Element::u8;
  for (unsigned lane = 0; lane < 32; lane++) {
    MatrixLane& mine = *lanes[lane];
    for (unsigned i = 0; i < 4; i++) {
      const unsigned row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
      double sum = 0;
      for (unsigned at = 0; at < k; at++) sum += a[row][at] * b[at][column];
      if (integer) {
        mine.d[i] = uint32_t(int32_t(mine.c[i]) + int32_t(sum));
      } else if (mine.half_result) {
        const unsigned shift = 16 * (i % 2);
        const uint16_t rounded = encode<HalfFormat>(sum + decode_half(uint16_t(mine.c[i / 2] >> shift)));
        mine.d[i / 2] = (mine.d[i / 2] & ~(0xffffu << shift)) | uint32_t(rounded) << shift;
      } else {
        mine.d[i] = bits_as<uint32_t>(float(sum + double(bits_as<float>(mine.c[i]))));
      }
    }
  }
}

}  // namespace kernelsim
