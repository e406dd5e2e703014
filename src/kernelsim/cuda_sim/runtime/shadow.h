// The last accesses to each piece of one range of memory, by which races are found.
#pragma once

#include <stdint.h>

namespace kernelsim {

// One access that was made: by whom, when, from where. Each block begins at a time of its own, so `time` says in which
// block it was.
struct Record {
  uint32_t time;  // 0: none
  uint32_t pc;
  uint16_t thread;
  uint8_t bytes;  // which of the cell's bytes
  uint8_t access;
};

constexpr uint8_t whole_cell = 0xff;

// Cells of a power of two of bytes. As long as all accesses are to whole cells, one cell stands for several elements
// without a loss: each would have the same records. At the first smaller access every cell is split.
class Shadow {
 public:
  // Cells have from 1 << finest to 1 << coarsest bytes.
  Shadow(uint64_t bytes, unsigned finest, unsigned coarsest) : bytes_(bytes), finest_(finest), coarsest_(coarsest) {}
  ~Shadow();
  Shadow(Shadow&& other) noexcept;
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // Whether there are cells, and an access is to whole ones.
  bool fits(uint64_t offset, uint64_t size) const { return writes_ && ((offset | size) & (granule_ - 1)) == 0; }
  // Whether there are cells, and an access is to one.
  bool fits_one(uint64_t offset, uint64_t size) const { return granule_ == size && offset % size == 0 && writes_; }
  // Makes cells that fit an access, or the smallest ones. False: there is no memory for them.
  bool make_fit(uint64_t offset, uint64_t size);
  unsigned shift() const { return shift_; }
  uint64_t cells() const { return (bytes_ >> shift_) + 2; }
  Record& write(uint64_t cell) { return writes_[place(cell)]; }
  // The first read since everything before it was ordered, and the last by another thread.
  Record& read(uint64_t cell) { return reads_[place(cell)]; }
  Record& other_read(uint64_t cell) { return other_reads_[place(cell)]; }
  // The last write that was not atomic, where an atomic one has come after it.
  Record& plain(uint64_t cell) { return plain_[place(cell)]; }
  // The last update or atomic write by another thread than that which made the last one.
  Record& other_update(uint64_t cell) { return other_updates_[place(cell)]; }

  // The pages of records that no access needed are never touched.
  bool any_write = false, any_read = false, any_other_read = false, any_plain = false, any_other_update = false;

 private:
  // Elements a power of two apart, as those of a column, would compete for the same few lines of the processor's cache.
  static uint64_t place(uint64_t cell) { return cell + (cell >> 9); }
  static uint64_t size_of(uint64_t cells);  // of their records in memory
  bool map(unsigned shift);
  bool split(unsigned shift);
  void spread(const Record& cell, Record& (Shadow::*part)(uint64_t), uint64_t first, uint64_t count);
  void unmap();

  uint64_t bytes_, granule_ = 0;
  unsigned finest_, coarsest_, shift_ = 0;
  Record* writes_ = nullptr;
  Record* plain_ = nullptr;
  Record* reads_ = nullptr;
  Record* other_reads_ = nullptr;
  Record* other_updates_ = nullptr;
};

// Whether no piece of memory was written in one of the shadows, all of the same range, and accessed in another. Splits
// cells where the shadows' differ. False also if there is no memory for that.
bool are_independent(Shadow* const* shadows, unsigned count);

}  // namespace kernelsim
