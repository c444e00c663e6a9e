#include "troupe/actors/inspect/record_timeline.hpp"

#include "troupe/actors/cluster/local_discovery.hpp"
#include "troupe/actors/inspect/guest.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/runtime/text/address.hpp"

#include <fmt/format.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

namespace troupe {

namespace {

// A stream's ring holds as much of the smallest ops.
constexpr std::int64_t page_pause_ns = 50'000'000;
constexpr std::int64_t progress_ns = 100'000'000;

std::uint64_t random_number() {
  std::uint64_t n = 0;
  const bool ok = RAND_bytes(reinterpret_cast<unsigned char*>(&n), sizeof n) == 1;
  expects(ok, "the system gives random bytes");
  return n | 1;
}

class recorder {
 public:
  explicit recorder(const record_options& options)
      : options_(options), net_(loop_), number_(random_number()) {}

  result<cluster_recording> run() {
    auto snapshot = ask_cluster(options_.ask);
    if (!snapshot) return snapshot.error();
    auto here = local_discovery::open(options_.ask.cluster, options_.ask.token_file, loop_);
    if (!here) return here.error();
    auto guard = make_protection(options_.ask.protect, options_.ask.cluster, (*here)->token());
    if (!guard) return guard.error();
    net_.protect(std::move(*guard));
    const auto shake = guest_options(options_.ask.cluster, (*here)->token());
    for (const auto& n : snapshot->nodes) greet(n, shake);
    const auto end = loop_.now_ns() + bounded_wait_ns(options_.ask.timeout_ns);
    while (loop_.now_ns() < end && has(state::connecting)) poll(end);
    for (auto& p : peers_)
      if (p->is == state::connecting) give_up(*p, no_answer());
    begin();
    while (has(state::asked) || has(state::pausing)) follow();
    return take(std::move(*snapshot));
  }

 private:
  enum class state : std::uint8_t { connecting, ready, asked, pausing, over };

  struct peer {
    peer(tcp_transport& net, const handshake_options& o) : connection(net, o) {}
    guest_connection connection;
    state is = state::connecting;
    std::int64_t at_ns = 0;  // asked: when; pausing: until when
    std::uint64_t question = 0;
    node_recording recording;
    std::string failure;  // why it is silent
  };

  bool has(state s) const {
    return std::ranges::any_of(peers_, [s](const auto& p) { return p->is == s; });
  }

  std::string no_answer() const {
    return fmt::format("no answer within {:.1f} s", double(options_.ask.timeout_ns) * 1e-9);
  }

  void greet(const node_snapshot& n, const handshake_options& shake) {
    const bool is_there = n.state == node_state::alive || n.state == node_state::unreachable;
    if (!is_there || n.address.empty()) return;
    auto& p = *peers_.emplace_back(std::make_unique<peer>(net_, shake));
    p.recording.name = n.name;
    p.recording.pid = static_cast<std::uint32_t>(n.pid);
    p.recording.kind = n.kind;
    p.connection.on_ready = [this, &p] {
      p.recording.id = p.connection.peer().id;
      p.recording.host = p.connection.peer().host;
      p.is = state::ready;
    };
    p.connection.on_message = [this, &p](control_message m) {
      if (auto* page = std::get_if<trace_page>(&m)) on_page(p, std::move(*page));
    };
    p.connection.on_failed = [this, &p](const error& e) { give_up(p, e.message()); };
    const auto at = parse_address(n.address);
    if (!at) return give_up(p, at.error().message());
    p.connection.connect(*at, options_.ask.timeout_ns);
  }

  void give_up(peer& p, std::string why) {
    if (p.is == state::over) return;
    p.is = state::over;
    p.failure = std::move(why);
    p.connection.close();
  }

  void begin() {
    began_ns_ = loop_.now_ns();
    for (auto& p : peers_)
      if (p->is == state::ready) ask(*p);
    progress();
  }

  void ask(peer& p) {
    p.is = state::asked;
    p.at_ns = loop_.now_ns();
    p.connection.send(trace_query{++p.question, number_, p.question == 1 ? options_.duration_ns : 0,
                                  false, fmt::format("process {} (troupe timeline)", ::getpid())});
  }

