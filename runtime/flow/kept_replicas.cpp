#include "troupe/runtime/flow/kept_replicas.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace troupe {

// --- deal ----------------------------------------------------------------------------------------

keeping_deal::keeping_deal(std::uint32_t replicas, std::shared_ptr<replica_ledger> ledger,
                           std::shared_ptr<replica_control> control)
    : lanes_(replicas),
      ledger_(std::move(ledger)),
      control_(std::move(control)),
      open_(replicas - 1) {}

template <class Each>
void keeping_deal::each_open(const Each& each) const {
  const auto spare = static_cast<std::uint32_t>(lanes_.size() - 1);
  if (open_ == 0) {
    if (!lanes_[spare].is_lost) each(spare, spare);
    return;
  }
  const auto port_at = [this](std::uint32_t i) {
    return control_ == nullptr ? i : control_->order[i].load(std::memory_order_relaxed);
  };
  // The first ones of those that are left work.
  auto left = working_ports(control_.get(), open_);
  std::uint32_t end = 0;
  bool is_any_left = false;
  for (; end < spare && left > 0; ++end) {
    const bool is_lost = lanes_[port_at(end)].is_lost;
    left -= is_lost ? 0 : 1;
    is_any_left = is_any_left || !is_lost;
  }
  // While two change their places: one that is lost may stand there twice.
  for (std::uint32_t p = 0; p < spare && !is_any_left; ++p)
    if (!lanes_[p].is_lost) return each(p, p);
  for (std::uint32_t i = 0; i < end; ++i) {
    const auto at = (next_ + i) % end;
    if (const auto p = port_at(at); !lanes_[p].is_lost) each(p, at);
  }
}

void keeping_deal::trim(std::uint32_t port) {
  auto& l = lanes_[port];
  const auto ended = ledger_->ended[port].load(std::memory_order_acquire);
  for (; l.base < ended && !l.kept.empty(); ++l.base) l.kept.pop_front();
}

bool keeping_deal::take(std::uint32_t, any_value&& in, stage_output& out) {
  std::uint32_t to = no_port, open = no_port, next = 0;
  auto least = std::numeric_limits<std::int64_t>::max();
  each_open([&](std::uint32_t p, std::uint32_t at) {
    if (open == no_port) open = p;
    if (!out.wants_more(p)) return;
    if (const auto n = out.load_of(p); n < least) least = n, to = p, next = at + 1;
  });
  if (to == no_port) to = open;  // whoever calls although nobody has room
  next_ = next;
  trim(to);
  flow_item it{std::move(in), out.origin()};
  if (!std::exchange(it.origin.is_again, false)) {
    it.origin.ticket = ticket_;
    ticket_ = ticket_after(ticket_);
  }
  if (ledger_->can_lose) lanes_[to].kept.push_back({it.value.copy(), it.origin});
  out.put_item(to, std::move(it));
  return false;
}

std::uint32_t keeping_deal::choose(const stage_output& out) {
  if (out.is_held()) return no_port;
  bool is_wanted = false;
  each_open([&](std::uint32_t p, std::uint32_t) { is_wanted = is_wanted || out.wants_more(p); });
  return is_wanted ? 0 : no_port;
}

bool keeping_deal::end(std::uint32_t, stage_output& out) {
  looks_at_ = out.now_ns() + deal_looks_each_ns;
  return false;
}

bool keeping_deal::keeps_open() const {
  for (std::uint32_t p = 0; p < lanes_.size(); ++p) {
    const auto& l = lanes_[p];
    if (l.base + l.kept.size() > ledger_->ended[p].load(std::memory_order_acquire)) return true;
  }
  return false;
}

bool keeping_deal::on_time(std::int64_t now_ns, stage_output&) {
  for (std::uint32_t p = 0; p < lanes_.size(); ++p) trim(p);
  looks_at_ = keeps_open() ? now_ns + deal_looks_each_ns : never_ns;
  return false;
}

