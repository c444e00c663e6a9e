#include "troupe/runtime/flow/recovered_replicas.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace troupe {
namespace {

constexpr std::uint64_t item_bytes = 64;  // that are kept of an item besides its own
// A state of so many bytes is asked for no oftener than each `cut_ns`.
constexpr std::uint64_t cheap_state_bytes = std::uint64_t{8} << 20;

}  // namespace

// --- deal ----------------------------------------------------------------------------------------

recovering_deal::recovering_deal(std::uint32_t lanes, std::function<std::uint64_t(any_value&)> hash,
                                 std::shared_ptr<replica_ledger> ledger,
                                 std::shared_ptr<const replica_control> control)
    : lanes_(lanes),
      hash_(std::move(hash)),
      ledger_(std::move(ledger)),
      control_(std::move(control)) {}

std::uint32_t recovering_deal::lane_with_least(const stage_output& out) const {
  const auto lanes = working_ports(control_.get(), static_cast<std::uint32_t>(lanes_.size()));
  std::uint32_t to = 0;
  auto least = std::numeric_limits<std::int64_t>::max();
  for (std::uint32_t i = 0; i < lanes; ++i) {
    const auto l = (next_ + i) % lanes;
    if (!out.wants_more(port_of(l))) continue;
    if (const auto n = out.load_of(port_of(l)); n < least) least = n, to = l;
  }
  return to;
}

// By hash it is known only afterwards who gets an item: all must have room.
std::uint32_t recovering_deal::choose(const stage_output& out) {
  const auto* head = out.head(0);
  if (head != nullptr && head->origin.is_again)
    return out.has_room(port_of(head->origin.lane)) ? 0 : no_port;
  const auto lanes = working_ports(control_.get(), static_cast<std::uint32_t>(lanes_.size()));
  for (std::uint32_t l = 0; l < lanes; ++l) {
    if (hash_ && !out.has_room(port_of(l))) return no_port;
    if (!hash_ && out.wants_more(port_of(l))) return 0;
  }
  return hash_ ? 0 : no_port;
}

void recovering_deal::trim(std::uint32_t lane) {
  auto& l = lanes_[lane];
  auto cut = ledger_->take(lane);
  if (cut == nullptr) return;
  l.state_bytes = cut->state.size_bytes();
  l.state = std::move(cut->state);
  l.is_asked = false;
  for (; l.base < cut->tickets && !l.kept.empty(); ++l.base) {
    l.kept_bytes -= l.kept.front().bytes;
    l.kept.pop_front();
  }
}

bool recovering_deal::is_cut_due(const lane& l, std::int64_t now_ns) const noexcept {
  if (l.is_asked || l.kept.empty()) return false;
  if (l.kept_bytes >= std::max(ledger_->cut_bytes, l.state_bytes)) return true;
  const auto times = 1 + static_cast<std::int64_t>(l.state_bytes / cheap_state_bytes);
  return now_ns - l.asked_ns >= ledger_->cut_ns * times;
}

void recovering_deal::put_mark(std::uint32_t lane, item_kind kind, stage_output& out) {
  flow_item mark;
  mark.origin = lanes_[lane].last;
  mark.origin.kind = kind;
  mark.origin.ticket = ticket_;  // all before it come first
  mark.origin.born_ns = 0;
  out.put_item(port_of(lane), std::move(mark));
}

void recovering_deal::keep(std::uint32_t lane, const flow_item& it, std::int64_t now_ns) {
  auto& l = lanes_[lane];
  if (l.asked_ns == 0) l.asked_ns = now_ns;
  flow_item copy{it.value.copy(), it.origin};
  copy.bytes = copy.value.bytes() + item_bytes;
  l.kept_bytes += copy.bytes;
  l.kept.push_back(std::move(copy));
}

bool recovering_deal::take(std::uint32_t, any_value&& in, stage_output& out) {
  flow_item it{std::move(in), out.origin()};
  const bool is_again = std::exchange(it.origin.is_again, false);
  const auto lane = is_again ? it.origin.lane
                    : hash_  ? static_cast<std::uint32_t>(hash_(it.value) % lanes_.size())
                             : lane_with_least(out);
  auto& l = lanes_[lane];
  if (!is_again) it.origin.kind = item_kind::item;  // whatever it was in another stage's lanes
  if (it.origin.kind != item_kind::item) {
    l.has_end = l.has_end || it.origin.kind == item_kind::end;
    out.put_item(port_of(lane), std::move(it));
    return false;
  }
  if (!is_again) {
    next_ = (lane + 1) % static_cast<std::uint32_t>(lanes_.size());
    it.origin.ticket = ticket_;
    it.origin.lane = lane;
    ticket_ = ticket_after(ticket_);
    l.last = it.origin;
  }
  // The last instance is in the program, where nothing is lost.
  if (!ledger_->can_lose || l.at_work + 1 == lane_instances || ledger_->is_given_up(lane)) {
    l.kept.clear();
    l.kept_bytes = 0;
    l.state.reset();
    out.put_item(port_of(lane), std::move(it));
    return false;
  }
  trim(lane);
  const auto now = out.now_ns();
  keep(lane, it, now);
  out.put_item(port_of(lane), std::move(it));
  if (!is_cut_due(l, now)) return false;
  l.is_asked = true;
  l.asked_ns = now;
  put_mark(lane, item_kind::cut, out);
  return false;
}

