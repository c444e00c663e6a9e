#pragma once
// Who coordinates a job after its coordinator, from that one's side: whom it tells how far the job
// is, and whose losses it may therefore use.
//
//   call                 what it means
//   choose()             these nodes, in this order, would go on with the job
//   on_loss(), touch()   there is something new to tell
//   take()               what is to be sent now: to each of them at most one journal is on its way
//   on_kept()            one of them has it
//   take_credits()       losses that all of them have: their credits go back
//
// JU-1  A loss is given back when every successor has it, or there is none; each once.
// JU-2  A new successor gets the recipe and all losses that are kept, before anything else.
// JU-3  Journals to one successor are numbered, and each has the losses since the one before.
//
// Threading: one owner.

#include "troupe/runtime/jobs/job_journal.hpp"
#include "troupe/runtime/wire/control_message.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace troupe {

class job_succession {
 public:
  static constexpr std::size_t successors_max = 2;
  static constexpr std::int64_t answer_max_ns = 5'000'000'000;

  // `recipe`: null: the job ends with its coordinator. `losses`: of coordinators before.
  job_succession(job_id job, std::shared_ptr<const std::vector<std::byte>> recipe,
                 loss_history losses)
      : job_(job), recipe_(std::move(recipe)), losses_(std::move(losses)) {}

  bool is_on() const noexcept { return recipe_ != nullptr; }
  const std::vector<node_id>& successors() const noexcept { return order_; }
  const loss_history& losses() const noexcept { return losses_; }
  std::size_t recipe_bytes() const noexcept { return recipe_ ? recipe_->size() : 0; }

  // Nodes that could, the best one first; the first successors_max are taken. `next`: whom the job
  // is handed over to, before them; 0: nobody.
  void choose(std::vector<node_id> able, node_id next = {});
  // `is_new`: else it was there before an epoch that made it again.
  void on_loss(const told_loss& l, bool is_new);
  void touch() noexcept { is_new_ = true; }
  std::vector<std::pair<node_id, keep_journal>> take(const job_journal& state, std::int64_t now_ns);
  void on_kept(node_id from, std::uint64_t number);
  // Successors that have not answered for answer_max_ns: nobody waits for them any longer.
  std::vector<node_id> mute(std::int64_t now_ns) const;
  std::size_t take_credits();
  // It has all there is to tell.
  bool has_all(node_id n) const;
  // This process stood still: whoever did not answer meanwhile is given the time anew.
  void excuse(std::int64_t now_ns) noexcept { sent_ns_ = now_ns; }
  // To each but `next`: it is not needed any more, since that epoch.
  std::vector<std::pair<node_id, keep_journal>> dismiss(std::uint32_t epoch, node_id next = {});
  // A former coordinator's successors, who may keep its journals.
  void take_over(const std::vector<node_id>& successors, node_id self);

 private:
  struct successor {
    bool has_recipe = false;
    std::uint64_t sent = 0, kept = 0;  // numbers of journals
  };

  job_id job_;
  std::shared_ptr<const std::vector<std::byte>> recipe_;
  loss_history losses_;
  std::vector<node_id> order_;
  std::map<node_id, successor> successors_;
  std::vector<node_id> dismissed_;  // who has not been told yet
  std::uint64_t number_ = 0;        // of the journal before
  std::int64_t sent_ns_ = 0;        // when that went out
  std::vector<told_loss> fresh_;    // since then
  bool is_new_ = false;
  std::size_t unused_ = 0;  // losses since the journal before, with those that are not new
  std::size_t told_ = 0;    // losses that are on their way to successors
  std::size_t free_ = 0;    // losses whose credits go back
};

}  // namespace troupe
