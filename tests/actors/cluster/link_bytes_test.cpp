// A link whose peer has proven itself and sends whatever it likes: frames with right checksums, and
// headers that fit, nearly fit, or are random, into a job and a stream that are bound.

#include "troupe/actors/cluster/link.hpp"

#include "tests/support/frame_reader.hpp"
#include "tests/support/wait.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/plan/port_actor.hpp"

#include <boost/test/unit_test.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

using namespace troupe;

namespace {

constexpr job_id bytes_job{7}, bytes_work{9};
constexpr node_id bytes_self{1}, bytes_peer{2};
const tensor_spec bytes_of_edge{dtype::f32, {6}};
const tensor_spec bytes_of_stream{dtype::u8, {24}};

// Counts what arrives whole, and looks at every byte of it.
class reading_sink final : public port_actor::base {
 public:
  reading_sink(caf::actor_config& cfg, std::atomic<int>& items, std::atomic<int>& good)
      : port_actor::base(cfg), items_(items), good_(good) {}
  behavior_type make_behavior() override {
    return {[](wire_ports&) {},
            [](start_firing) {},
            [this](tensor_ready& m) {
              bool is_good = m.value && m.value.spec() == bytes_of_edge;
              if (m.value)
                for (const auto b : std::as_const(m.value).bytes())
                  is_good = is_good && b == std::byte{0x21};
              if (is_good) ++good_;
              ++items_;
            },
            [](const credit&) {},
            [](const peer_lost&) {},
            [](const mark_cut&) {},
            [](const cut_saved&) {},
            [](const cancel_step&) {},
            [](const set_feeder&) {},
            [](const device_done&) {},
            [](end_actor) {}};
  }

 private:
  std::atomic<int>&items_, &good_;
};

// Time stands still, and what is to come later comes when it is asked for.
class still_net final : public transport {
 public:
  result<address> listen(const address& at, accept_handler) override { return at; }
  void stop_listening() override {}
  void connect(const address&, std::int64_t, connect_handler) override {}
  std::int64_t now_ns() const override { return 1'000'000'000; }
  timer_id after(std::int64_t, std::function<void()> fn) override {
    later_.push_back(std::move(fn));
    return {};
  }
  void cancel(timer_id) override {}
  const fault_counters& faults() const override { return faults_; }
  void run_later() {
    for (auto& fn : std::exchange(later_, {})) fn();
  }

 private:
  std::vector<std::function<void()>> later_;
  fault_counters faults_;
};

// What the link is given, in the order of a connection.
class fed_channel final : public channel {
 public:
  explicit fed_channel(channel_handler*& handler) : handler_(handler) {}
  void start(channel_handler& h) override { handler_ = &h; }
  void send(outgoing_frame) override {}
  std::size_t unsent_bytes() const override { return 0; }
  void on_writable(std::size_t, std::function<void()>) override {}
  void trust_peer() override {}
  void configure(const channel_options&) override {}
  void close() override {}
  void abort() override {}
  const address& peer_address() const override { return at_; }

 private:
  channel_handler*& handler_;
  address at_{"127.0.0.1", 1};
};

struct bound_link {
  bound_link() {
    member_info peer;
    peer.id = bytes_peer;
    link_hooks hooks;
    hooks.heard = [](node_id) {};
    hooks.control = [](node_id, control_message) {};
    hooks.lane_lost = [](node_id) {};
    hooks.broken = [](node_id, const error& e) { BOOST_ERROR(e.text()); };
    hooks.no_memory = [](job_id, const std::string&) {};
    link = std::make_unique<link_core>(
        net, system, nullptr, bytes_self, peer, std::move(hooks),
        std::make_shared<actor_record>(actor_kind::link, "link", "", clock));
    receiver = spawn_on<reading_sink>(system, nullptr, std::ref(items), std::ref(good));
    listener = spawn_on(
        system, nullptr,
        +[](caf::event_based_actor*, std::atomic<int>* values) -> caf::behavior {
          return {[](stream_bound&) {}, [values](stream_value&) { ++*values; }};
        },
        &values);
    for (const auto l : {lane::control, lane::data})
      link->attach(l, std::make_unique<fed_channel>(handlers[static_cast<std::size_t>(l)]), 0);
  }
  ~bound_link() {
    link.reset();
    caf::anon_send_exit(listener, caf::exit_reason::kill);
    caf::anon_send_exit(receiver, caf::exit_reason::kill);
  }

