#include "troupe/actors/inspect/inspect.hpp"

#include "troupe/actors/cluster/dns_discovery.hpp"
#include "troupe/actors/cluster/local_discovery.hpp"
#include "troupe/actors/inspect/guest.hpp"
#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_socket.hpp"
#include "troupe/runtime/text/address.hpp"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace troupe {

namespace {

std::string words_of(ask_part parts, std::int64_t newer_than_ns) {
  std::string words = "nodes";
  if (has(parts, ask_part::actors)) words += " actors";
  if (has(parts, ask_part::jobs)) words += " jobs";
  if (has(parts, ask_part::events)) words += " events";
  if (has(parts, ask_part::lines)) words += " lines";
  if (newer_than_ns > 0) words += fmt::format(" newer={:.3f}", double(newer_than_ns) * 1e-9);
  return words;
}

// One question to one address. A node that lets go of us in the middle of it is asked again, once,
// where that does no harm.
class question {
 public:
  enum class status : std::uint8_t { open, answered, failed };

  question(tcp_transport& net, const handshake_options& options, std::string request,
           bool may_repeat)
      : net_(net),
        connection_(net, options),
        request_(std::move(request)),
        may_repeat_(may_repeat) {
    connection_.on_ready = [this] {
      has_asked_ = true;
      connection_.send(query{1, request_});
    };
    connection_.on_message = [this](const control_message& m) {
      if (const auto* a = std::get_if<troupe::answer>(&m)) on_answer(*a);
    };
    connection_.on_failed = [this](const error& e) { on_failed(e); };
  }

  void ask(const address& at, std::int64_t timeout_ns) {
    to_ = at;
    end_ns_ = net_.now_ns() + timeout_ns;
    connection_.connect(at, timeout_ns);
  }

  status state() const noexcept { return status_; }
  const node_answer& reply() const noexcept { return answer_; }
  const error& reason() const noexcept { return *error_; }

 private:
  void on_answer(const troupe::answer& a) {
    auto parsed = parse_node_answer(a.json);
    if (!parsed) return fail(parsed.error());
    answer_ = std::move(*parsed);
    status_ = status::answered;
    connection_.close();
  }

  void on_failed(const error& e) {
    const auto left_ns = end_ns_ - net_.now_ns();
    if (!std::exchange(has_asked_, false) || !std::exchange(may_repeat_, false) || left_ns <= 0)
      return fail(e);
    connection_.connect(to_, left_ns);
  }
  void fail(const error& e) {
    if (status_ != status::open) return;
    status_ = status::failed;
    error_ = e;
  }

  tcp_transport& net_;
  guest_connection connection_;
  std::string request_;
  bool may_repeat_, has_asked_ = false;
  address to_;
  std::int64_t end_ns_ = 0;
  status status_ = status::open;
  node_answer answer_;
  std::optional<error> error_;
};

class asker {
 public:
  explicit asker(const ask_options& options)
      : options_(options),
        net_(loop_),
        end_ns_(loop_.now_ns() + bounded_wait_ns(options.timeout_ns)) {}

  result<cluster_snapshot> run() {
    auto found = local_discovery::open(options_.cluster, options_.token_file, loop_);
    if (!found) return found.error();
    auto guard = make_protection(options_.protect, options_.cluster, (*found)->token());
    if (!guard) return guard.error();
    net_.protect(std::move(*guard));
    if (auto begun = begin(**found); !begun) return begun.error();
    while (loop_.now_ns() < end_ns_ && is_open()) {
      loop_.poll(
          static_cast<int>(std::max<std::int64_t>(1, (end_ns_ - loop_.now_ns()) / 1'000'000)));
      follow_views();
    }
    return summarize();
  }

 private:
  result<void> begin(local_discovery& here) {
    shake_ = guest_options(options_.cluster, here.token());
    std::vector<address> names;
    const auto joins = split_joins(options_.join, names);
    if (!joins) return joins.error();
    for (const auto& j : *joins)
      if (auto asked = ask(j, j); !asked) return asked;
    for (const auto& name : names)
      if (auto begun = look_up_later(name); !begun) return begun;
    if (!options_.join.empty()) return {};
    for (const auto& p : here.find(end_ns_ - loop_.now_ns())) (void)ask(p.address, p.address);
    if (questions_.empty() && here.silent() > 0)
      return error(
          error_code::unreachable,
          fmt::format("cluster '{}': none of its {} processes on this machine answers "
                      "within {:.3g} s: they are stopped, or the machine is busy (--timeout)",
                      options_.cluster, here.silent(), double(options_.timeout_ns) * 1e-9));
    if (questions_.empty())
      return error(
          error_code::unreachable,
          fmt::format("no node of cluster '{}' runs for this user on this machine: start one with "
                      "troupe-node --cluster {}, or name one with --join HOST:PORT",
                      options_.cluster, options_.cluster));
    return {};
  }

