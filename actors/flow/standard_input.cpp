#include "troupe/runtime/flow/file_stages.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace troupe {
namespace {

constexpr std::size_t line_bytes_max = std::size_t{16} << 20;
constexpr int wait_ms = 20;  // so that a topology that is stopped, or placed anew, waits no longer

class stdin_stage final : public stage {
 public:
  bool take(std::uint32_t, any_value&&, stage_output&) override { return false; }

  source_state produce(stage_output& out) override {
    for (auto end = buffer_.find('\n', searched_); end == std::string::npos;
         end = buffer_.find('\n', searched_)) {
      searched_ = buffer_.size();
      if (has_ended_) return last(out);
      if (buffer_.size() - begin_ > line_bytes_max) {
        out.fail({error_code::failed,
                  fmt::format("standard input: a line of more than {} bytes", line_bytes_max)});
        return source_state::over;
      }
      pollfd in{STDIN_FILENO, POLLIN, 0};
      if (::poll(&in, 1, wait_ms) <= 0) return source_state::more;
      char bytes[1 << 16];
      const auto n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) return source_state::more;
      if (n < 0) {
        out.fail({error_code::failed, fmt::format("standard input: {}", std::strerror(errno))});
        return source_state::over;
      }
      has_ended_ = n == 0;
      buffer_.erase(0, begin_);
      searched_ -= begin_;
      begin_ = 0;
      buffer_.append(bytes, static_cast<std::size_t>(n));
    }
    const auto end = buffer_.find('\n', searched_);
    give(end, out);
    begin_ = searched_ = end + 1;
    return source_state::more;
  }

 private:
  source_state last(stage_output& out) {
    if (begin_ < buffer_.size()) give(buffer_.size(), out);
    return source_state::over;
  }
  void give(std::size_t end, stage_output& out) {
    auto n = end - begin_;
    if (n > 0 && buffer_[end - 1] == '\r') --n;
    out.put(0, any_value(buffer_.substr(begin_, n)));
  }
  std::string buffer_;
  std::size_t begin_ = 0, searched_ = 0;
  bool has_ended_ = false;
};

}  // namespace

flow<std::string> read_stdin(flow_graph& t, source_location where) {
  stage_info info;
  info.kind = "read_stdin";
  info.where = where;
  info.may_block = true;
  info.make = [] { return std::unique_ptr<stage>(std::make_unique<stdin_stage>()); };
  return {t, add_source(t, std::move(info)), 0};
}

}  // namespace troupe
