#include "troupe/actors/cluster/local_discovery.hpp"

#include "troupe/actors/net/discovery.hpp"
#include "troupe/actors/net/io_loop.hpp"

namespace troupe {

namespace {

// While a member is young it looks often, and must not be held up by one that does not answer. A
// tool looks once.
constexpr int member_wait_ms = 20;
constexpr int tool_wait_ms = 200;

class answering final : public io_loop::fd_handler {
 public:
  explicit answering(discovery& d) : discovery_(d) {}
  void on_ready(bool, bool) override { discovery_.answer(); }

 private:
  discovery& discovery_;
};

}  // namespace

struct local_discovery::state {
  state(discovery d, std::string t, io_loop& l)
      : places(std::move(d)), token(std::move(t)), loop(l) {}

  discovery places;
  std::string token;
  io_loop& loop;
};

local_discovery::local_discovery(std::unique_ptr<state> s) : state_(std::move(s)) {}

local_discovery::~local_discovery() {
  if (state_->places.fd() >= 0) state_->loop.remove(state_->places.fd());
}

result<std::unique_ptr<local_discovery>> local_discovery::open(const std::string& cluster,
                                                               const std::string& token_file,
                                                               io_loop& loop) {
  auto places = discovery::open(discovery_roots::of_environment(), cluster);
  if (!places) return places.error();
  auto token = token_file.empty() ? places->shared_token() : read_token_file(token_file);
  if (!token) return token.error();
  return std::unique_ptr<local_discovery>(
      new local_discovery(std::make_unique<state>(std::move(*places), std::move(*token), loop)));
}

const std::string& local_discovery::token() const noexcept { return state_->token; }

std::vector<rendezvous::place> local_discovery::find(const std::function<bool(node_id)>& is_known) {
  std::vector<place> out;
  const auto wait_ms = state_->places.fd() >= 0 ? member_wait_ms : tool_wait_ms;
  for (auto& e : state_->places.entries(is_known, wait_ms))
    out.push_back({std::move(e.address), e.id});
  return out;
}

result<void> local_discovery::announce(const member_info& self) {
  if (state_->places.fd() >= 0) state_->loop.remove(state_->places.fd());
  if (auto announced = state_->places.announce(self.id, self.address); !announced) return announced;
  state_->loop.add(state_->places.fd(), std::make_shared<answering>(state_->places), true, false);
  return {};
}

}  // namespace troupe
