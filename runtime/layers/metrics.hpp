#pragma once
// What people look at beside a loss, as values of a graph, which run wherever the graph does.
//
// Threading: as of graph. Errors: as of ops.

#include "troupe/runtime/graph/graph.hpp"

#include <cstdint>
#include <source_location>

namespace troupe {

// The share of rows whose largest logit is that of the label: logits f32 [n, c], labels i32 [n] ->
// f32 [].
value accuracy(value logits, value labels, source_location where = source_location::current());
// How many rows of each label (first axis) were taken for each class (second axis): logits f32
// [n, c], labels i32 or i64 [n], each in 0 .. c - 1 -> f32 [c, c].
value confusion(value logits, value labels, source_location where = source_location::current());
// e to the mean of -log softmax(logits)[label]: logits f32 [.., c], labels i32 or i64 [..] ->
// f32 []. Of a language model: how many next tokens it wavers between.
value perplexity(value logits, value labels, source_location where = source_location::current());
// The area under the curve of true over false positives: of all pairs of a row of label 1 and one
// of label 0, the share in which the former has the higher score; equal scores count half. scores
// f32 [n], labels f32 [n], 0 or 1 -> f32 []; NaN where a label is missing. Exact, with n^2 numbers:
// for validation sets of some thousands.
value area_under_curve(value scores, value labels,
                       source_location where = source_location::current());

}  // namespace troupe
