#include "troupe/actors/cluster/local_discovery.hpp"

#include "troupe/actors/net/discovery.hpp"
#include "troupe/actors/net/io_loop.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

namespace troupe {

namespace {

// A member looks again soon; a tool looks once.
constexpr int member_wait_ms = 20;
constexpr int tool_wait_ms = 200;

class answering final : public io_loop::fd_handler {
 public:
  explicit answering(discovery& d) : discovery_(d) {}
  void on_ready(bool, bool) override { discovery_.answer(); }

 private:
  discovery& discovery_;
};

class looked final : public io_loop::fd_handler {
 public:
  explicit looked(std::function<void()> fn) : fn_(std::move(fn)) {}
  void on_ready(bool, bool) override { fn_(); }

 private:
  std::function<void()> fn_;
};

std::vector<rendezvous::place> places_of(std::vector<discovery_entry> entries) {
  std::vector<rendezvous::place> out;
  for (auto& e : entries) out.push_back({std::move(e.address), e.id});
  return out;
}

}  // namespace

// One look at a time: its thread has `others` and `found` until it has written to `ready`.
struct local_discovery::state {
  state(discovery d, discovery o, secret t, io_loop& l)
      : places(std::move(d)), others(std::move(o)), token(std::move(t)), loop(l) {}
  ~state() {
    looking = {};  // it has `others`
    if (ready >= 0) ::close(ready);
  }

  void take_found() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(ready, &count, sizeof count);
    if (!is_done.exchange(false, std::memory_order_acquire)) return;
    looking = {};
    std::exchange(on_found, nullptr)(places_of(std::move(found)));
  }

  discovery places;  // ours, which answers; on the loop
  discovery others;
  secret token;
  io_loop& loop;
  int ready = -1;
  std::atomic<bool> is_done{false};
  std::vector<discovery_entry> found;
  found_handler on_found;  // not empty: a look goes on
  std::jthread looking;
};

local_discovery::local_discovery(std::unique_ptr<state> s) : state_(std::move(s)) {}

local_discovery::~local_discovery() {
  if (state_->places.fd() >= 0) state_->loop.remove(state_->places.fd());
  if (state_->ready >= 0) state_->loop.remove(state_->ready);
}

result<std::unique_ptr<local_discovery>> local_discovery::open(const std::string& cluster,
                                                               const std::string& token_file,
                                                               io_loop& loop) {
  auto places = discovery::open(discovery_roots::of_environment(), cluster);
  if (!places) return places.error();
  auto others = discovery::open(discovery_roots::of_environment(), cluster);
  if (!others) return others.error();
  auto token = token_file.empty() ? places->shared_token() : read_token_file(token_file);
  if (!token) return token.error();
  return std::unique_ptr<local_discovery>(new local_discovery(
      std::make_unique<state>(std::move(*places), std::move(*others), std::move(*token), loop)));
}

const secret& local_discovery::token() const noexcept { return state_->token; }

std::vector<rendezvous::place> local_discovery::find(std::int64_t limit_ns) {
  const auto limit_ms = static_cast<int>(std::clamp<std::int64_t>(limit_ns / 1'000'000, 0, 60'000));
  return places_of(state_->others.first_entries([](node_id) { return false; },
                                                std::min(tool_wait_ms, limit_ms), limit_ms));
}
std::size_t local_discovery::silent() const noexcept { return state_->others.silent(); }

void local_discovery::look(std::vector<node_id> known, found_handler found) {
  auto& s = *state_;
  if (s.on_found) return;
  if (s.ready < 0) {
    const int ready = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ready < 0) return;  // no descriptor is left: the next look may have one
    s.loop.add(ready, std::make_shared<looked>([&s] { s.take_found(); }), true, false);
    s.ready = ready;
  }
  s.on_found = std::move(found);
  try {
    s.looking = std::jthread([&s, known = std::move(known)] {
      const auto is_known = [&](node_id id) { return std::ranges::binary_search(known, id); };
      try {
        s.found = s.others.entries(is_known, member_wait_ms);
      } catch (const std::exception&) {  // no memory is left
        s.found.clear();
      }
      s.is_done.store(true, std::memory_order_release);
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto n = ::write(s.ready, &one, sizeof one);
    });
  } catch (const std::system_error&) {
    s.on_found = nullptr;  // no thread is left, as above
  }
}

result<void> local_discovery::announce(const member_info& self) {
  if (state_->places.fd() >= 0) state_->loop.remove(state_->places.fd());
  if (auto announced = state_->places.announce(self.id, self.address); !announced) return announced;
  state_->loop.add(state_->places.fd(), std::make_shared<answering>(state_->places), true, false);
  return {};
}

}  // namespace troupe
