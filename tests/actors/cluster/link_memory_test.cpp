// A link whose peer is the test, on raw sockets: what the link holds while a process of this
// machine may read its tensors where they lie, and what becomes of what it cannot read itself
// (LK-7); the streams of work that is no job (LK-9).

#include "troupe/actors/cluster/link.hpp"

#include "tests/support/frame_reader.hpp"
#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_socket.hpp"
#include "troupe/actors/net/tcp_transport.hpp"
#include "troupe/actors/plan/port_actor.hpp"

#include <boost/test/unit_test.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

using namespace troupe;
using test::frame_reader;

namespace {

constexpr std::int64_t second = 1'000'000'000;
constexpr job_id job{7};
constexpr node_id self_id{1}, peer_id{2};
constexpr std::int64_t elements = 50'000;
constexpr std::size_t tensor_bytes = 4 * elements;
const tensor_spec spec{dtype::f32, {elements}};
constexpr job_id work{9};
const tensor_spec bytes_spec{dtype::u8, {4 * elements}};

tensor counted(float first) {
  auto t = tensor::make(spec);
  for (std::int64_t i = 0; i < elements; ++i) t.data<float>()[i] = first + static_cast<float>(i);
  return t;
}

// Counts what arrives.
class sink final : public port_actor::base {
 public:
  sink(caf::actor_config& cfg, std::atomic<int>& items, std::atomic<int>& credits)
      : port_actor::base(cfg), items_(items), credits_(credits) {}
  behavior_type make_behavior() override {
    return {[](wire_ports&) {},
            [](start_firing) {},
            [this](tensor_ready&) { ++items_; },
            [this](const credit& m) { credits_ += static_cast<int>(m.count); },
            [](const peer_lost&) {},
            [](const mark_cut&) {},
            [](const cut_saved&) {},
            [](const cancel_step&) {},
            [](const set_feeder&) {},
            [](const device_done&) {},
            [](end_actor) {}};
  }

 private:
  std::atomic<int>& items_;
  std::atomic<int>& credits_;
};

// Who has bound a stream.
struct stream_end {
  std::atomic<int> bound{0}, failed{0}, values{0};
  tensor last;        // when `values` has counted it
  std::string error;  // when `failed` has
};

caf::behavior listen(caf::event_based_actor*, stream_end* end) {
  return {[end](stream_bound& m) {
            if (m.error.empty()) return void(++end->bound);
            end->error = std::move(m.error);
            ++end->failed;
          },
          [end](stream_value& m) {
            end->last = std::move(m.value);
            ++end->values;
          }};
}

// The other end of one connection.
struct raw_peer {
  unique_fd fd;
  frame_reader reader{frame_trust::peer};

  void send(const frame_fields& fields, std::span<const std::byte> header = {},
            std::span<const std::byte> payload = {}) {
    const auto bytes = encode_frame(fields, header, payload, false);
    BOOST_REQUIRE(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(bytes.size()));
  }
  void receive() {
    std::vector<std::byte> bytes(1 << 20);
    const auto n = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0)
      BOOST_REQUIRE((reader.read(std::span(bytes).first(static_cast<std::size_t>(n)), 4096) ==
                     frame_decoder::event::need_bytes));
  }
};

struct linked {
  linked() {
    member_info peer;
    peer.id = peer_id;
    link_hooks hooks;
    hooks.heard = [](node_id) {};
    hooks.control = [](node_id, control_message) {};
    hooks.lane_lost = [this](node_id) { ++lanes_lost; };
    hooks.broken = [this](node_id, const error& e) {
      if (!may_break) BOOST_ERROR(e.text());
      broken = e.text();
    };
    hooks.no_memory = [](job_id, const std::string& text) { BOOST_ERROR(text); };
    link = std::make_unique<link_core>(
        net, system, nullptr, self_id, peer, std::move(hooks),
        std::make_shared<actor_record>(actor_kind::link, "link", "", clock));
    receiver = spawn_on<sink>(system, nullptr, std::ref(items), std::ref(credited));
    listener = spawn_on(system, nullptr, &listen, &stream);
  }
  ~linked() {
    link.reset();
    caf::anon_send_exit(listener, caf::exit_reason::kill);
    caf::anon_send_exit(receiver, caf::exit_reason::kill);
  }

