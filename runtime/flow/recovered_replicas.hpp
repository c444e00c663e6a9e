#pragma once
// Replicas that learn from their items, and are made again with all that they had learnt when they
// are lost with their process.
//
//   deal ──▸ lane 0: worker ───────▸ gather    a lane is three instances of one replica
//        ──▸         stand-by ─────▸
//        ──▸         in the program ▸
//        ──▸ lane 1: ...
//
// One instance of a lane works; the second, on another node, and the third, in the program, have
// nothing to do until those before them are lost. Now and then the deal asks a lane for its state,
// in-band, behind the items that were dealt; the state comes back behind what they became. The deal
// keeps the items from there on. When the instance at work is lost, the next one loads that state
// and gets those items again; the gather drops what it has let pass before.
//
// Functions of such replicas have all that they learn in `state`, and make the same of the same
// items and state.
//
// RR-1  The deal keeps a lane's state at its last cut, and the items since; nothing else is needed
//       to make it again.
// RR-2  What leaves the gather is what leaves it without losses: each item of each ticket once,
//       then what each lane makes at its end; with `keeps_order` in the order of tickets and lanes.
//       Dead letters go round it: those since the last cut come again.
// RR-3  The deal is not over before all lanes have ended: told of it by an item, they answer.
// RR-4  A cut is asked for when the last one was answered, and more is kept than the state had
//       bytes, or some time has passed, the longer the larger the state was.
// Threading: as stages; the ledger is written by the gather and read by the deal, on two threads.
// lose() of both while neither runs.
// Source: upstream backup (Hwang et al., High-Availability Algorithms for Distributed Stream
// Processing, ICDE 2005), with markers in-band as in Chandy and Lamport's snapshots.

#include "troupe/runtime/flow/replica_control.hpp"
#include "troupe/runtime/flow/replica_ledger.hpp"
#include "troupe/runtime/flow/stage.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace troupe {

inline constexpr std::uint32_t lane_instances = 3;

class recovering_deal final : public stage {
 public:
  // `hash`: items of one hash go to one lane; none: to the one that has least to do. `control`:
  // null where all work, as they do by hash.
  recovering_deal(std::uint32_t lanes, std::function<std::uint64_t(any_value&)> hash,
                  std::shared_ptr<replica_ledger> ledger,
                  std::shared_ptr<const replica_control> control = {});
  bool take(std::uint32_t port, any_value&& in, stage_output& out) override;
  std::uint32_t choose(const stage_output& out) override;
  bool end(std::uint32_t port, stage_output& out) override;
  bool keeps_open() const override;
  std::int64_t wakes_at() const override { return looks_at_; }
  bool on_time(std::int64_t now_ns, stage_output& out) override;

  // The instance at `port` is gone. Of the one at work: what is to be dealt again, put in front of
  // its input as it is; nullopt: it only stood by.
  std::optional<std::vector<flow_item>> lose(std::uint32_t port);
  // It cannot be made again, whatever lose() says.
  bool is_given_up(std::uint32_t port) const noexcept;

 private:
  struct lane {
    std::deque<flow_item> kept;
    std::uint64_t kept_bytes = 0;
    std::uint64_t base = 0;       // tickets of it before those
    std::optional<tensor> state;  // after those
    std::uint64_t state_bytes = 0;
    std::int64_t asked_ns = 0;
    bool is_asked = false, has_end = false;
    std::uint32_t at_work = 0;  // instance
    std::array<bool, lane_instances> is_lost{};
    item_origin last;
  };
  std::uint32_t port_of(std::uint32_t lane) const noexcept {
    return lane * lane_instances + lanes_[lane].at_work;
  }
  std::uint32_t lane_with_least(const stage_output& out) const;
  void trim(std::uint32_t lane);
  void put_mark(std::uint32_t lane, item_kind kind, stage_output& out);
  void keep(std::uint32_t lane, const flow_item& it, std::int64_t now_ns);
  bool is_cut_due(const lane& l, std::int64_t now_ns) const noexcept;

  std::vector<lane> lanes_;
  std::function<std::uint64_t(any_value&)> hash_;
  std::shared_ptr<replica_ledger> ledger_;
  std::shared_ptr<const replica_control> control_;
  std::uint32_t next_ = 0, ticket_ = 0;
  std::int64_t looks_at_ = never_ns;  // at the end: whether all lanes have ended
};

class recovering_gather final : public stage {
 public:
  recovering_gather(std::uint32_t lanes, bool keeps_order, std::shared_ptr<replica_ledger> ledger);
  bool take(std::uint32_t port, any_value&& in, stage_output& out) override;
  std::uint32_t choose(const stage_output& out) override;
  // The instance at work behind `port` is gone, with all that has come of it and was not taken.
  void lose(std::uint32_t port);

 private:
  // Of the ticket, or the end, that comes now: how many items have come, and have left, which is
  // more while it is made again.
  struct passage {
    std::uint64_t came = 0, left = 0;
    bool lets_pass() noexcept;
  };
  struct lane {
    std::uint64_t ended = 0;    // tickets
    std::uint64_t skipped = 0;  // tickets that come again
    std::uint64_t cut_at = 0;   // tickets before its last cut
    passage ticket, end;
    bool has_ended = false;
  };
  std::vector<lane> lanes_;
  bool keeps_order_;
  std::shared_ptr<replica_ledger> ledger_;
  std::uint32_t next_ = 0, cursor_ = 0;
};

}  // namespace troupe
