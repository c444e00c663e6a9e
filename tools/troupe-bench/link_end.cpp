#include "tools/troupe-bench/link_end.hpp"

#include "troupe/actors/base/scheduler.hpp"
#include "troupe/actors/base/tell.hpp"
#include "troupe/actors/cluster/link.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_transport.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <unordered_set>

namespace troupe {

struct on_io {
  std::function<void()> call;
};
struct run_stream {
  std::uint64_t count = 0;
  caf::actor to;
};
struct stream_sent {
  double seconds = 0;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::on_io)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::run_stream)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::stream_sent)

namespace troupe {

namespace {

constexpr job_id bench_job{1};
constexpr node_id sender_id{1}, receiver_id{2};
constexpr std::int64_t tick_ns = 10'000'000;  // as in member.cpp
constexpr std::int64_t connect_timeout_ns = 5'000'000'000;

class events_of final : public event_source {
 public:
  explicit events_of(io_loop& loop) : loop_(loop) {}
  bool poll(int timeout_ms) override { return loop_.poll(timeout_ms) > 0; }
  void wake() override { loop_.wake(); }

 private:
  io_loop& loop_;
};

// A send actor (2 i) and a receive actor (2 i + 1) for each case i.
std::shared_ptr<const plan> stream_plan() {
  auto p = std::make_shared<plan>();
  p->name = "stream";
  p->tasks = {{"/job:worker/task:0", false, sender_id}, {"/job:worker/task:1", false, receiver_id}};
  for (const auto& c : stream_cases) {
    const auto edge = static_cast<std::uint32_t>(p->edges.size());
    const tensor_spec spec{dtype::f32, {static_cast<std::int64_t>(c.bytes / sizeof(float))}};
    p->actors.resize(p->actors.size() + 2);
    p->actors.back().task = 1;
    p->edges.push_back({{2 * edge, 0}, {2 * edge + 1, 0}, spec, c.credits});
  }
  return p;
}

using source_actor = port_actor::extend<caf::reacts_to<run_stream>>;

// Sends as a send actor does: one item a credit.
class source final : public source_actor::base {
 public:
  source(caf::actor_config& cfg, caf::actor link, std::uint32_t edge)
      : source_actor::base(cfg),
        link_(std::move(link)),
        edge_(edge),
        credits_(stream_cases[edge].credits) {}
  behavior_type make_behavior() override {
    return {[](wire_ports&) {},       [](start_firing) {},
            [](tensor_ready&) {},     [this](const credit& m) { on_credit(m); },
            [](const peer_lost&) {},  [](const mark_cut&) {},
            [](const cut_saved&) {},  [](const cancel_step&) {},
            [](const set_feeder&) {}, [](const device_done&) {},
            [](end_actor) {},         [this](run_stream& m) { start(std::move(m)); }};
  }
  void on_exit() override { link_ = nullptr; }

 private:
  void start(run_stream m) {
    task_ = std::move(m);
    sent_ = 0;
    while (tensors_.size() < link_end::buffers_sent_from(edge_)) {
      tensors_.push_back(tensor::make(
          {dtype::f32, {static_cast<std::int64_t>(stream_cases[edge_].bytes / sizeof(float))}}));
      for (auto& b : tensors_.back().bytes()) b = std::byte{1};
    }
    began_ = std::chrono::steady_clock::now();
    send_some();
  }

  void on_credit(const credit& m) {
    credits_ += m.count;
    send_some();
    if (sent_ == task_.count && credits_ == stream_cases[edge_].credits)
      tell(context(), task_.to,
           stream_sent{
               std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count()});
  }

  void send_some() {
    for (; credits_ > 0 && sent_ < task_.count; --credits_, ++sent_, ++sequence_)
      tell(context(), link_,
           send_tensor{bench_job, edge_, sequence_, tag{.step = sequence_},
                       tensors_[sequence_ % tensors_.size()]});
  }

