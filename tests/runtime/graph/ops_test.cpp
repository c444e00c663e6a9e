#include "tests/support/operand_range.hpp"
#include "tests/support/reference.hpp"
#include "troupe/runtime/compile/compile.hpp"
#include "troupe/runtime/graph/op_table.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <array>
#include <functional>
#include <random>
#include <set>

using namespace troupe;

namespace {

tensor_spec f32(std::initializer_list<std::int64_t> sizes) { return {dtype::f32, shape(sizes)}; }
tensor_spec i32(std::initializer_list<std::int64_t> sizes) { return {dtype::i32, shape(sizes)}; }
using ints = std::vector<std::int64_t>;
tensor_spec rows(std::int64_t bound, std::int64_t columns) {
  return {dtype::f32, *shape::from(std::array<dim, 2>{batch_of(bound), dim{columns, 0}})};
}

struct fixture {
  op_table ops = make_op_table();
  graph g{ops};
};

// One row of the table of misfits: operands, the call, and what the error must say.
struct misfit {
  std::vector<tensor_spec> operands;
  attributes attrs;
  std::string type;
  std::vector<std::string> says;
};

std::vector<misfit> some_misfits() {
  return {
      {{f32({2, 3}), f32({4, 5})},
       {},
       "matmul",
       {"matmul", "f32[2, 3]", "f32[4, 5]", "columns of a (3) must be rows of b (4)"}},
      {{f32({2}), f32({})},
       {},
       "branch",
       {"f32[2]", "operand 1 is a condition, and must be bool[]"}},
      {{f32({2}), {dtype::boolean, {2}}},
       {},
       "loop_next",
       {"bool[2]", "operand 1 is a condition, and must be bool[]"}},
      {{f32({})}, {}, "loop_condition", {"operand 0 is a condition, and must be bool[]"}},
      {{f32({}), f32({2}), f32({2})},
       {},
       "merge",
       {"condition f32[]", "the condition must be bool[]"}},
      {{{dtype::boolean, {}}, f32({2}), f32({3})},
       {},
       "merge",
       {"otherwise f32[2]", "then f32[3]", "both branches must return the same type and shape"}},
      {{f32({2}), f32({2}), f32({2})},
       {},
       "loop_end",
       {"as many results as values that its body returns"}},
      {{f32({2}), f32({3})},
       {},
       "loop_end",
       {"at first f32[2]", "after an iteration f32[3]", "must keep its type and shape"}},
      {{f32({2, 3}), f32({4, 5})},
       {{"transpose_a", std::int64_t{1}}},
       "matmul",
       {"rows of a (2) must be rows of b (4)"}},
      {{f32({2, 3}), f32({4, 5})},
       {{"transpose_b", std::int64_t{1}}},
       "matmul",
       {"columns of a (3) must be columns of b (5)"}},
      {{f32({3}), f32({3, 5})}, {}, "matmul", {"rank 2"}},
      {{f32({2, 3}), i32({3, 5})},
       {},
       "matmul",
       {"i32[3, 5]", "both must be f32, or both f64, f16 or bf16"}},
      {{f32({2, 128}), rows(128, 5)},
       {},
       "matmul",
       {"columns of a (128) must be rows of b (128?)"}},
      {{f32({2, 3}), f32({3, 2})},
       {},
       "add",
       {"add", "a f32[2, 3], b f32[3, 2]", "shapes cannot be broadcast"}},
      {{rows(128, 3), rows(64, 3)}, {}, "add", {"f32[128?, 3]", "f32[64?, 3]"}},
      // A bound of 1 is no 1.
      {{rows(1, 3), f32({2, 3})}, {}, "add", {"f32[1?, 3]", "cannot be broadcast"}},
      {{f32({2, 3}), i32({2, 3})}, {}, "mul", {"operands must have one element type"}},
      {{{dtype::u8, {2}}, {dtype::u8, {2}}},
       {},
       "maximum",
       {"maximum", "must be f32, f64, i32 or i64"}},
      {{i32({2}), i32({2})}, {}, "pow", {"pow", "must be f32 or f64"}},
      {{i32({2})}, {}, "relu", {"relu", "x i32[2]", "f32 or f64"}},
      {{f32({2}), f32({3})},
       {},
       "relu_grad",
       {"relu_grad", "dy f32[2], y f32[3]", "cannot be broadcast"}},
      {{f32({2}), f32({2}), f32({2})}, {}, "where", {"condition f32[2], a f32[2]", "must be bool"}},
      {{{dtype::boolean, {2}}, f32({2}), i32({2})},
       {},
       "where",
       {"a and b must have one element type"}},
      {{{dtype::boolean, {2}}, f32({3}), f32({3})}, {}, "where", {"cannot be broadcast"}},
      {{f32({2})}, {}, "cast", {"attribute to is -1"}},
      {{f32({3})},
       {{"axes", std::vector<std::int64_t>{1}}},
       "reduce_sum",
       {"reduce_sum", "f32[3]", "no axis 1 of 1 dimensions"}},
      {{f32({3, 2})},
       {{"axes", std::vector<std::int64_t>{1, -1}}},
       "reduce_sum",
       {"axis 1 is named twice"}},
      {{{dtype::u8, {3}}}, {}, "reduce_sum", {"reduce_sum", "must be f32, f64, i32 or i64"}},
      {{{dtype::u8, {3}}}, {}, "reduce_max", {"reduce_max", "must be"}},
      {{{dtype::u8, {3}}}, {}, "reduce_min", {"reduce_min", "must be"}},
      {{f32({3})}, {}, "reduce_any", {"must be bool"}},
      {{f32({3})}, {}, "reduce_all", {"must be bool"}},
      {{{dtype::u8, {3}}}, {}, "element_count", {"must be f32"}},
      {{f32({2}), f32({2, 3})},
       {},
       "broadcast_like",
       {"x f32[2], like f32[2, 3]", "cannot be broadcast"}},
      {{f32({2, 3}), f32({3})},
       {},
       "broadcast_like",
       {"cannot be broadcast to the shape of the other"}},
      {{i32({3}), f32({2, 3})}, {}, "broadcast_like", {"one element type"}},
      {{f32({3})},
       {{"axes", std::vector<std::int64_t>{2}}},
       "expand_dims",
       {"no axis 2 of 2 dimensions"}},
      {{f32({1, 1, 1, 1, 1, 1, 1, 1})},
       {{"axes", std::vector<std::int64_t>{0}}},
       "expand_dims",
       {"9 dimensions"}},
      {{f32({})}, {}, "argmax", {"argmax", "no axis -1 of 0 dimensions"}},
      {{f32({3, 0})}, {}, "argmax", {"an axis without elements has no largest or smallest"}},
      {{{dtype::u8, {3}}}, {}, "argmin", {"argmin", "must be"}},
      {{f32({6})},
       {{"dims", ints{4}}},
       "reshape",
       {"reshape", "x f32[6]", "cannot become [4]", "4 elements are not 6"}},
      {{f32({6})}, {{"dims", ints{-1, 4}}}, "reshape", {"6 elements are no multiple of 4"}},
      {{f32({6})}, {{"dims", ints{-1, -1}}}, "reshape", {"only one size can be left open"}},
      {{f32({6})}, {{"dims", ints{-2}}}, "reshape", {"a size cannot be -2"}},
      {{f32({6})}, {{"dims", ints{6, 0}}}, "reshape", {"x, which has no dimension 1"}},
      {{f32({6})}, {{"dims", ints{1L << 62, 4}}}, "reshape", {"too many elements"}},
      {{rows(4, 3)}, {{"dims", ints{-1}}}, "reshape", {"dimension 0 is a bound"}},
      {{f32({2, 3})}, {{"order", ints{0}}}, "transpose", {"[0] is not a permutation of its axes"}},
      {{f32({2, 3})}, {{"order", ints{0, -2}}}, "transpose", {"not a permutation"}},
      {{f32({5})},
       {{"begin", ints{3}}, {"size", ints{3}}},
       "slice",
       {"slice", "dimension 0: 3 from 3 in steps of 1: it begins or ends outside"}},
      {{f32({5})},
       {{"begin", ints{0}}, {"size", ints{2}}, {"step", ints{0}}},
       "slice",
       {"a step cannot be 0"}},
      {{f32({5})},
       {{"begin", ints{1}}, {"size", ints{1L << 62}}, {"step", ints{1L << 62}}},
       "slice",
       {"outside"}},
      {{f32({5})}, {}, "slice", {"must have a number for each dimension"}},
      {{rows(5, 2)},
       {{"begin", ints{1, 0}}, {"size", ints{2, -1}}},
       "slice",
       {"a bound can only be taken whole"}},
      {{f32({2}), f32({5})},
       {{"begin", ints{1}}, {"size", ints{3}}},
       "put_slice",
       {"dy must be f32[3]"}},
      {{f32({2})}, {{"before", ints{-1}}, {"after", ints{0}}}, "pad", {"cannot be negative"}},
      {{f32({2})},
       {{"before", ints{1L << 62}}, {"after", ints{1L << 62}}},
       "pad",
       {"too many elements"}},
      {{f32({2})}, {}, "pad", {"a number for each dimension"}},
      {{f32({2})}, {{"times", ints{-1}}}, "tile", {"cannot be negative"}},
      {{f32({2})}, {{"times", ints{1L << 62}}}, "tile", {"too many elements"}},
      {{f32({2}), f32({3})}, {{"axis", std::int64_t{1}}}, "concat", {"no axis 1"}},
      {{f32({2, 2}), f32({2, 3})}, {}, "concat", {"sizes of dimension 1 differ"}},
      {{f32({2}), i32({2})}, {}, "concat", {"one element type"}},
      {{f32({2}), f32({})}, {}, "concat", {"equally many dimensions"}},
      {{rows(2, 3), rows(2, 3)}, {}, "concat", {"dimension 0 is a bound"}},
      {{}, {}, "concat", {"concat takes 1 to 4096 operands, not 0"}},
      {{f32({4, 3}), f32({2})}, {}, "gather", {"indices must be i32 or i64"}},
      {{f32({}), i32({2})}, {}, "gather", {"x has no axis 0"}},
      {{f32({4, 3}), i32({2}), f32({2, 4})}, {}, "scatter_add", {"updates must be [2, 3]"}},
      {{f32({4, 3}), i32({2}), i32({2, 3})}, {}, "scatter_add", {"one element type"}},
      {{f32({4}), f32({4, 3})},
       {{"rows", std::int64_t{9}}},
       "pack_rows",
       {"indices must be i32 or i64"}},
      {{i32({4}), f32({3, 3})}, {{"rows", std::int64_t{9}}}, "pack_rows", {"one for each index"}},
      {{i32({4}), i32({4, 3})}, {{"rows", std::int64_t{9}}}, "pack_rows", {"rows must be f32"}},
      {{i32({4}), f32({4, 3})}, {}, "pack_rows", {"at least one row"}},
      {{f32({4})}, {}, "one_hot", {"indices must be i32 or i64"}},
      {{i32({4})}, {{"depth", std::int64_t{0}}}, "one_hot", {"depth is 0"}},
      {{i32({4})},
       {{"depth", std::int64_t{1L << 62}}, {"type", std::int64_t{0}}},
       "one_hot",
       {"too many elements"}},
      {{f32({4})}, {{"k", std::int64_t{5}}}, "top_k", {"k is 5, but must be in 0..4"}},
      {{f32({})}, {{"k", std::int64_t{0}}}, "top_k", {"last dimension of an exact size"}},
      {{f32({2, 4}), i32({3, 1})}, {}, "take_last", {"sizes of dimension 0 differ"}},
      {{f32({2, 1}), i32({2, 2}), f32({2, 4})},
       {},
       "put_last",
       {"dy must have the shape of the indices"}},
      {{f32({4})}, {{"axis", std::int64_t{1}}}, "cumulative_sum", {"x has no axis 1"}},
      {{f32({4, 3}), i32({5})},
       {},
       "count_correct",
       {"logits f32[4, 3], labels i32[5]", "equally many rows"}},
      {{f32({4, 3}), f32({4})}, {}, "count_correct", {"labels must be an i32 vector"}},
      {{f32({4}), i32({4})}, {}, "count_correct", {"logits must be an f32 or f64 matrix"}},
      {{f32({4, 0}), i32({4})}, {}, "count_correct", {"at least one class"}},
      {{f32({4, 3}), i32({4}), f32({1})},
       {},
       "softmax_cross_entropy",
       {"scale must be a scalar of the logits' type"}},
      {{f32({4, 3}), i32({3}), f32({})},
       {},
       "softmax_cross_entropy",
       {"softmax_cross_entropy", "equally many rows"}},
      {{f32({2, 2, 3}), f32({3, 3, 4})},
       {},
       "matmul",
       {"a f32[2, 2, 3], b f32[3, 3, 4]", "cannot be broadcast"}},
      {{f32({1, 1L << 32}), f32({1, 1L << 32})},
       {{"transpose_a", std::int64_t{1}}},
       "matmul",
       {"too many elements"}},
      {{i32({1, 1, 4, 4}), i32({1, 1, 2, 2})}, {}, "conv2d", {"x must be f32, f64, f16 or bf16"}},
      {{f32({1, 4, 4}), f32({1, 1, 2, 2})}, {}, "conv2d", {"x must have rank 4"}},
      {{f32({1, 1, 4, 4}), f32({1, 2, 2})}, {}, "conv2d", {"w must have rank 4"}},
      {{f32({1, 3, 4, 4}), f32({2, 1, 2, 2})},
       {},
       "conv2d",
       {"x f32[1, 3, 4, 4], w f32[2, 1, 2, 2]",
        "w takes 1 channels of each of 1 groups, and x has 3 in all"}},
      {{f32({1, 2, 4, 4}), f32({3, 1, 2, 2})},
       {{"groups", std::int64_t{2}}},
       "conv2d",
       {"3 outputs are no multiple of 2 groups"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 5, 5})}, {}, "conv2d", {"larger than the image"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 2, 2})},
       {{"strides", ints{0, 1}}},
       "conv2d",
       {"strides: 0 is not from 1 to 2^31"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 2, 2})},
       {{"before", ints{0, -1}}},
       "conv2d",
       {"before: -1 is not from 0"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 2, 2})}, {{"after", ints{1L << 62, 0}}}, "conv2d", {"after"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 2, 2})},
       {{"dilations", ints{1}}},
       "conv2d",
       {"dilations: expected two numbers"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 0, 2})}, {}, "conv2d", {"at least one element"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 2, 2})},
       {{"groups", std::int64_t{0}}},
       "conv2d",
       {"groups is 0"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 2, 2})},
       {},
       "conv2d_input_grad",
       {"height and width are -1"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 2, 2})},
       {{"height", std::int64_t{9}}, {"width", std::int64_t{9}}},
       "conv2d_input_grad",
       {"does not give one of 4 x 4"}},
      {{f32({1, 2, 4, 4}), f32({1, 1, 2, 2})},
       {{"height", std::int64_t{5}}, {"width", std::int64_t{5}}},
       "conv2d_input_grad",
       {"w gives 1 outputs"}},
      {{f32({1, 1, 4, 4}), f32({1, 1, 5, 5})},
       {},
       "conv2d_weights_grad",
       {"kernel_height and kernel_width"}},
      {{f32({2, 1, 4, 4}), f32({1, 1, 5, 5})}, {}, "conv2d_weights_grad", {"equally many images"}},
      {{f32({1, 4, 4})}, {{"window", ints{2, 2}}}, "max_pool2d", {"x must have rank 4"}},
      {{f32({1, 1, 4, 4})}, {}, "max_pool2d", {"window: expected two numbers"}},
      {{f32({1, 1, 4, 4})},
       {{"window", ints{5, 5}}},
       "max_pool2d",
       {"the window is larger than the image"}},
      {{f32({1, 1, 4, 4})},
       {{"window", ints{2, 2}}, {"before", ints{2, 0}}},
       "max_pool2d",
       {"padding must be smaller than the window"}},
      {{f32({1, 1, 1L << 20, 1L << 20})},
       {{"window", ints{2, 2}}},
       "max_pool2d",
       {"more positions than i32"}},
      {{f32({1, 1, 2, 2}), f32({1, 1, 2, 2})},
       {{"window", ints{2, 2}}},
       "max_pool2d_grad",
       {"places must be i32"}},
      {{f32({1, 1, 2, 2}), i32({1, 1, 2, 2})},
       {{"window", ints{2, 2}}},
       "max_pool2d_grad",
       {"height and width"}},
      {{f32({1, 1, 4, 4}), i32({1, 1, 4, 4})},
       {{"window", ints{2, 2}}},
       "max_pool2d_take",
       {"places must be i32[1, 1, 2, 2]"}},
      {{i32({1, 1, 4, 4})}, {{"window", ints{2, 2}}}, "avg_pool2d", {"must be f32 or f64"}},
      {{f32({1, 1, 2, 2})},
       {{"window", ints{2, 2}}, {"height", std::int64_t{9}}, {"width", std::int64_t{4}}},
       "avg_pool2d_grad",
       {"an image of 9 x 4 does not become one of 2 x 2"}},
      {{i32({3})}, {}, "standardize", {"must be f32 or f64"}},
      {{f32({3})}, {{"epsilon", -1.0}}, "standardize", {"epsilon is -1"}},
      {{f32({3})}, {{"axes", ints{1}}}, "standardize", {"no axis 1"}},
      {{f32({3}), f32({3}), f32({3})}, {}, "standardize_grad", {"scale must be f32[1]"}},
      {{i32({3})}, {}, "softmax", {"must be f32 or f64"}},
      {{f32({})}, {}, "softmax", {"no axis -1 of 0 dimensions"}},
      {{f32({3})}, {{"axis", std::int64_t{1}}}, "log_softmax", {"no axis 1"}},
      {{f32({3}), f32({2})},
       {},
       "softmax_grad",
       {"dy f32[3], y f32[2]", "operands must have the same type and shape"}},
      {{f32({3}), {dtype::f64, {3}}},
       {},
       "log_softmax_grad",
       {"operands must have the same type and shape"}},
      {{i32({2, 3, 6})}, {}, "attention", {"must be f32, or all f64, f16 or bf16"}},
      {{f32({2, 3, 0})}, {}, "attention", {"must be exact and at least 1"}},
      {{f32({3, 6})}, {}, "attention", {"must have rank 3: [samples, positions, 3 x features]"}},
      {{f32({2, 3, 4})}, {}, "attention", {"4 features are not those of queries, keys and values"}},
      {{f32({2, 3, 6}), f32({2, 3, 6})},
       {},
       "attention",
       {"takes queries, keys and values, or one tensor"}},
      {{f32({2, 3, 6}), f32({2, 5, 6}), {dtype::f64, {2, 5, 4}}},
       {},
       "attention",
       {"all must be f32, or all f64, f16 or bf16"}},
      {{f32({2, 3, 6}), f32({1, 5, 6}), f32({1, 5, 4})}, {}, "attention", {"equally many samples"}},
      {{f32({2, 3, 6}), f32({2, 5, 6}), f32({2, 4, 4})},
       {},
       "attention",
       {"equally many positions"}},
      {{f32({2, 3, 6}), f32({2, 5, 4}), f32({2, 5, 4})},
       {},
       "attention",
       {"equally many features"}},
      {{f32({2, 3, 6}), f32({2, 5, 6}), f32({2, 5, 4})},
       {{"heads", std::int64_t{4}}},
       "attention",
       {"no multiples of 4 heads"}},
      {{f32({2, 3, 6})}, {{"heads", std::int64_t{0}}}, "attention", {"no multiples of 0 heads"}},
      {{f32({2, 3, 6}), f32({2, 5, 6}), f32({2, 5, 4})},
       {{"causal", std::int64_t{1}}},
       "attention",
       {"as many keys as queries"}},
      {{f32({2, 3, 4}), f32({2, 3, 6})},
       {},
       "attention_grad",
       {"dy f32[2, 3, 4]", "must be f32[2, 3, 2]"}},
      {{{dtype::boolean, {3}}}, {}, "reduce_prod", {"must be"}},
      {{i32({3})}, {}, "dropout_mask", {"must be f32 or f64"}},
      {{f32({3})}, {{"rate", 1.0}}, "dropout_mask", {"the rate is 1"}},
      {{f32({3})}, {{"rate", std::nan("")}}, "dropout_mask", {"the rate is nan"}},
      {{f32({3})}, {{"low", 2.0}}, "random_uniform_like", {"low and high are 2 and 1"}},
      {{f32({3})}, {{"deviation", -1.0}}, "random_normal_like", {"deviation"}},
      {{},
       {{"dtype", std::int64_t{2}}, {"rank", std::int64_t{0}}},
       "random_uniform",
       {"must be f32 or f64"}},
      {{},
       {{"dtype", std::int64_t{0}},
        {"rank", std::int64_t{1}},
        {"dim0", std::int64_t{3}},
        {"symbol0", std::int64_t{1}}},
       "random_normal",
       {"a shape with a bound"}},
      {{}, {}, "constant", {"constant", "needs its value"}},
      {{},
       {{"value", 1.5}, {"dtype", std::int64_t{2}}},
       "constant",
       {"a constant of i32 cannot be 1.5"}},
      {{},
       {{"value", 1.0}, {"dtype", std::int64_t{99}}},
       "constant",
       {"cannot have element type 99"}},
      {{}, {}, "constant_tensor", {"constant_tensor", "dtype -1"}},
      {{},
       {{"dtype", std::int64_t{2}},
        {"rank", std::int64_t{1}},
        {"dim0", std::int64_t{2}},
        {"data", shared_bytes(std::vector<std::byte>(7))}},
       "constant_tensor",
       {"i32[2]", "7 bytes do not fit its type and shape"}},
      {{},
       {{"dtype", std::int64_t{2}},
        {"rank", std::int64_t{1}},
        {"dim0", std::int64_t{1} << 62},
        {"data", shared_bytes()}},
       "constant_tensor",
       {"0 bytes do not fit its type and shape"}},
      {{},
       {{"dtype", std::int64_t{4}},
        {"rank", std::int64_t{1}},
        {"dim0", std::int64_t{1}},
        {"symbol0", std::int64_t{1}},
        {"data", shared_bytes(std::vector<std::byte>(1))}},
       "constant_tensor",
       {"exact sizes"}},
      {{}, {}, "input", {"input", "dtype -1"}},
      {{},
       {{"dtype", std::int64_t{0}}, {"rank", std::int64_t{1}}, {"dim0", std::int64_t{-3}}},
       "input",
       {"negative"}},
      {{},
       {{"dtype", std::int64_t{2}}, {"rank", std::int64_t{0}}},
       "variable",
       {"variable", "must be f32"}},
      {{},
       {{"dtype", std::int64_t{0}},
        {"rank", std::int64_t{1}},
        {"dim0", std::int64_t{3}},
        {"symbol0", std::int64_t{1}}},
       "variable",
       {"exact sizes"}},
      {{},
       {{"context", std::int64_t{8}},
        {"batch", std::int64_t{2}},
        {"parts", std::int64_t{1}},
        {"part", std::int64_t{0}},
        {"samples", std::int64_t{8}}},
       "text_batch",
       {"has 8 bytes, but pieces of 8 and one more byte"}},
      {{}, {}, "index_batch", {"index_batch", "samples is -1, but must be in 1..4294967295"}},
      {{},
       {{"context", std::int64_t{8}},
        {"batch", std::int64_t{2}},
        {"parts", std::int64_t{1}},
        {"part", std::int64_t{0}},
        {"samples", std::int64_t{5}},
        {"path", std::string("t")}},
       "text_batch",
       {"text 't' has 5 bytes"}},
      {{}, {}, "idx_batch", {"idx_batch", "samples is -1, but must be in 1..4294967295"}},
      {{f32({2})}, {}, "add", {"add takes 2 operands, not 1"}},
      {{}, {}, "convolution", {"there is no op 'convolution'"}},
  };
}

