// libFuzzer over graphs in files: whatever the bytes, a graph or an error of one line; and of a
// graph, a plan or an error.
//
// The first byte chooses what the rest is: raw bytes; a message whose length and hash are made
// right, so that what lies behind them is reached; or a genuine message with words replaced, its
// hash made right too. A property that does not hold traps; memory and undefined behaviour are the
// sanitizers' part.

#include "tests/fuzz/fuzz_input.hpp"
#include "tests/support/graph_files.hpp"
#include "troupe/runtime/compile/graph_file.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

using namespace troupe;

namespace {

using test::check;

void check_message(const error& e) {
  for (const char c : e.text()) check(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

const op_table& ops() {
  static const auto table = make_op_table();
  return table;
}

void compile(saved_graph& s) {
  if (!s.use.fetches.empty()) {
    std::vector<value> fetches;
    for (const auto& f : s.use.fetches) fetches.push_back(f.at);
    if (const auto p = compile_steps(*s.graph, fetches, {})) check(bool(check(*p)));
  }
  const auto how = s.use.training.value_or(graph_training{});
  if (!s.use.loss || how.spec.workers > 4 || how.spec.shards > 4) return;
  if (const auto p = compile_training(*s.graph, *s.use.loss, how.spec, how.options))
    check(bool(check(*p)));
}

void read(std::span<const std::byte> bytes) {
  auto g = decode_graph(bytes, ops());
  if (!g) return check_message(g.error());
  check(!g->graph->first_error().has_value());
  const auto again = encode_graph(*g->graph, g->use);
  check(bool(again));
  const auto same = decode_graph(*again, ops());
  check(same && same->graph->nodes().size() == g->graph->nodes().size());
  compile(*g);
}

const std::vector<std::byte>& sample() {
  static const auto message = [] {
    graph g(ops());
    const auto loss = test::loss_of(g);
    const auto bytes =
        encode_graph(g, {.loss = loss, .fetches = {{"loss", loss}}, .training = graph_training{}});
    check(bool(bytes));
    return std::vector<std::byte>(bytes->begin() + test::message_at, bytes->end());
  }();
  return message;
}

// Two bytes: which word; one: how much of it from where; then what comes there.
void replaced_words(std::span<const std::byte> in) {
  auto m = sample();
  for (int i = 0; i < 6 && in.size() >= 4; ++i) {
    const auto number = [&](std::size_t k) { return std::to_integer<std::size_t>(in[k]); };
    const auto word = (number(0) | number(1) << 8U) % (m.size() / 8), at = word * 8 + number(2) % 8;
    const auto count = std::min({1 + number(2) / 8 % 8, m.size() - at, in.size() - 3});
    std::memcpy(m.data() + at, in.data() + 3, count);
    in = in.subspan(3 + count);
  }
  read(test::sealed(m));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto in = std::as_bytes(std::span(data, size));
  const auto kind = in.empty() ? 0 : std::to_integer<unsigned>(in[0]) % 8;
  if (!in.empty()) in = in.subspan(1);
  switch (kind) {
    case 0: read(in); break;
    case 1: read(test::sealed({in.begin(), in.end()})); break;
    default: replaced_words(in); break;
  }
  return 0;
}
