#include "troupe/actors/program/training_events.hpp"

#include <algorithm>

namespace troupe {

namespace {

constexpr std::size_t early_texts_max = 100;

}  // namespace

result<std::unique_ptr<training_events>> training_events::open(const std::string& folder) {
  auto file = event_file::open(folder);
  if (!file) return std::move(file.error());
  return std::unique_ptr<training_events>(new training_events(std::move(*file)));
}

result<void> training_events::add_loss(std::uint64_t step, float loss) {
  const auto now = std::chrono::steady_clock::now();
  const bool is_first = losses_ == 0;
  last_step_ = step;
  result<void> first_error;
  const auto keep = [&](result<void> done) {
    if (!done && first_error) first_error = std::move(done);
  };
  if (is_first) {
    rate_began_ = now;
    // Texts come behind the beginning, which would make them void.
    keep(file_->begin_at(step));
    for (auto& [tag, text] : std::exchange(early_, {})) keep(add_text(tag, std::move(text)));
  } else {
    ++steps_of_rate_;
  }
  if (is_kept(losses_++)) keep(file_->add_scalar("loss", step, static_cast<double>(loss)));
  const std::chrono::duration<double> passed = now - rate_began_;
  if (!is_first && passed.count() >= 1) keep(add_rate(passed.count()));
  return first_error;
}

result<void> training_events::add_rate(double seconds) {
  has_rate_ = true;
  rate_began_ = std::chrono::steady_clock::now();
  const auto steps = std::exchange(steps_of_rate_, 0);
  return file_->add_scalar("steps_per_second", last_step_, static_cast<double>(steps) / seconds);
}

result<void> training_events::add_text(std::string_view tag, std::string text) {
  if (losses_ == 0) {
    if (early_.size() < early_texts_max) early_.emplace_back(tag, std::move(text));
    return {};
  }
  if (text.size() > event_file::text_bytes_max) text.resize(event_file::text_bytes_max);
  const auto step = std::max(next_text_, last_step_);
  next_text_ = step + 1;
  return file_->add_text(tag, step, text);
}

result<void> training_events::finish_training() {
  result<void> out;
  if (losses_ == 0) {  // what was said is all that there is
    losses_ = 1;
    for (auto& [tag, text] : std::exchange(early_, {}))
      if (auto ok = add_text(tag, std::move(text)); !ok && out) out = std::move(ok);
  }
  // Of a short training; what is left of a long one's last second may be too little to be a rate.
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - rate_began_;
  if (!has_rate_ && steps_of_rate_ > 0 && passed.count() > 0)
    if (auto ok = add_rate(passed.count()); !ok && out) out = std::move(ok);
  if (auto ok = file_->flush(); !ok && out) out = std::move(ok);
  return out;
}

result<void> training_events::add_result(const std::string& key, double found) {
  return file_->add_scalar("result/" + key, last_step_, found);
}

}  // namespace troupe