  template <class Done>
  bool run_until(Done done) {
    const auto deadline = loop.now_ns() + 20 * second;
    while (!done() && loop.now_ns() < deadline) loop.poll(5);
    return done();
  }

  // Edge 0 leads to the peer, edge 1 from there into `landed`.
  void bind(std::uint32_t epoch) {
    auto p = std::make_shared<plan>();
    p->tasks = {{"/job:worker/task:0", false, self_id}, {"/job:worker/task:1", false, peer_id}};
    p->actors.resize(4);
    p->actors[1].task = p->actors[2].task = 1;
    p->edges = {{{0, 0}, {1, 0}, spec, 2}, {{2, 0}, {3, 0}, spec, 2}};
    auto handles = std::make_shared<part_handles>();
    handles->actors.resize(4);
    handles->actors[0] = handles->actors[3] = receiver;
    handles->desks[3] =
        std::make_shared<piece_desk>(piece_desk{[this](auto, auto, auto) { return landed; }});
    link->bind({job, epoch, p, handles, {}});
  }

  // A connection for data; both may read this process. False: the system lets nobody.
  bool connect() {
    auto listener = open_listener({"127.0.0.1", 0});
    BOOST_REQUIRE(listener);
    std::unique_ptr<channel> c;
    net.connect(local_address_of(listener->get()), second, [&](auto r) { c = std::move(*r); });
    peer = {};
    BOOST_REQUIRE(run_until([&] {
      if (!peer.fd) peer.fd = unique_fd(::accept(listener->get(), nullptr, nullptr));
      return c && peer.fd;
    }));
    peer.reader.decoder.admit_payloads_that_stay();
    c->trust_peer();
    own_probe word(++words);
    told = word.where();
    const auto memory = peer_memory::open(static_cast<std::uint32_t>(::getpid()), told);
    if (!memory) {
      BOOST_TEST_MESSAGE("skipped: this system lets no process be read (process_vm_readv)");
      return false;
    }
    // What the peer has said of its own memory is `its_word`.
    link->attach(lane::data, std::move(c), received,
                 peer_memory::open(static_cast<std::uint32_t>(::getpid()), its_word.where()),
                 std::move(word));
    return true;
  }
  bool is_told() const {
    return peer_memory::open(static_cast<std::uint32_t>(::getpid()), told).has_value();
  }
  // The peer reads where things are: it says so in a frame, which has come when this returns.
  void say_that_it_reads() {
    const auto before = net.counters().bytes_received;
    peer.send({.kind = frame_kind::control, .ack = received, .reads_memory = true});
    BOOST_REQUIRE(
        run_until([&] { return net.counters().bytes_received == before + prelude_bytes; }));
  }
  void acknowledge(std::uint64_t sequence) {
    received = sequence;
    peer.send({.kind = frame_kind::control, .ack = sequence, .reads_memory = true});
    BOOST_REQUIRE(
        run_until([&] { return link->session().acknowledged_frames(lane::data) == sequence; }));
  }
  // `t` is sent; its frame, which has left.
  test::read_frame send(const tensor& t, std::uint64_t sequence) {
    link->send(send_tensor{job, 0, sequence, tag{.step = sequence}, t});
    const auto n = peer.reader.frames.size();
    BOOST_REQUIRE(run_until([&] {
      peer.receive();
      return peer.reader.frames.size() > n;
    }));
    return peer.reader.frames.back();
  }
  void bind_stream_of() {
    link->bind(bind_stream{work, peer_id, listener}, {});
    BOOST_REQUIRE(run_until([&] { return stream.bound > 0; }));
  }
  static chunk_header stream_chunk(std::uint64_t sequence, std::uint64_t offset = 0) {
    return {work, 0, 0, peer_id, self_id, {}, sequence, bytes_spec, offset};
  }
  std::vector<std::byte> chunk_of(std::uint64_t sequence) const {
    return encode(
        chunk_header{job, 1, 1, peer_id, self_id, tag{.step = sequence}, sequence, spec, 0});
  }

