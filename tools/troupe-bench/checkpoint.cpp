// What a checkpoint costs a training that goes on meanwhile, and how fast it is written, beside a
// plain write of as many bytes.

#include "tools/troupe-bench/folder.hpp"
#include "tools/troupe-bench/measure.hpp"
#include "troupe/runtime/layers/layers.hpp"

#include "troupe/actors/session/session.hpp"
#include "troupe/devices/files/idx_file.hpp"
#include "troupe/devices/files/synthetic_images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace troupe {

namespace {

constexpr std::int64_t layers = 4;
constexpr int runs_max = 3;  // each takes minutes

struct checkpoint_case {
  idx_info data;
  std::int64_t units = 0;  // of each layer
  std::uint64_t steps = 0, every = 0;
  std::string folder;

  // Of the variables alone; a checkpoint has their velocity, too.
  std::int64_t variable_bytes() const {
    return layers * (data.rows * data.columns + 1) * units * 4;
  }
};

struct checkpointed_run {
  // From the first loss to the last but one: the last is told once the checkpoint of the end is
  // written.
  double seconds = 0;
  double write_seconds = 0;  // of the first checkpoint, from its folder to its manifest
  double bytes = 0;
};

// Watches the folder of a job for its first checkpoint.
class checkpoint_watch {
 public:
  explicit checkpoint_watch(std::string folder) : folder_(std::move(folder)) {}

  void look() {
    if (ended_) return;
    std::error_code failed;
    if (!began_) {
      for (std::filesystem::directory_iterator at(folder_, failed), end; !failed && at != end;
           at.increment(failed))
        if (at->path().filename().native().starts_with("step-"))
          path_ = at->path(), began_ = std::chrono::steady_clock::now();
    }
    if (began_ && std::filesystem::exists(path_ / "manifest.json", failed))
      ended_ = std::chrono::steady_clock::now();
  }

  std::optional<double> seconds() const {
    if (!began_ || !ended_) return std::nullopt;
    return std::chrono::duration<double>(*ended_ - *began_).count();
  }
  double bytes() const {
    double sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      sum += static_cast<double>(entry.file_size());
    return sum;
  }

 private:
  std::string folder_;
  std::filesystem::path path_;
  std::optional<std::chrono::steady_clock::time_point> began_, ended_;
};

result<checkpointed_run> train(session& s, const checkpoint_case& c, bool has_checkpoint) {
  std::error_code ignored;
  std::filesystem::remove_all(c.folder, ignored);
  graph g(s.ops());
  const auto batch = idx_batch(g, c.data, {.batch = 16});
  std::optional<value> loss;
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto part = softmax_cross_entropy(
        dense(batch.images, c.units, fmt::format("layer_{}", i)), batch.labels, batch.scale);
    loss = loss ? add(*loss, part) : part;
  }
  training_options options{
      .steps = c.steps, .on_failure = failure_policy::resume, .compile = {.name = "checkpointed"}};
  if (has_checkpoint) {
    options.checkpoints.folder = c.folder;
    options.checkpoints.every_steps = c.every;
    options.checkpoints.keep = 2;
  }
  auto run = s.train(g, *loss, options);
  if (!run) return run.error();

  checkpoint_watch watch(c.folder + "/checkpointed");
  std::optional<std::chrono::steady_clock::time_point> first;
  std::uint64_t losses = 0;
  checkpointed_run out;
  while (const auto event = (*run)->next(std::chrono::milliseconds(5))) {
    if (has_checkpoint) watch.look();
    if (event->type == training_event::kind::failed) return error(error_code::failed, event->text);
    // A checkpoint that was given up.
    if (event->type == training_event::kind::note) return error(error_code::failed, event->text);
    if (event->type != training_event::kind::loss) continue;
    if (!first) first = std::chrono::steady_clock::now();
    if (++losses < c.steps) out.seconds = seconds_since(*first);
  }
  if (!has_checkpoint) return out;
  const auto seconds = watch.seconds();
  if (!seconds) return error(error_code::failed, "no checkpoint was made while it trained");
  out.write_seconds = *seconds;
  out.bytes = watch.bytes();
  return out;
}

// As dd conv=fsync does it.
result<double> write_plainly(const std::string& path, double bytes) {
  const std::vector<char> block(std::size_t{1} << 20, 'x');
  const auto began = std::chrono::steady_clock::now();
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  bool is_written = fd >= 0;
  for (double done = 0; is_written && done < bytes; done += static_cast<double>(block.size()))
    is_written = ::write(fd, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  is_written = is_written && ::fsync(fd) == 0;
  const auto seconds = seconds_since(began);
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());
  if (!is_written) return error(error_code::failed, "cannot write " + path);
  return bytes / seconds * 1e-9;
}

}  // namespace

result<void> bench_checkpoint(const bench_options& o, bench_report& report) {
  bench_folder folder;
  const auto path = folder.path();
  if (!path) return path.error();
  if (auto written = write_synthetic_images(*path, {.train = 1'000, .test = 10}); !written)
    return written;
  const auto info = open_idx(*path, /*test=*/false);
  if (!info) return info.error();
  auto s = session::open({});
  if (!s) return s.error();
  const checkpoint_case c{*info, o.is_quick ? 100 : 80'000, 84, 50, *path + "/checkpoints"};

  double bytes = 0;
  std::vector<double> rates;
  auto figures =
      take_turns(std::min(o.runs, runs_max),
                 {[&]() -> result<double> {
                    const auto run = train(**s, c, true);
                    if (!run) return run.error();
                    bytes = run->bytes;
                    rates.push_back(run->bytes / run->write_seconds * 1e-9);
                    return double(c.steps - 2) / run->seconds;
                  },
                  [&]() -> result<double> {
                    const auto run = train(**s, c, false);
                    return run ? result<double>(double(c.steps - 2) / run->seconds) : run.error();
                  },
                  [&] { return write_plainly(*path + "/plain", bytes); }});
  if (!figures) return figures.error();
  rates.erase(rates.begin());  // of the turn that does not count
  const auto size = fmt::format("{:.2g} GB of variables", double(c.variable_bytes()) * 1e-9);
  report.add({"checkpoint", size + ", one while it trains", "steps/s", (*figures)[0], 0,
              "the same without", (*figures)[1], bench_ratio::ours_to_baseline, ">= 0.9"});
  report.add({"checkpoint", size + ", written", "GB/s", rates, 0, "write, fsync", (*figures)[2],
              bench_ratio::ours_to_baseline, ""});
  return {};
}

}  // namespace troupe
