// libFuzzer over what comes from other processes of a topology: frames along its edges, words of
// its program and nodes, and descriptions, of which a part is made and run.
//
// The first byte chooses what the rest is: a frame, or the bytes of a word, as they are; a genuine
// frame with pieces replaced; a genuine description with fields changed, whose part is then fed
// with items and run; or a value, which is written, read and compared. A property that does not
// hold traps; memory and undefined behaviour are the sanitizers' part.

#include "tests/fuzz/fuzz_input.hpp"
#include "troupe/actors/flow/part_words.hpp"
#include "troupe/runtime/flow/flow.hpp"
#include "troupe/runtime/flow/flow_group.hpp"
#include "troupe/runtime/flow/item_frames.hpp"
#include "troupe/runtime/flow/sample_stages.hpp"
#include "troupe/runtime/flow/stage_library.hpp"
#include "troupe/runtime/flow/topology_checkpoint.hpp"
#include "troupe/runtime/flow/topology_parts.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

using namespace troupe;

namespace {

using input = test::fuzz_input;
using test::check;

struct photo {
  std::string path;
  tensor pixels;
  std::vector<std::optional<std::int16_t>> marks;
  std::map<std::string, std::tuple<double, std::array<std::uint8_t, 3>>> more;
  static constexpr auto fields =
      troupe::fields<&photo::path, &photo::pixels, &photo::marks, &photo::more>("path", "pixels",
                                                                                "marks", "more");
};

struct plus_one {
  std::int64_t operator()(std::int64_t x) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(x) + 1);
  }
};
struct odd_ones {
  std::optional<std::int64_t> operator()(std::int64_t x) const {
    return x % 2 != 0 ? std::optional(x) : std::nullopt;
  }
};
struct summing {
  std::uint64_t state = 0;
  std::int64_t operator()(std::int64_t x) {
    return static_cast<std::int64_t>(state += static_cast<std::uint64_t>(x));
  }
  std::int64_t finish() { return static_cast<std::int64_t>(state); }
};
struct nothing {
  void operator()(std::int64_t) const {}
};
const stage_library& stages() {
  static const stage_library all("fuzz", "1",
                                 {stage_of<plus_one>("plus_one"), stage_of<odd_ones>("odd_ones"),
                                  stage_of<summing>("summing"), stage_of<nothing>("nothing")});
  return all;
}

tensor frame_of(std::span<const std::byte> bytes) {
  auto t = tensor::make({dtype::u8, {static_cast<std::int64_t>(bytes.size())}});
  if (!bytes.empty()) std::memcpy(t.bytes().data(), bytes.data(), bytes.size());
  return t;
}

const value_codec* some_codec(std::uint8_t which) {
  switch (which % 4) {
    case 0: return codec_of<std::int64_t>();
    case 1: return codec_of<photo>();
    case 2: return codec_of<std::vector<tensor>>();
    default: return nullptr;
  }
}