std::vector<flow_item> keeping_deal::lose(std::uint32_t port, std::uint64_t ended) {
  auto& l = lanes_[port];
  if (std::exchange(l.is_lost, true)) return {};
  if (port + 1 != lanes_.size()) --open_;
  if (control_ != nullptr && port < control_->most) control_->is_lost[port].store(true);
  for (; l.base < ended && !l.kept.empty(); ++l.base) l.kept.pop_front();
  std::vector<flow_item> again;
  for (auto& it : l.kept) {
    it.origin.is_again = true;
    again.push_back(std::move(it));
  }
  l.kept.clear();
  return again;
}

// --- gather --------------------------------------------------------------------------------------

keeping_gather::keeping_gather(std::uint32_t replicas, bool keeps_order,
                               std::shared_ptr<replica_ledger> ledger)
    : lanes_(replicas), ledger_(std::move(ledger)), keeps_order_(keeps_order) {}

bool keeping_gather::is_early(std::uint32_t ticket) const noexcept {
  return has_lost_ && ticket != next_ && is_before(ticket, stashes_below_);
}

void keeping_gather::pass(flow_item&& it, stage_output& out) {
  const auto skipped = skip_.empty() ? skip_.end() : skip_.find(it.origin.ticket);
  if (skipped != skip_.end() && skipped->second > 0) {
    --skipped->second;
    return;
  }
  it.origin.ticket = 0;
  out.put_item(0, std::move(it));
}

bool keeping_gather::take(std::uint32_t port, any_value&& in, stage_output& out) {
  const auto ticket = out.origin().ticket;
  const bool ends = out.ends_ticket();
  auto& l = lanes_[port];
  cursor_ = (port + 1) % static_cast<std::uint32_t>(lanes_.size());
  l.ticket = ticket;
  l.passed = ends ? 0 : l.passed + (in ? 1U : 0U);
  const bool waits = keeps_order_ && ticket != next_;
  if (waits) {
    auto& s = stash_[ticket];
    s.has_ended = s.has_ended || ends;
    if (in) s.items.push_back({std::move(in), out.origin()});
  } else if (in) {
    pass({std::move(in), out.origin()}, out);
  }
  if (ends) {
    ledger_->ended[port].fetch_add(1, std::memory_order_release);
    if (!waits) {
      skip_.erase(ticket);
      next_ = ticket_after(next_);
      pass_stashed(out);
    }
  }
  return false;
}

// What has come before its turn, and whose turn it is now.
void keeping_gather::pass_stashed(stage_output& out) {
  for (auto at = stash_.find(next_); at != stash_.end(); at = stash_.find(next_)) {
    auto s = std::move(at->second);
    stash_.erase(at);
    for (auto& it : s.items) pass(std::move(it), out);
    if (!s.has_ended) return;
    skip_.erase(next_);
    next_ = ticket_after(next_);
  }
}

std::uint32_t keeping_gather::choose(const stage_output& out) {
  const auto inputs = static_cast<std::uint32_t>(lanes_.size());
  if (has_lost_ && !is_before(next_, stashes_below_)) has_lost_ = false;
  std::uint32_t early = no_port;
  for (std::uint32_t i = 0; i < inputs; ++i) {
    const auto port = keeps_order_ ? i : (cursor_ + i) % inputs;
    const auto* head = out.head(port);
    if (head == nullptr) continue;
    if (!keeps_order_ || head->origin.ticket == next_) return port;
    if (early == no_port && is_early(head->origin.ticket)) early = port;
  }
  return early;
}

void keeping_gather::lose(std::uint32_t port, bool has_more, std::uint32_t next_ticket) {
  has_lost_ = true;
  stashes_below_ = next_ticket;
  auto& l = lanes_[port];
  const auto half = std::exchange(l.passed, 0);
  if (has_more || half == 0) return;
  // Made again from its beginning: what waits here goes, what has left is not put again.
  if (const auto at = stash_.find(l.ticket); at != stash_.end())
    stash_.erase(at);
  else
    skip_[l.ticket] += half;
}

}  // namespace troupe
