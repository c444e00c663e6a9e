// text_batch: the reader of a text as an op of the graph. It has no operands; what it reads in a
// step follows from the step alone.

#include "troupe/runtime/graph/build.hpp"
#include "troupe/runtime/graph/ops/op_rows.hpp"

#include <array>

namespace troupe {
namespace ops {
namespace {

result<specs> shapes(const attributes& attrs, std::span<const tensor_spec>, const tag*) {
  struct limit {
    std::string_view name;
    std::int64_t least, most;
  };
  const std::array<limit, 5> limits{
      {{"context", 1, 1 << 24},
       {"batch", 1, 1 << 24},
       {"parts", 1, 65536},
       {"part", 0, attrs.integer("parts") - 1},
       // Bytes of the text.
       {"samples", attrs.integer("context") + 1, std::int64_t{1} << 32}}};
  if (const auto bytes = attrs.integer("samples", -1);
      bytes >= 0 && bytes <= attrs.integer("context"))
    return error(
        error_code::usage,
        fmt::format("text '{}' has {} bytes, but pieces of {} and one more byte are to be read",
                    attrs.text("path"), bytes, attrs.integer("context")));
  for (const auto& [name, least, most] : limits)
    if (const auto n = attrs.integer(name, -1); n < least || n > most)
      return error(error_code::usage,
                   fmt::format("{} is {}, but must be in {}..{}", name, n, least, most));
  const tensor_spec pieces{dtype::i32, shape{attrs.integer("batch"), attrs.integer("context")}};
  return specs{pieces, pieces, scalar(dtype::f32)};
}

}  // namespace

void add_text_batch(op_table& t) {
  t.add("text_batch", {.inputs = 0, .shapes = shapes, .gradient = {}, .is_source = true});
}

}  // namespace ops

text_batch_values text_batch(graph& g, const text_info& text, const text_batch_options& options,
                             source_location where) {
  const attributes attrs{{"path", text.path},
                         {"samples", text.bytes},
                         {"hash", static_cast<std::int64_t>(text.hash)},
                         {"batch", options.batch},
                         {"context", options.context},
                         {"seed", static_cast<std::int64_t>(options.seed)},
                         {"part", options.part},
                         {"parts", options.parts},
                         {"global_scale", std::int64_t{1}}};
  const auto tokens = g.add("text_batch", {}, attrs, "text_batch", where);
  if (!tokens.is_valid()) return {};
  return {tokens, value{&g, tokens.node, 1}, value{&g, tokens.node, 2}};
}

}  // namespace troupe