void read_frame(const tensor& frame, const far_end& far) {
  const auto head = head_of(frame);
  if (!head) return;
  auto items = items_of(frame, far, 1'000'000'000);
  if (items) {
    check(head->kind == frame_kind::items && items->is_last == head->is_last);
    // What was read can be sent on, and is the same then.
    const auto n = items->items.size();
    const auto sent = items_frame(head->edge, items->items, items->is_last, far, 1'000'000'000,
                                  std::size_t{1} << 30);
    check(bool(sent));
    const auto read = items_of(*sent, far, 1'000'000'000);
    check(read && read->items.size() == n);
  }
  if (taken_of(frame)) check(head->kind == frame_kind::taken);
}

tensor genuine_frame(input& in) {
  std::vector<flow_item> items;
  for (std::uint32_t n = in.byte() % 6; n > 0; --n) {
    photo p;
    p.path = std::string(in.byte() % 20, 'x');
    if (in.byte() % 2 != 0) p.pixels = tensor::make({dtype::f32, {in.byte() % 5, 3}});
    p.marks.assign(in.byte() % 4, std::int16_t{7});
    p.more["a"] = {1.5, {1, 2, 3}};
    item_origin o;
    o.number = in.number();
    o.source = in.byte();
    o.ticket = in.number();
    o.ends_ticket = in.byte() % 2 != 0;
    if (in.byte() % 2 != 0) o.label = std::make_shared<const std::string>("label");
    items.push_back({any_value(std::move(p)), std::move(o), 8});
  }
  auto made = items_frame(in.byte(), items, in.byte() % 2 != 0, {codec_of<photo>(), false, false},
                          5, std::size_t{1} << 30);
  check(bool(made));
  return std::move(*made);
}

std::vector<std::byte> damaged(std::span<const std::byte> bytes, input& in) {
  std::vector<std::byte> out(bytes.begin(), bytes.end());
  while (!in.is_empty() && !out.empty()) {
    const auto at = in.number() % out.size();
    const auto piece = in.some(1 + in.byte() % 8);
    for (std::size_t i = 0; i < piece.size() && at + i < out.size(); ++i) out[at + i] = piece[i];
    if (in.byte() % 8 == 0) out.resize(in.number() % (out.size() + 1));
  }
  return out;
}

topology_description genuine_description() {
  flow_graph g;
  auto f = source(
      g, [n = std::int64_t{0}]() mutable { return n < 9 ? std::optional(n++) : std::nullopt; });
  auto a = map(f, plus_one{}, {.replicas = 2, .on = "/job:worker"});
  auto b = map(map(a, odd_ones{}, {.on_error = skip(3), .on = "/node:one"}), summing{},
               {.on = "/job:worker"});
  for_each(b, nothing{}, {.on = "/job:worker"});
  check(bool(g.check()));
  const std::vector<place_node> nodes{{"one", "worker", {}}, {"two", "worker", {}}};
  const auto process_of = place_on_nodes(g, nodes);
  check(bool(process_of));
  auto d = describe(g, *process_of, {&stages()});
  check(bool(d));
  d->processes = {{1, "program", "here"}, {2, "one", "here"}, {3, "two", "there"}};
  return std::move(*d);
}

struct nowhere final : flow_wire {
  void send(std::uint32_t, std::vector<flow_item>&&, bool) override {}
  void give_room(std::uint32_t) override {}
  void close(std::uint32_t) override {}
};

// TPA-2, and that whatever graph it ends with can be run.
void run_part(topology_description d, std::uint32_t own, input& in) {
  const auto part = part_of(std::move(d), own, {&stages()});
  if (!part) return check(!part.error().message().empty());
  flow_group group(*part);
  if (group.failure()) return;
  const std::int64_t now = 1'000'000;
  const auto clock = [&] { return now; };
  nowhere wire;
  for (int turn = 0; turn < 8; ++turn) {
    for (std::uint32_t e = 0; e < (*part)->edges().size(); ++e) {
      const auto& edge = (*part)->edges()[e];
      if (!is_far(**part, e) || !group.has_edge(e) || !group.has_stage(edge.to)) continue;
      std::vector<flow_item> items;
      for (std::uint32_t n = in.byte() % 3; n > 0; --n) {
        item_origin o;
        o.source = 0;
        o.ticket = in.byte();
        o.ends_ticket = in.byte() % 2 != 0;
        items.push_back({any_value(std::int64_t{in.byte()}), std::move(o), 8});
      }
      const auto far = far_end_of(**part, e, true);
      // Only of a type that the edge has: what comes is read by that.
      if (far.codec != codec_of<std::int64_t>()) items.clear();
      group.deliver(e, std::move(items), in.byte() % 16 == 0);
    }
    if (group.run(clock, now + 1000, &wire) != flow_group::state::more && in.is_empty()) break;
    // As its gate passes it on: of edges that it has, and that lead to another process.
    for (std::uint32_t e = 0; e < (*part)->edges().size(); ++e) {
      if (!is_far(**part, e) || !group.has_edge(e)) continue;
      const auto what = in.byte() % 16;
      if (what == 1) group.room(e);
      if (what == 2) group.close(e);
    }
  }
}

void read_word(std::span<const std::byte> bytes, input& in) {
  const auto kind = word_of(bytes);
  if (!kind) return;
  (void)body_of<refused_word>(bytes);
  (void)body_of<text_word>(bytes);
  if (const auto counts = body_of<counts_word>(bytes)) {
    stage_counters c;
    for (const auto& s : counts->stages) keep_count(s, c);
  }
  if (auto place = body_of<place_word>(bytes)) run_part(std::move(place->what), place->own, in);
}

// With each kind of stage that a checkpoint has something of.
void describe_kept(flow_graph& g) {
  struct numbers {
    std::int64_t state = 0;
    std::optional<std::int64_t> operator()() {
      return state < 40 ? std::optional(state++) : std::nullopt;
    }
  };
  const auto f = source(g, numbers{});
  const auto other = from(g, std::vector<std::int64_t>{5, 6, 7, 8, 9});
  const auto a = map(f, [](std::int64_t x) { return x + 1; }, {.replicas = 2});
  for_each(zip(a, f), [](const std::tuple<std::int64_t, std::int64_t>&) {});
  for_each(unbatch(batch(merge(f, other), {.count = 3})), [](std::int64_t) {});
  for_each(window(first(a, 12), {.count = 4, .step = 2}), [](const std::vector<std::int64_t>&) {});
  for_each(interleave(std::vector{shuffle(f, {.hold = 4}), other}), [](std::int64_t) {});
  for_each(partition_by(a, [](std::int64_t x) { return x % 3; }, summing{}), [](std::int64_t) {});
  for_each(join_by(f, other, [](std::int64_t x) { return x % 5; }), [](const auto&) {});
}

std::vector<std::byte> genuine_checkpoint() {
  flow_graph g;
  describe_kept(g);
  check(bool(g.check()) && bool(check_checkpoint(g)));
  flow_group whole(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g));
  std::int64_t now = 0;
  const std::function<std::int64_t()> clock = [&] { return now += 1000; };
  whole.run(clock, 20'000, nullptr);
  whole.pause(true, true);
  while (!whole.under_way().empty()) whole.run(clock, never_ns, nullptr);
  auto c = whole.keep();
  check(bool(c));
  c->topology = "kept";
  return checkpoint_bytes(*c);
}

// What reading looks at first.
void hash_again(std::vector<std::byte>& bytes) {
  if (bytes.size() < 16) return;
  const auto body = std::span(bytes).first(bytes.size() - 16);
  const auto h = XXH3_128bits(body.data(), body.size());
  const std::array<std::uint64_t, 2> hash{h.high64, h.low64};
  std::memcpy(bytes.data() + body.size(), hash.data(), 16);
}

// TCK-1, and that whatever is read is refused, or gone on with.
void go_on_with(std::span<const std::byte> bytes) {
  auto c = read_checkpoint(bytes, "it");
  if (!c) return check(!c.error().message().empty());
  check(bool(read_checkpoint(checkpoint_bytes(*c), "it")));
  flow_graph g;
  describe_kept(g);
  check(bool(g.check()));
  flow_group whole(std::shared_ptr<const flow_graph>(std::shared_ptr<const void>(), &g));
  if (auto ok = whole.go_on_from(*c); !ok) return check(!ok.error().message().empty());
  std::int64_t now = 0;
  const std::function<std::int64_t()> clock = [&] { return now += 1000; };
  for (int turn = 0; turn < 64; ++turn)
    if (whole.run(clock, now + 200'000, nullptr) != flow_group::state::more) break;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  input in({reinterpret_cast<const std::byte*>(data), size});
  switch (in.byte() % 6) {
    case 0: {
      const auto codec = some_codec(in.byte());
      const bool same = in.byte() % 2 != 0, marks = in.byte() % 2 != 0;
      read_frame(frame_of(in.rest()), {codec, same, marks});
      break;
    }
    case 1: {
      const auto frame = genuine_frame(in);
      const auto bytes = damaged(std::as_const(frame).bytes(), in);
      read_frame(frame_of(bytes), {codec_of<photo>(), false, false});
      break;
    }
    case 2: read_word(in.rest(), in); break;
    case 3: {
      static const auto genuine =
          word_bytes(part_word::place, place_word{1, 7, genuine_description()});
      const auto changes = in.some(in.rest().size() / 2);
      input how(changes);
      const auto bytes = damaged(genuine, how);
      read_word(bytes, in);
      break;
    }
    case 4:
      if (const auto p = value_of<photo>(in.rest())) {
        const auto again = bytes_of(*p);
        const auto read = value_of<photo>(again);
        check(read && bytes_of(*read) == again);
      }
      break;
    case 5: {
      static const auto genuine = genuine_checkpoint();
      const bool is_hashed = in.byte() % 4 != 0;
      auto bytes = damaged(genuine, in);
      if (is_hashed) hash_again(bytes);
      go_on_with(bytes);
      break;
    }
    default: break;
  }
  return 0;
}
