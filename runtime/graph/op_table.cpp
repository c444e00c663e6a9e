#include "troupe/runtime/graph/op_table.hpp"

#include "troupe/runtime/graph/ops/op_rows.hpp"

namespace troupe {

op_table make_op_table() {
  op_table t;
  ops::add_sources(t);
  ops::add_control(t);
  ops::add_idx_batch(t);
  ops::add_text_batch(t);
  ops::add_arithmetic(t);
  ops::add_math(t);
  ops::add_activations(t);
  ops::add_comparisons(t);
  ops::add_matmul(t);
  ops::add_convolution(t);
  ops::add_pooling(t);
  ops::add_normalisation(t);
  ops::add_softmax(t);
  ops::add_attention(t);
  ops::add_reductions(t);
  ops::add_layout(t);
  ops::add_indexing(t);
  ops::add_collectives(t);
  ops::add_losses(t);
  ops::add_random(t);
  return t;
}

}  // namespace troupe