  // Edge 0 leads to the peer, edge 1 from there.
  void bind(std::uint32_t epoch) {
    auto p = std::make_shared<plan>();
    p->tasks = {{"/job:worker/task:0", false, bytes_self},
                {"/job:worker/task:1", false, bytes_peer}};
    p->actors.resize(4);
    p->actors[1].task = p->actors[2].task = 1;
    p->edges = {{{0, 0}, {1, 0}, bytes_of_edge, 2}, {{2, 0}, {3, 0}, bytes_of_edge, 2}};
    auto handles = std::make_shared<part_handles>();
    handles->actors.resize(4);
    handles->actors[0] = handles->actors[3] = receiver;
    link->bind({bytes_job, epoch, p, handles, {}});
    link->bind(bind_stream{bytes_work, bytes_peer, listener}, {});
  }

  // As a connection that has read these bytes.
  void receive(lane l, const frame_fields& fields, std::span<const std::byte> header,
               std::span<const std::byte> payload) {
    auto bytes = encode_frame(fields, header, payload, true);
    test::frame_reader reader(frame_trust::peer);
    auto& decoder = reader.decoder;
    auto* handler = handlers[static_cast<std::size_t>(l)];
    std::span<const std::byte> left(bytes);
    for (;;) {
      const auto event = decoder.next();
      if (event == frame_decoder::event::need_bytes) {
        if (left.empty()) return;
        const auto n = reader.copy_into_space(left);
        decoder.filled(n);
        left = left.subspan(n);
      } else if (event == frame_decoder::event::header_ready) {
        const auto n = decoder.prelude().payload_length;
        const auto to = handler->payload_destination(decoder.prelude().kind, decoder.header(), n);
        BOOST_REQUIRE((to.empty() || to.size() == n));
        to.empty() ? decoder.discard() : decoder.deliver_to(to);
      } else if (event == frame_decoder::event::frame_complete) {
        const auto& p = decoder.prelude();
        handler->on_frame(
            {p.kind, p.sequence, p.ack, decoder.header(), decoder.payload(), p.payload_length});
        return;
      } else {
        BOOST_FAIL("a frame that was made right is read");
      }
    }
  }
  void receive_chunk(const chunk_header& h, std::span<const std::byte> payload) {
    receive(lane::data, {.kind = frame_kind::chunk}, encode(h), payload);
  }

