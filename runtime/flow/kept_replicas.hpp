#pragma once
// Replicas whose items are kept until they are done, so that those of a replica that is lost with
// its process are made again by the others: a deal that keeps copies, and a gather that says what
// is done.
//
//   deal ──▸ replica 0 ──▸ gather     an item is a ticket; the last thing that comes of it ends it
//        ──▸ replica 1 ──▸
//        ──▸ the spare ──▸            in the program: has items only when all others are lost
//
// Functions of such replicas keep nothing from item to item, and make as many items of one when
// they are called with it again.
//
// KR-1  A ticket is kept from when it is dealt until its end has come to the gather.
// KR-2  What leaves the gather has each item of each ticket once, in the order of the tickets
//       (`keeps_order`), whatever is lost when. Of a ticket that was half through, what has left is
//       not put again.
// KR-3  The deal is not over before all tickets have ended.
// KR-4  The gather stashes what comes before its turn only of tickets that were dealt before the
//       last loss: those may stand in front of one that is made again.
// Threading: as stages; a replica_ledger is written by the gather and read by the deal, on two
// threads. lose() of both while neither runs.

#include "troupe/runtime/flow/replica_control.hpp"
#include "troupe/runtime/flow/replica_ledger.hpp"
#include "troupe/runtime/flow/stage.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace troupe {

class keeping_deal final : public stage {
 public:
  // The last of `replicas` is the spare. `control`: null where all others work.
  keeping_deal(std::uint32_t replicas, std::shared_ptr<replica_ledger> ledger,
               std::shared_ptr<replica_control> control = {});
  bool take(std::uint32_t port, any_value&& in, stage_output& out) override;
  std::uint32_t choose(const stage_output& out) override;
  bool end(std::uint32_t port, stage_output& out) override;
  bool keeps_open() const override;
  std::int64_t wakes_at() const override { return looks_at_; }
  bool on_time(std::int64_t now_ns, stage_output& out) override;

  bool has_under_way() const override { return keeps_open(); }

  // Replica `port` is gone, after `ended` tickets of it. What is to be dealt again: put in front of
  // its input, in the order of the tickets, as they are.
  std::vector<flow_item> lose(std::uint32_t port, std::uint64_t ended);
  std::uint32_t next_ticket() const noexcept { return ticket_; }

 private:
  struct lane {
    std::deque<flow_item> kept;
    std::uint64_t base = 0;  // tickets that ended and are kept no more
    bool is_lost = false;
  };
  // Calls `each(port, at)` of those that get items, beginning with the one that is next; `at`: its
  // place in their order.
  template <class Each>
  void each_open(const Each& each) const;
  void trim(std::uint32_t port);

  std::vector<lane> lanes_;
  std::shared_ptr<replica_ledger> ledger_;
  std::shared_ptr<replica_control> control_;
  std::uint32_t open_ = 0;  // replicas that are not lost, without the spare
  std::uint32_t next_ = 0, ticket_ = 0;
  std::int64_t looks_at_ = never_ns;  // at the end: whether all tickets have ended
};

class keeping_gather final : public stage {
 public:
  keeping_gather(std::uint32_t replicas, bool keeps_order, std::shared_ptr<replica_ledger> ledger);
  bool take(std::uint32_t port, any_value&& in, stage_output& out) override;
  std::uint32_t choose(const stage_output& out) override;

  std::uint64_t ended(std::uint32_t port) const noexcept { return ledger_->ended[port].load(); }
  // Replica `port` is gone. `has_more`: whole tickets of it still wait in its queue, and nothing
  // else. `next_ticket`: of the deal.
  void lose(std::uint32_t port, bool has_more, std::uint32_t next_ticket);

 private:
  struct lane {
    std::uint32_t ticket = 0;  // the one that is half through
    std::uint64_t passed = 0;  // items of it that have come
  };
  struct stashed {
    std::vector<flow_item> items;
    bool has_ended = false;
  };
  bool is_early(std::uint32_t ticket) const noexcept;
  void pass(flow_item&& it, stage_output& out);
  void pass_stashed(stage_output& out);

  std::vector<lane> lanes_;
  std::shared_ptr<replica_ledger> ledger_;
  bool keeps_order_, has_lost_ = false;
  std::uint32_t next_ = 0, stashes_below_ = 0, cursor_ = 0;
  std::map<std::uint32_t, stashed> stash_;
  std::map<std::uint32_t, std::uint64_t> skip_;  // items of a ticket that have left before
};

}  // namespace troupe
