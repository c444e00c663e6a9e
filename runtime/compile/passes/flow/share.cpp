// Ops of one type, with equal attributes, operands and device, compute the same: one of them does
// it for all. Kernels are functions of their operands, attributes and the step (devices/kernel.hpp,
// K-2), readers and random ops too; what the program feeds, and variables, go by name.

#include "troupe/runtime/compile/passes/passes.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

namespace troupe::passes {
namespace {

class hasher {
 public:
  void add(std::string_view bytes) { add(XXH3_64bits(bytes.data(), bytes.size())); }
  void add(std::uint64_t n) { hash_ = XXH3_64bits_withSeed(&n, sizeof n, hash_); }
  std::uint64_t value() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0;
};

void add_attribute(hasher& h, const attributes::value& v) {
  h.add(v.index());
  if (const auto* n = std::get_if<std::int64_t>(&v)) h.add(static_cast<std::uint64_t>(*n));
  if (const auto* x = std::get_if<double>(&v)) h.add(std::bit_cast<std::uint64_t>(*x));
  if (const auto* text = std::get_if<std::string>(&v)) h.add(*text);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&v))
    h.add({reinterpret_cast<const char*>(list->data()), list->size() * sizeof(std::int64_t)});
  if (const auto* data = std::get_if<shared_bytes>(&v))
    h.add({reinterpret_cast<const char*>(data->view().data()), data->view().size()});
}

std::uint64_t hash_of(const flow_op& op) {
  hasher h;
  h.add(op.type);
  h.add(op.device);
  for (const auto& [name, value] : op.attrs.entries()) {
    h.add(name);
    add_attribute(h, value);
  }
  for (const auto& in : op.inputs) h.add(std::uint64_t{in.op} << 32U | in.output);
  return h.value();
}

// Zeros of both signs, and NaNs, are told apart by their bits: equal() of doubles would not do.
bool is_same(const attributes::value& a, const attributes::value& b) {
  if (const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
      x != nullptr && y != nullptr)
    return std::bit_cast<std::uint64_t>(*x) == std::bit_cast<std::uint64_t>(*y);
  return a == b;
}

bool is_same(const flow_op& a, const flow_op& b) {
  return a.type == b.type && a.device == b.device && a.inputs == b.inputs &&
         a.outputs == b.outputs &&
         std::ranges::equal(a.attrs.entries(), b.attrs.entries(), [](const auto& x, const auto& y) {
           return x.first == y.first && is_same(x.second, y.second);
         });
}

}  // namespace

flow share(flow f, pass_report* report) {
  std::unordered_multimap<std::uint64_t, std::uint32_t> known;
  std::vector<std::uint32_t> stands_for(f.ops.size());
  for (std::uint32_t i = 0; i < f.ops.size(); ++i) {
    auto& op = f.ops[i];
    for (auto& in : op.inputs) in.op = stands_for[in.op];
    stands_for[i] = i;
    if (op.type == "input" || op.type == "variable") continue;
    const auto hash = hash_of(op);
    const auto [first, last] = known.equal_range(hash);
    const auto same =
        std::find_if(first, last, [&](const auto& k) { return is_same(f.ops[k.second], op); });
    if (same == last) {
      known.emplace(hash, i);
      continue;
    }
    stands_for[i] = same->second;
    if (report != nullptr)
      report->add(op.name, op.source, [&] {
        return fmt::format("computes the same {} as '{}', which is used for both", op.type,
                           f.ops[same->second].name);
      });
  }
  for (auto& r : f.roots) r.op = stands_for[r.op];
  return drop_unused(std::move(f));
}

}  // namespace troupe::passes