// Every element-wise op with an element type that it does not take, and those of several operands
// with shapes and types that do not fit each other.
std::vector<misfit> all_misfits() {
  auto all = some_misfits();
  const auto table = make_op_table();
  for (const auto& [type, row] : table.rows()) {
    if (!row.is_elementwise || type == "where" || type == "cast" || type == "broadcast_like")
      continue;
    const auto takes = row.types.has(dtype::f32) ? dtype::f32 : dtype::boolean,
               other = takes == dtype::f32 ? dtype::f64 : dtype::f32;
    const auto refused = row.types.has(dtype::u8) ? dtype::f16 : dtype::u8;
    all.push_back({std::vector<tensor_spec>(row.inputs, {refused, {2}}),
                   {},
                   type,
                   {type, "the element type must be"}});
    if (row.inputs < 2) continue;
    std::vector<tensor_spec> shapes(row.inputs, {takes, {2, 3}}),
        types(row.inputs, {takes, {2, 3}});
    shapes.back().shape = {2};
    types.back().type = other;
    all.push_back({shapes, {}, type, {type, "shapes cannot be broadcast"}});
    all.push_back({types, {}, type, {type, "operands must have one element type"}});
  }
  return all;
}
const std::vector<misfit>& misfits() {
  static const auto all = all_misfits();
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(ops)

BOOST_AUTO_TEST_CASE(operands_that_do_not_fit_are_errors_with_op_shapes_rule_and_the_users_line) {
  for (const auto& m : misfits()) {
    fixture f;
    std::vector<value> operands;
    for (const auto& s : m.operands) operands.push_back(input(f.g, s, "x"));
    const auto line = source_location::current();
    const auto v = f.g.add(m.type, operands, m.attrs, "the_op", line);
    BOOST_TEST(!v.is_valid());
    BOOST_TEST_REQUIRE(f.g.first_error().has_value(), m.type);
    const auto text = f.g.first_error()->text();
    BOOST_TEST(text.starts_with(fmt::format("{}:{}: ", line.file_name(), line.line())), text);
    for (const auto& part : m.says)
      BOOST_TEST(text.find(part) != std::string::npos, text << "\n  should say: " << part);
    // The rule gives the same answer at run time: a kernel never sees what does not fit.
    const auto* row = f.ops.find(m.type);
    const bool is_countable = row != nullptr && row->inputs == m.operands.size();
    const tag t;
    if (is_countable) BOOST_TEST(!row->shapes(m.attrs, m.operands, &t));
  }
}

BOOST_AUTO_TEST_CASE(every_op_that_takes_operands_is_in_the_table_of_misfits) {
  const auto table = make_op_table();
  for (const auto& [type, row] : table.rows()) {
    // Takes anything.
    if (row.is_forwarding || type == "loop_enter" || type == "loop_back" || type == "loop_stack")
      continue;
    const bool is_tested =
        std::any_of(misfits().begin(), misfits().end(),
                    [&, name = type](const misfit& m) { return m.type == name; });
    BOOST_TEST(is_tested, type);
  }
}

BOOST_AUTO_TEST_CASE(builders_name_the_line_of_their_caller) {
  fixture f;
  const auto x = input(f.g, f32({2, 3}), "x");
  const auto line = source_location::current().line() + 1;
  const auto y = matmul(x, x);
  BOOST_TEST(!y.is_valid());
  BOOST_TEST(f.g.first_error()->text().find(fmt::format(
                 "ops_test.cpp:{}: matmul: a f32[2, 3], b f32[2, 3]", line)) != std::string::npos,
             f.g.first_error()->text());
}

BOOST_AUTO_TEST_CASE(symbolic_rows_stay_a_bound_and_become_exact_at_run_time) {
  fixture f;
  const auto x = input(f.g, rows(128, 20), "x");
  const auto w = variable(f.g, f32({20, 10}), {}, "w");
  BOOST_TEST(to_string(matmul(x, w).spec()) == "f32[128?, 10]");
  BOOST_TEST(to_string(relu(x).spec()) == "f32[128?, 20]");
  BOOST_TEST(to_string(reduce_sum(x, {0}).spec()) == "f32[20]");
  BOOST_TEST(to_string(argmax(x).spec()) == "i32[128?]");
  BOOST_TEST(to_string(matmul(x, x, true).spec()) == "f32[20, 20]");
  const tag t;
  const std::array concrete{f32({96, 20}), f32({20, 10})};
  BOOST_TEST(to_string(f.ops.find("matmul")->shapes({}, concrete, &t)->at(0)) == "f32[96, 10]");
  const std::array none{f32({0, 20}), f32({20, 10})};
  BOOST_TEST(to_string(f.ops.find("matmul")->shapes({}, none, &t)->at(0)) == "f32[0, 10]");
}

BOOST_AUTO_TEST_CASE(idx_batch_has_exact_rows_for_every_tag) {
  fixture f;
  const idx_info data{.path = "p", .samples = 257, .rows = 4, .columns = 5};
  const idx_batch_options options{.batch = 64, .part = 1, .parts = 2};
  const auto v = idx_batch(f.g, data, options);
  BOOST_TEST(to_string(v.images.spec()) == "f32[64?, 20]");
  BOOST_TEST(to_string(v.labels.spec()) == "i32[64?]");
  BOOST_TEST(to_string(v.scale.spec()) == "f32[]");
  BOOST_TEST(steps_per_epoch(data, options) == 3U);
  const auto& n = f.g.node(v.images.node);
  const auto rows_at = [&](std::uint64_t step) {
    const tag t{.step = step};
    return f.ops.find("idx_batch")->shapes(n.attrs, {}, &t)->at(0).shape.size(0);
  };
  BOOST_TEST(rows_at(0) == 64);
  BOOST_TEST(rows_at(2) == 1);  // the last sample of 257 is part 1's
  BOOST_TEST(rows_at(5) == 1);
  auto attrs = n.attrs;
  attrs.set("part", std::int64_t{0});
  const tag last{.step = 2};
  BOOST_TEST(f.ops.find("idx_batch")->shapes(attrs, {}, &last)->at(0).shape.size(0) == 0);
}

BOOST_AUTO_TEST_CASE(idx_batch_refuses_what_it_cannot_read) {
  const std::pair<std::function<void(idx_info&, idx_batch_options&)>, const char*> cases[] = {
      {[](auto& i, auto&) { i.samples = 0; }, "samples is 0"},
      {[](auto& i, auto&) { i.samples = std::int64_t{1} << 32; }, "samples is 4294967296"},
      {[](auto&, auto& o) { o.batch = 0; }, "batch is 0"},
      {[](auto&, auto& o) { o.part = 2, o.parts = 2; }, "part is 2, but must be in 0..1"},
      {[](auto&, auto& o) { o.parts = 0; }, "parts is 0"},
      {[](auto& i, auto&) { i.rows = 1 << 20, i.columns = 1 << 20; }, "are too large"},
      {[](auto& i, auto&) { i.classes = 0; }, "classes is 0"},
  };
  for (const auto& [spoil, says] : cases) {
    fixture f;
    idx_info data{.path = "p", .samples = 257, .rows = 4, .columns = 5};
    idx_batch_options options;
    spoil(data, options);
    BOOST_TEST(!idx_batch(f.g, data, options).images.is_valid());
    BOOST_TEST(f.g.first_error()->text().find(says) != std::string::npos,
               f.g.first_error()->text());
    BOOST_TEST(f.g.first_error()->text().find("ops_test.cpp") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(dense_refuses_what_is_no_matrix_of_features) {
  const std::pair<tensor_spec, std::int64_t> cases[] = {
      {f32({3}), 4}, {i32({3, 2}), 4}, {f32({3, 0}), 4}, {f32({3, 2}), 0}};
  for (const auto& [spec, units] : cases) {
    fixture f;
    BOOST_TEST(!dense(input(f.g, spec, "x"), units, "layer").is_valid());
    BOOST_TEST(
        f.g.first_error()->text().find("dense 'layer': x " + to_string(spec)) != std::string::npos,
        f.g.first_error()->text());
  }
}

// --- gradients -----------------------------------------------------------------------------------

namespace {

// Compares the gradients of `loss` in `in` with central differences of the naive interpreter.
void check_gradients(fixture& f, value loss, const std::vector<value>& in,
                     const reference::feeds& all) {
  auto fed = all;
  const auto derivatives = gradients(f.g, loss, in);
  BOOST_TEST_REQUIRE(!f.g.first_error().has_value(),
                     (f.g.first_error() ? f.g.first_error()->text() : ""));
  constexpr double h = 1e-6;
  for (std::size_t k = 0; k < in.size(); ++k) {
    BOOST_TEST_REQUIRE(derivatives[k].is_valid());
    const auto name = f.g.node(in[k].node).name;
    BOOST_TEST((derivatives[k].spec() == in[k].spec()));
    const auto exact = reference::evaluate(f.g, derivatives[k], fed);
    auto& x = fed.at(name).at;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto before = x[i];
      x[i] = before + h;
      const auto up = reference::evaluate(f.g, loss, fed).at[0];
      x[i] = before - h;
      const auto down = reference::evaluate(f.g, loss, fed).at[0];
      x[i] = before;
      const auto numeric = (up - down) / (2 * h);
      BOOST_TEST(std::abs(exact.at[i] - numeric) <= 1e-6 * (1 + std::abs(numeric)),
                 name << "[" << i << "]: " << exact.at[i] << " against " << numeric);
    }
  }
}

struct random_feeds {
  std::mt19937_64 random;
  reference::feeds all;

  // Away from 0, where relu and maximum have no derivative; steps of h never reach it.
  value add(graph& g, const tensor_spec& spec, const std::string& name) {
    std::uniform_real_distribution<double> size(0.1, 1.0);
    all[name] = reference::make(
        spec, [&](std::size_t) { return (random() % 2 == 0 ? 1 : -1) * size(random); });
    return input(g, spec, name);
  }
};

// A scalar that weighs every element of `y` differently.
value weighed(fixture& f, random_feeds& r, value y) {
  return reduce_sum(mul(y, r.add(f.g, y.spec(), "weights_of_y")));
}

}  // namespace

BOOST_AUTO_TEST_CASE(gradients_of_unary_ops_agree_with_finite_differences) {
  using unary = value (*)(value, source_location);
  for (const unary op : {unary{relu}, unary{sigmoid}, unary{troupe::tanh}}) {
    fixture f;
    random_feeds r{std::mt19937_64(1), {}};
    const auto x = r.add(f.g, f32({3, 4}), "x");
    check_gradients(f, weighed(f, r, op(x, source_location::current())), {x}, r.all);
  }
  fixture f;
  random_feeds r{std::mt19937_64(2), {}};
  const auto x = r.add(f.g, f32({3, 4}), "x");
  const auto negative = f.g.add("neg", std::array{x}, {}, "neg", source_location::current());
  check_gradients(f, weighed(f, r, negative), {x}, r.all);
}

BOOST_AUTO_TEST_CASE(
    gradients_of_binary_ops_agree_with_finite_differences_also_where_b_is_broadcast) {
  using binary = value (*)(value, value, source_location);
  for (const binary op : {binary{add}, binary{sub}, binary{mul}, binary{maximum}})
    for (const auto& b_spec : {f32({3, 4}), f32({4}), f32({})}) {
      fixture f;
      random_feeds r{std::mt19937_64(3), {}};
      const auto a = r.add(f.g, f32({3, 4}), "a"), b = r.add(f.g, b_spec, "b");
      check_gradients(f, weighed(f, r, op(a, b, source_location::current())), {a, b}, r.all);
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_matmul_agree_with_finite_differences_for_every_transposition) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      fixture f;
      random_feeds r{std::mt19937_64(4), {}};
      const auto a = r.add(f.g, ta ? f32({3, 2}) : f32({2, 3}), "a"),
                 b = r.add(f.g, tb ? f32({4, 3}) : f32({3, 4}), "b");
      check_gradients(f, weighed(f, r, matmul(a, b, ta, tb)), {a, b}, r.all);
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_reductions_agree_with_finite_differences) {
  fixture f;
  random_feeds r{std::mt19937_64(5), {}};
  const auto x = r.add(f.g, f32({3, 4}), "x"), v = r.add(f.g, f32({4}), "v"),
             s = r.add(f.g, f32({}), "s");
  const auto like = [&](value what) {
    return f.g.add("broadcast_like", std::array{what, x}, {}, "spread", source_location::current());
  };
  auto sum = weighed(f, r, reduce_sum(x, {0}));
  sum = add(sum, reduce_sum(mul(like(v), x)));
  sum = add(sum, reduce_sum(mul(like(s), x)));
  sum = add(sum, reduce_sum(mul(like(x), x)));
  check_gradients(f, sum, {x, v, s}, r.all);
}

// Reductions over any axes, of operands without equal elements.
BOOST_AUTO_TEST_CASE(gradients_of_reductions_over_any_axes_agree_with_finite_differences) {
  using axes = std::vector<std::int64_t>;
  const std::pair<const char*, std::function<value(value, axes, bool)>> kinds[] = {
      {"sum", [](value x, axes a, bool keep) { return reduce_sum(x, a, keep); }},
      {"mean", [](value x, axes a, bool keep) { return reduce_mean(x, a, keep); }},
      {"max", [](value x, axes a, bool keep) { return reduce_max(x, a, keep); }},
      {"min", [](value x, axes a, bool keep) { return reduce_min(x, a, keep); }},
      {"log_sum_exp", [](value x, axes a, bool keep) { return reduce_log_sum_exp(x, a, keep); }}};
  for (const auto& [name, reduce] : kinds)
    for (const auto& over :
         {axes{}, axes{0}, axes{1}, axes{-1}, axes{0, 2}, axes{1, 2}, axes{0, 1, 2}})
      for (const bool keep : {false, true})
        BOOST_TEST_CONTEXT(name << " over " << over.size() << " axes" << (keep ? ", kept" : "")) {
          fixture f;
          random_feeds r{std::mt19937_64(8), {}};
          const auto x = r.add(f.g, f32({2, 3, 4}), "x");
          check_gradients(f, weighed(f, r, reduce(x, over, keep)), {x}, r.all);
        }
}

BOOST_AUTO_TEST_CASE(
    gradients_of_element_wise_ops_agree_with_finite_differences_also_where_operands_are_broadcast) {
  const auto table = make_op_table();
  std::size_t tested = 0;
  for (const auto& [type, row] : table.rows()) {
    // What jumps has no gradient, conversions have tests of their own, relu_grad and its like have
    // none in what they got from the result.
    static const std::set<std::string> others{
        "broadcast_like", "cast",          "ceil",   "equal", "floor",
        "greater",        "greater_equal", "is_nan", "less",  "less_equal",
        "not_equal",      "relu_grad",     "round",  "sign"};
    if (!row.is_elementwise || !row.types.has(dtype::f32) || others.contains(type)) continue;
    // Shapes of the operands: equal ones, and each of them the smaller one.
    std::vector<std::vector<tensor_spec>> cases{std::vector<tensor_spec>(row.inputs, f32({2, 3}))};
    if (row.inputs > 1)
      for (std::size_t k = 0; k < row.inputs; ++k)
        for (const auto& small : {f32({}), f32({3}), f32({2, 1}), f32({1, 1, 3})}) {
          cases.emplace_back(row.inputs, f32({2, 3}));
          cases.back()[k] = small;
        }
    for (const auto& specs : cases) BOOST_TEST_CONTEXT(type) {
        fixture f;
        random_feeds r{std::mt19937_64(9), {}};
        std::vector<value> operands;
        for (const auto& s : specs)
          operands.push_back(r.add(f.g, s, fmt::format("x{}", operands.size())));
        // Where the op has a value: sizes are drawn, and taken into its range.
        if (const auto range = operands::range_of(type, 0); range.high > 0)
          for (auto& [name, a] : r.all)
            for (auto& x : a.at)
              x = range.low + (range.high - range.low) * (0.5 + 0.5 * std::sin(3 * x));
        check_gradients(f,
                        weighed(f, r, f.g.add(type, operands, {}, "y", source_location::current())),
                        operands, r.all);
        ++tested;
      }
  }
  BOOST_TEST(tested > 100u);
}

BOOST_AUTO_TEST_CASE(gradients_of_ops_that_move_and_choose_elements_agree_with_finite_differences) {
  using rule = std::function<value(value)>;
  const auto at = [](value x, std::initializer_list<std::int64_t> sizes, const std::string& name) {
    return input(*x.owner, i32(sizes), name);
  };
  const std::pair<const char*, rule> kinds[] = {
      {"reshape", [](value x) { return reshape(x, {0, -1}); }},
      {"transpose", [](value x) { return transpose(x); }},
      {"transpose_some", [](value x) { return transpose(x, {1, -1, 0}); }},
      {"slice", [](value x) { return slice(x, {{}, {1, 3}, {.begin = -1, .step = -2}}); }},
      {"slice_empty", [](value x) { return slice(x, {{1, 1}}); }},
      {"concat", [](value x) { return concat({x, square(x), x}, 1); }},
      {"split", [](value x) { return mul(split(x, {1, 3}, 2)[0], split(x, {1, 3}, 2)[1]); }},
      {"stack", [](value x) { return stack({x, square(x)}, 1); }},
      {"pad", [](value x) { return pad(x, {1, 0, 2}, {0, 0, 1}, 7); }},
      {"tile", [](value x) { return tile(x, {2, 1, 3}); }},
      {"gather", [&](value x) { return gather(x, at(x, {2, 2}, "indices"), 1); }},
      {"scatter_add",
       [&](value x) {
         return scatter_add(
             square(x), at(x, {2, 2}, "indices"),
             mul(gather(x, at(x, {2, 2}, "indices"), 1), gather(x, at(x, {2, 2}, "indices"), 1)),
             1);
       }},
      {"top_k", [](value x) { return top_k(x, 3).values; }},
      {"take_last", [&](value x) { return take_last(x, at(x, {2, 3, 2}, "places")); }},
      {"cumulative_sum", [](value x) { return cumulative_sum(x, 1); }},
      {"cumulative_sum_back", [](value x) { return cumulative_sum(x, -1, true, true); }}};
  for (const auto& [name, make] : kinds) BOOST_TEST_CONTEXT(name) {
      fixture f;
      random_feeds r{std::mt19937_64(12), {}};
      const auto x = r.add(f.g, f32({2, 3, 4}), "x");
      for (const auto* n : {"indices", "indices_1", "indices_2"})
        r.all[n] = reference::make(
            i32({2, 2}), [](std::size_t i) { return std::array{0.0, -1.0, 0.0, 1.0}[i]; });
      r.all["places"] =
          reference::make(i32({2, 3, 2}), [](std::size_t i) { return static_cast<double>(i % 4); });
      const auto y = weighed(f, r, make(x));
      check_gradients(f, y, {x}, r.all);
      const auto once = gradients(f.g, y, std::array{x});
      check_gradients(f, reduce_sum(mul(once[0], mul(x, x))), {x}, r.all);
    }
}

BOOST_AUTO_TEST_CASE(slices_follow_the_rules_of_NumPy) {
  const auto end = std::numeric_limits<std::int64_t>::max();
  const std::tuple<range, std::vector<double>> cases[] = {{{0, end, 1}, {0, 1, 2, 3, 4}},
                                                          {{1, 3, 1}, {1, 2}},
                                                          {{-2, end, 1}, {3, 4}},
                                                          {{-9, 9, 2}, {0, 2, 4}},
                                                          {{4, end, -1}, {4, 3, 2, 1, 0}},
                                                          {{-1, -9, -2}, {4, 2, 0}},
                                                          {{9, 0, -3}, {4, 1}},
                                                          {{3, 1, 1}, {}},
                                                          {{1, 3, -1}, {}},
                                                          {{7, 9, 1}, {}},
                                                          {{0, 1, end}, {0}},
                                                          {{-1, 0, -end}, {4}}};
  for (const auto& [r, expected] : cases)
    BOOST_TEST_CONTEXT(r.begin << ":" << r.end << ":" << r.step) {
      fixture f;
      const auto x = input(f.g, f32({5}), "x");
      const auto y = slice(x, {r});
      BOOST_TEST_REQUIRE(y.is_valid(), (f.g.first_error() ? f.g.first_error()->text() : ""));
      const auto got = reference::evaluate(
          f.g, y,
          {{"x", reference::make(f32({5}), [](std::size_t i) { return static_cast<double>(i); })}});
      BOOST_TEST(got.at == expected);
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_gradients_agree_with_finite_differences) {
  const std::pair<const char*, std::function<value(value)>> kinds[] = {
      {"sigmoid", [](value x) { return sigmoid(x); }},
      {"tanh", [](value x) { return troupe::tanh(x); }},
      {"gelu", [](value x) { return gelu(x); }},
      {"gelu_tanh", [](value x) { return gelu_tanh(x); }},
      {"exp", [](value x) { return troupe::exp(x); }},
      {"erf", [](value x) { return troupe::erf(x); }},
      {"square", [](value x) { return square(x); }},
      {"cube", [](value x) { return pow(x, constant(*x.owner, 3.0F)); }},
      {"sqrt", [](value x) { return troupe::sqrt(square(x)); }},
      {"quotient", [](value x) { return div(x, add(square(x), constant(*x.owner, 1.0F))); }},
      {"log_sum_exp", [](value x) { return reduce_log_sum_exp(x, {1}); }},
      {"mean", [](value x) { return square(reduce_mean(x, {0})); }},
      {"matmul", [](value x) { return matmul(x, square(x), false, true); }}};
  for (const auto& [name, make] : kinds) BOOST_TEST_CONTEXT(name) {
      fixture f;
      random_feeds r{std::mt19937_64(10), {}};
      const auto x = r.add(f.g, f32({2, 3}), "x");
      const auto once = gradients(f.g, weighed(f, r, make(x)), std::array{x});
      BOOST_TEST_REQUIRE(once[0].is_valid());
      check_gradients(f, reduce_sum(mul(once[0], r.add(f.g, f32({2, 3}), "direction"))), {x},
                      r.all);
    }
}

BOOST_AUTO_TEST_CASE(no_gradient_flows_through_what_jumps_or_is_stopped) {
  fixture f;
  const auto a = variable(f.g, f32({3}), {}, "a");
  for (const auto& y :
       {stop_gradient(a), troupe::floor(a), sign(a), cast(greater(a, square(a)), dtype::f32)}) {
    const auto derivatives = gradients(f.g, reduce_sum(y), std::array{a});
    BOOST_TEST(!derivatives[0].is_valid());
  }
  BOOST_TEST(!f.g.first_error().has_value(), (f.g.first_error() ? f.g.first_error()->text() : ""));
}

BOOST_AUTO_TEST_CASE(gradients_of_cross_entropy_agree_with_finite_differences) {
  fixture f;
  random_feeds r{std::mt19937_64(6), {}};
  const auto logits = r.add(f.g, f32({4, 3}), "logits"), factor = r.add(f.g, f32({}), "factor");
  const auto labels = input(f.g, i32({4}), "labels"), scale = input(f.g, f32({}), "scale");
  r.all["labels"] =
      reference::make(i32({4}), [](std::size_t i) { return static_cast<double>(i % 3); });
  r.all["scale"] = reference::make(f32({}), [](std::size_t) { return 0.25; });
  check_gradients(f, mul(softmax_cross_entropy(logits, labels, scale), factor), {logits, factor},
                  r.all);
}

// Padding: the rows whose label is ignored have no loss, no gradient and no part in the mean.
BOOST_AUTO_TEST_CASE(rows_of_an_ignored_label_count_nowhere) {
  const auto mean_of = [](std::initializer_list<std::int32_t> labels, std::int64_t ignored) {
    fixture f;
    random_feeds r{std::mt19937_64(6), {}};
    const auto logits = r.add(f.g, f32({4, 3}), "logits");
    const auto y = input(f.g, i32({4}), "labels");
    const std::vector<std::int32_t> all(labels);
    r.all["labels"] =
        reference::make(i32({4}), [&](std::size_t i) { return static_cast<double>(all[i]); });
    const auto each = cross_entropy(logits, y, ignored);
    const auto mask = not_equal(y, constant(f.g, static_cast<double>(ignored), dtype::i32));
    const auto loss = masked_mean(each, mask);
    const auto slopes = gradients(f.g, loss, std::array{logits});
    BOOST_TEST_REQUIRE(slopes[0].is_valid());
    check_gradients(f, loss, {logits}, r.all);
    return std::tuple(reference::evaluate(f.g, each, r.all).at,
                      reference::evaluate(f.g, loss, r.all).at[0],
                      reference::evaluate(f.g, slopes[0], r.all).at);
  };
  for (const std::int32_t ignored : {-1, -100, 2}) {
    const auto [each, mean, slopes] = mean_of({0, ignored, 1, ignored}, ignored);
    BOOST_TEST(each[1] == 0.0);
    BOOST_TEST(each[3] == 0.0);
    BOOST_TEST(mean == (each[0] + each[2]) / 2, boost::test_tools::tolerance(1e-12));
    for (const std::size_t i : {3, 4, 5, 9, 10, 11}) BOOST_TEST(slopes[i] == 0.0);
    BOOST_TEST(slopes[0] != 0.0);
  }
  const auto [each, mean, slopes] = mean_of({-1, -1, -1, -1}, -1);
  BOOST_TEST(mean == 0.0);
}

BOOST_AUTO_TEST_CASE(gradients_of_random_perceptrons_agree_with_finite_differences) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      fixture f;
      random_feeds r{std::mt19937_64(seed), {}};
      const auto below = [&](std::uint64_t n) {
        return static_cast<std::int64_t>(1 + r.random() % n);
      };
      const auto samples = below(4), classes = below(4);
      auto x = r.add(f.g, f32({samples, below(5)}), "x");
      const auto layers = below(3);
      for (std::int64_t i = 0; i < layers; ++i) {
        x = dense(x, i + 1 == layers ? classes : below(5), fmt::format("layer_{}", i));
        if (i + 1 == layers) break;
        const auto kind = r.random() % 4;
        if (kind == 0) x = relu(x);
        if (kind == 1) x = sigmoid(x);
        if (kind == 2) x = troupe::tanh(x);
        // A leaky relu; x is used twice.
        if (kind == 3) x = maximum(x, mul(x, constant(f.g, 0.1F)));
      }
      const auto labels = input(f.g, i32({samples}), "labels"),
                 scale = input(f.g, f32({}), "scale");
      r.all["labels"] = reference::make(i32({samples}), [&](std::size_t i) {
        return static_cast<double>(i % static_cast<std::size_t>(classes));
      });
      r.all["scale"] =
          reference::make(f32({}), [&](std::size_t) { return 1.0 / static_cast<double>(samples); });
      std::uniform_real_distribution<double> uniform(-1, 1);
      for (const auto& v : f.g.variables())
        r.all[f.g.node(v.node).name] =
            reference::make(v.spec(), [&](std::size_t) { return uniform(r.random); });
      check_gradients(f, softmax_cross_entropy(x, labels, scale), f.g.variables(), r.all);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_the_loss_does_not_depend_on_has_no_gradient) {
  fixture f;
  const auto a = variable(f.g, f32({3}), {}, "a"), b = variable(f.g, f32({3}), {}, "b");
  const auto derivatives = gradients(f.g, reduce_sum(a), std::array{a, b});
  BOOST_TEST(derivatives[0].is_valid());
  BOOST_TEST(!derivatives[1].is_valid());
  BOOST_TEST(!f.g.first_error().has_value());
}

BOOST_AUTO_TEST_CASE(
    a_loss_that_is_no_scalar_and_an_op_without_gradient_are_errors_with_the_users_line) {
  {
    fixture f;
    const auto a = variable(f.g, f32({3}), {}, "a");
    gradients(f.g, a, std::array{a});
    BOOST_TEST(f.g.first_error()->text().find("loss 'a' is f32[3], but must be a scalar") !=
               std::string::npos);
    BOOST_TEST(f.g.first_error()->text().find("ops_test.cpp:") != std::string::npos);
  }
  fixture f;
  f.ops.add("oracle", {.inputs = 1, .shapes = f.ops.find("relu")->shapes, .gradient = {}});
  const auto a = variable(f.g, f32({3}), {}, "a");
  const auto y = f.g.add("oracle", std::array{a}, {}, "oracle", source_location::current());
  gradients(f.g, reduce_sum(y), std::array{a});
  BOOST_TEST_REQUIRE(f.g.first_error().has_value());
  BOOST_TEST(
      f.g.first_error()->text().find("oracle 'oracle' is not differentiable") != std::string::npos,
      f.g.first_error()->text());
}

BOOST_AUTO_TEST_SUITE_END()
