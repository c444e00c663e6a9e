#include "troupe/runtime/jobs/blob_pull.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

void blob_pull::want(node_id from, const std::vector<blob_id>& ids) {
  wanted_ = ids;
  // What was asked of another one may never come.
  if (from != std::exchange(from_, from) && coming_) coming_->asked = coming_->bytes.size();
  if (coming_ && !is_wanted(coming_->id)) parked_ = std::exchange(coming_, std::nullopt);
}

void blob_pull::forget_others() {
  std::erase_if(here_, [&](const auto& b) { return !is_wanted(b.first); });
  if (parked_ && !is_wanted(parked_->id)) parked_.reset();
}

bool blob_pull::is_wanted(const blob_id& id) const {
  return std::find(wanted_.begin(), wanted_.end(), id) != wanted_.end();
}

void blob_pull::have(const blob_map& blobs) {
  for (const auto& b : blobs) here_.insert(b);
}

std::vector<want_blob> blob_pull::take_requests(job_id job) {
  if (!coming_) {
    const auto next = std::find_if(wanted_.begin(), wanted_.end(),
                                   [&](const blob_id& id) { return !here_.contains(id); });
    if (next == wanted_.end()) return {};
    if (parked_ && parked_->id == *next) {
      coming_ = std::exchange(parked_, std::nullopt);
      coming_->asked = coming_->bytes.size();
    } else {
      coming_ = coming{*next, {}, 0};
    }
  }
  std::vector<want_blob> out;
  auto& c = *coming_;
  while (c.asked < c.id.bytes && c.asked - c.bytes.size() < ahead * blob_piece_bytes) {  // BP-1
    out.push_back({job, c.id, c.asked});
    c.asked += std::min<std::uint64_t>(blob_piece_bytes, c.id.bytes - c.asked);
  }
  return out;
}

result<void> blob_pull::on_piece(node_id from, blob_piece p) {
  if (from != from_ || !coming_ || p.id != coming_->id) return {};
  auto& c = *coming_;
  const auto failed = [&](std::string why) -> result<void> {
    wanted_.clear();
    coming_.reset();
    return error(error_code::failed, std::move(why));
  };
  if (!p.error.empty()) return failed(std::move(p.error));
  if (p.offset != c.bytes.size()) return {};
  const auto rest = c.id.bytes - p.offset;
  if (p.bytes.size() != std::min<std::uint64_t>(blob_piece_bytes, rest))
    return failed("a piece of the plan's constants has another size than it was asked for");
  const auto size = c.bytes.size() + p.bytes.size();
  // In proportion to what has come.
  if (size > c.bytes.capacity())
    c.bytes.reserve(std::min<std::uint64_t>(c.id.bytes, std::max(size, 2 * c.bytes.capacity())));
  c.bytes.insert(c.bytes.end(), p.bytes.begin(), p.bytes.end());
  if (size < c.id.bytes) return {};
  if (id_of(c.bytes) != c.id)  // BP-2
    return failed("the plan's constants came with other bytes than it names");
  here_.emplace(c.id, shared_bytes(std::move(c.bytes)));
  coming_.reset();
  return {};
}

bool blob_pull::has_all() const {
  return std::all_of(wanted_.begin(), wanted_.end(),
                     [&](const blob_id& id) { return here_.contains(id); });
}

const shared_bytes* blob_pull::find(const blob_id& id) const {
  const auto at = here_.find(id);
  return at == here_.end() ? nullptr : &at->second;
}

blob_piece piece_of(const want_blob& w, const blob_map& blobs) {
  blob_piece out{w.job, w.id, w.offset};
  const auto at = blobs.find(w.id);
  if (at == blobs.end() || w.offset >= w.id.bytes) {
    out.error = "the coordinator of the job has no such constants";
    return out;
  }
  const auto bytes = at->second.view().subspan(w.offset);
  const auto size = std::min(bytes.size(), blob_piece_bytes);
  out.bytes.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
  return out;
}

}  // namespace troupe
