#include "troupe/actors/session/event_file.hpp"

#include "troupe/actors/session/crc32c.hpp"
#include "troupe/runtime/text/printable.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

namespace troupe {
namespace {

constexpr std::chrono::seconds flush_interval{1};
constexpr std::size_t flush_bytes = std::size_t{64} << 10;  // a call of the system for some 1,300

void put_bytes_of(std::string& to, std::uint64_t n, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>((n >> (8 * i)) & 0xff);
}

// The encoding of protocol buffers (https://protobuf.dev/programming-guides/encoding): a field is
// its number and the kind of what follows, then that. Few kinds and a dozen fields are needed, so
// there is no generated code, and no library.
class message_bytes {
 public:
  message_bytes& integer(std::uint32_t field, std::uint64_t n) {
    key(field, 0);
    varint(n);
    return *this;
  }
  message_bytes& number(std::uint32_t field, double x) {
    key(field, 1);
    put_bytes_of(bytes_, std::bit_cast<std::uint64_t>(x), 8);
    return *this;
  }
  message_bytes& number(std::uint32_t field, float x) {
    key(field, 5);
    put_bytes_of(bytes_, std::bit_cast<std::uint32_t>(x), 4);
    return *this;
  }
  message_bytes& text(std::uint32_t field, std::string_view bytes) {
    key(field, 2);
    varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  message_bytes& message(std::uint32_t field, const message_bytes& m) {
    return text(field, m.bytes_);
  }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  void key(std::uint32_t field, std::uint32_t kind) { varint(field << 3 | kind); }
  void varint(std::uint64_t n) {
    for (; n >= 0x80; n >>= 7) bytes_ += static_cast<char>((n & 0x7f) | 0x80);
    bytes_ += static_cast<char>(n);
  }

  std::string bytes_;
};

// Fields, by their numbers in event.proto, summary.proto, tensor.proto and tensor_shape.proto.
message_bytes event_bytes(event_file::clock::time_point at) {
  return message_bytes().number(1, std::chrono::duration<double>(at.time_since_epoch()).count());
}
message_bytes event_bytes(event_file::clock::time_point at, std::uint64_t step) {
  return event_bytes(at).integer(2, step);
}
message_bytes version_event() {
  return event_bytes(event_file::clock::now()).text(3, "brain.Event:2");
}
message_bytes start_event(event_file::clock::time_point at, std::uint64_t step) {
  constexpr std::uint64_t start_of_session = 1;
  return event_bytes(at, step).message(7, message_bytes().integer(1, start_of_session));
}
message_bytes scalar_event(event_file::clock::time_point at, std::uint64_t step,
                           std::string_view tag, float x) {
  return event_bytes(at, step).message(
      5, message_bytes().message(1, message_bytes().text(1, tag).number(2, x)));
}
message_bytes text_event(event_file::clock::time_point at, std::uint64_t step, std::string_view tag,
                         std::string_view text) {
  constexpr std::uint64_t string_type = 7, tensor_class = 2;
  const auto shape = message_bytes().message(2, message_bytes().integer(1, 1));  // [1]
  const auto tensor = message_bytes().integer(1, string_type).message(2, shape).text(8, text);
  const auto shown_by =
      message_bytes().message(1, message_bytes().text(1, "text")).integer(4, tensor_class);
  const auto value = message_bytes().text(1, tag).message(8, tensor).message(9, shown_by);
  return event_bytes(at, step).message(5, message_bytes().message(1, value));
}

void put_masked(std::string& to, std::string_view of) {
  const auto c = crc32c(of);
  put_bytes_of(to, (c >> 15 | c << 17) + 0xa282ead8U, 4);
}

std::string record_of(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 16);
  put_bytes_of(out, data.size(), 8);
  put_masked(out, out);
  out += data;
  put_masked(out, data);
  return out;
}

float as_f32(double x) {
  constexpr auto most = static_cast<double>(std::numeric_limits<float>::max());
  if (std::isfinite(x) && std::abs(x) > most)  // else not defined
    return std::copysign(std::numeric_limits<float>::infinity(), x < 0 ? -1.0F : 1.0F);
  return static_cast<float>(x);
}

result<void> check_tag(std::string_view tag) {
  const auto refuse = [&](std::string_view why) {
    return error(error_code::usage, fmt::format("tag '{}': {}", shown(tag), why));
  };
  if (tag.empty()) return refuse("it is empty: name what is added, as 'loss'");
  if (tag.size() > event_file::tag_bytes_max)
    return refuse(
        fmt::format("it has {} bytes, and at most {}", tag.size(), event_file::tag_bytes_max));
  // Readers give up a file with such a tag as a whole.
  if (!is_utf8(tag)) return refuse("it is no UTF-8");
  return {};
}

// As it stands in the name of a file.
std::string host_in_name() {
  char name[256] = {};
  std::string out = ::gethostname(name, sizeof name - 1) == 0 ? name : "";
  for (auto& c : out)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return out.empty() ? "localhost" : out;
}

error cannot_make_events(std::string_view what, const std::string& path, int number) {
  const bool is_place = number == ENOTDIR || number == EEXIST || number == EACCES ||
                        number == EPERM || number == EROFS || number == ELOOP ||
                        number == ENAMETOOLONG;
  return {number == ENOENT ? error_code::not_found
          : is_place       ? error_code::usage
                           : error_code::failed,
          fmt::format("cannot make the {} {}: {}; {}", what, path, std::strerror(number),
                      is_place || number == ENOENT ? "give a folder that can be written"
                                                   : "make room there, or give another folder")};
}

}  // namespace

bool is_kept(std::uint64_t n) noexcept {
  const auto doubled = std::bit_width(n >> 20);
  return (n & ((std::uint64_t{1} << doubled) - 1)) == 0;
}

result<std::unique_ptr<event_file>> event_file::open(const std::string& folder) {
  if (folder.empty())
    return error(error_code::usage, "the name of the folder for TensorBoard is empty");
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return cannot_make_events("folder", folder, failed.value());
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(clock::now().time_since_epoch()).count();
  const auto name = fmt::format("events.out.tfevents.{:010}.{}.{}", seconds, host_in_name(),
                                static_cast<int>(::getpid()));
  constexpr int files_of_a_second_max = 1000;
  int file = -1;
  std::string path;
  for (int i = 0; file < 0 && i < files_of_a_second_max; ++i) {
    path =
        (std::filesystem::path(folder) / (i == 0 ? name : fmt::format("{}.{}", name, i))).string();
    file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno != EEXIST && errno != EINTR) break;
  }
  if (file < 0) return cannot_make_events("file", path, errno);
  std::unique_ptr<event_file> out(new event_file(file, path));
  auto begun = out->add(version_event().bytes());
  if (begun) begun = out->flush();
  if (begun) return out;
  out->waiting_.clear();
  ::unlink(path.c_str());
  return std::move(begun.error());
}