bool recovering_deal::end(std::uint32_t, stage_output& out) {
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].has_end = true;
    put_mark(i, item_kind::end, out);
  }
  looks_at_ = out.now_ns() + deal_looks_each_ns;
  return false;
}

bool recovering_deal::keeps_open() const {
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (!ledger_->has_ended(i)) return true;
  return false;
}

bool recovering_deal::on_time(std::int64_t now_ns, stage_output&) {
  looks_at_ = keeps_open() ? now_ns + deal_looks_each_ns : never_ns;
  return false;
}

std::optional<std::vector<flow_item>> recovering_deal::lose(std::uint32_t port) {
  const auto lane = port / lane_instances, instance = port % lane_instances;
  auto& l = lanes_[lane];
  l.is_lost[instance] = true;
  if (instance != l.at_work) return std::nullopt;
  while (l.at_work + 1 < lane_instances && l.is_lost[l.at_work]) ++l.at_work;
  trim(lane);
  l.is_asked = false;
  std::vector<flow_item> again;
  if (ledger_->has_ended(lane)) return again;
  const auto add = [&](flow_item&& it) {
    it.origin.is_again = true;
    it.origin.lane = lane;
    again.push_back(std::move(it));
  };
  if (l.state) {
    flow_item load{any_value(*l.state), l.last};
    load.origin.kind = item_kind::load;
    load.origin.born_ns = 0;
    add(std::move(load));
  }
  for (auto& it : l.kept) add(std::move(it));
  l.kept.clear();
  l.kept_bytes = 0;
  if (std::exchange(l.has_end, false)) {
    flow_item end;
    end.origin = l.last;
    end.origin.kind = item_kind::end;
    end.origin.born_ns = 0;
    end.origin.ticket = ticket_;
    add(std::move(end));
  }
  return again;
}

bool recovering_deal::is_given_up(std::uint32_t port) const noexcept {
  const auto lane = port / lane_instances;
  return ledger_->is_given_up(lane) && !ledger_->has_ended(lane);
}

// --- gather --------------------------------------------------------------------------------------

recovering_gather::recovering_gather(std::uint32_t lanes, bool keeps_order,
                                     std::shared_ptr<replica_ledger> ledger)
    : lanes_(lanes), keeps_order_(keeps_order), ledger_(std::move(ledger)) {}

bool recovering_gather::passage::lets_pass() noexcept {
  if (++came <= left) return false;
  left = came;
  return true;
}

bool recovering_gather::take(std::uint32_t port, any_value&& in, stage_output& out) {
  auto origin = out.origin();
  const bool ends = out.ends_ticket();
  const auto number = port / lane_instances;
  auto& l = lanes_[number];
  cursor_ = (port + 1) % static_cast<std::uint32_t>(lanes_.size() * lane_instances);
  const auto kind = std::exchange(origin.kind, item_kind::item);
  if (kind == item_kind::load) return false;
  if (kind == item_kind::cut) {
    if (!in) {
      ledger_->give_up(number);
      return false;
    }
    l.cut_at = l.ended - l.skipped;
    ledger_->tell(number, {l.cut_at, std::move(in.get<tensor>())});
    return false;
  }
  if (kind == item_kind::item && l.skipped > 0) {
    l.skipped -= ends ? 1 : 0;
    return false;
  }
  auto& now = kind == item_kind::end ? l.end : l.ticket;
  if (in && now.lets_pass()) {
    origin.ticket = origin.lane = 0;
    out.put_item(0, {std::move(in), std::move(origin)});
  }
  if (!ends) return false;
  if (kind == item_kind::end) {
    l.has_ended = true;
    ledger_->end(number);
    return false;
  }
  l.ticket = {};
  ++l.ended;
  next_ = ticket_after(next_);
  return false;
}

std::uint32_t recovering_gather::choose(const stage_output& out) {
  const auto ports = out.inputs();
  bool have_ended = true;  // all lanes before
  for (std::uint32_t i = 0; i < ports; ++i) {
    const auto port = keeps_order_ ? i : (cursor_ + i) % ports;
    const auto& l = lanes_[port / lane_instances];
    if (port % lane_instances == 0 && port > 0)
      have_ended = have_ended && lanes_[port / lane_instances - 1].has_ended;
    const auto* head = out.head(port);
    if (head == nullptr) continue;
    const auto& o = head->origin;
    if (!keeps_order_ || o.kind == item_kind::load || o.kind == item_kind::cut) return port;
    if (o.kind == item_kind::item && (l.skipped > 0 || o.ticket == next_)) return port;
    if (o.kind == item_kind::end && o.ticket == next_ && have_ended) return port;
  }
  return no_port;
}

void recovering_gather::lose(std::uint32_t port) {
  auto& l = lanes_[port / lane_instances];
  l.ticket.came = l.end.came = 0;
  l.skipped = l.ended - l.cut_at;
}

}  // namespace troupe
