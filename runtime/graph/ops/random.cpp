// Random numbers, and dropout. Nothing flows back through numbers that are drawn.

#include "troupe/runtime/graph/ops/rules.hpp"

#include <cmath>
#include <limits>

namespace troupe {
namespace ops {
namespace {

// What the numbers of an op follow from, besides the step and where they stand: its seed, and its
// name, so that two ops differ.
constexpr std::string_view stream = "stream";

std::optional<std::string> why_no_law(const attributes& attrs, std::string_view law, dtype type) {
  const auto finite = [&](std::string_view name, double otherwise = 0) {
    return std::isfinite(attrs.real(name, otherwise));
  };
  if (law == "uniform" &&
      !(finite("low") && finite("high", 1) && attrs.real("low") <= attrs.real("high", 1)))
    return fmt::format("low and high are {} and {}, and must be finite and in this order",
                       attrs.real("low"), attrs.real("high", 1));
  // The numbers are made as low + (high - low) u, in f32 or f64.
  const auto widest = type == dtype::f64 ? std::numeric_limits<double>::max()
                                         : static_cast<double>(std::numeric_limits<float>::max());
  if (law == "uniform" &&
      !(std::abs(attrs.real("low")) <= widest && std::abs(attrs.real("high", 1)) <= widest &&
        attrs.real("high", 1) - attrs.real("low") <= widest))
    return fmt::format("from {} to {} is wider than {}", attrs.real("low"), attrs.real("high", 1),
                       to_string(type));
  if (law == "normal" &&
      !(finite("mean") && finite("deviation", 1) && attrs.real("deviation", 1) >= 0))
    return fmt::format("mean and deviation are {} and {}, and must be finite and not negative",
                       attrs.real("mean"), attrs.real("deviation", 1));
  if (law == "mask" && !(attrs.real("rate") >= 0 && attrs.real("rate") < 1))
    return fmt::format("the rate is {}, and must be from 0 to less than 1", attrs.real("rate"));
  if (attrs.integer("part") < 0 || attrs.integer("rows") < 0)
    return "part and rows cannot be negative";
  return std::nullopt;
}

// `is_like`: the numbers have the spec of the operand. Others may have one, too, which comes once
// for each iteration of a loop.
shape_rule drawn(std::string_view law, bool is_like) {
  return [law, is_like](const attributes& attrs, std::span<const tensor_spec> in,
                        const tag*) -> result<specs> {
    tensor_spec out;
    if (!is_like) {
      auto spec = spec_of(attrs);
      if (!spec) return std::move(spec.error());
      if (spec->shape.is_symbolic())
        return misfit(std::array{*spec}, {},
                      "a shape with a bound (a symbolic size) must be drawn like a tensor that has "
                      "this shape: use the op's _like form");
      out = *spec;
    } else {
      out = in[0];
    }
    const auto complain = [&](std::string_view why) { return misfit(in, {"like"}, why); };
    if (!floating.has(out.type)) return complain("the element type must be f32 or f64");
    if (const auto why = why_no_law(attrs, law, out.type)) return complain(*why);
    return specs{out};
  };
}

// FNV-1a.
std::int64_t hash_of(std::string_view name) {
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return static_cast<std::int64_t>(h);
}

value draw(std::string_view type, graph& g, std::span<const value> like, attributes attrs,
           const source_location& where) {
  attrs.set(std::string(stream), hash_of(g.name_for(type)));
  // Like a part of a batch: those before it have as many rows
  // (runtime/compile/passes/draft/replicate.cpp says which part it is), so that the numbers are
  // those of the whole batch.
  if (!like.empty() && like[0].is_valid() && like[0].spec().shape.rank() > 0)
    attrs.set("rows", like[0].spec().shape.size(0));
  if (!like.empty() || g.regions().loop_around(g.regions().current()) == graph_regions::none)
    return g.add(std::string(type), like, std::move(attrs), type, where);
  const auto token = g.regions().token(where);
  return g.add(std::string(type), std::span(&token, 1), std::move(attrs), type, where);
}
value draw_like(std::string_view type, value x, attributes attrs, const source_location& where) {
  return x.is_valid() ? draw(type, *x.owner, std::span(&x, 1), std::move(attrs), where) : value{};
}

}  // namespace

void add_random(op_table& t) {
  const auto row = [&](const char* name, std::string_view law, bool is_like) {
    t.add(name, {.inputs = is_like ? 1U : 0U,
                 .shapes = drawn(law, is_like),
                 .gradient = no_gradient,
                 .is_source = !is_like,
                 .depends_on_step = true,
                 .types = is_like ? floating : dtype_set{},
                 .inputs_max = is_like ? 0U : 1U});
  };
  row("random_uniform", "uniform", false);
  row("random_normal", "normal", false);
  row("random_uniform_like", "uniform", true);
  row("random_normal_like", "normal", true);
  row("dropout_mask", "mask", true);
}

}  // namespace ops

value random_uniform(graph& g, const tensor_spec& spec, double low, double high, std::uint64_t seed,
                     source_location where) {
  auto attrs = ops::attributes_of(spec);
  attrs.set("low", low), attrs.set("high", high),
      attrs.set("seed", static_cast<std::int64_t>(seed));
  return ops::draw("random_uniform", g, {}, std::move(attrs), where);
}
value random_normal(graph& g, const tensor_spec& spec, double mean, double deviation,
                    std::uint64_t seed, source_location where) {
  auto attrs = ops::attributes_of(spec);
  attrs.set("mean", mean), attrs.set("deviation", deviation),
      attrs.set("seed", static_cast<std::int64_t>(seed));
  return ops::draw("random_normal", g, {}, std::move(attrs), where);
}
value random_uniform_like(value x, double low, double high, std::uint64_t seed,
                          source_location where) {
  return ops::draw_like("random_uniform_like", x,
                        {{"low", low}, {"high", high}, {"seed", static_cast<std::int64_t>(seed)}},
                        where);
}
value random_normal_like(value x, double mean, double deviation, std::uint64_t seed,
                         source_location where) {
  return ops::draw_like(
      "random_normal_like", x,
      {{"mean", mean}, {"deviation", deviation}, {"seed", static_cast<std::int64_t>(seed)}}, where);
}
value dropout(value x, double rate, std::uint64_t seed, source_location where) {
  if (rate == 0) return x;
  return mul(x,
             ops::draw_like("dropout_mask", x,
                            {{"rate", rate}, {"seed", static_cast<std::int64_t>(seed)}}, where),
             where);
}

}  // namespace troupe
