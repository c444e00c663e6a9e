#pragma once
// The functions that add ops to a graph, by family.
//
// All of them return an invalid value where operands do not fit, and the graph remembers why.
// Element-wise ops broadcast their operands by NumPy's rules, and take f32 and f64 unless something
// else is said; no op converts element types by itself. Products, convolutions and attention take
// f16 and bf16 as well: sums are f32, and each result is rounded once. Whole numbers are i32 and
// i64, and wrap around. Axes count from 0, negative ones from the end.

#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/text_file.hpp"
#include "troupe/devices/tensor.hpp"
#include "troupe/runtime/graph/graph.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <source_location>
#include <string_view>
#include <vector>

namespace troupe {

// --- sources -------------------------------------------------------------------------------------

// A tensor that the program feeds, one per step. A symbolic first dimension is written as
// {dtype::f32, batch_of(bound, {sizes of a sample})}.
value input(graph& g, const tensor_spec& spec, std::string_view name,
            source_location where = source_location::current());
value variable(graph& g, const tensor_spec& spec, initializer_spec init, std::string_view name,
               source_location where = source_location::current());
struct moving_average_options {
  double rate = 0.1;   // from 0 (it stays) to 1 (the last sample)
  double initial = 0;  // every element
  // A training moves the average if its loss depends on this value; without it: on the sample.
  value beside{};
};
// A variable that follows a sample (f32, of exact sizes): v += rate (sample - v) after each step,
// with the mean of all workers' samples, or (async) with each one's. Elements of a sample that are
// not finite, as in the mean of an empty batch, leave it as it is. No gradient flows to it, whoever
// reads it; it is saved and restored as all variables are. An eager's stays as it began.
value moving_average(value sample, std::string_view name,
                     const moving_average_options& options = {},
                     source_location where = source_location::current());
value constant(graph& g, float scalar, std::string_view name = "constant",
               source_location where = source_location::current());
value constant(graph& g, double scalar, dtype type, std::string_view name = "constant",
               source_location where = source_location::current());
// A copy of its elements, of any type, which the plan carries: at most constant_bytes_max.
value constant(graph& g, const tensor& values, std::string_view name = "constant",
               source_location where = source_location::current());
// What Cap'n Proto takes as one piece.
inline constexpr std::size_t constant_bytes_max = (std::size_t{1} << 29) - 1;
// The gradients of scalar `loss` in `with_respect_to`, as values of the graph (invalid: the loss
// does not depend on it, or by no way that has a gradient).
std::vector<value> gradients(graph& g, value loss, std::span<const value> with_respect_to);
// x, once all of `others` are there, too: what takes it runs after them (a control dependency). Its
// gradient is x's.
value after(value x, std::span<const value> others,
            source_location where = source_location::current());
value after(value x, std::initializer_list<value> others,
            source_location where = source_location::current());
// x, through which no gradient flows.
value stop_gradient(value x, source_location where = source_location::current());

// --- arithmetic ----------------------------------------------------------------------------------

// Whole numbers, too.
value add(value a, value b, source_location where = source_location::current());
// Whole numbers, too.
value sub(value a, value b, source_location where = source_location::current());
// Whole numbers, too.
value mul(value a, value b, source_location where = source_location::current());
// Whole numbers, too: the fraction is cut off; by 0: 0.
value div(value a, value b, source_location where = source_location::current());
// Whole numbers, too; NaN wins.
value maximum(value a, value b, source_location where = source_location::current());
// Whole numbers, too; NaN wins.
value minimum(value a, value b, source_location where = source_location::current());
// a^b, as C's pow.
value pow(value a, value b, source_location where = source_location::current());
// What is left of a / b, with the sign of a: exact, as C's fmod. NaN where b is 0.
value fmod(value a, value b, source_location where = source_location::current());
// Whole numbers, too.
value neg(value x, source_location where = source_location::current());
// Whole numbers, too.
value abs(value x, source_location where = source_location::current());
// Whole numbers, too; of NaN: NaN.
value sign(value x, source_location where = source_location::current());
// Whole numbers, too.
value square(value x, source_location where = source_location::current());
value reciprocal(value x, source_location where = source_location::current());
// a b + c, rounded once.
value fused_multiply_add(value a, value b, value c,
                         source_location where = source_location::current());

// --- mathematics ---------------------------------------------------------------------------------

value exp(value x, source_location where = source_location::current());
value log(value x, source_location where = source_location::current());
value sqrt(value x, source_location where = source_location::current());
value rsqrt(value x, source_location where = source_location::current());
value erf(value x, source_location where = source_location::current());
value sin(value x, source_location where = source_location::current());
value cos(value x, source_location where = source_location::current());
value tan(value x, source_location where = source_location::current());
// e^x - 1 and ln(1 + x), which keep their digits where x is small.
value expm1(value x, source_location where = source_location::current());
value log1p(value x, source_location where = source_location::current());
// NaN beyond -1 to 1.
value asin(value x, source_location where = source_location::current());
value acos(value x, source_location where = source_location::current());
value atan(value x, source_location where = source_location::current());
value sinh(value x, source_location where = source_location::current());
value cosh(value x, source_location where = source_location::current());
value asinh(value x, source_location where = source_location::current());
value acosh(value x, source_location where = source_location::current());  // NaN below 1
value atanh(value x, source_location where = source_location::current());  // NaN beyond -1 to 1
value floor(value x, source_location where = source_location::current());
value ceil(value x, source_location where = source_location::current());
value round(value x, source_location where = source_location::current());  // halves to even

// --- activations ---------------------------------------------------------------------------------

value relu(value x, source_location where = source_location::current());
value leaky_relu(value x, double slope = 0.01, source_location where = source_location::current());
value sigmoid(value x, source_location where = source_location::current());
value tanh(value x, source_location where = source_location::current());
value gelu(value x, source_location where = source_location::current());  // x Phi(x)
// Its approximation by tanh.
value gelu_tanh(value x, source_location where = source_location::current());
// log(1 + exp(x))
value softplus(value x, source_location where = source_location::current());
// x sigmoid(x)
value silu(value x, source_location where = source_location::current());
// alpha (exp(x) - 1) below 0.
value elu(value x, double alpha = 1, source_location where = source_location::current());
// max(low, min(x, high)); whole numbers, too.
value clip(value x, double low, double high, source_location where = source_location::current());
value clip(value x, value low, value high, source_location where = source_location::current());

// --- comparison, logic, choice, conversion -------------------------------------------------------

// -> bool. Also whole numbers and u8; equal and not_equal also bool.
value equal(value a, value b, source_location where = source_location::current());
value not_equal(value a, value b, source_location where = source_location::current());
value less(value a, value b, source_location where = source_location::current());
value less_equal(value a, value b, source_location where = source_location::current());
value greater(value a, value b, source_location where = source_location::current());
value greater_equal(value a, value b, source_location where = source_location::current());
value is_nan(value x, source_location where = source_location::current());
// bool -> bool
value logical_and(value a, value b, source_location where = source_location::current());
value logical_or(value a, value b, source_location where = source_location::current());
value logical_xor(value a, value b, source_location where = source_location::current());
value logical_not(value x, source_location where = source_location::current());
// a where the condition (bool) holds, else b: of any one element type.
value where(value condition, value a, value b, source_location line = source_location::current());
// Between any two element types. To whole numbers: fractions are cut off, what does not fit becomes
// the nearest that does, and NaN 0; whole numbers keep their low bits.
value cast(value x, dtype to, source_location where = source_location::current());

// --- products ------------------------------------------------------------------------------------

// a [.., m, k], b [.., k, n] -> [.., m, n]; the dimensions in front are batches, which are
// broadcast.
value matmul(value a, value b, bool transpose_a = false, bool transpose_b = false,
             source_location where = source_location::current());

// Numbers of height and width, in this order. `same` chooses before and after so that the result
// has ceil(size / stride) rows and columns.
struct conv2d_options {
  std::array<std::int64_t, 2> strides{1, 1};
  std::array<std::int64_t, 2> before{0, 0}, after{0, 0};  // zeros around the image
  std::array<std::int64_t, 2> dilations{1, 1};
  std::int64_t groups = 1;
  bool same = false;
};
// x [n, c, h, w], w [o, c / groups, kh, kw] -> [n, o, oh, ow]: the cross-correlation that the field
// calls a convolution.
value conv2d(value x, value w, const conv2d_options& options = {},
             source_location where = source_location::current());
// What conv2d with these options does to an image of height x width, transposed: x [n, o, h, w], w
// [o, c / groups, kh, kw] -> [n, c, height, width].
value conv2d_transposed(value x, value w, std::int64_t height, std::int64_t width,
                        const conv2d_options& options = {},
                        source_location where = source_location::current());

// --- pooling -------------------------------------------------------------------------------------

struct pool2d_options {
  std::array<std::int64_t, 2> window{2, 2};
  std::optional<std::array<std::int64_t, 2>> strides{};   // none: the window
  std::array<std::int64_t, 2> before{0, 0}, after{0, 0};  // smaller than the window
  std::array<std::int64_t, 2> dilations{1, 1};
  bool same = false;           // as of conv2d
  bool round_up = false;       // a last window may reach beyond the padding
  bool count_padding = false;  // means: the padding counts as zeros
};
// x [n, c, h, w] -> [n, c, oh, ow]. Of equal elements the first gets the gradient; a NaN is the
// largest.
value max_pool2d(value x, const pool2d_options& options = {},
                 source_location where = source_location::current());
value avg_pool2d(value x, const pool2d_options& options = {},
                 source_location where = source_location::current());

// --- normalisation -------------------------------------------------------------------------------

struct standardized {
  // y = (x - mean) scale, scale = 1 / sqrt(variance + epsilon); mean and scale keep the axes, with
  // size 1.
  value y, mean, scale;
};
// Over the given axes (none: all): mean 0 and variance 1, that of the elements themselves.
standardized standardize(value x, std::vector<std::int64_t> axes = {}, double epsilon = 1e-5,
                         source_location where = source_location::current());
// Standardized over the last dimensions, which are those of scale and shift (Ba, Kiros, Hinton:
// Layer Normalization, 2016).
value layer_norm(value x, value scale, value shift, double epsilon = 1e-5,
                 source_location where = source_location::current());
struct batch_normalized {
  value y, mean, variance;  // mean and variance [c], for whoever keeps averages of them
};
// x [n, c, ..]: standardized by channel (Ioffe, Szegedy: Batch Normalization, 2015); scale and
// shift [c].
batch_normalized batch_norm(value x, value scale, value shift, double epsilon = 1e-5,
                            source_location where = source_location::current());
// With a mean and a variance that are known.
value batch_norm(value x, value scale, value shift, value mean, value variance,
                 double epsilon = 1e-5, source_location where = source_location::current());

// Along an axis: exp(x) / sum(exp(x)), and its logarithm.
value softmax(value x, std::int64_t axis = -1, source_location where = source_location::current());
value log_softmax(value x, std::int64_t axis = -1,
                  source_location where = source_location::current());

// --- attention -----------------------------------------------------------------------------------

struct attention_options {
  std::int64_t heads = 1;
  bool causal = false;  // a position sees itself and those before it
  double scale = 0;     // of scores; 0: 1 / sqrt(features of a head)
};
// q [n, t, heads * e], k [n, s, heads * e], v [n, s, heads * f] -> [n, t, heads * f]: softmax(scale
// q k^T) v for each head, whose features lie side by side (Vaswani et al.: Attention Is All You
// Need, 2017). Neither it nor its gradient ever has all scores, whose number grows with t s: they
// are made again, some queries at a time (Rabe, Staats: Self-attention Does Not Need O(n^2) Memory,
// 2021). A NaN or infinity of a later position's v reaches those of the same block that do not see
// it, as it does in a product with weights of 0.
value attention(value q, value k, value v, const attention_options& options = {},
                source_location where = source_location::current());
// The same of qkv [n, t, 3 * heads * e]: queries, keys and values side by side.
value attention(value qkv, const attention_options& options = {},
                source_location where = source_location::current());

// --- random numbers ------------------------------------------------------------------------------

// A number is a function of (seed, name of the op, step, position in the whole batch) alone, the
// same on every device and for every number of workers that a batch is cut for. uniform: in [low,
// high). Of a given shape every worker draws the same; those like a tensor whose first dimension is
// a batch are the worker's part of the whole batch's.
value random_uniform(graph& g, const tensor_spec& spec, double low = 0, double high = 1,
                     std::uint64_t seed = 1, source_location where = source_location::current());
value random_normal(graph& g, const tensor_spec& spec, double mean = 0, double deviation = 1,
                    std::uint64_t seed = 1, source_location where = source_location::current());
// With the shape and type of x, which may have a bound.
value random_uniform_like(value x, double low = 0, double high = 1, std::uint64_t seed = 1,
                          source_location where = source_location::current());
value random_normal_like(value x, double mean = 0, double deviation = 1, std::uint64_t seed = 1,
                         source_location where = source_location::current());
// Elements of x are 0 with probability `rate`, others are divided by 1 - rate. For training: leave
// it out elsewhere.
value dropout(value x, double rate, std::uint64_t seed = 1,
              source_location where = source_location::current());

// --- reductions ----------------------------------------------------------------------------------

// Over the given axes (none: all); what was reduced vanishes, or (keep) stays with size 1. The sum
// of nothing is 0, the product 1, the maximum -infinity (or the least whole number). Sums and
// extremes also of whole numbers; any and all of bool.
value reduce_sum(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                 source_location where = source_location::current());
value reduce_mean(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                  source_location where = source_location::current());
value reduce_prod(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                  source_location where = source_location::current());
value reduce_max(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                 source_location where = source_location::current());
value reduce_min(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                 source_location where = source_location::current());
value reduce_any(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                 source_location where = source_location::current());
value reduce_all(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                 source_location where = source_location::current());
// log(sum(exp(x))), without overflow.
value reduce_log_sum_exp(value x, std::vector<std::int64_t> axes = {}, bool keep = false,
                         source_location where = source_location::current());
// Index of the first largest (smallest) element along an axis, which vanishes: -> i32. A NaN never
// wins.
value argmax(value x, std::int64_t axis = -1, source_location where = source_location::current());
value argmin(value x, std::int64_t axis = -1, source_location where = source_location::current());
// Elements along the axes (none: all), as a scalar of x's type: the sizes of the step, not their
// bounds.
value element_count(value x, std::vector<std::int64_t> axes = {},
                    source_location where = source_location::current());
// x, broadcast to the other's shape.
value broadcast_like(value x, value like, source_location where = source_location::current());
// The same elements with dimensions of size 1 put in, at these axes of the result.
value expand_dims(value x, std::vector<std::int64_t> axes,
                  source_location where = source_location::current());

// --- layout --------------------------------------------------------------------------------------

// Of any element type. A bound (batch_of) stays one where a dimension is taken whole; elsewhere it
// is an error.

// The same elements in another shape: 0 stands for x's size in that place, -1, once, for what is
// left.
value reshape(value x, std::vector<std::int64_t> dims,
              source_location where = source_location::current());
// Axis i of the result is axis order[i] of x; without an order: the reverse.
value transpose(value x, std::vector<std::int64_t> order = {},
                source_location where = source_location::current());
// Elements begin, begin + step, ... up to before end, of each axis given, from the first; ends and
// begins may be negative, counted from the end of the axis, and are moved into it where they are
// outside (NumPy's rules). Without an end: as far as there are elements, in the direction of the
// step. Axes that are not given are taken whole.
struct range {
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
  std::int64_t step = 1;
};
value slice(value x, std::vector<range> ranges, source_location where = source_location::current());
value concat(std::vector<value> parts, std::int64_t axis = 0,
             source_location where = source_location::current());
// Parts of these sizes along an axis.
std::vector<value> split(value x, std::vector<std::int64_t> sizes, std::int64_t axis = 0,
                         source_location where = source_location::current());
// Tensors of one shape along a new axis.
value stack(std::vector<value> parts, std::int64_t axis = 0,
            source_location where = source_location::current());
// Elements of `with` before and after, by axis.
value pad(value x, std::vector<std::int64_t> before, std::vector<std::int64_t> after,
          double with = 0, source_location where = source_location::current());
// Repeated, by axis.
value tile(value x, std::vector<std::int64_t> times,
           source_location where = source_location::current());

// --- indices -------------------------------------------------------------------------------------

// Indices are i32 or i64. One that is negative or beyond the last fails the step, with its position
// and value: ids come from data, where -1 is a mistake or a "none".

// The axis of x is replaced by the dimensions of the indices.
value gather(value x, value indices, std::int64_t axis = 0,
             source_location where = source_location::current());
// x, with updates added where gather would have read them; equal indices add up, in their order.
value scatter_add(value x, value indices, value updates, std::int64_t axis = 0,
                  source_location where = source_location::current());
// Rows of a table [n, width].
value embedding(value table, value ids, source_location where = source_location::current());
// A last dimension of `depth` with a 1 at each index; zeros only where it is outside.
value one_hot(value indices, std::int64_t depth, dtype type = dtype::f32,
              source_location where = source_location::current());
struct top_k_values {
  value values, indices;  // indices: i32
};
// The k largest along the last axis, in descending order, of equal ones the first; a NaN is the
// largest.
top_k_values top_k(value x, std::int64_t k, source_location where = source_location::current());
// From each row along the last axis the elements at its own indices: x [.., n], indices [.., k] ->
// [.., k].
value take_last(value x, value indices, source_location where = source_location::current());
// Sums of all elements up to each along an axis, without itself (exclusive), from the end
// (reverse).
value cumulative_sum(value x, std::int64_t axis = 0, bool exclusive = false, bool reverse = false,
                     source_location where = source_location::current());

// --- losses --------------------------------------------------------------------------------------

// -log softmax(logits)[label] of each row: logits [.., c], labels i32 or i64 [..] -> [..].
value cross_entropy(value logits, value labels, source_location where = source_location::current());
// The same; 0, without a gradient, where the label is `ignored`: padding, for instance.
// masked_mean() of it and not_equal(labels, ignored) is the mean of the others.
value cross_entropy(value logits, value labels, std::int64_t ignored,
                    source_location where = source_location::current());
// Mean of the elements of x where the mask, bool of its shape, is true: -> []. 0 where none is. In
// a training by several workers: of this worker's elements.
value masked_mean(value x, value mask, source_location where = source_location::current());
// -t log(s) - (1 - t) log(1 - s) of each element, with s = sigmoid(logits).
value sigmoid_cross_entropy(value logits, value targets,
                            source_location where = source_location::current());
// Rows whose argmax equals the label: logits [n, c], labels i32 [n] -> i64 [].
value count_correct(value logits, value labels, source_location where = source_location::current());
// scale * sum over rows of -log softmax(logits)[label]: logits [n, c], labels i32 [n], scale [] ->
// []; f32 or f64. With scale = 1 / (samples of the whole step), gradients of all workers add up to
// that of the mean.
value softmax_cross_entropy(value logits, value labels, value scale,
                            source_location where = source_location::current());

// --- readers -------------------------------------------------------------------------------------

struct idx_batch_options {
  std::int64_t batch = 128;  // samples per step of one worker
  std::uint64_t seed = 1;
  bool shuffle = true;  // order of samples: a pure function of (seed, epoch)
  // This worker's contiguous part of each global batch of batch * parts samples.
  std::int64_t part = 0, parts = 1;
  // Scale = 1 / samples of the global batch, else 1 / samples of this part.
  bool global_scale = true;
};
struct idx_batch_values {
  value images;  // f32 [batch?, rows * columns], in [0, 1]
  value labels;  // i32 [batch?]
  value scale;   // f32 []
};
// Reads step after step, epoch after epoch; the last batch of an epoch is smaller (possibly empty
// for a part).
idx_batch_values idx_batch(graph& g, const idx_info& data, const idx_batch_options& options,
                           source_location where = source_location::current());
// Which samples a step takes, for data that the graph has itself: gather(constant(g, data), ids).
// Order and parts as idx_batch's.
struct index_batch_values {
  value ids;    // i64 [batch?], in 0 .. samples - 1
  value scale;  // f32 []
};
index_batch_values index_batch(graph& g, std::int64_t samples, const idx_batch_options& options,
                               source_location where = source_location::current());
std::uint64_t steps_per_epoch(std::int64_t samples, const idx_batch_options& options);
struct text_batch_options {
  std::int64_t batch = 32;     // pieces of text per step of one worker
  std::int64_t context = 128;  // bytes of each
  std::uint64_t seed = 1;
  // This worker's part of each global batch of batch * parts pieces.
  std::int64_t part = 0, parts = 1;
};
struct text_batch_values {
  value tokens;   // i32 [batch, context]: bytes, 0 to 255
  value targets;  // i32 [batch, context]: those one further
  value scale;    // f32 []: 1 / (targets of the global batch); asynchronous workers: of the part
};
// Pieces of a file, drawn anew in each step: where a piece begins is a function of (seed, step, its
// place in the global batch). Every worker's node reads the file under its path.
text_batch_values text_batch(graph& g, const text_info& text, const text_batch_options& options,
                             source_location where = source_location::current());
// Steps of an epoch: ceil(samples / (batch * parts)).
std::uint64_t steps_per_epoch(const idx_info& data, const idx_batch_options& options);

}  // namespace troupe
