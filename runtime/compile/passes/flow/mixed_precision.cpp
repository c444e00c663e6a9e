// Mixed precision: ops that gain by it compute in f16 or bf16, all others in f32 (Micikevicius et
// al.: Mixed Precision Training, 2018). The pass comes behind gradients, so that an op and the ops
// of its gradient are treated alike, and nothing is differentiated through a cast.
//
// A value has one native form, that of the op that makes it, and gets the other one by a cast where
// somebody needs that:
//
//   products, convolutions, attention of f32     take halves and make halves; sums inside, and
//                                                softmax, are f32
//   what moves elements (reshape, slice, ...)    as its operands are, if all of them are made as
//                                                halves; halves, too, if halves alone are made of
//                                                its result. Both give the same bits as casts on
//                                                the other side, and move half the bytes
//   everything else, and what is asked for       f32: reductions, normalisation, softmax, losses,
//                                                gradients of variables
//
// MX-1  A value is cast at most once in each direction, for all who need it: next to who makes it,
//       so that a variable that a loop reads is cast outside of the loop, once a step. Of
//       variables, inputs and constants, whose device is not where they are computed: once for each
//       device.
// MX-2  No cast is cast back: who needs the native form gets that.

#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

namespace troupe::passes {
namespace {

constexpr std::array<std::string_view, 6> gaining{
    "matmul", "conv2d", "conv2d_input_grad", "conv2d_weights_grad", "attention", "attention_grad"};
// Of the elements of one tensor, or of several that are alike.
constexpr std::array<std::string_view, 7> moving{"reshape", "transpose", "expand_dims",  "slice",
                                                 "concat",  "tile",      "stop_gradient"};
// Whose device says where they are kept.
constexpr std::array<std::string_view, 4> sources{"variable", "input", "constant",
                                                  "constant_tensor"};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& types, std::string_view type) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

class converter {
 public:
  converter(flow f, dtype half, pass_report* report)
      : f_(std::move(f)),
        half_(half),
        report_(report),
        is_half_(f_.ops.size()),
        made_(f_.ops.size()) {}

  flow run() {
    choose();
    for (const auto& op : f_.ops) names_.insert(op.name);
    out_.ops.reserve(f_.ops.size());
    for (std::uint32_t i = 0; i < f_.ops.size(); ++i) convert(i);
    for (const auto& r : f_.roots) out_.roots.push_back(as(r, false, {}));
    return drop_unused(std::move(out_));
  }