event_file::~event_file() {
  if (file_ < 0) return;
  // Who wants to know has called close().
  [[maybe_unused]] const auto written = flush();
  ::close(file_);
}

result<void> event_file::begin_at(std::uint64_t step, clock::time_point at) {
  return add(start_event(at, step).bytes());
}

result<void> event_file::add_scalar(std::string_view tag, std::uint64_t step, double value,
                                    clock::time_point at) {
  if (auto ok = check_tag(tag); !ok) return ok;
  return add(scalar_event(at, step, tag, as_f32(value)).bytes());
}

result<void> event_file::add_text(std::string_view tag, std::uint64_t step, std::string_view text,
                                  clock::time_point at) {
  if (auto ok = check_tag(tag); !ok) return ok;
  if (text.size() > text_bytes_max)
    return error(error_code::usage, fmt::format("tag '{}': a text of {} bytes, and at most {}",
                                                shown(tag), text.size(), text_bytes_max));
  if (is_utf8(text)) return add(text_event(at, step, tag, text).bytes());
  std::string mended;
  for (std::size_t from = 0; from <= text.size();) {
    const auto end = std::min(text.find('\n', from), text.size());
    mended += printable(text.substr(from, end - from));
    if (end < text.size()) mended += '\n';
    from = end + 1;
  }
  return add(text_event(at, step, tag, mended).bytes());
}

result<void> event_file::add(std::string_view event) {
  if (file_ < 0) return error(error_code::usage, fmt::format("{} is closed", path_));
  const auto bytes = record_of(event);
  const bool has_room = waiting_.size() + bytes.size() <= waiting_bytes_max;
  if (has_room) waiting_ += bytes;
  // A disk that refuses is asked once a second, not for each number.
  auto written = !is_failing_ && waiting_.size() >= flush_bytes ? flush() : flush_if_due();
  if (has_room) return written;
  if (written && waiting_.size() + bytes.size() <= waiting_bytes_max) {
    waiting_ += bytes;
    return written;
  }
  has_lost_ = true;
  if (!written) return written;
  return error(error_code::failed,
               fmt::format("{} lacks what was added: {} bytes wait for room on its disk", path_,
                           waiting_.size()));
}

result<void> event_file::flush_if_due() {
  if (waiting_.empty() || std::chrono::steady_clock::now() - tried_ < flush_interval) return {};
  return flush();
}

result<void> event_file::flush() {
  if (file_ < 0) return {};
  tried_ = std::chrono::steady_clock::now();
  std::size_t done = 0;
  int number = 0;
  while (done < waiting_.size() && number == 0) {
    const auto n = ::write(file_, waiting_.data() + done, waiting_.size() - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else if (n == 0)
      number = ENOSPC;  // no system does so
    else if (errno != EINTR)
      number = errno;
  }
  waiting_.erase(0, done);
  is_failing_ = number != 0;
  if (is_failing_) return cannot_write(number);
  return {};
}

result<void> event_file::close() {
  if (file_ < 0) return {};
  auto ended = flush();
  // Linux has closed it even where a signal interrupted the call.
  if (::close(std::exchange(file_, -1)) != 0 && errno != EINTR && ended)
    ended = cannot_write(errno);
  if (ended && has_lost_)
    return error(error_code::failed,
                 fmt::format("{} lacks a part of what was added, since its disk was "
                             "full or broken meanwhile",
                             path_));
  return ended;
}

error event_file::cannot_write(int number) const {
  return {error_code::failed,
          fmt::format("cannot write {}: {}; make room there, and what waits will be "
                      "written",
                      path_, std::strerror(number))};
}

}  // namespace troupe
