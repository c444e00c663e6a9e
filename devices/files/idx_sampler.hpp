#pragma once
// Which samples a step reads: pure arithmetic on (seed, epoch, step, part), no files.
//
// An epoch passes over all samples once, in global batches of `batch * parts`; the last one is
// smaller. Part i of n takes the contiguous samples [m * i / n, m * (i + 1) / n) of a global batch
// of m, so that the samples of a step do not depend on who reads which part: 1 part of 128 and 2
// parts of 64 read the same 128 samples.
//
// Threading: values and pure functions.
//
// IS-1  Over one epoch, the ranges of all parts cover every position exactly once.
// IS-2  range(step).count <= batch; it may be 0 for a part of the last batch of an epoch.
// IS-3  permutation() is a pure function of its arguments, on every machine.

#include <cstdint>
#include <vector>

namespace troupe {

// What one part reads in one step. Positions index the epoch's order of samples (permutation()).
struct idx_range {
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;         // position of this part's first sample
  std::uint64_t count = 0;         // samples of this part
  std::uint64_t global_count = 0;  // samples of all parts in this step

  friend bool operator==(const idx_range&, const idx_range&) = default;
};

// Limits (checked by the shape rule of idx_batch): 1 <= samples < 2^32, 1 <= batch < 2^32, part <
// parts <= 65536.
struct idx_schedule {
  std::uint64_t samples = 0;
  std::uint64_t batch = 1;  // samples per step of one part
  std::uint64_t parts = 1;
  std::uint64_t part = 0;

  // ceil(samples / (batch * parts)); 0 without samples.
  std::uint64_t steps_per_epoch() const noexcept;
  // Steps are counted from the start of training: epoch = step / steps_per_epoch(). Needs
  // samples > 0.
  idx_range range(std::uint64_t step) const noexcept;
};

// A random order of 0 .. samples - 1: Fisher and Yates' shuffle (Durstenfeld 1964; Knuth, TAOCP
// 3.4.2 P), drawing number i from SplitMix64 (Steele, Lea, Flood 2014) at counter i under a key
// mixed from (seed, epoch). Draws are scaled by Lemire's multiplication (2019) without rejection:
// with fewer than 2^32 samples the bias is below 2^-32.
std::vector<std::uint32_t> permutation(std::uint64_t seed, std::uint64_t epoch,
                                       std::uint32_t samples);

}  // namespace troupe
