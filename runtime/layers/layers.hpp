#pragma once
// Layers: functions from value to value that make their variables, in a name scope of their own
// ("dense_1/weights").
//
// What a layer computes is written with the functions of runtime/graph/ops.hpp; write your own in
// the same way: open a scope, make variables, compute. All of them take the user's line last, and
// return an invalid value where something does not fit (the graph remembers why). A layer that is
// called again makes variables of its own again; in graph::share_variables() it takes those of its
// name that are there, which is how towers on several devices share a model
// (apps/train_towers.cpp). Variables are f32; x may have a bound (batch_of) as its first dimension.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/initializers.hpp"

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe {

// x [n, .., in] -> [n, .., units]: x W + b, both uniform in +-1/sqrt(in).
value dense(value x, std::int64_t units, std::string_view name,
            source_location where = source_location::current());

// x [n, c, h, w] -> [n, outputs, oh, ow]: with bias, both uniform in +-1/sqrt(c / groups * kh *
// kw).
value conv2d(value x, std::int64_t outputs, std::array<std::int64_t, 2> kernel,
             std::string_view name, const conv2d_options& options = {},
             source_location where = source_location::current());

// Standardized over the last dimension; then scaled and shifted by variables, which begin with 1
// and 0.
value layer_norm(value x, std::string_view name, double epsilon = 1e-5,
                 source_location where = source_location::current());

struct batch_norm_options {
  bool is_training = true;  // false: with the averages, which stay as they are
  double rate = 0.1;        // of the averages
  double epsilon = 1e-5;
};
// x [n, c, ..]: standardized by channel over the batch at hand (of each worker), or by the averages
// of its mean and variance, the variables "mean" and "variance"; then scaled and shifted as
// layer_norm.
value batch_norm(value x, std::string_view name, const batch_norm_options& options = {},
                 source_location where = source_location::current());

// ids (i32 or i64) [..] -> [.., width]: rows of a table, normal with deviation 1 / sqrt(width).
// Gradients are pushed as rows.
value embedding(value ids, std::int64_t rows, std::int64_t width, std::string_view name,
                source_location where = source_location::current());

// x [n, t, width] -> [n, t, width]: each position as the mean of projections of all, weighed by
// softmax(q k / sqrt(width / heads)), in several heads (Vaswani et al.: Attention Is All You Need,
// 2017).
value self_attention(value x, const attention_options& options, std::string_view name,
                     source_location where = source_location::current());

}  // namespace troupe