  std::atomic<int> items{0}, good{0}, values{0};
  std::array<channel_handler*, lane_count> handlers{};
  caf::actor_system_config config;
  caf::actor_system system{config};
  still_net net;
  coarse_clock clock;
  std::unique_ptr<link_core> link;
  port_actor receiver;
  caf::actor listener;
};

chunk_header next_chunk(std::uint32_t epoch) {
  return {bytes_job, epoch, 1, bytes_peer, bytes_self, {.step = 1}, 0, bytes_of_edge, 0, 0};
}

class odd_chunks {
 public:
  explicit odd_chunks(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::uint64_t number() {
    constexpr auto most = std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t some[] = {0, 0, 0, 1, 8, 24, most, most - 23, random_()};
    return some[below(std::size(some))];
  }
  chunk_header header(std::uint32_t epoch) {
    auto h = next_chunk(epoch);
    const bool is_stream = below(4) == 0;
    if (is_stream) h.job = bytes_work, h.epoch = 0, h.edge = 0, h.spec = bytes_of_stream;
    for (auto n = below(4); n > 0; --n) switch (below(10)) {
        case 0: h.job = job_id{number()}; break;
        case 1: h.epoch = static_cast<std::uint32_t>(number()); break;
        case 2: h.edge = static_cast<std::uint32_t>(number()); break;
        case 3: (below(2) == 0 ? h.sender : h.receiver) = node_id{number()}; break;
        case 4:
          h.t = {.step = number(),
                 .frame = number(),
                 .iteration = static_cast<std::uint32_t>(number())};
          break;
        case 5: h.t.dead = static_cast<decltype(h.t.dead)>(1 + below(3)); break;
        case 6: h.sequence = number(); break;
        case 7: h.offset = number(); break;
        case 8: h.part = static_cast<std::uint32_t>(number()); break;
        default: {
          const tensor_spec specs[] = {{dtype::f32, {0}},     {dtype::u8, {0}},  {dtype::f32, {7}},
                                       {dtype::f32, {3, 2}},  {dtype::u8, {24}}, {dtype::f32, {}},
                                       {dtype::u8, {1 << 20}}};
          h.spec = specs[below(std::size(specs))];
        }
      }
    return h;
  }
  std::vector<std::byte> payload(const chunk_header& h) {
    const std::uint64_t sizes[] = {0, 0, 1, 8, 24, 25, h.spec.size_bytes(), below(64)};
    return std::vector<std::byte>(std::min<std::uint64_t>(sizes[below(std::size(sizes))], 4096),
                                  std::byte{0x42});
  }
  // Some bytes are others.
  void damage(std::vector<std::byte>& bytes) {
    for (auto n = below(3); n > 0 && !bytes.empty(); --n)
      bytes[below(bytes.size())] = static_cast<std::byte>(random_());
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(link_bytes)

BOOST_AUTO_TEST_CASE(a_dead_token_with_a_payload_is_dropped_like_any_chunk_that_does_not_fit) {
  bound_link l;
  l.bind(1);
  const std::vector<std::byte> payload(8, std::byte{0x42});
  auto dead = next_chunk(1);
  dead.t.dead = 1;
  dead.spec = {dtype::u8, {0}};
  l.receive_chunk(dead, payload);
  dead.spec = bytes_of_edge;
  l.receive_chunk(dead, payload);
  l.receive_chunk(dead, {});
  const std::vector<std::byte> all(bytes_of_edge.size_bytes(), std::byte{0x21});
  l.receive_chunk(next_chunk(1), all);
  test::wait_until("the chunk behind them has come", [&] { return l.good == 1; });
  BOOST_TEST(l.items == 1);
}

BOOST_AUTO_TEST_CASE(whatever_chunks_a_proven_peer_sends_the_link_lives_and_takes_the_next_tensor) {
  constexpr std::uint32_t rounds = 300, chunks = 60;
  bound_link l;
  odd_chunks odd(20261128);
  for (std::uint32_t epoch = 1; epoch <= rounds; ++epoch) {
    l.bind(epoch);
    for (std::uint32_t i = 0; i < chunks; ++i) {
      const auto h = odd.header(epoch);
      auto header = encode(h);
      if (odd.below(8) == 0) odd.damage(header);
      const auto on = odd.below(16) == 0 ? lane::control : lane::data;
      const bool is_control = odd.below(16) == 0;  // of which none has a payload
      l.receive(on, {.kind = is_control ? frame_kind::control : frame_kind::chunk}, header,
                is_control ? std::vector<std::byte>() : odd.payload(h));
      if (odd.below(8) == 0)
        l.receive(on, {.kind = frame_kind::control},
                  encode(control_message(credit_batch{
                      {{job_id{odd.number()}, epoch, static_cast<std::uint32_t>(odd.number()),
                        static_cast<std::uint32_t>(odd.number())}}})),
                  {});
      if (odd.below(32) == 0) l.link->end_stream(bytes_work);
      if (odd.below(32) == 0) l.link->unbind(bytes_job);
      if (odd.below(32) == 0) l.bind(epoch);
      l.net.run_later();
    }
  }
  // Whatever of them it has taken: what comes to the next epoch is whole.
  l.bind(rounds + 1);
  const int before = l.good;
  const std::vector<std::byte> all(bytes_of_edge.size_bytes(), std::byte{0x21});
  l.receive_chunk(next_chunk(rounds + 1), std::span(all).first(8));
  auto rest = next_chunk(rounds + 1);
  rest.offset = 8;
  l.receive_chunk(rest, std::span(all).subspan(8));
  test::wait_until("the tensor has come", [&] { return l.good == before + 1; });
  BOOST_TEST(l.items > before);
}

BOOST_AUTO_TEST_SUITE_END()