  io_loop loop;
  tcp_transport net{loop, {.checksum_on_loopback = false}};
  caf::actor_system_config config;
  caf::actor_system system{config};
  coarse_clock clock;
  std::atomic<int> items{0}, credited{0};
  port_actor receiver;
  stream_end stream;
  caf::actor listener;
  std::unique_ptr<link_core> link;
  tensor landed = tensor::make(spec);
  raw_peer peer;
  own_probe its_word{99};
  memory_probe told;
  std::uint64_t words = 1000, received = 0;
  int lanes_lost = 0;
  bool may_break = false;
  std::string broken;
};

std::uint64_t address_of(const tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.bytes().data());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(link_memory)

BOOST_FIXTURE_TEST_CASE(
    LK_7_a_tensor_that_stays_is_held_until_it_is_acknowledged_also_when_its_epoch_is_over, linked) {
  bind(1);
  if (!connect()) return;
  say_that_it_reads();
  const auto t = counted(1);
  const auto frame = send(t, 0);
  BOOST_TEST(frame.prelude.payload_address == address_of(t));
  BOOST_TEST(frame.prelude.payload_length == tensor_bytes);
  BOOST_TEST(!t.is_unique());
  bind(2);
  BOOST_TEST(!t.is_unique());
  BOOST_TEST(is_told());
  acknowledge(1);
  BOOST_TEST(t.is_unique());
  BOOST_TEST(is_told());
}

BOOST_FIXTURE_TEST_CASE(LK_7_of_a_connection_that_is_gone_nothing_is_held_and_nothing_can_be_read,
                        linked) {
  bind(1);
  if (!connect()) return;
  say_that_it_reads();
  const auto t = counted(1);
  send(t, 0);
  peer.fd.reset();
  BOOST_REQUIRE(run_until([&] { return lanes_lost == 1; }));
  BOOST_TEST(!is_told());
  BOOST_TEST(!t.is_unique());  // to be sent again
  bind(2);
  BOOST_TEST(t.is_unique());
}

BOOST_FIXTURE_TEST_CASE(LK_7_a_link_that_closes_withdraws_before_it_lets_go, linked) {
  bind(1);
  if (!connect()) return;
  say_that_it_reads();
  // Whose last handle the link has looks at its end whether anybody could still be told to read it.
  struct watcher final : memory_holder {
    watcher(linked& l, tensor of, int& seen) : owner(l), t(std::move(of)), could_be_read(seen) {}
    ~watcher() override { could_be_read = owner.is_told() ? 1 : 0; }
    linked& owner;
    tensor t;
    int& could_be_read;
  };
  int could_be_read = -1;
  auto memory = counted(1);
  send(tensor::over(memory.bytes(), spec, std::make_unique<watcher>(*this, memory, could_be_read)),
       0);
  BOOST_TEST(could_be_read == -1);
  link->close();
  BOOST_TEST(could_be_read == 0);
}

