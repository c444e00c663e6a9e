#include "troupe/actors/session/record_file.hpp"

#include "troupe/runtime/text/printable.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>

namespace troupe {

namespace {

constexpr auto record_retry_interval = std::chrono::seconds(1);
constexpr std::size_t record_line_max = std::size_t{64} << 10;  // longer ones are not ours
constexpr std::string_view csv_head =
    "step,time,loss,learning_rate,samples_per_second,recoveries,metric,value\n";
constexpr std::string_view json_begin = "{\"step\":", json_recoveries = "\"recoveries\":";

std::string record_time(record_file::clock::time_point at) {
  using namespace std::chrono;
  const auto ms = floor<milliseconds>(at);
  const auto day = floor<days>(ms);
  const year_month_day date(day);
  const hh_mm_ss time(ms - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", int(date.year()),
                     unsigned(date.month()), unsigned(date.day()), time.hours().count(),
                     time.minutes().count(), time.seconds().count(), time.subseconds().count());
}

// f32 comes back from nine digits.
std::string csv_number(const std::optional<double>& x) {
  if (!x) return {};
  if (std::isnan(*x)) return "nan";
  if (std::isinf(*x)) return *x > 0 ? "inf" : "-inf";
  return fmt::format("{:.9g}", *x);
}
std::string json_number(double x) {
  return std::isfinite(x) ? fmt::format("{:.9g}", x) : std::string("null");
}

std::string json_text(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// RFC 4180.
std::string csv_text(const std::string& text) {
  const auto shown = printable(text);
  if (shown.find_first_of(",\"") == std::string::npos) return shown;
  std::string out = "\"";
  for (const char c : shown) {
    out += c;
    if (c == '"') out += c;
  }
  return out + '"';
}

// Lines that end, with where they begin, until `look` says false. 0 or errno; `end`: where the last
// whole line ends.
int each_line(int file, const std::function<bool(std::string_view line, off_t at)>& look,
              off_t& end) {
  std::string held;
  std::array<char, std::size_t{64} << 10> buffer{};
  off_t begins = 0, read_to = 0;
  end = 0;
  for (;;) {
    const auto n = ::pread(file, buffer.data(), buffer.size(), read_to);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return 0;
    read_to += n;
    std::string_view piece(buffer.data(), static_cast<std::size_t>(n));
    while (!piece.empty()) {
      const auto at = piece.find('\n');
      const auto length = at == std::string_view::npos ? piece.size() : at + 1;
      if (held.size() < record_line_max) held += piece.substr(0, length);
      begins += static_cast<off_t>(length);
      piece.remove_prefix(length);
      if (at == std::string_view::npos) continue;
      if (!look(held, end)) return 0;
      end = begins;
      held.clear();
    }
  }
}

}  // namespace

result<std::unique_ptr<record_file>> record_file::open(const std::string& path) {
  const bool is_csv = path.ends_with(".csv");
  if (!is_csv && !path.ends_with(".jsonl"))
    return error(
        error_code::usage,
        fmt::format("'{}' is no name of a record: it ends with .jsonl or .csv", shown(path)));
  const int file = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) {
    const int number = errno;
    const bool is_place = number == EACCES || number == EISDIR || number == EROFS ||
                          number == EPERM || number == ENOTDIR || number == ELOOP ||
                          number == ENAMETOOLONG;
    return error(number == ENOENT ? error_code::not_found
                 : is_place       ? error_code::usage
                                  : error_code::failed,
                 fmt::format("cannot write {}: {}; give a file in a folder that is there and may "
                             "be written",
                             shown(path), std::strerror(number)));
  }
  std::unique_ptr<record_file> out(new record_file(file, path, is_csv));
  if (auto ok = out->look_at_what_is_there(); !ok) return std::move(ok.error());
  return out;
}

// RF-1; and nobody's file is overwritten that is another one.
result<void> record_file::look_at_what_is_there() {
  struct stat s{};
  if (::fstat(file_, &s) != 0) return cannot_write(errno);
  // A pipe, or /dev/null: nothing is there, and nothing goes on.
  is_regular_ = S_ISREG(s.st_mode);
  if (!is_regular_) return {};
  // RF-4. A file system that has no such locks refuses in another way.
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return error(error_code::usage,
                 fmt::format("{} is being written by another training: give another name, or wait "
                             "for its end",
                             shown(path_)));
  if (::fstat(file_, &s) != 0) return cannot_write(errno);  // as it is now that we have it
  bool is_ours = true, is_first = true;
  off_t end = 0;
  const int number = each_line(
      file_,
      [&](std::string_view line, off_t) {
        if (std::exchange(is_first, false))
          is_ours = is_csv_ ? line == csv_head : step_of(line).has_value();
        if (const auto step = step_of(line); step && !is_result(line)) {
          apart_ = last_step_ && *step > *last_step_ ? *step - *last_step_ : 1;
          last_step_ = *step;
        }
        return is_ours;
      },
      end);
  if (number != 0) return cannot_write(number);
  // A crash may have left a part of the first line.
  if (is_first && s.st_size > 0) {
    std::string begun(csv_head.size(), '\0');
    const auto n = ::pread(file_, begun.data(), begun.size(), 0);
    begun.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    const auto whole = is_csv_ ? csv_head : json_begin;
    const auto common = std::min(begun.size(), whole.size());
    is_ours = begun.substr(0, common) == whole.substr(0, common);
  }
  if (!is_ours)
    return error(error_code::usage,
                 fmt::format("{} is there, and is no record of a training: give another name",
                             shown(path_)));
  if (end < s.st_size && ::ftruncate(file_, end) != 0) return cannot_write(errno);
  if (end == 0 && is_csv_) waiting_ = csv_head;
  return {};
}

record_file::~record_file() {
  if (file_ < 0) return;
  // Who wants to know has called close().
  [[maybe_unused]] const auto written = flush();
  ::close(file_);
}

std::optional<std::uint64_t> record_file::step_of(std::string_view line) const {
  if (!is_csv_) {
    if (!line.starts_with(json_begin)) return std::nullopt;
    line.remove_prefix(json_begin.size());
  }
  std::uint64_t step = 0;
  const auto* end = line.data() + line.size();
  const auto [rest, failure] = std::from_chars(line.data(), end, step);
  if (failure != std::errc() || rest == end || *rest != ',') return std::nullopt;
  return step;
}

// A line of a metric: something stands behind the recoveries.
bool record_file::is_result(std::string_view line) const {
  if (is_csv_) {
    for (int comma = 0; comma < 6; ++comma) {
      const auto at = line.find(',');
      if (at == std::string_view::npos) return false;
      line.remove_prefix(at + 1);
    }
    return !line.starts_with(',');
  }
  const auto at = line.find(json_recoveries);
  if (at == std::string_view::npos) return false;
  const auto behind = line.find_first_not_of("0123456789", at + json_recoveries.size());
  return behind != std::string_view::npos && line[behind] == ',';
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> record_file::lacking_before(
    std::uint64_t step) const {
  if (!last_step_ || step <= *last_step_ || step - *last_step_ <= apart_) return std::nullopt;
  return std::pair(*last_step_ + 1, step - 1);
}

result<void> record_file::begin_at(std::uint64_t step) {
  if (file_ < 0) return error(error_code::usage, fmt::format("{} is closed", path_));
  // What waits first: a full disk does not keep it from going.
  std::size_t at = 0;
  while (at < waiting_.size()) {
    const auto of = step_of(std::string_view(waiting_).substr(at));
    const bool is_begun = at == 0 && begun_ > 0;
    if (of && *of >= step && !(is_begun && !is_regular_)) break;
    at = waiting_.find('\n', at) + 1;
  }
  waiting_.resize(at);
  if (at == 0) begun_ = 0;
  if (!is_regular_) return {};
  cut_from_ = std::min(step, cut_from_.value_or(step));
  return cut();
}

result<void> record_file::begin_behind_losses() {
  if (file_ < 0) return error(error_code::usage, fmt::format("{} is closed", path_));
  if (!is_regular_) return {};
  cuts_results_ = true;
  return cut();
}

// RF-2. What fails is tried again by each flush, before anything is written behind it.
result<void> record_file::cut() {
  if (!cut_from_ && !cuts_results_) return {};
  tried_ = std::chrono::steady_clock::now();
  std::optional<off_t> results, later;
  off_t end = 0;
  int number = each_line(
      file_,
      [&](std::string_view line, off_t at) {
        const auto of = step_of(line);
        if (of && cut_from_ && *of >= *cut_from_) later = at;
        if (!is_result(line) || !of)
          results.reset();
        else if (!results)
          results = at;
        return !later;
      },
      end);
  // The part of a line whose rest does not wait any more.
  auto keep = begun_ == 0 ? std::optional(end) : std::nullopt;
  if (later) keep = later;
  if (cuts_results_ && results && begun_ == 0) keep = results;
  if (number == 0 && keep && ::ftruncate(file_, *keep) != 0) number = errno;
  is_failing_ = number != 0;
  if (is_failing_) return cannot_write(number);
  cut_from_.reset();
  cuts_results_ = false;
  return {};
}

std::string record_file::line_of(const record_row& row, clock::time_point at) const {
  const auto time = record_time(at);
  if (is_csv_)
    return fmt::format("{},{},{},{},{},{},{},{}\n", row.step, time, csv_number(row.loss),
                       csv_number(row.learning_rate), csv_number(row.samples_per_second),
                       row.recoveries, csv_text(row.metric),
                       row.metric.empty() ? std::string() : csv_number(row.value));
  auto line = fmt::format("{}{},\"time\":\"{}\"", json_begin, row.step, time);
  const auto put = [&](std::string_view key, const std::optional<double>& x) {
    if (x) line += fmt::format(",\"{}\":{}", key, json_number(*x));
  };
  put("loss", row.loss);
  put("learning_rate", row.learning_rate);
  put("samples_per_second", row.samples_per_second);
  line += fmt::format(",{}{}", json_recoveries, row.recoveries);
  if (!row.metric.empty())
    line += fmt::format(",\"{}\":{}", json_text(row.metric), json_number(row.value));
  return line + "}\n";
}

result<void> record_file::add(const record_row& row, clock::time_point at) {
  if (file_ < 0) return error(error_code::usage, fmt::format("{} is closed", path_));
  const auto line = line_of(row, at);
  const auto fits = [&] { return waiting_.size() + line.size() <= waiting_bytes_max; };
  const bool has_room = fits();
  if (has_room) waiting_ += line;
  // A disk that refuses is asked once a second, not for each number.
  auto written = is_failing_ ? flush_if_due() : flush();
  if (has_room) return written;
  if (written && fits()) {
    waiting_ += line;
    return written;
  }
  has_lost_ = true;
  if (!written) return written;
  return error(error_code::failed,
               fmt::format("{} lacks what was added: {} bytes wait for room on its disk", path_,
                           waiting_.size()));
}

result<void> record_file::flush_if_due() {
  const bool has_something = !waiting_.empty() || cut_from_ || cuts_results_;
  if (!has_something || std::chrono::steady_clock::now() - tried_ < record_retry_interval)
    return {};
  return flush();
}

result<void> record_file::flush() {
  if (file_ < 0) return {};
  if (auto ok = cut(); !ok) return ok;
  tried_ = std::chrono::steady_clock::now();
  int number = 0;
  while (begun_ < waiting_.size() && number == 0) {
    const auto n = ::write(file_, waiting_.data() + begun_, waiting_.size() - begun_);
    if (n > 0)
      begun_ += static_cast<std::size_t>(n);
    else if (n == 0)
      number = ENOSPC;  // no system does so
    else if (errno != EINTR)
      number = errno;
  }
  // A line that is begun waits whole: begin_at() may take it back.
  const auto last = begun_ == 0 ? std::string::npos : waiting_.rfind('\n', begun_ - 1);
  const auto lines = last == std::string::npos ? 0 : last + 1;
  waiting_.erase(0, lines);
  begun_ -= lines;
  is_failing_ = number != 0;
  if (is_failing_) return cannot_write(number);
  return {};
}

result<void> record_file::close() {
  if (file_ < 0) return {};
  auto ended = flush();
  // Linux has closed it even where a signal interrupted the call.
  if (::close(std::exchange(file_, -1)) != 0 && errno != EINTR && ended)
    ended = cannot_write(errno);
  if (ended && has_lost_)
    return error(error_code::failed,
                 fmt::format("{} lacks a part of what was added, since its disk was full or broken "
                             "meanwhile",
                             path_));
  return ended;
}

error record_file::cannot_write(int number) const {
  return {error_code::failed, fmt::format("cannot write {}: {}; make room there, and what waits "
                                          "will be written",
                                          path_, std::strerror(number))};
}

}  // namespace troupe
