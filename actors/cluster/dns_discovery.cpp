#include "troupe/actors/cluster/dns_discovery.hpp"

#include "troupe/actors/net/io_loop.hpp"
#include "troupe/actors/net/tcp_socket.hpp"

#include <optional>
#include <utility>

namespace troupe {

// One name, and its lookup while that goes on.
struct dns_discovery::question final {
  struct answered final : io_loop::fd_handler {
    explicit answered(question& q) : of(q) {}
    void on_ready(bool, bool) override { of.take(); }
    question& of;
  };

  question(address a, io_loop& l) : name(std::move(a)), loop(l) {}
  ~question() { stop(); }

  void stop() {
    if (!lookup) return;
    loop.remove(lookup->fd());
    lookup.reset();
  }

  void begin(const found_handler& found) {
    if (lookup || loop.now_ns() < again_at_ns) return;
    again_at_ns = loop.now_ns() + dns_again_ns;
    auto started = name_lookup::start(name);
    if (!started) return;  // no thread or descriptor is left: the next look may have one
    lookup.emplace(std::move(*started));
    on_found = found;
    loop.add(lookup->fd(), std::make_shared<answered>(*this), true, false);
  }

  void take() {
    const auto answer = lookup->answer();
    std::vector<place> places;
    if (answer)
      for (const auto& one : *answer) places.push_back({to_string(to_address(one)), node_id{}});
    const auto fn = std::exchange(on_found, nullptr);
    stop();
    fn(std::move(places));
  }

  address name;
  io_loop& loop;
  std::int64_t again_at_ns = 0;
  std::optional<name_lookup> lookup;
  found_handler on_found;
};

dns_discovery::dns_discovery(std::vector<address> names, rendezvous* also, io_loop& loop)
    : also_(also) {
  for (auto& name : names) questions_.push_back(std::make_unique<question>(std::move(name), loop));
}

dns_discovery::~dns_discovery() = default;

void dns_discovery::look(std::vector<node_id> known, found_handler found) {
  for (const auto& q : questions_) q->begin(found);
  if (also_ != nullptr) also_->look(std::move(known), std::move(found));
}

result<void> dns_discovery::announce(const member_info& self) {
  return also_ == nullptr ? result<void>() : also_->announce(self);
}

}  // namespace troupe