BOOST_FIXTURE_TEST_CASE(LK_7_what_the_peer_has_is_read_and_after_one_lie_comes_over_the_wire,
                        linked) {
  bind(1);
  if (!connect()) return;
  const auto t = counted(5);
  const auto header = chunk_of(0);
  peer.send({.kind = frame_kind::chunk, .sequence = 1, .payload_stays = true}, header, t.bytes());
  BOOST_REQUIRE(run_until([&] { return items == 1; }));
  BOOST_TEST(std::ranges::equal(std::as_const(landed).bytes(), t.bytes()));
  BOOST_TEST(net.counters().bytes_read_in_place == tensor_bytes);
  BOOST_TEST(lanes_lost == 0);

  const auto next = chunk_of(1);
  const std::span<const std::byte> nowhere(reinterpret_cast<const std::byte*>(std::uintptr_t{16}),
                                           tensor_bytes);
  peer.send({.kind = frame_kind::chunk, .sequence = 2, .payload_stays = true}, next, nowhere);
  BOOST_REQUIRE(run_until([&] { return lanes_lost == 1; }));
  BOOST_TEST(net.faults().of(frame_fault::unreadable) == 1u);
  BOOST_TEST(items == 1);

  // The connection that replaces it says nothing of reading, and takes the payload.
  BOOST_REQUIRE(connect());
  const auto u = counted(6);
  peer.send({.kind = frame_kind::chunk, .sequence = 2}, next, u.bytes());
  BOOST_REQUIRE(run_until([&] { return items == 2; }));
  BOOST_TEST(std::ranges::equal(std::as_const(landed).bytes(), u.bytes()));
  BOOST_REQUIRE(run_until([&] {
    link->on_tick();
    peer.receive();
    return !peer.reader.frames.empty() && peer.reader.frames.back().prelude.ack == 2;
  }));
  for (const auto& f : peer.reader.frames) BOOST_TEST((f.prelude.flags & flag_reads_memory) == 0);
  // To a peer that says so nevertheless it is a fault, and the connection's end.
  peer.send({.kind = frame_kind::chunk, .sequence = 3, .payload_stays = true}, chunk_of(2),
            u.bytes());
  BOOST_REQUIRE(run_until([&] { return lanes_lost == 2; }));
  BOOST_TEST(net.faults().of(frame_fault::bad_flags) == 1u);
  BOOST_TEST(net.counters().bytes_read_in_place == tensor_bytes);
}

BOOST_FIXTURE_TEST_CASE(LK_3_a_dead_token_with_a_payload_is_dropped_and_the_next_right_one_is_taken,
                        linked) {
  bind(1);
  if (!connect()) return;
  const auto t = counted(5);
  const tensor_spec nothing{dtype::f32, {0}};
  const auto dead =
      encode(chunk_header{job, 1, 1, peer_id, self_id, tag{.step = 0, .dead = 1}, 0, nothing, 0});
  peer.send({.kind = frame_kind::chunk, .sequence = 1}, dead, t.bytes());
  peer.send({.kind = frame_kind::chunk, .sequence = 2}, chunk_of(0), t.bytes());
  BOOST_REQUIRE(run_until([&] { return items == 1; }));
  BOOST_TEST(std::ranges::equal(std::as_const(landed).bytes(), t.bytes()));
  BOOST_TEST(link->session().drops(drop_reason::unknown_edge) == 1u);
}

BOOST_FIXTURE_TEST_CASE(LK_10_credits_beyond_what_is_out_break_the_link_and_reach_no_actor,
                        linked) {
  bind(1);
  if (!connect()) return;
  const auto credits = [&](std::uint64_t sequence, std::uint32_t count) {
    const auto body = encode(control_message(credit_batch{{{job, 1, 0, count}}}));
    peer.send({.kind = frame_kind::control, .sequence = sequence}, body);
  };
  send(counted(1), 0);
  send(counted(2), 1);
  credits(1, 1);
  BOOST_REQUIRE(run_until([&] { return credited == 1; }));
  may_break = true;
  credits(2, 2);
  BOOST_REQUIRE(run_until([&] { return !broken.empty(); }));
  BOOST_TEST(broken.find("gives 2 credits back for edge 0 of job") != std::string::npos, broken);
  BOOST_TEST(broken.find("where 1 are out") != std::string::npos, broken);
  BOOST_TEST(credited == 1);
}

BOOST_FIXTURE_TEST_CASE(LK_7_a_value_of_a_stream_stays_where_it_is_until_it_is_acknowledged,
                        linked) {
  bind_stream_of();
  if (!connect()) return;
  say_that_it_reads();
  auto t = counted(1);
  t.reshape(bytes_spec);
  link->send(send_stream{work, t});
  BOOST_REQUIRE(run_until([&] {
    peer.receive();
    return !peer.reader.frames.empty();
  }));
  const auto& frame = peer.reader.frames.back();
  BOOST_TEST(frame.prelude.payload_address == address_of(t));
  BOOST_TEST(frame.prelude.payload_length == tensor_bytes);
  link->end_stream(work);
  BOOST_TEST(!t.is_unique());  // what was sent arrives
  acknowledge(1);
  BOOST_TEST(t.is_unique());
}