  caf::actor link_;
  const std::uint32_t edge_;
  std::uint32_t credits_;
  std::vector<tensor> tensors_;
  run_stream task_;
  std::uint64_t sent_ = 0, sequence_ = 0;
  std::chrono::steady_clock::time_point began_;
};

// Takes as a receive actor does, and gives the credit back.
class sink final : public port_actor::base {
 public:
  sink(caf::actor_config& cfg, caf::actor link, std::uint32_t edge,
       std::atomic<std::uint64_t>& buffers)
      : port_actor::base(cfg), link_(std::move(link)), edge_(edge), buffers_(buffers) {}
  behavior_type make_behavior() override {
    return {[](wire_ports&) {},
            [](start_firing) {},
            [this](tensor_ready& m) { on_tensor(m); },
            [](const credit&) {},
            [](const peer_lost&) {},
            [](const mark_cut&) {},
            [](const cut_saved&) {},
            [](const cancel_step&) {},
            [](const set_feeder&) {},
            [](const device_done&) {},
            [](end_actor) {}};
  }
  void on_exit() override { link_ = nullptr; }

 private:
  void on_tensor(const tensor_ready& m) {
    if (seen_.insert(m.value.bytes().data()).second) ++buffers_;
    tell(context(), link_, return_credit{bench_job, edge_});
  }

  caf::actor link_;
  const std::uint32_t edge_;
  std::unordered_set<const void*> seen_;
  std::atomic<std::uint64_t>& buffers_;
};

// Either end of the connection without a link: answers frames, or counts answers.
class frame_player final : public channel_handler {
 public:
  void open(std::unique_ptr<channel> c) {
    channel_ = std::move(c);
    channel_->start(*this);
  }
  void serve(std::uint64_t count, std::size_t bytes, std::function<void()> done) {
    left_ = count;
    done_ = std::move(done);
    channel_->send(
        {frame_kind::control, 0, 0, std::vector<std::byte>(bytes, std::byte{1}), {}, 0, 0});
  }
  std::span<std::byte> payload_destination(frame_kind, std::span<const std::byte>,
                                           std::uint32_t) override {
    return {};
  }
  void on_frame(const received_frame& f) override {
    if (done_ && --left_ == 0) return std::exchange(done_, nullptr)();
    channel_->send({frame_kind::control, 0, 0, {f.header.begin(), f.header.end()}, {}, 0, 0});
  }
  void on_closed(const error&, frame_fault) override {}

 private:
  std::unique_ptr<channel> channel_;
  std::uint64_t left_ = 0;
  std::function<void()> done_;
};

caf::behavior io_hands(caf::event_based_actor*) {
  return {[](on_io& m) { m.call(); }};
}

}  // namespace

struct link_end::parts {
  parts(link_side side, link_guard guard)
      : side(side), net(loop, tcp_options{.checksum_payloads = guard == link_guard::checksums}) {
    config.io = &events;
    if (guard != link_guard::tls) return;
    auto keys = tls_context::of_token("bench", secret("a token that guards no secret at all"));
    expects(bool(keys), "a token is all that TLS needs");
    net.protect({std::move(*keys), tls_scope::everywhere, false});
  }

  link_side side;
  io_loop loop;
  events_of events{loop};
  tcp_transport net;
  coarse_clock clock;
  scheduler_config config;
  std::array<std::atomic<std::uint64_t>, stream_cases.size()> buffers{};
  std::unique_ptr<caf::actor_system> system;
  std::shared_ptr<link_core> core;
  frame_player player;
  caf::actor hands, link;
  std::vector<source_actor> sources;
  std::vector<caf::actor> all;
  std::size_t connections = 0;
  std::function<void()> ponged;  // the sender: an answer has come
  timer_id timer{};

  pinned_scheduler& workers() { return static_cast<pinned_scheduler&>(system->scheduler()); }

  // On the I/O worker, and waits for the answer that `call` is given a promise for.
  template <class T>
  T ask(std::function<void(std::promise<T>&)> call) {
    auto promise = std::make_shared<std::promise<T>>();
    auto answer = promise->get_future();
    tell(nullptr, hands, on_io{[promise, call = std::move(call)] { call(*promise); }});
    return answer.get();
  }

  void open() {
    system = std::make_unique<caf::actor_system>(config.pinned());
    hands = spawn_on(*system, workers().io(), &io_hands);
    ask<bool>([this](std::promise<bool>& p) {
      make_link();
      tick();
      p.set_value(true);
    });
  }