  result<void> ask(const std::string& address_text, const std::string& name) {
    names_[address_text] = name;
    if (questions_.contains(address_text)) return {};
    auto at = parse_address(address_text);
    if (!at) return at.error();
    const bool looks = options_.request.empty();
    auto& q = questions_[address_text] = std::make_unique<question>(
        net_, shake_, looks ? words_of(options_.parts, options_.newer_than_ns) : options_.request,
        looks);
    q->ask(*at, std::max<std::int64_t>(1, end_ns_ - loop_.now_ns()));
    return {};
  }

  // A lookup takes as long as the system's resolver does, and other nodes may answer meanwhile.
  struct pending_name final : io_loop::fd_handler {
    pending_name(asker& a, name_lookup l) : of(a), lookup(std::move(l)) {}
    void on_ready(bool, bool) override { of.ask_found(*this); }
    asker& of;
    name_lookup lookup;
  };
  result<void> look_up_later(const address& name) {
    auto lookup = name_lookup::start(name);
    if (!lookup) return lookup.error();
    auto one = std::make_shared<pending_name>(*this, std::move(*lookup));
    loop_.add(one->lookup.fd(), one, true, false);
    ++names_open_;
    return {};
  }
  void ask_found(pending_name& one) {
    const auto found = one.lookup.answer();
    --names_open_;
    loop_.remove(one.lookup.fd());
    if (!found) {
      name_error_ = found.error();
      return;
    }
    for (const auto& at : *found) {
      const auto place = to_string(to_address(at));
      looked_up_.insert(place);
      (void)ask(place, place);
    }
  }

  bool is_open() const {
    if (names_open_ > 0) return true;
    for (const auto& [a, q] : questions_)
      if (q->state() == question::status::open) return true;
    return false;
  }

  // Members that an answer names are asked as well.
  void follow_views() {
    std::vector<std::pair<std::string, std::string>> more;
    for (const auto& [a, q] : questions_) {
      if (q->state() != question::status::answered) continue;
      names_[a] = q->reply().self.name;
      for (const auto& p : q->reply().peers)
        if (p.state == node_state::alive || p.state == node_state::unreachable)
          more.emplace_back(p.address, p.name);
    }
    for (const auto& [address_text, name] : more)
      if (!address_text.empty()) (void)ask(address_text, name);
  }

  result<cluster_snapshot> summarize() const {
    std::vector<node_answer> answers;
    std::vector<silent_node> silent;
    const error* last = nullptr;
    for (const auto& [a, q] : questions_) {
      if (q->state() == question::status::answered) {
        answers.push_back(q->reply());
        continue;
      }
      const bool is_open = q->state() == question::status::open;
      silent.push_back({names_.at(a), is_open ? fmt::format("no answer within {:.1f} s",
                                                            double(options_.timeout_ns) * 1e-9)
                                              : q->reason().message()});
      if (!is_open) last = &q->reason();
    }
    if (!answers.empty()) {
      std::erase_if(silent, [&](const silent_node& s) {
        // Where a name leads to may be anybody; members tell of those that are some.
        const bool is_nobody = looked_up_.contains(s.name) && !is_told_of(s.name, answers);
        return is_nobody || is_gone(s.name, answers);
      });
      return merge(answers, std::move(silent));
    }
    if (last != nullptr) return *last;
    if (name_error_) return *name_error_;
    if (silent.empty())
      return error(error_code::timed_out, fmt::format("no name of --join was found within {:.1f} s",
                                                      double(options_.timeout_ns) * 1e-9));
    return error(
        error_code::timed_out,
        fmt::format("{} of cluster '{}' did not answer within {:.1f} s", silent.front().name,
                    options_.cluster, double(options_.timeout_ns) * 1e-9));
  }

  static bool is_told_of(const std::string& place, const std::vector<node_answer>& answers) {
    for (const auto& a : answers)
      for (const auto& p : a.peers)
        if (p.address == place) return true;
    return false;
  }

  // Everybody who answered knows that it is dead or has left. Who never answered is known by its
  // address alone.
  static bool is_gone(const std::string& name, const std::vector<node_answer>& answers) {
    bool is_known = false;
    for (const auto& a : answers)
      for (const auto& p : a.peers)
        if (p.name == name || p.address == name) {
          is_known = true;
          if (p.state == node_state::alive || p.state == node_state::unreachable) return false;
        }
    return is_known;
  }

  const ask_options& options_;
  io_loop loop_;
  tcp_transport net_;
  std::int64_t end_ns_;
  handshake_options shake_;
  std::map<std::string, std::unique_ptr<question>> questions_;  // by address
  std::map<std::string, std::string> names_;
  std::set<std::string> looked_up_;  // addresses of names
  std::size_t names_open_ = 0;
  std::optional<error> name_error_;
};

}  // namespace

result<cluster_snapshot> ask_cluster(const ask_options& options) {
  asker a(options);
  return a.run();
}

}  // namespace troupe