BOOST_FIXTURE_TEST_CASE(LK_9_what_does_not_match_a_stream_is_dropped_and_the_next_right_one_taken,
                        linked) {
  bind_stream_of();
  if (!connect()) return;
  const auto t = counted(5);
  std::vector<chunk_header> wrong(9, stream_chunk(0));
  wrong[0].epoch = 1;
  wrong[1].edge = 1;
  wrong[2].spec = spec;
  wrong[3].spec = {dtype::u8, {4, elements}};
  wrong[4].spec = {dtype::u8, {4 * elements - 1}};  // shorter than what comes
  wrong[5].spec = {dtype::u8, {static_cast<std::int64_t>(stream_value_bytes_max) + 1}};
  wrong[6].sequence = 1;
  wrong[7].offset = 1;
  wrong[8].job = job_id{10};
  std::uint64_t sequence = 0;
  for (const auto& h : wrong)
    peer.send({.kind = frame_kind::chunk, .sequence = ++sequence}, encode(h), t.bytes());
  auto empty = stream_chunk(0);
  empty.spec = {dtype::u8, {0}};
  peer.send({.kind = frame_kind::chunk, .sequence = ++sequence}, encode(empty));
  const auto half = t.bytes().size() / 2;
  peer.send({.kind = frame_kind::chunk, .sequence = ++sequence}, encode(stream_chunk(0)),
            t.bytes().first(half));
  auto other = stream_chunk(0, half);  // of another length than its first chunk has said
  other.spec = {dtype::u8, {4 * elements + 1}};
  for (const auto& h : {stream_chunk(0), other, stream_chunk(0, half)})
    peer.send({.kind = frame_kind::chunk, .sequence = ++sequence}, encode(h),
              h.offset == 0 ? t.bytes().first(half) : t.bytes().subspan(half));
  BOOST_REQUIRE(run_until([&] { return stream.values == 1; }));
  BOOST_TEST(std::ranges::equal(std::as_const(stream.last).bytes(), t.bytes()));
  const auto& s = link->session();
  BOOST_TEST(s.drops(drop_reason::other_epoch) == 1u);
  BOOST_TEST(s.drops(drop_reason::unknown_edge) == 8u);
  BOOST_TEST(s.drops(drop_reason::duplicate) == 2u);
  BOOST_TEST(s.drops(drop_reason::unknown_job) == 1u);
  BOOST_TEST(stream.failed == 0);
}

BOOST_FIXTURE_TEST_CASE(LK_9_a_stream_may_end_while_a_chunk_of_it_is_half_read, linked) {
  bind(1);
  bind_stream_of();
  if (!connect()) return;
  const auto t = counted(5);
  const auto bytes = encode_frame({.kind = frame_kind::chunk, .sequence = 1},
                                  encode(stream_chunk(0)), t.bytes(), false);
  const auto send_some = [&](std::size_t from, std::size_t n) {
    const auto before = net.counters().bytes_received;
    BOOST_REQUIRE(::send(peer.fd.get(), bytes.data() + from, n, MSG_NOSIGNAL) ==
                  static_cast<ssize_t>(n));
    BOOST_REQUIRE(run_until([&] { return net.counters().bytes_received == before + n; }));
  };
  const auto half = bytes.size() / 2;
  send_some(0, half);
  link->end_stream(work);
  send_some(half, bytes.size() - half);
  peer.send({.kind = frame_kind::chunk, .sequence = 2}, chunk_of(0), t.bytes());
  BOOST_REQUIRE(run_until([&] { return items == 1; }));
  BOOST_TEST(std::ranges::equal(std::as_const(landed).bytes(), t.bytes()));
  BOOST_TEST(stream.values == 0);
  BOOST_TEST(lanes_lost == 0);
}

BOOST_AUTO_TEST_SUITE_END()