  void on_page(peer& p, trace_page page) {
    if (p.is != state::asked || page.id != p.question) return;
    const auto now = loop_.now_ns();
    p.recording.clock.hear(p.at_ns, page.now_ns, now);
    if (!page.error.empty()) return give_up(p, std::move(page.error));
    const bool has_more = page.has_more;
    p.recording.add(
        std::move(page),
        options_.events_max - std::min(options_.events_max, events() - p.recording.events()));
    if (p.recording.is_whole) {
      p.connection.send(trace_query{++p.question, number_, 0, true, {}});
      p.is = state::over;
      return;
    }
    if (has_more) return ask(p);
    p.is = state::pausing;
    // The last page comes as soon as there is one.
    const auto left = std::max<std::int64_t>(0, began_ns_ + options_.duration_ns - now) + 1'000'000;
    p.at_ns = now + std::min(page_pause_ns, left);
  }

  void follow() {
    const auto now = loop_.now_ns();
    auto next = now + progress_ns;
    for (auto& p : peers_) {
      if (p->is == state::pausing && p->at_ns <= now) ask(*p);
      if (p->is == state::asked && p->at_ns + options_.ask.timeout_ns <= now)
        give_up(*p, no_answer());
      if (p->is == state::pausing) next = std::min(next, p->at_ns);
    }
    poll(next);
    if (loop_.now_ns() >= progress_at_ns_) progress();
  }

  void poll(std::int64_t until_ns) {
    loop_.poll(static_cast<int>(
        std::clamp<std::int64_t>((until_ns - loop_.now_ns() + 999'999) / 1'000'000, 1, 1000)));
  }

  std::size_t events() const {
    std::size_t n = 0;
    for (const auto& p : peers_) n += p->recording.events();
    return n;
  }

  void progress() {
    progress_at_ns_ = loop_.now_ns() + progress_ns;
    if (!options_.on_progress) return;
    const auto recording =
        std::ranges::count_if(peers_, [](const auto& p) { return p->failure.empty(); });
    options_.on_progress({std::min(loop_.now_ns() - began_ns_, options_.duration_ns),
                          static_cast<std::size_t>(recording), events()});
  }

  result<cluster_recording> take(cluster_snapshot snapshot) {
    cluster_recording out{snapshot.cluster,
                          options_.duration_ns,
                          {},
                          std::move(snapshot.silent),
                          std::move(snapshot.jobs)};
    for (auto& p : peers_) {
      if (!p->failure.empty()) {
        std::erase_if(out.silent,
                      [&](const silent_node& s) { return s.name == p->recording.name; });
        out.silent.push_back({p->recording.name, p->failure});
      }
      if (p->recording.began_ns != 0) out.nodes.push_back(std::move(p->recording));
    }
    share_clocks(out.nodes);
    if (out.nodes.empty() && !out.silent.empty())
      return error(error_code::timed_out,
                   fmt::format("no node could be recorded; {}: {}", out.silent.front().name,
                               out.silent.front().reason));
    return out;
  }

  // Processes of one host have one clock: what the best answer of any of them says of it.
  static void share_clocks(std::vector<node_recording>& nodes) {
    std::map<std::string, trace_clock> best;
    for (const auto& n : nodes) {
      const auto at = best.try_emplace(n.host, n.clock).first;
      if (n.clock.error_ns < at->second.error_ns) at->second = n.clock;
    }
    for (auto& n : nodes)
      if (!n.host.empty()) n.clock = best.at(n.host);
  }

  const record_options& options_;
  io_loop loop_;
  tcp_transport net_;
  const std::uint64_t number_;  // of the recording
  std::vector<std::unique_ptr<peer>> peers_;
  std::int64_t began_ns_ = 0, progress_at_ns_ = 0;
};

}  // namespace

result<cluster_recording> record_cluster(const record_options& options) {
  recorder r(options);
  return r.run();
}

}  // namespace troupe