 private:
  const tensor_spec& spec_of(op_ref r) const { return f_.ops[r.op].outputs[r.output]; }
  bool all_f32(const flow_op& op) const {
    return std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](op_ref r) { return spec_of(r).type == dtype::f32; }) &&
           std::all_of(op.outputs.begin(), op.outputs.end(),
                       [](const auto& s) { return s.type == dtype::f32; });
  }

  // --- which ops

  void choose() {
    std::vector<bool> can_move(f_.ops.size());
    for (std::uint32_t i = 0; i < f_.ops.size(); ++i) {
      const auto& op = f_.ops[i];
      if (!all_f32(op) || op.inputs.empty()) continue;
      can_move[i] = is_one_of(moving, op.type);
      is_half_[i] = is_one_of(gaining, op.type) ||
                    (can_move[i] && std::all_of(op.inputs.begin(), op.inputs.end(),
                                                [&](op_ref r) { return is_half_[r.op]; }));
    }
    // Who is wanted as halves alone, from the last one on; operands come first (PS-1).
    std::vector<bool> is_used(f_.ops.size()), is_wanted_wide(f_.ops.size());
    for (const auto& r : f_.roots) is_wanted_wide[r.op] = true;
    for (auto i = f_.ops.size(); i-- > 0;) {
      if (can_move[i] && is_used[i] && !is_wanted_wide[i]) is_half_[i] = true;
      for (const auto& in : f_.ops[i].inputs) {
        is_used[in.op] = true;
        if (!is_half_[i]) is_wanted_wide[in.op] = true;
      }
    }
  }

  // --- the new flow

  void convert(std::uint32_t i) {
    auto op = f_.ops[i];
    if (op.type == "cast" && is_same_again(op)) {
      made_[i] = {as(op.inputs[0], true, {})};
      return tell_folded(op);
    }
    for (auto& in : op.inputs) in = as(in, is_half_[i], op.device);
    if (is_half_[i]) {
      tell_half(op);
      for (auto& s : op.outputs) s.type = half_;
    }
    const auto at = static_cast<std::uint32_t>(out_.ops.size());
    for (std::uint32_t k = 0; k < op.outputs.size(); ++k) made_[i].push_back({at, k});
    out_.ops.push_back(std::move(op));
  }

  // The program's own cast of what is made as halves anyway.
  bool is_same_again(const flow_op& op) const {
    return is_half_[op.inputs[0].op] && op.outputs[0].type == half_ &&
           spec_of(op.inputs[0]).type == dtype::f32;
  }

  // `r`, of the old flow, for an op on `device` that takes halves, or one that takes what the
  // program meant.
  op_ref as(op_ref r, bool wants_half, const std::string& device) {
    const auto native = made_[r.op][r.output];
    if (is_half_[r.op] == wants_half || spec_of(r).type != dtype::f32) return native;
    const auto& maker = f_.ops[r.op];
    const auto& where = is_one_of(sources, maker.type) ? device : maker.device;
    const auto [at, is_new] = casts_.try_emplace(std::tuple{r.op, r.output, where});
    if (is_new)
      at->second = add_cast(maker, r.output, native, wants_half ? half_ : dtype::f32, where);
    return at->second;
  }

  op_ref add_cast(const flow_op& maker, std::uint32_t output, op_ref of, dtype to,
                  const std::string& device) {
    flow_op op;
    op.type = "cast";
    op.name = unused_name(fmt::format(
        "{}{}/{}", maker.name, output == 0 ? "" : fmt::format("_{}", output), to_string(to)));
    op.attrs = attributes{{"to", std::int64_t{static_cast<std::uint8_t>(to)}}};
    op.inputs = {of};
    op.outputs = {{to, maker.outputs[output].shape}};
    op.device = device;
    op.source = maker.source;
    const auto place = output < maker.output_places.size()
                           ? maker.output_places[output]
                           : output_place{maker.region, maker.loop_level};
    op.region = place.region;
    op.loop_level = place.loop_level;
    if (report_ != nullptr && maker.type == "variable")
      report_->add(maker.name, maker.source, [&] {
        return fmt::format("is cast to {} once a step{}{}, by '{}'", to_string(to),
                           device.empty() ? "" : " for ", device, op.name);
      });
    out_.ops.push_back(std::move(op));
    return {static_cast<std::uint32_t>(out_.ops.size() - 1), 0};
  }

  std::string unused_name(const std::string& base) {
    auto name = base;
    for (int n = 1; !names_.insert(name).second; ++n) name = fmt::format("{}_{}", base, n);
    return name;
  }

  // --- the report

  void tell_half(const flow_op& op) {
    if (report_ == nullptr) return;
    report_->add(op.name, op.source, [&] {
      return is_one_of(gaining, op.type)
                 ? fmt::format(
                       "computes in {}: its operands are rounded to it, sums are f32, and the result is rounded once",
                       to_string(half_))
                 : fmt::format("moves {} instead of f32, which changes no bit", to_string(half_));
    });
  }
  void tell_folded(const flow_op& op) {
    if (report_ != nullptr)
      report_->add(op.name, op.source, [&] {
        return fmt::format("is left out: '{}' is made as {} in the first place",
                           f_.ops[op.inputs[0].op].name, to_string(half_));
      });
  }

  flow f_, out_;
  dtype half_;
  pass_report* report_;
  // By op of the old flow: makes halves where the program says f32.
  std::vector<bool> is_half_;
  std::vector<std::vector<op_ref>> made_;  // and its outputs in the new one
  // By output, and device.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::string>, op_ref> casts_;
  std::unordered_set<std::string> names_;
};

}  // namespace

flow mixed_precision(flow f, dtype half, pass_report* report) {
  return converter(std::move(f), half, report).run();
}

}  // namespace troupe::passes