  void make_link() {
    const auto self = side == link_side::sender ? sender_id : receiver_id;
    member_info peer;
    peer.id = side == link_side::sender ? receiver_id : sender_id;
    link_hooks hooks;
    hooks.heard = [](node_id) {};
    hooks.lane_lost = [](node_id) {};
    hooks.broken = [](node_id, const error&) {};
    hooks.control = [this](node_id, control_message m) {
      if (auto* q = std::get_if<query>(&m))
        core->send(control_message(answer{q->id, std::move(q->request)}));
      if (std::holds_alternative<answer>(m)) ponged();
    };
    core = std::make_shared<link_core>(
        net, *system, workers().io(), self, peer, std::move(hooks),
        std::make_shared<actor_record>(actor_kind::link, "link", "", clock));
    link = spawn_link(*system, workers().io(), core);
    auto handles = std::make_shared<part_handles>();
    for (std::uint32_t i = 0; i < stream_cases.size(); ++i) {
      handles->actors.resize(2 * i + 2);
      if (side == link_side::sender)
        handles->actors[2 * i] =
            sources.emplace_back(spawn_on<source>(*system, workers().stream(0), link, i));
      else
        handles->actors[2 * i + 1] =
            spawn_on<sink>(*system, workers().stream(0), link, i, std::ref(buffers[i]));
      all.push_back(caf::actor_cast<caf::actor>(
          handles->actors[2 * i + (side == link_side::sender ? 0 : 1)]));
    }
    core->bind({bench_job, 1, stream_plan(), handles, {}});
  }

  // Acknowledgements that are due.
  void tick() {
    core->on_tick();
    timer = net.after(tick_ns, [this] { tick(); });
  }

  void add(std::unique_ptr<channel> c) {
    c->trust_peer();
    switch (connections++) {
      case 0: return core->attach(lane::control, std::move(c), 0);
      case 1: return core->attach(lane::data, std::move(c), 0);
      default: return player.open(std::move(c));
    }
  }

  void connect(std::uint16_t port, std::promise<result<void>>& p) {
    net.connect({"127.0.0.1", port}, connect_timeout_ns,
                [this, port, &p](result<std::unique_ptr<channel>> c) {
                  if (!c) return p.set_value(c.error());
                  add(std::move(*c));
                  if (connections == 3) return p.set_value({});
                  connect(port, p);
                });
  }

  void close() {
    ask<bool>([this](std::promise<bool>& p) {
      net.cancel(timer);
      net.stop_listening();
      core->close();
      p.set_value(true);
    });
    tell(nullptr, link, end_actor{});
    all.push_back(std::move(hands));
    for (const auto& a : all) caf::anon_send_exit(a, caf::exit_reason::kill);
    all.clear();
    sources.clear();
    link = nullptr;
    system.reset();
  }
};

link_end::link_end(link_side side, link_guard guard)
    : parts_(std::make_unique<parts>(side, guard)) {
  parts_->open();
}

link_end::~link_end() { parts_->close(); }

result<std::uint16_t> link_end::listen() {
  auto at = parts_->ask<result<address>>([this](auto& p) {
    p.set_value(parts_->net.listen(
        {"127.0.0.1", 0}, [this](std::unique_ptr<channel> c) { parts_->add(std::move(c)); }));
  });
  if (!at) return at.error();
  return at->port;
}

std::uint64_t link_end::buffers_seen(std::size_t i) const { return parts_->buffers[i]; }

result<void> link_end::connect(std::uint16_t port) {
  return parts_->ask<result<void>>([this, port](auto& p) { parts_->connect(port, p); });
}

double link_end::ping_transport(std::size_t bytes, std::uint64_t count) {
  const auto began = std::chrono::steady_clock::now();
  parts_->ask<bool>([this, bytes, count](auto& p) {
    parts_->player.serve(count, bytes, [&p] { p.set_value(true); });
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double link_end::ping_link(std::size_t bytes, std::uint64_t count) {
  const auto began = std::chrono::steady_clock::now();
  parts_->ask<bool>([this, bytes, count](auto& p) {
    const auto next = [this, bytes] {
      parts_->core->send(control_message(query{1, std::string(bytes, 'x')}));
    };
    parts_->ponged = [left = count, next, &p]() mutable {
      if (--left == 0) return p.set_value(true);
      next();
    };
    next();
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double link_end::stream(std::size_t i, std::uint64_t count) {
  caf::scoped_actor self{*parts_->system};
  self->send(parts_->sources[i], run_stream{count, caf::actor_cast<caf::actor>(self)});
  double seconds = 0;
  self->receive([&](const stream_sent& m) { seconds = m.seconds; });
  return seconds;
}

// Credits, and as many that may still wait for their acknowledgement.
std::uint64_t link_end::buffers_sent_from(std::size_t i) {
  return 2 * std::uint64_t{stream_cases[i].credits};
}

}  // namespace troupe
