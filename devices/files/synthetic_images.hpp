#pragma once
// A small image set that the project makes itself, for trying things without a download. It is no
// benchmark.
//
// 28x28 greyscale, ten classes. Each class is a drawing of three strokes (quadratic Bezier curves
// with random control points, drawn once from the seed). A sample is its class's drawing with every
// control point moved by up to two pixels and the whole by up to two more, over a weaker drawing of
// another class, with noise on every pixel; half of the samples are negatives, light on dark
// against dark on light, so that the average image tells nothing and a linear model guesses
// (measured: 0.13). The 784-256-128-10 network learns the default set to 0.96 in ten epochs.

#include "troupe/schema/error.hpp"

#include <cstdint>
#include <string>

namespace troupe {

struct synthetic_options {
  std::int64_t train = 10'000;
  std::int64_t test = 2'000;
  std::uint64_t seed = 1;
};

// Writes the four IDX files into `folder`, which is made if missing. Equal options give equal
// bytes. Existing files are replaced one by one, each whole.
result<void> write_synthetic_images(const std::string& folder,
                                    const synthetic_options& options = {});

}  // namespace troupe
